"""What Peano, the compiler of the cores, is known to do wrong, and how a build keeps clear of it.

None of this was found on a chip by this project; each rule names who found it. "mlir-air" is its
`programming_examples/fused_decode` (Makefile, kernels) and `docs/DFlashFeasibility.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ort_aie_ep import _native

#: The kernels' sources lie beside the compiled parts of this package.
SOURCES = Path(_native.__file__).with_name("aie_kernels")


# --- versions -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WrongVersions:
    """Nightly builds, by date and commit, and what they do. `first` and `last` are inclusive."""

    first: str
    last: str
    commit: str
    what: str


WRONG_VERSIONS = (
    WrongVersions(
        "20260624", "20260707", "fdf257de",
        "loads the argument of a call too late, so that int -> float -> int is zero at -O2 "
        "(llvm-aie #1053 and #1056; mlir-air returned to nightly builds on 2026-07-08)",
    ),
    WrongVersions(
        "20260821", "20260821", "f3081197",
        "compiles a product and a look-up table in one source wrongly at -O2 (llvm-aie #1262)",
    ),
)  # fmt: skip


def wrong_version(version: str) -> str | None:
    """What is wrong with a version of Peano: that of its package (22.0.0.2026090201+a36c62b9), or
    what `clang++ --version` says, which names the commit alone. None if nothing is known."""
    dated = re.search(r"\b\d+\.\d+\.\d+\.(\d{8})\d{2}\b", version)
    for wrong in WRONG_VERSIONS:
        if wrong.commit in version or (dated and wrong.first <= dated[1] <= wrong.last):
            return wrong.what
    return None


# --- optimisation ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Level:
    """An optimisation level, and why a source is compiled at it."""

    option: str
    reason: str


_DEFAULT = Level(
    "-O2",
    "mlir-aie's driver compiles at -O2, and mlir-air requires it for products, norms and gates",
)
_LEVELS = {
    "rope.cc": Level("-O2", "at -O1 Peano compiles mlir-air's rope wrongly, and decoding hangs"),
    "gemm.cc": Level("-O2", "at -O1 a product that starts from loaded sums loses a lane"),
    "flow_kv.cc": Level(
        "-O2",
        "mlir-air's attention needs -O1 because at -O2 the last release of a lock leaves its loop; "
        "these kernels take no locks",
    ),
}
_LEVELS["flow_qkv.cc"] = _LEVELS["gemm.cc"]


def level(source: str) -> Level:
    """The level at which a kernel's source is compiled."""
    return _LEVELS.get(Path(source).name, _DEFAULT)


# --- sources --------------------------------------------------------------------------------------
#: Patterns of source code, and what comes of them.
_FORBIDDEN = {
    r"\bchess_\w+": "chess_* is nothing to Peano: a table aligned by chess_storage lies anywhere "
    "(mlir-aie #3045; mlir-air had garbage from its table of SiLU): use alignas",
    r"\bdo\s*\{": "a do-while moved a lock's release out of its loop at -O2 (mlir-air)",
    r"\b(?:acquire|release)\w*\s*\(": "kernels take no locks: Peano may move accesses across one "
    "that does not name its buffer (mlir-aie flm_gemma4/utils.h)",
    r"\bstatic\s+(?!constexpr|const\b|inline|_?assert)\w": "data that persists is compiled wrongly "
    "when it is read, changed and written (mlir-air, attn_kv.cc)",
    r"\basm\b": "inline assembly crashes Peano (mlir-aie, traps.md)",
    r"\bmem(?:cpy|set|move)\s*\(": "a call in a loop that could be pipelined (mlir-aie, traps.md)",
    r"\baie::neg\(": "Peano has no negation of bfloat16: subtract a product (mlir-air)",
}
_ARRAY = re.compile(
    r"(?P<before>[^;{}]*?)\b(?:bfloat16|float|u?int(?:8|16|32)(?:_t)?)\s+(?P<name>\w+)\s*\["
)
_ACCESS = r"\b(?:load_v|load_floats|store_v|begin_vector)\b(?:<[^;(]*?>)?\s*\(\s*{name}\b"
_ALIGNED = re.compile(r"alignas\(\s*(?:64|128|aie::vector_decl_align)\s*\)")


def source_mistakes(text: str) -> Iterator[str]:
    """What Peano would compile wrongly, or not at all, in a kernel's source: the line, and why.

    An array that is read or written as vectors must be aligned by alignas: a chip does not fault
    on an access that is not aligned, and the compiler gives an array the alignment of an element.
    """
    code = re.sub(r"//[^\n]*", "", text)
    for pattern, why in _FORBIDDEN.items():
        for found in re.finditer(pattern, code):
            yield f"line {_line(code, found.start())}: {found[0].strip()!r}: {why}"
    for array in _ARRAY.finditer(code):
        access = re.search(_ACCESS.format(name=array["name"]), code)
        if access and not _ALIGNED.search(array["before"]):
            yield (
                f"line {_line(code, array.start('name'))}: array {array['name']} is accessed as "
                "vectors and has no alignas(64); a 512-bit access clears the low six bits of its "
                "address (mlir-air)"
            )


def _line(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1


@cache
def mistakes_of(source: str) -> tuple[str, ...]:
    """`source_mistakes` of a shipped source and of the headers that it includes."""
    path = next(iter(SOURCES.rglob(Path(source).name)), None)
    if path is None:
        return ()
    text = path.read_text()
    found = [f"{path.name}, {mistake}" for mistake in source_mistakes(text)]
    for header in re.findall(r'#include "([^"]+)"', text):
        found += mistakes_of(header)
    return tuple(dict.fromkeys(found))
