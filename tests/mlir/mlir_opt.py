"""Debian's mlir-opt reads what is printed, with mlir-aie's dialects described in aie.irdl.mlir.

mlir-opt knows neither dialect. With the description it checks of each operation the number and the
types of its operands and results and the attributes that it must have, besides everything that it
checks of func, scf, arith and memref: types of calls, of loops and what they carry, dominance.

IRDL describes neither symbol tables nor terminators, nor regions without one, and takes attributes
only in the place where they stood before there were properties, so the text is rewritten:
`aie.device` becomes a module, what ends a block or needs no end gets a dialect that is not known,
and `<{..}>` moves behind the regions.
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
    """`text`, which a `Text` has written, in the form that IRDL's operations have."""
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
    """What mlir-opt has to say against `text`; empty where it accepts it."""
    assert MLIR_OPT is not None
    command = [
        MLIR_OPT, "--allow-unregistered-dialect", f"--irdl-file={DESCRIPTION}", "-o", os.devnull,
    ]  # fmt: skip
    done = subprocess.run(
        command, input=readable(text), capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""
