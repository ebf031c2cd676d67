"""Which kernels the library runs on this CPU, role by role, and why.

The choice is made in `src/targets/host/kernels/choice.cc`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from ort_aie_ep import _native

_BY = {"rule": "by rules", "measured": "measured on {}", "forced": "{}"}


@dataclass(frozen=True)
class Chosen:
    """The kernels chosen for a role.

    Attributes:
        role: what the kernels do.
        variant: which kernels do it.
        origin: how they were chosen: "rule", "measured" (by `ort-aie tune`) or "forced".
        why: the basis of the rule, the date of the measurement, or what forced the choice.
    """

    role: str
    variant: str
    origin: str
    why: str


def chosen_kernels() -> tuple[Chosen, ...]:
    """The kernels that the library runs in this process."""
    return tuple(Chosen(*fields) for fields in _native.kernel_choice())


@dataclass(frozen=True)
class Tried:
    """What sessions tried for a role, on their own work, with up to so many threads.

    Attributes:
        role: what the kernels do.
        threads: how many took part, rounded up to a power of two.
        variant: which kernels a session uses after its first trial, which tells it its threads.
        samples: how many trials are kept, of all candidates.
        time: the variant's time as a share of the rule's, in the median; 1 if it is the rule's.
    """

    role: str
    threads: int
    variant: str
    samples: int
    time: float


def tried_kernels() -> tuple[Tried, ...]:
    """What earlier processes kept of their trials, for the roles that are still the rules'; nothing
    if the environment switches trials off."""
    if os.environ.get("ORT_AIE_TUNE") == "off":
        return ()
    return tuple(
        Tried(role, threads, variant, samples, time / 1000)
        for role, threads, variant, samples, time in _native.kernel_samples()
    )


def this_cpu_by_rule() -> tuple[Chosen, ...]:
    """The kernels that the library would run without a measurement and without a forced table."""
    return tuple(Chosen(*fields) for fields in _native.kernel_rules_here())


def kernels_line(chosen: Iterable[Chosen], tried: Iterable[Tried] = ()) -> str:
    """A choice in one line: "avx512 (rows, int8; lookups), avx2 (one row, int8); by rules"; with
    what trials put in its place."""
    roles: dict[str, list[str]] = {}
    origins: dict[str, None] = {}
    by_role: dict[str, str] = {}
    for one in chosen:
        by_role[one.role] = one.variant
        roles.setdefault(one.variant, []).append(one.role)
        origins[_BY[one.origin].format(one.why)] = None
    for found in tried:
        if found.variant != by_role.get(found.role):
            origins[f"by trials {found.variant} ({found.role}; {found.threads} threads)"] = None
    if len(roles) == 1:
        kernels = next(iter(roles))
    else:
        kernels = ", ".join(f"{variant} ({'; '.join(r)})" for variant, r in roles.items())
    return f"{kernels}; {', '.join(origins)}"
