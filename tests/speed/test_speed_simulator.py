"""The performance model's closed forms compared with the simulator, which executes the designs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ort_aie_ep.aie_kernels.designs import (
    dequant,
    flow_kv,
    flow_qkv,
    fused_dqp,
    fused_dqp_two_bits,
    fused_layer,
    gemm,
    short_gemm,
    vector_ops,
)
from ort_aie_ep.npu.simulator.session import Session, random_buffers
from ort_aie_ep.npu.speed import layer as closed
from ort_aie_ep.npu.speed import operators as op
from ort_aie_ep.npu.speed.kernels import OURS
from ort_aie_ep.npu.speed.layer import Layer
from ort_aie_ep.npu.speed.operators import Machine, Step
from ort_aie_ep.npu.vocabulary.design import Design
from ort_aie_ep.npu.vocabulary.device import device
from ort_aie_ep.npu.vocabulary.eras import ERAS, PAPERS, Era

NPU2 = device("npu2")
# Both take their constants from costs.py. The closed forms count the commands between operators and
# the last kernel, but neither hops nor FIFOs, and they add up phases that may overlap at an
# operator's ends: 4 to 40 µs of the 25 to 500 simulated here.
TOLERANCE = 0.12


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=ml_dtypes.bfloat16)


def blocks(count: int) -> np.ndarray:
    return np.zeros((count, 5120), dtype=np.uint8)


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def compare(
    design: Design,
    sequence: str,
    parameters: Mapping[str, int],
    buffers: Mapping[str, np.ndarray],
    steps: tuple[Step, ...],
    eras: Iterable[Era] = (PAPERS,),
) -> None:
    for era in eras:
        results = Session(design, era=era).run(sequence, parameters, buffers)
        simulated = sum(r.seconds for r in results)
        machine = replace(Machine.of(era), kernels=OURS)
        assert machine.seconds(steps) == pytest.approx(simulated, rel=TOLERANCE), era.name


@pytest.mark.parametrize(("n", "k", "columns"), [(2048, 2048, 4), (1024, 1024, 4), (2048, 2048, 8)])
def test_fused_dqp_takes_what_the_simulator_takes(n: int, k: int, columns: int) -> None:
    compare(
        fused_dqp.build(NPU2, columns), "matvec", {"N": n, "K": k, "bias": 0, "activation": 0},
        {"x": zeros(k), "w": blocks(n * k // 8192), "bias": zeros(0), "y": zeros(n)},
        op.fused_dqp(n, k, columns, OURS), ERAS.values(),
    )  # fmt: skip


@pytest.mark.parametrize("columns", [4, 8])
def test_two_bits_take_what_the_simulator_takes(columns: int) -> None:
    n = k = 2048
    compare(
        fused_dqp_two_bits.build(NPU2, columns), "matvec_two_bits",
        {"N": n, "K": k, "bias": 0, "activation": 0},
        {"x": zeros(k), "w": np.zeros(n * k * 3 // 8, np.uint8), "bias": zeros(0), "y": zeros(n)},
        op.fused_dqp(n, k, columns, OURS, bits=2), ERAS.values(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(16, 8, 128), (4, 1, 256), (12, 6, 128)]
)
def test_flow_kv_takes_what_the_simulator_takes(heads: int, kv_heads: int, head_dim: int) -> None:
    keys = 1024
    compare(
        flow_kv.build(NPU2), "attention",
        {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "context": keys,
            "capacity": keys, "window": 0, "scale_bits": bits(0.1), "softcap_bits": 0,
        },
        {
            "q": zeros(heads, head_dim), "k": zeros(kv_heads, keys, head_dim),
            "v": zeros(kv_heads, keys, head_dim), "o": zeros(heads, head_dim),
        },
        op.flow_kv(keys, heads, kv_heads, head_dim, None, kernels=OURS), ERAS.values(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "heads", "kv_heads", "head_dim"), [(256, 4, 2, 128), (512, 8, 2, 64)]
)
def test_flow_qkv_takes_what_the_simulator_takes(
    prompt: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    padded = flow_qkv.padded_prompt(NPU2, heads, kv_heads, head_dim, prompt)
    compare(
        flow_qkv.build(NPU2), "attention",
        {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "prompt": prompt, "past": 0,
            "capacity": prompt, "window": 0, "causal": 1, "scale_bits": bits(0.1),
            "softcap_bits": 0,
        },
        {
            "q": zeros(padded, heads, head_dim), "k": zeros(kv_heads, prompt, head_dim),
            "v": zeros(kv_heads, prompt, head_dim), "o": zeros(padded, heads, head_dim),
        },
        op.flow_qkv(prompt, 0, heads, kv_heads, head_dim, None, kernels=OURS),
    )  # fmt: skip


def test_dequant_takes_what_the_simulator_takes() -> None:
    compare(
        dequant.build(NPU2), "dequant", {"blocks": 256}, {"w": blocks(256), "b": zeros(256, 8192)},
        op.dequant(1024, 2048, kernels=OURS), ERAS.values(),
    )  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n"), [(512, 512, 1024), (300, 256, 1536)])
def test_gemm_takes_what_the_simulator_takes(m: int, k: int, n: int) -> None:
    compare(
        gemm.build(NPU2), "gemm", {"M": m, "K": k, "N": n},
        {"a": zeros(m, k), "b": zeros(n, k), "c": zeros(m, n)}, op.gemm(m, k, n, OURS),
    )  # fmt: skip


@pytest.mark.parametrize(("m", "k", "n"), [(64, 1024, 2048), (100, 512, 2304)])
def test_short_gemm_takes_what_the_simulator_takes(m: int, k: int, n: int) -> None:
    compare(
        short_gemm.build(NPU2), "project", {"M": m, "K": k, "N": n},
        {"a": zeros(m, k), "w": blocks(n * k // 8192), "c": zeros(m, n)},
        op.short_gemm(m, k, n, kernels=OURS),
    )  # fmt: skip


def test_rms_norm_takes_what_the_simulator_takes() -> None:
    rows, n = 16, 2048
    compare(
        vector_ops.build(NPU2), "rms_norm",
        {"n": n, "rows": rows, "residual": 1, "eps_bits": bits(1e-6)},
        {
            "x": zeros(rows, n), "residual": zeros(rows, n), "weight": zeros(n),
            "sum": zeros(rows, n), "y": zeros(rows, n),
        },
        op.rms_norm(rows, n, OURS), ERAS.values(),
    )  # fmt: skip


def test_glu_takes_what_the_simulator_takes() -> None:
    rows, n = 4, 8192
    compare(
        vector_ops.build(NPU2), "glu", {"n": n, "rows": rows, "kind": 0},
        {"gate_up": zeros(rows, 2, n), "y": zeros(rows, n)}, op.gated(rows, n, False, OURS),
        ERAS.values(),
    )  # fmt: skip


LLAMA = Layer(512, 8, 4, 64, 64, 1024)
LAYERS = {
    "llama": (LLAMA, 600),
    "qwen3": (replace(LLAMA, kv_heads=8, head_dim=128, rotary=128, head_norm=True), 300),
    "gemma3": (
        Layer(768, 4, 2, 256, 256, 2560, window=100, gelu=True, head_norm=True, post_norm=True),
        200,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_layer() -> Design:
    return fused_layer.build(NPU2)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_what_the_simulator_takes(whole_layer: Design, name: str) -> None:
    layer, context = LAYERS[name]
    parameters = {
        "hidden": layer.hidden, "heads": layer.heads, "kv_heads": layer.kv_heads,
        "head_dim": layer.head_dim, "rotary_dim": layer.rotary, "interleaved": 0, "ffn": layer.ffn,
        "gelu": int(layer.gelu), "head_norm": int(layer.head_norm),
        "post_norm": int(layer.post_norm), "bias": 0, "context": context, "capacity": 1024,
        "window": layer.window, "scale_bits": bits(0.1), "softcap_bits": 0, "eps_bits": bits(1e-6),
    }  # fmt: skip
    compare(
        whole_layer, "layer", parameters, random_buffers(whole_layer, "layer", parameters),
        (*closed.projections(layer, OURS), *closed.attention(layer, context, OURS),
         *closed.between(layer)), ERAS.values(),
    )  # fmt: skip


def test_the_vocabulary_takes_what_the_simulator_takes(whole_layer: Design) -> None:
    parameters = {"N": 4096 + 32, "hidden": 1024, "eps_bits": bits(1e-6)}
    compare(
        whole_layer, "head", parameters, random_buffers(whole_layer, "head", parameters),
        closed.head(4096 + 32, 1024, OURS), ERAS.values(),
    )  # fmt: skip
