"""Debian's mlir-opt reads the printed text, with mlir-aie's dialects described in aie.irdl.mlir.

mlir-opt does not know these dialects. With the description, it checks each operation's required
attributes and the number and types of its operands and results. It also checks everything in func,
scf, arith and memref: types of calls, of loops and their carried values, and dominance.

IRDL cannot describe symbol tables, terminators, or regions without one, and accepts attributes only
where they were before properties existed. So the text is rewritten: `aie.device` becomes a module,
operations that end a block or need no end get an unknown dialect, and `<{..}>` moves after the
regions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

DESCRIPTION = Path(__file__).with_name("aie.irdl.mlir")
MLIR_OPT = os.environ.get("MLIR_OPT") or shutil.which("mlir-opt-19")
MISSING = "mlir-opt-19 is not on the PATH (Debian: mlir-19-tools); tests/check_mlir.sh installs it"

_HEAD = re.compile(r'^(\s*)(.*?"(?:aie|unknown)[\w.]*"\([^)]*\)) <\{(.*)\}> \(\{$')
_FLAT = re.compile(r'^(\s*)(.*?"[\w.]+"\([^)]*\)(?: \[[^]]*\])?) <\{(.*)\}>( : .*)$')
_PACKET = re.compile(r"#aie\.packet_info<([^>]*)>")


def readable(text: str) -> str:
    """`text`, written by a `Text`, in the form of IRDL's operations."""
    text = re.sub(r'"aie\.(end|next_bd|dma_start|runtime_sequence)"', r'"unknown.\1"', text)
    text = _PACKET.sub(r"{\1}", text)
    lines = []
    behind: list[str] = []  # attributes of the operations whose regions are open
    for line in text.splitlines():
        if line.endswith("({"):
            head = _HEAD.match(line)
            if head is None:
                behind.append("")
            elif '"aie.device"' in line:
                line = f'{head[1]}"builtin.module"() ({{'
                behind.append("")
            else:
                line = f"{head[1]}{head[2]} ({{"
                behind.append(f" {{{head[3]}}}")
        elif line.lstrip().startswith("})"):
            line = line.replace("})", "})" + behind.pop(), 1)
        elif flat := _FLAT.match(line):
            line = f"{flat[1]}{flat[2]} {{{flat[3]}}}{flat[4]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def refusal(text: str) -> str:
    """mlir-opt's errors for `text`; empty if it accepts it."""
    assert MLIR_OPT is not None
    command = [
        MLIR_OPT, "--allow-unregistered-dialect", f"--irdl-file={DESCRIPTION}", "-o", os.devnull,
    ]  # fmt: skip
    done = subprocess.run(
        command, input=readable(text), capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""
