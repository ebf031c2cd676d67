"""Core cycles for a unit of each design's work: modelled for this project's kernels, or published.

`OURS` uses `*/kernels.py`, whose models count the instructions that this project's kernels issue;
nobody has measured them. `PUBLISHED` has mlir-aie's measured counts for kernels of the same
purpose, often less exact ones (costs.py), and those where nothing is published. `SILICON`
is `OURS` with no kernel faster than the rates that whole programs of 2026 imply. The papers'
own kernels are not public. Their cost is closer to `PUBLISHED`, so constants are fitted with it;
the difference between the two is what this project's kernels would add.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from ort_aie_ep.aie_kernels.dequant import kernels as dequant
from ort_aie_ep.aie_kernels.flow_kv import kernels as flow_kv
from ort_aie_ep.aie_kernels.flow_qkv import kernels as flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import kernels as fused_dqp
from ort_aie_ep.aie_kernels.fused_layer import kernels as fused_layer
from ort_aie_ep.aie_kernels.gemm import kernels as gemm
from ort_aie_ep.aie_kernels.gemm import row_kernels as rows
from ort_aie_ep.aie_kernels.vector_ops import kernels as vector_ops
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.eras import SILICON_2026, Era
from ort_aie_ep.npu.terms.kernel import Kernel

ARCHITECTURE = "aie2p"
RMS_OBJECT, OBJECT = 128, 256  # elements of the vector operators' pieces
GEMM_ROWS, GEMM_COLUMNS, GEMM_DEPTH = 64, 128, 64  # of a core's block, and of a step of K
ROW_OBJECT = 16 * 64  # values of an object of the row operators, of a core
FLOW_KV_ELEMENTS, FLOW_QKV_ELEMENTS = 4096, 2048  # of keys in a chunk


@dataclass(frozen=True)
class Kernels:
    """Cycles of one core.

    `dqp_block` and `dequant_block` are for 32 x 256 weights, `dqp_end` for
    the end of a round of 32 outputs on `fused_layer`, `gemm_step` for 64 x 64 x 128 products and
    `gemm_step_bfp16` for those with B in bfp16, `gemm_block` for the work done once for each block
    of C. `flow_kv_chunk(queries, head_dim)` and `flow_qkv_chunk(rows, head_dim)` are for the slower
    core of a pair, `flow_kv_merge(queries, head_dim)` for what a pair hands to the next,
    `flow_qkv_begin(rows, head_dim)` for the start of a sweep. `rms_norm` (of a residual sum),
    `rms_alone`, `silu` and `gelu` take the elements of a row, `rope` and `qk_norm` the elements of
    a token and the head dimension. `row_silu` and `row_gelu` are for the 16 x 64 values that a core
    has of an object of a prompt's row operators; `row_rope(head_dim, rotary_dim, interleaved)` and
    `row_qk_norm(head_dim)` for the 16 x 512 of a result.
    """

    name: str
    dqp_block: float
    dqp_end: float
    dequant_block: float
    gemm_step: float
    gemm_step_bfp16: float
    gemm_block: float
    flow_kv_chunk: Callable[[int, int], float]
    flow_kv_merge: Callable[[int, int], float]
    flow_qkv_chunk: Callable[[int, int], float]
    flow_qkv_begin: Callable[[int, int], float]
    rms_norm: Callable[[int], float]
    rms_alone: Callable[[int], float]
    rope: Callable[[int, int], float]
    qk_norm: Callable[[int, int], float]
    silu: Callable[[int], float]
    gelu: Callable[[int], float]
    row_silu: float
    row_gelu: float
    row_rope: Callable[[int, int, bool], float]
    row_qk_norm: Callable[[int], float]


def _cycles(kernel: Kernel, *leading: int) -> float:
    """A call's cycles: `leading` scalars, the others zero (no mask, no softcap, first index)."""
    scalars = sum(argument is int for argument in kernel.arguments)
    return kernel.cycles(ARCHITECTURE, (*leading, *(0,) * (scalars - len(leading))))


