"""The conditions of a measurement: the CPU, the date, the command, the versions."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ort_aie_ep.explain.machine import cpu_model

# The flags in /proc/cpuinfo that kernels of ort_aie_ep or of a peer check.
_FEATURES = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512vbmi", "avx512_bf16", "avx512_fp16",
    "amx_int8", "amx_bf16",
)  # fmt: skip
AMX = "amx_bf16"


@dataclass(frozen=True)
class Machine:
    """A machine as its kernel describes it; unknown fields are empty.

    Attributes:
        cpu: the CPU's name.
        identity: vendor, family, model and stepping, which distinguish CPUs with the same name.
        features: instruction sets that matter here.
        cores: cores that the kernel has.
        caches: such as "L1d 48K, L2 1024K, L3 32768K": one core's caches, and those it shares.
        memory: bytes.
        virtual: whether it runs under a hypervisor.
        system: the kernel and its release.
    """

    cpu: str
    identity: str
    features: tuple[str, ...]
    cores: int
    caches: str
    memory: int
    virtual: bool
    system: str

    @property
    def amx(self) -> bool:
        """Whether the CPU has tile registers."""
        return AMX in self.features

    def rows(self) -> list[tuple[str, str]]:
        """The machine as a table with two columns."""
        return [
            ("CPU", f"{self.cpu} ({self.identity})" if self.identity else self.cpu),
            ("instructions", " ".join(self.features)),
            ("cores", f"{self.cores}{', virtual' if self.virtual else ''}"),
            ("caches", self.caches),
            ("memory", f"{self.memory / 1e9:.0f} GB" if self.memory else ""),
            ("system", self.system),
        ]


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        machine: where it ran.
        date: when it began, such as 2026-11-22.
        command: the command as typed, with MODEL and DIR for paths.
        model: the model's name and sizes.
        versions: versions of the measured software, by name.
        plan: rounds, tokens and starts, in words.
    """

    machine: Machine
    date: str
    command: str
    model: str
    versions: dict[str, str]
    plan: str


def machine(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Machine:
    """This machine; `proc` and `sys` are the roots to look under."""
    first: dict[str, str] = {}
    for line in _text(proc / "cpuinfo").split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        first[name.strip()] = value.strip()
    flags = set(first.get("flags", "").split())
    names = ("vendor_id", "cpu family", "model", "stepping")
    told = [first[name] for name in names if name in first]
    identity = ""
    if len(told) == len(names):
        identity = "{}, family {}, model {}, stepping {}".format(*told)
    memory = [line.split()[1] for line in _text(proc / "meminfo").splitlines()[:1]]
    return Machine(
        cpu=first.get("model name") or cpu_model(),
        identity=identity,
        features=tuple(name for name in _FEATURES if name in flags),
        cores=os.cpu_count() or 0,
        caches=", ".join(_caches(sys / "devices/system/cpu/cpu0/cache")),
        memory=int(memory[0]) << 10 if memory else 0,
        virtual="hypervisor" in flags,
        system=f"{platform.system()} {platform.release()}",
    )


def today() -> str:
    """Today's local date."""
    return datetime.now().astimezone().date().isoformat()


def _caches(folder: Path) -> list[str]:
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size:
            found.append(f"L{level}{'d' if kind == 'Data' else ''} {size}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
