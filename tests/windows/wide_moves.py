"""Aligned moves of 32 and 64 bytes to a stack that need not be aligned to them.

Windows aligns a function's stack to 16 bytes. MinGW's GCC nevertheless spills wider vectors with
aligned moves (GCC bug 54412), which fault, or not, by the stack's address. A function may use them
only if it aligns the stack itself: `and $-64, %rsp`.

What is checked is the text of `objdump -d`: moves whose address is relative to rsp or rbp. An
address of the stack that was copied into another register is not followed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_ALIGNED = re.compile(r"\t(vmov(?:ap[sd]|dqa(?:32|64)?|nt\w+)) .*%([yz])mm")
_STACK = re.compile(r"(-?0x[0-9a-f]+)?\(%r[sb]p[,)]")
_ALIGNS = re.compile(r"\tand +\$(0x[0-9a-f]+|-\d+),%rsp")
_WIDTHS = {"y": 32, "z": 64}


@dataclass(frozen=True)
class Function:
    """A function's aligned moves.

    Attributes:
        name: its symbol.
        wide: how many moves of more than 16 bytes it has, aligned or not, to any address.
        wrong: the aligned ones to a stack that it has not aligned, as objdump writes them.
    """

    name: str
    wide: int
    wrong: tuple[str, ...]


def functions(lines: Iterable[str]) -> Iterator[Function]:
    """The functions in the output of `objdump -d`."""
    name, wide, aligned, moves = "", 0, 16, list[tuple[int, str]]()

    def found() -> Iterator[Function]:
        wrong = tuple(text for width, text in moves if width > aligned)
        if name:
            yield Function(name, wide, wrong)

    for line in lines:
        if start := _FUNCTION.match(line):
            yield from found()
            name, wide, aligned, moves = start[1], 0, 16, []
        elif aligning := _ALIGNS.search(line):
            mask = int(aligning[1], 0)
            aligned = max(aligned, -mask if mask < 0 else (1 << 64) - mask)
        elif "\tvmov" in line and ("%ymm" in line or "%zmm" in line):
            wide += 1
            move = _ALIGNED.search(line)
            if move and _STACK.search(line):
                moves.append((_WIDTHS[move[2]], line.split("\t")[-1].strip()))
    yield from found()


def disassembled(file: Path) -> list[Function]:
    """The functions of an object file or of each in an archive."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = list(functions(line.rstrip("\n") for line in process.stdout))
    assert process.returncode == 0, f"{command} failed"
    return found
