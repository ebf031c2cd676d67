"""Which uses of the AIE API compile and what they return, as a list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aie_api_uses import PRELUDE, Use

LIST = Path(__file__).with_name("aie_api_signatures.txt")

# The errors of a source, by line; an error counts for each line that leads to it.
Diagnose = Callable[[str], Mapping[int, str]]
# What each use returns, in words.
Results = dict[Use, str]

# The result of a use if a library gives it a type without a name in the API.
OWN = "a type of its own"
HEAD = """\
# What the AIE API's headers have and the stand-in has too: uses, what they return, for which lanes.
# Written by `make real-headers AIE_API=DIR WRITE=1`; aie_api_uses.py has the uses.
"""
_FIRST = PRELUDE.count("\n") + 1  # the line after the prelude
_PLAIN = [
    (r"\b(const|struct|class)\s+|\s*(const\b)?\s*&|\baie::|\bstd::|\bmmul_\w+::", ""),
    (r"\bsigned char\b|\bint8_t\b", "int8"), (r"\bunsigned char\b|\buint8_t\b", "uint8"),
    (r"\bshort unsigned int\b|\bunsigned short\b", "uint16"), (r"\bshort int\b|\bshort\b", "int16"),
    (r"\blong unsigned int\b|\bunsigned long\b", "uint64"), (r"\bunsigned int\b", "uint32"),
    (r"\bint\b", "int32"), (r"aie_check::four_bits<int8>", "int4"),
    (r"aie_check::four_bits<uint8>", "uint4"), (r".*(\bdetail::|iterator).*", OWN),
    (r"\b(mmul<\d+, \d+, \d+)\b[^>]*>", r"\1>"),
    (r"\s+([>*])", r"\1"), (r"(\d)U\b", r"\1"),
]  # fmt: skip


def refused(uses: Iterable[Use], diagnose: Diagnose) -> set[Use]:
    """The uses that do not compile.

    A compiler reports an error in a template's instance only once, so a use may hide behind another
    that failed in the same place. Uses without an error are compiled once more, alone.
    """
    left = list(dict.fromkeys(uses))
    bad: set[Use] = set()
    while left:
        lines = (f"void use_{i}() {{ (void)({use.code}); }}" for i, use in enumerate(left))
        wrong = diagnose(PRELUDE + "\n".join(lines) + "\n")
        new = {use for i, use in enumerate(left) if _FIRST + i in wrong}
        if not new:
            break
        bad |= new
        left = [use for use in left if use not in new]
    return bad


def results(uses: Iterable[Use], diagnose: Diagnose) -> Results:
    """What each use returns, found by provoking an error that contains the type. Each must
    compile."""
    asked = list(uses)
    lines = (f"auto r{i} = sizeof(show<decltype({use.code})>);" for i, use in enumerate(asked))
    said = diagnose(PRELUDE + "\n".join(lines) + "\n")
    found = {}
    for i, use in enumerate(asked):
        text = re.search(r"show<(.*)>'", said.get(_FIRST + i, ""))
        if text is None:
            raise AssertionError(f"no type of {use.code}: {said.get(_FIRST + i)}")
        found[use] = in_words(text[1], use.lanes)
    return found


def in_words(type_name: str, lanes: int) -> str:
    """A type as a compiler prints it, without the differences between compilers."""
    for find, replace in _PLAIN:
        type_name = re.sub(find, replace, type_name)
    for name, factor in (("N", 1), ("2N", 2), ("4N", 4), ("8N", 8), ("N/2", 0.5), ("N/4", 0.25)):
        count = lanes * factor
        if count:
            type_name = re.sub(rf"\b{count:g}>", f"{name}>", type_name)
    return type_name.strip()


def write(found: Mapping[str, Results]) -> str:
    """The list of the uses in `found` for each architecture."""
    groups: dict[tuple[str, str], dict[int, list[str]]] = {}
    for architecture, uses in found.items():
        for use, result in uses.items():
            groups.setdefault((use.words, result), {}).setdefault(use.lanes, []).append(
                architecture
            )
    lines = []
    for (words, result), lanes in groups.items():
        of: dict[str, list[int]] = {}
        for count, architectures in lanes.items():
            of.setdefault("+".join(sorted(architectures)), []).append(count)
        for architectures, counts in of.items():
            where = f"; N = {' '.join(map(str, sorted(counts)))}" if any(counts) else ""
            lines.append(f"{architectures}: {words} -> {result}{where}")
    return HEAD + "\n".join(lines) + "\n"


def read() -> dict[str, dict[tuple[str, int], str]]:
    """The list: for each architecture, what a use, in words, returns with a number of lanes."""
    found: dict[str, dict[tuple[str, int], str]] = {}
    for line in LIST.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        architectures, rest = line.split(": ", 1)
        words, result = rest.rsplit(" -> ", 1)
        result, _, lanes = result.partition("; N = ")
        for architecture in architectures.split("+"):
            for count in map(int, lanes.split() or [0]):
                found.setdefault(architecture, {})[words, count] = result
    return found