def _flow_kv_chunk(queries: int, head_dim: int) -> float:
    kernels = (flow_kv.FLOW_KV_SCORES, flow_kv.FLOW_KV_VALUES)
    return max(_cycles(kernel, queries, head_dim) for kernel in kernels)


def _flow_kv_merge(queries: int, head_dim: int) -> float:
    merge = _cycles(flow_kv.FLOW_KV_MERGE, queries, head_dim)
    return merge + _cycles(flow_kv.FLOW_KV_PASS)


def _flow_qkv_chunk(rows: int, head_dim: int) -> float:
    kernels = (flow_qkv.FLOW_QKV_SCORES, flow_qkv.FLOW_QKV_VALUES)
    return max(_cycles(kernel, head_dim, rows) for kernel in kernels)


def _flow_qkv_begin(rows: int, head_dim: int) -> float:
    loads = (
        _cycles(flow_qkv.FLOW_QKV_LOAD_Q, index, head_dim, rows)
        for index in range(rows * head_dim // 512)
    )
    return _cycles(flow_qkv.FLOW_QKV_BEGIN) + sum(loads)


def _norm_of(*kernels: Kernel) -> Callable[[int], float]:
    row = _cycles(vector_ops.RMS_BEGIN) + _cycles(vector_ops.RMS_SCALE)
    piece = sum(_cycles(kernel) for kernel in kernels)
    return lambda elements: row + ceil(elements / RMS_OBJECT) * piece


def _pieces(kernel: Kernel) -> Callable[[int], float]:
    return lambda elements: ceil(elements / OBJECT) * _cycles(kernel, OBJECT)


def _rope(elements: int, head_dim: int) -> float:
    return ceil(elements / OBJECT) * _cycles(vector_ops.ROPE, head_dim, head_dim)


def _qk_norm(elements: int, head_dim: int) -> float:
    return ceil(elements / OBJECT) * _cycles(vector_ops.QK_NORM, head_dim)


def _row_gate(operator: int) -> float:
    """The second operand of a gate: the first object of up."""
    return _cycles(rows.ROWS_TAKE, operator, 0, 0, rows.OBJECTS)


def _row_mode(head_dim: int, rotary_dim: int) -> int:
    return rows.ROTATE + rows.HEAD * (head_dim // 128) + rows.ROTARY * (rotary_dim // 32)


def _row_rope(head_dim: int, rotary_dim: int, interleaved: bool) -> float:
    """The objects of the table."""
    mode = _row_mode(head_dim, rotary_dim) + rows.INTERLEAVED * interleaved
    objects = range(rows.OBJECTS, rows.OBJECTS + 4) if rotary_dim else ()
    return sum(_cycles(rows.ROWS_TAKE, mode, 0, 0, index) for index in objects)


def _row_qk_norm(head_dim: int) -> float:
    """The objects of the heads."""
    mode = _row_mode(head_dim, 0) + rows.HEAD_NORM
    return sum(_cycles(rows.ROWS_TAKE, mode, 0, 0, index) for index in range(rows.OBJECTS))


OURS = Kernels(
    name="ort_aie_ep",
    dqp_block=_cycles(fused_dqp.DQP_BLOCK),
    dqp_end=_cycles(fused_dqp.DQP_ZERO) + _cycles(fused_layer.LAYER_FINISH),
    dequant_block=_cycles(dequant.Q4NX_DEQUANT),
    gemm_step=GEMM_COLUMNS / 32 * _cycles(gemm.GEMM_TILE, GEMM_ROWS // 8, GEMM_DEPTH // 8, 32 // 8),
    gemm_step_bfp16=GEMM_COLUMNS
    / 32
    * _cycles(gemm.GEMM_TILE_BFP16, GEMM_ROWS // 8, GEMM_DEPTH // 8, 32 // 8),
    gemm_block=gemm.GEMM_ZERO.cycles(ARCHITECTURE, (GEMM_ROWS * GEMM_COLUMNS,))
    + gemm.GEMM_STORE_BF16.cycles(ARCHITECTURE, (0,)),
    flow_kv_chunk=_flow_kv_chunk,
    flow_kv_merge=_flow_kv_merge,
    flow_qkv_chunk=_flow_qkv_chunk,
    flow_qkv_begin=_flow_qkv_begin,
    rms_norm=_norm_of(vector_ops.RMS_ADD, vector_ops.RMS_SUM, vector_ops.RMS_FINISH),
    rms_alone=_norm_of(vector_ops.RMS_LOAD, vector_ops.RMS_FINISH),
    rope=_rope,
    qk_norm=_qk_norm,
    silu=_pieces(vector_ops.SILU_MUL),
    gelu=_pieces(vector_ops.GELU_MUL),
    row_silu=_row_gate(rows.SILU_GATE),
    row_gelu=_row_gate(rows.GELU_GATE),
    row_rope=_row_rope,
    row_qk_norm=_row_qk_norm,
)

PUBLISHED = Kernels(
    name="published",
    dqp_block=OURS.dqp_block,
    dqp_end=OURS.dqp_end,
    dequant_block=costs.DEQUANT_BLOCK.value,
    gemm_step=GEMM_ROWS * GEMM_COLUMNS * GEMM_DEPTH / costs.GEMM_RATE.value,
    gemm_step_bfp16=OURS.gemm_step_bfp16,
    gemm_block=OURS.gemm_block,
    flow_kv_chunk=lambda queries, _: queries * FLOW_KV_ELEMENTS / costs.FLOW_KV_RATE.value,
    flow_kv_merge=_flow_kv_merge,
    flow_qkv_chunk=lambda rows, _: rows * FLOW_QKV_ELEMENTS / costs.FLOW_QKV_RATE.value,
    flow_qkv_begin=_flow_qkv_begin,
    rms_norm=lambda elements: elements * (costs.RMS_NORM.value + costs.ADD.value),
    rms_alone=lambda elements: elements * costs.RMS_NORM.value,
    rope=lambda elements, _: elements * costs.ROPE.value,
    qk_norm=lambda elements, _: elements * costs.RMS_NORM.value,
    silu=lambda elements: elements * (costs.SILU.value + costs.MUL.value),
    gelu=lambda elements: elements * (costs.GELU.value + costs.MUL.value),
    row_silu=ROW_OBJECT * (costs.SILU.value + costs.MUL.value),
    row_gelu=ROW_OBJECT * (costs.GELU.value + costs.MUL.value),
    row_rope=lambda head_dim, rotary_dim, _: (
        rows.OBJECTS * ROW_OBJECT * rotary_dim / head_dim * costs.ROPE.value
    ),
    row_qk_norm=lambda _: rows.OBJECTS * ROW_OBJECT * costs.RMS_NORM.value,
)


def _token_attention(queries: int, head_dim: int) -> float:
    rate = costs.TOKEN_ATTENTION_RATE if head_dim < 128 else costs.WIDE_TOKEN_ATTENTION_RATE
    measured = 2 * queries * FLOW_KV_ELEMENTS / rate.value
    return max(OURS.flow_kv_chunk(queries, head_dim), measured)


def _prompt_attention(rows: int, head_dim: int) -> float:
    measured = rows * FLOW_QKV_ELEMENTS / costs.PROMPT_ATTENTION_RATE.value
    return max(OURS.flow_qkv_chunk(rows, head_dim), measured)


SILICON = replace(
    OURS,
    name="silicon-2026",
    dqp_block=costs.DQP_BLOCK_2026.value,
    gemm_step=GEMM_ROWS * GEMM_COLUMNS * GEMM_DEPTH / costs.PRODUCT_RATE.value,
    flow_kv_chunk=_token_attention,
    flow_qkv_chunk=_prompt_attention,
)


def kernels_of(era: Era) -> Kernels:
    """The cycles with which this library's plans are predicted."""
    return SILICON if era is SILICON_2026 else OURS
