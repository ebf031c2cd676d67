"""The check of aligned moves to the stack, on assembly written for it, and on Windows' kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wide_moves import disassembled

needs_binutils = pytest.mark.skipif(
    not shutil.which("as") or not shutil.which("objdump"), reason="there are no binutils"
)

# A function that spills a vector as MinGW's GCC does, and one that clang would make of it.
SPILL = "vmovaps %{vector}mm0, 64(%rsp)\n"
ALIGN = "push %rbp\nmov %rsp, %rbp\nsub $256, %rsp\nand ${mask}, %rsp\n"


def wrong(tmp_path: Path, body: str) -> list[str]:
    """The wrong moves of a function `spill` that follows a function that aligns its stack."""
    source, file = tmp_path / "spill.s", tmp_path / "spill.o"
    source.write_text(f"before:\n{ALIGN.format(mask=-64)}ret\nspill:\n{body}ret\n")
    subprocess.run(["as", source, "-o", file], check=True)
    before, spill = disassembled(file)
    assert (before.name, spill.name, before.wrong) == ("before", "spill", ())
    return list(spill.wrong)


@needs_binutils
@pytest.mark.parametrize(
    "move",
    [
        "vmovaps %ymm0, 64(%rsp)",
        "vmovapd 32(%rsp,%rax,8), %ymm1",
        "vmovdqa -64(%rbp), %ymm3",
        "vmovdqa32 %zmm17, 64(%rsp)",
        "vmovdqa64 (%rsp), %zmm2{%k1}",
        "vmovntps %zmm0, (%rsp)",
    ],
)
def test_aligned_move_to_a_stack_of_16_bytes_is_found(tmp_path: Path, move: str) -> None:
    assert len(wrong(tmp_path, move + "\n")) == 1


@needs_binutils
@pytest.mark.parametrize(
    "move",
    [
        "vmovups %zmm0, 64(%rsp)",  # not aligned
        "vmovdqu8 %ymm0, (%rsp)",
        "vmovaps %xmm6, 64(%rsp)",  # 16 bytes
        "vmovaps %zmm0, (%rcx)",  # not the stack
        "vmovaps %zmm0, %zmm1",
    ],
)
def test_other_moves_are_not_reported(tmp_path: Path, move: str) -> None:
    assert wrong(tmp_path, move + "\n") == []


@needs_binutils
@pytest.mark.parametrize(
    ("vector", "mask", "count"), [("y", -32, 0), ("z", -64, 0), ("z", -32, 1), ("y", -16, 1)]
)
def test_stack_must_be_aligned_to_the_vector(
    tmp_path: Path, vector: str, mask: int, count: int
) -> None:
    body = ALIGN.format(mask=mask) + SPILL.format(vector=vector)
    assert len(wrong(tmp_path, body)) == count


KERNELS = (
    "amx",
    "avx2",
    "avx2_vnni",
    "avx512",
    "avx512_bf16",
    "lookup_avx2",
    "lookup_avx512",
    "rows_avx512_bf16",
)


@needs_binutils
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_for_windows_move_to_aligned_stacks_alone(name: str) -> None:
    build = os.environ.get("ORT_AIE_WINDOWS_BUILD")
    if build is None:
        pytest.skip("there are no kernels for Windows: make windows")
    (file,) = Path(build).rglob(f"kernels/{name}.cc.obj")
    found = disassembled(file)
    # The functions, and the moves of wide vectors without which they would not be these kernels.
    assert sum(function.wide for function in found) > 0
    assert [(function.name, function.wrong) for function in found if function.wrong] == []
