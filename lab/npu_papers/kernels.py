"""This project's kernels beside the nearest ones that others measured.

A kernel whose model is much faster than anyone's measured one is *unconfirmed*: nobody should
believe its prediction before a chip has shown it. A slower kernel is not marked. Most are slower,
because they round less or work on smaller pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from npu_papers.attention import decoder_attention, flash_attention
from npu_papers.machine import Machine
from npu_papers.mlir_air import KEYS
from npu_papers.tables import (
    BLOCK,
    CONTEXTS,
    FASTFLOWLM_2026_PROMPTS,
    FLASH_ATTENTION,
    Latency,
)
from ort_aie_ep.aie_kernels.dequant import kernels as dequant
from ort_aie_ep.aie_kernels.flow_qkv.cost import flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp import kernels as fused_dqp
from ort_aie_ep.aie_kernels.gemm import kernels as gemm
from ort_aie_ep.aie_kernels.gemm.cost import gemm as gemm_cost
from ort_aie_ep.aie_kernels.gemm.cost import row_norm
from ort_aie_ep.aie_kernels.kernel_cycles import FLOW_KV_ELEMENTS, FLOW_QKV_ELEMENTS, OURS
from ort_aie_ep.aie_kernels.machine import Step
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.eras import MLIR_AIR
from ort_aie_ep.prediction.shapes import MODELS, shape_of

Verdict = Literal["scaled to it", "within 30 %", "slower", "unconfirmed"]

WITHIN = 0.30

KERNEL_TABLE = "mlir-aie's kernel table"
EXAMPLES = "mlir-air's programming_examples"
SWEEP = "mlir-air's nightly sweep"


@dataclass(frozen=True)
class Beside:
    """A kernel or an operator of `design` beside a published measurement.

    `published` has the least and the most of the source, `model` is this project's kernel at the
    same size, both in `unit`. `scaled`: the model was made to agree with this very figure.
    """

    design: str
    what: str
    unit: Literal["cycles", "ms"]
    published: tuple[float, float]
    model: float
    source: str
    scaled: bool = False

    @property
    def ratio(self) -> float:
        """The model by the nearest published value."""
        least, most = self.published
        return self.model / min(max(self.model, least), most)

    @property
    def verdict(self) -> Verdict:
        """Whether the model is to be believed."""
        if self.scaled:
            return "scaled to it"
        if self.ratio < 1 - WITHIN:
            return "unconfirmed"
        return "slower" if self.ratio > 1 + WITHIN else "within 30 %"


@dataclass(frozen=True)
class PromptAttention:
    """Seconds of attention in all layers of a prompt, predicted and by what others measured.

    `mlir_air` is the line through its measured calls: runs, launches, and all scores, masked or
    not. Beyond the lengths of those calls it is an extrapolation. `fastflowlm` is the part of its
    measured prompts that grows with the square of their length, as nothing but attention does.
    What its attention does besides is not in it.
    """

    model: str
    tokens: int
    predicted: float
    mlir_air: float
    fastflowlm: float


@dataclass(frozen=True)
class Comparison:
    """Kernels in cycles of a core and operators in time, and the designs that are unconfirmed."""

    rows: tuple[Beside, ...]
    unconfirmed: tuple[str, ...]
    prompts: tuple[PromptAttention, ...]


#: Lengths of the prompts whose attention is compared.
PROMPTS = (1024, 2048, 16384)


@cache
def beside() -> Comparison:
    """Compare with what is published for these kernels, flash attention with every row of it."""
    rows = (*_kernels(), *_operators())
    doubtful = (one.design for one in rows if one.verdict == "unconfirmed")
    return Comparison(rows, tuple(dict.fromkeys(doubtful)), tuple(_prompts()))


def flow_qkv_seconds(call: Latency) -> float:
    """This project's time for a call of flash attention; its own milliseconds are not used."""
    steps = flow_qkv(
        call.tokens, 0, call.heads, call.kv_heads, call.head_dim, None, call.causal, OURS
    )
    return _machine().seconds(steps) + _machine().dispatch


def _machine() -> Machine:
    return replace(Machine.of(MLIR_AIR), kernels=OURS)


def _prompts() -> Iterator[PromptAttention]:
    line = flash_attention()
    for model in MODELS:
        shape = shape_of(model)
        if shape.head_dim not in line.score:
            continue
        for tokens in PROMPTS:
            call = Latency(shape.heads, shape.kv_heads, shape.head_dim, tokens, True, 0, 0)
            yield PromptAttention(
                model, tokens, shape.layers * flow_qkv_seconds(call),
                shape.layers * line.seconds(call), _square(model) * tokens**2,
            )  # fmt: skip


def _square(model: str) -> float:
    """Seconds for each square of a prompt's tokens: the parabola with the least relative errors."""
    speeds = np.array(FASTFLOWLM_2026_PROMPTS[model])
    tokens = np.array(CONTEXTS[: len(speeds)])
    return float(np.polyfit(tokens, tokens / speeds, 2, w=speeds / tokens)[0])


