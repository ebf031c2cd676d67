"""The compiler's report is compared with everything that was printed."""

from __future__ import annotations

import pytest
from combinations import DESIGNS
from printed_form import printed

from ort_aie_ep.aie_kernels.mlir import report
from ort_aie_ep.aie_kernels.mlir.module import print_module
from ort_aie_ep.aie_kernels.mlir.toolchain import ToolchainError
from ort_aie_ep.npu.terms.configuration import configure
from ort_aie_ep.npu.terms.design import Design


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("address = 53504", "address = 40960"), "buffer dqp0_0_parameters: (0, 2) 53504 20"),
        (("address = 53504 : i32, ", ""), "buffer dqp0_0_parameters: .* not reported"),
        (("aie.lock(%core_0_3, 6)", "aie.lock(%core_0_3, 7)"), "lock dqp0_1_go: (0, 3) 6 0"),
        (("init = 2 :", "init = 1 :"), "lock .*: .* 2 printed, .* 1 reported"),
        (("bd_id = 4 :", "bd_id = 9 :"), "descriptor (0, 1) 4: .* printed, not reported"),
        (("len = 5120", "len = 5124"), "descriptor .* 5120 printed, .* 5124 reported"),
        (("@w0_1(%shim_0_0, MM2S, 1)", "@w0_1(%shim_0_0, MM2S, 0)"),
         "shim channel of fifo w0_1: (0, 0) MM2S 1 printed, (0, 0) MM2S 0 reported"),
        (("aie.packet_flow(0)", "aie.packet_flow(0x5)"), "stream (0, 0) 0 (0, 2) 0 0:"),
        (("stack_size = 2048", "stack_size = 4096"), "stack of the core 0 2: 2048 printed, 4096"),
        (("%shim_0_0 =", "aie.shim_dma(%shim_0_0) {}\n%shim_0_0 ="),
         "descriptors of the shim of column 0: all were free"),
    ],
)  # fmt: skip
def test_a_difference_is_named(change: tuple[str, str], says: str) -> None:
    design = _design("fused_dqp-npu2_1col-1")
    text = printed(print_module(design))
    assert change[0] in text
    pattern = says.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ToolchainError, match=f"fused_dqp(.|\n)*{pattern}"):
        report.compare(configure(design), text.replace(*change, 1))


def test_a_buffer_of_the_compiler_over_one_of_the_design_is_reported() -> None:
    design = _design("dequant-npu2_1col")
    own = '%own = aie.buffer(%core_0_2) {address = 2176 : i32, sym_name = "own"} : memref<4xi32>'
    with pytest.raises(
        ToolchainError, match=r"the first has 5120 bytes from 2048, the second .*2176"
    ):
        report.compare(configure(design), printed(print_module(design)) + own)


def _design(name: str) -> Design:
    (design,) = (p.values[0] for p in DESIGNS if p.id == name)
    return design
