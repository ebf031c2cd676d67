"""The dequantisation engine's kernels as designs and the simulator see them.

Cycles as in `fused_dqp.kernels`: the count of issues, times what a published kernel takes for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ort_aie_ep.aie_kernels.cycles import CALL, SHORT_LOOP, form_scalars
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.kernel import Array, Kernel


# Per sub-block: ten operations to unpack, as in FusedDQP, two to part the tiles, two macs and two
# adds of 64 lanes (four times as many on AIE2), two narrowings and stores.
def _dequant_issues(arch: str, groups: int) -> float:
    sub_block = 10 + 2 + (16 if arch == "aie2" else 4) + 4
    return CALL + groups * (8 * sub_block + 2 * SHORT_LOOP)


# mlir-aie's dequantisation of the same block, to bfp16, on AIE2P.
DEQUANT_PUBLISHED = 2115
_DEQUANT_CYCLES_PER_ISSUE = DEQUANT_PUBLISHED / _dequant_issues("aie2p", 8)


def _dequant_cycles(groups: int) -> Callable[[str, tuple[int, ...]], float]:
    return lambda arch, _: _DEQUANT_CYCLES_PER_ISSUE * _dequant_issues(arch, groups)


@cache
def q4nx_dequant(form: BlockForm) -> Kernel:
    """The dequantisation of a block of a form."""
    return Kernel(
        "q4nx_dequant",
        "dequant/dequant.cc",
        (Array("u8", form.block_bytes), Array("bf16", 8192), int, int),
        _dequant_cycles(8),
        limits=lambda scalars: scalars == form_scalars(form),
    )


@cache
def q4nx_dequant_bfp16(form: BlockForm) -> Kernel:
    """The dequantisation of a block of a form to blocks of bfp16, as fast as the published one."""
    return Kernel(
        "q4nx_dequant_bfp16",
        "dequant/dequant_bfp16.cc",
        (Array("u8", form.block_bytes), Array("u8", 9216), int, int),
        lambda arch, _: DEQUANT_PUBLISHED,
        architectures=("aie2p",),
        limits=lambda scalars: scalars == form_scalars(form),
    )


@cache
def q4nx_dequant_step(form: BlockForm) -> Kernel:
    """The dequantisation of 64 in-features of one of two blocks of a form."""
    return Kernel(
        "q4nx_dequant_step",
        "dequant/dequant.cc",
        (Array("u8", 2 * form.block_bytes), Array("bf16", 2048), int, int, int, int),
        _dequant_cycles(2),
        limits=lambda scalars: (
            0 <= scalars[0] < 2 and 0 <= scalars[1] < 4 and scalars[2:] == form_scalars(form)
        ),
    )


Q4NX_DEQUANT, Q4NX_DEQUANT_STEP = q4nx_dequant(SHIPPING), q4nx_dequant_step(SHIPPING)