def _kernels() -> Iterator[Beside]:
    def row(
        design: str, what: str, model: float, *published: float, source: str = KERNEL_TABLE,
        scaled: bool = False,
    ) -> Beside:  # fmt: skip
        span = min(published), max(published)
        return Beside(design, what, "cycles", span, model, source, scaled)

    yield row(
        "fused_dqp", "a block of 32 x 256", OURS.dqp_block, fused_dqp.DQP_BLOCK_PUBLISHED,
        source="mlir-air: 16 x 140 bundles", scaled=True,
    )  # fmt: skip
    yield row(
        "dequant", "a block of 32 x 256", OURS.dequant_block, dequant.DEQUANT_PUBLISHED,
        scaled=True,
    )  # fmt: skip
    yield row(
        "gemm", "64 x 64 x 128 through bfp16", OURS.gemm_step,
        64 * 64 * 128 / costs.GEMM_RATE.value, source="amd/IRON issue 55", scaled=True,
    )  # fmt: skip
    tile = gemm.GEMM_TILE
    yield row("gemm, NPU1", "64 x 32 x 64", tile.cycles("aie2", (8, 4, 8, 0)), 1881, scaled=True)
    yield row("vector_ops", "sum and RMS norm of 1,024", OURS.rms_norm(1024), 150 + 438)
    for head_dim in (64, 128):
        yield row("vector_ops", f"rotation of 1,024, heads of {head_dim}",
                  OURS.rope(1024, head_dim), 298)  # fmt: skip
    yield row("vector_ops", "SiLU times up of 1,024", OURS.silu(1024), 211 + 142, 856)
    yield row("vector_ops", "GELU times up of 1,024", OURS.gelu(1024), 318 + 142)
    for unit in decoder_attention():
        heads, queries, head_dim = unit.kv_heads, unit.queries, unit.head_dim
        chunks = heads * KEYS * head_dim / FLOW_KV_ELEMENTS
        # Where channels bind, the cores take less than was measured: as much as the fit says.
        yield row(
            "flow_kv", f"16 keys, {heads} x {queries} queries of {head_dim}",
            chunks * OURS.flow_kv_chunk(queries, head_dim), *unit.measured,
            *((unit.fitted,) if unit.channels_bind else ()), source=SWEEP,
        )  # fmt: skip
    # Two chunks of 8 keys.
    yield row(
        "flow_qkv", "values: 16 rows, 16 keys of 256", 2 * OURS.flow_qkv_chunk(16, 256),
        2707, 2963,
    )  # fmt: skip
    # A core of mlir-air's does what a pair shares here.
    for head_dim in (64, 128):
        rows = 128 * 64 // head_dim  # of a pair
        chunks = BLOCK**2 / (rows * FLOW_QKV_ELEMENTS / head_dim)
        yield row(
            "flow_qkv", f"64 queries, 64 keys of {head_dim}, all cores",
            2 * chunks * OURS.flow_qkv_chunk(rows, head_dim),
            flash_attention().block_cycles(head_dim), source=f"{EXAMPLES}, a fit",
        )  # fmt: skip


def _operators() -> Iterator[Beside]:
    machine = _machine()

    def row(
        design: str,
        what: str,
        steps: tuple[Step, ...],
        *published: float,
        source: str = EXAMPLES,
    ) -> Beside:
        span = min(published), max(published)
        seconds = machine.seconds(steps) + machine.dispatch
        return Beside(design, what, "ms", span, seconds * 1e3, source)

    for size, gflops, source in (
        (512, (1791,), EXAMPLES),
        (1024, (6256,), EXAMPLES),
        (2048, (8508, 13700), f"{EXAMPLES}; paper 2"),
        (4096, (9329, 14710), f"{EXAMPLES}; arXiv 2512.13282, best of any size"),
    ):
        span = (2 * size**3 / rate / 1e6 for rate in gflops)
        yield row("gemm", f"{size}³", gemm_cost(size, size, size, OURS), *span, source=source)
    yield row("row_operators", "RMS norm of 2048 x 2048",
              row_norm(2048, 2048, False, True, OURS), 0.911)  # fmt: skip
    for m, k, n, published in ((512, 1024, 1024, 0.639), (1024, 2048, 1024, 2.134)):
        yield Beside("gemm, NPU1", f"{m} x {k} x {n}, cores alone", "ms", (published,) * 2,
                     _gemm_npu1(m, k, n) * 1e3, "amd/IRON's GEMM of FastFlowLM")  # fmt: skip
    for call in FLASH_ATTENTION:
        yield Beside("flow_qkv", call.name, "ms", (call.least, call.most),
                     flow_qkv_seconds(call) * 1e3, EXAMPLES)  # fmt: skip


def _gemm_npu1(m: int, k: int, n: int) -> float:
    """Seconds of NPU1's sixteen cores for a product, without anything else."""
    cycles = gemm.GEMM_TILE.cycles("aie2", (8, 8, 4, 0))  # 64 x 64 x 32
    return m * k * n / (64 * 64 * 32) / 16 * cycles / device("npu1").clock_hz
