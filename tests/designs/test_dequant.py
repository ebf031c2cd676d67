"""The dequantisation engine, simulated, compared with the format's own dequantisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.fused_layer.reference import widened
from ort_aie_ep.aie_kernels.gemm.design import pack_b
from ort_aie_ep.aie_kernels.reference import random_blocks
from ort_aie_ep.formats import q4nx
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.npu.simulator.machine import Result
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device


def random_weights(n: int, k: int) -> np.ndarray:
    """(n/32, k/256, 5120) uint8: Q4NX blocks."""
    rng = np.random.default_rng(n + k)
    return q4nx.quantize(rng.standard_normal((n, k)).astype(np.float32))


def run(session: Session, blocks: np.ndarray) -> tuple[np.ndarray, Result]:
    """Runs blocks in any shape (..., bytes) through the engine: (blocks, 8192) bf16."""
    count = blocks.size // session.design.form.block_bytes
    out = np.zeros((count, dequant.WEIGHTS), ml_dtypes.bfloat16)
    (result,) = session.run("dequant", {"blocks": count}, {"w": blocks, "b": out})
    return out, result


# Block counts: the fewest; one more, so that the last object is moved back; not every column in
# use; all columns, and several objects per core; a prime number.
@pytest.mark.parametrize(
    ("name", "n", "k"),
    [
        ("npu2", 128, 256), ("npu2", 160, 256), ("npu2", 288, 512), ("npu2", 512, 1024),
        ("npu2", 32 * 37, 256), ("npu1", 416, 512), ("npu1_1col", 160, 256),
        ("npu2_2col", 352, 768),
    ],
)  # fmt: skip
def test_output_is_the_order_of_gemm_rounded_once(name: str, n: int, k: int) -> None:
    blocks = random_weights(n, k)
    out, _ = run(Session(dequant.build(device(name))), blocks)
    # scale * code is exact in float32 (8 and 4 significant bits), so that the reference and the
    # kernel both round the sum to float32 and that to bf16: the same bits.
    expected = pack_b(q4nx.dequantize(blocks, n, k))
    np.testing.assert_array_equal(out.view(np.uint16), expected.reshape(out.shape).view(np.uint16))


@pytest.mark.parametrize(
    ("name", "form"), [("npu2_2col", BlockForm(minima=False)), ("npu1_1col", BlockForm(group=128))]
)
def test_a_form_has_the_bits_of_the_same_codes_widened(name: str, form: BlockForm) -> None:
    blocks = random_blocks(np.random.default_rng(4), 160, 512, form)
    out, result = run(Session(dequant.build(device(name), form)), blocks)
    wide, _ = run(Session(dequant.build(device(name))), widened(blocks, 512, form))
    np.testing.assert_array_equal(out.view(np.uint16), wide.view(np.uint16))
    assert result.read >= blocks.nbytes


def test_every_block_moves_once_where_the_blocks_come_out_even() -> None:
    blocks = random_weights(1024, 512)  # 64 blocks, 2 objects of 4 blocks for each of 8 columns
    _, result = run(Session(dequant.build(device("npu2"))), blocks)
    assert result.read == blocks.nbytes
    assert result.written == 1024 * 512 * 2
