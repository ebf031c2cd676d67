"""The closed forms beside the simulator, which executes the designs with the same constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from time_only import TimeOnly

from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.aie_kernels.costs import cost_of
from ort_aie_ep.aie_kernels.cycles import of_call
from ort_aie_ep.aie_kernels.flow_kv import cost as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.kernels import FLOW_KV_SCORES, FLOW_KV_VALUES
from ort_aie_ep.aie_kernels.flow_qkv import cost as flow_qkv
from ort_aie_ep.aie_kernels.flow_qkv.kernels import FLOW_QKV_SCORES, FLOW_QKV_VALUES
from ort_aie_ep.aie_kernels.fused_dqp import cost as fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp.kernels import DQP_BLOCK
from ort_aie_ep.aie_kernels.fused_layer import cost as fused_layer
from ort_aie_ep.aie_kernels.gemm import cost as gemm
from ort_aie_ep.aie_kernels.gemm.kernels import GEMM_TILE
from ort_aie_ep.aie_kernels.machine import Machine, Step
from ort_aie_ep.npu.terms.device import device

NPU2 = device("npu2")


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


@pytest.fixture(autouse=True)
def _cycles_of_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels take what the catalogs say, which for some is not what whole programs took."""
    monkeypatch.setattr(fused_dqp, "BLOCK", of_call(DQP_BLOCK))
    monkeypatch.setattr(gemm, "STEP", 4 * of_call(GEMM_TILE, 8, 8, 4))

    def token(queries: int, head_dim: int) -> float:
        return max(of_call(k, queries, head_dim) for k in (FLOW_KV_SCORES, FLOW_KV_VALUES))

    def prompt(rows: int, head_dim: int) -> float:
        return max(of_call(k, head_dim, rows) for k in (FLOW_QKV_SCORES, FLOW_QKV_VALUES))

    for module in (flow_kv, fused_layer):
        monkeypatch.setattr(module, "chunk_cycles", token)
    monkeypatch.setattr(flow_qkv, "chunk_cycles", prompt)


def parts(steps: Iterable[Step]) -> dict[str, float]:
    """The seconds that each part of the machine is at work in all of the steps."""
    machine, total = Machine(), Counter[str]()
    for step in steps:
        total["reads"] += step.read / machine.ddr_read
        total["writes"] += step.write / machine.ddr_write
        total["shim"] += step.shim / machine.shim_channel + step.gates / machine.clock_hz
        total["streams"] += step.streams / machine.clock_hz
        total["kernels"] += step.kernels / machine.clock_hz
        total["control"] += (step.commands + step.control) / machine.clock_hz
        total["control"] += max(step.idle * machine.gate_idle, step.meanwhile / machine.clock_hz)
    return total


def token_attention(heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    return {
        "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "context": 1024,
        "capacity": 1024, "window": 0, "scale_bits": bits(0.1), "softcap_bits": 0,
    }  # fmt: skip


def prompt_attention(past: int, head_dim: int, window: int) -> dict[str, int]:
    return {
        "heads": 4, "kv_heads": 2, "head_dim": head_dim, "prompt": 256, "past": past,
        "capacity": past + 256, "window": window, "causal": 1, "scale_bits": bits(0.1),
        "softcap_bits": 0,
    }  # fmt: skip


def rotation(heads: int, head_dim: int, norm: int, **other: int) -> dict[str, int]:
    return {
        "heads": heads, "head_dim": head_dim, "rotary_dim": head_dim, "interleaved": 0,
        "norm": norm, "eps_bits": bits(1e-6), **other,
    }  # fmt: skip


LAYER = {
    "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "rotary_dim": 64, "interleaved": 0,
    "ffn": 1024, "gelu": 0, "head_norm": 0, "post_norm": 0, "bias": 0, "context": 600,
    "capacity": 1024, "window": 0, "scale_bits": bits(0.1), "softcap_bits": 0,
    "eps_bits": bits(1e-6),
}  # fmt: skip
GEMMA = {
    "hidden": 768, "heads": 4, "kv_heads": 2, "head_dim": 256, "rotary_dim": 256, "ffn": 2560,
    "gelu": 1, "head_norm": 1, "post_norm": 1, "context": 200, "window": 100,
}  # fmt: skip
MATVEC = {"bias": 0}
NORM = {"residual": 1, "norm": 1, "eps_bits": bits(1e-6)}

INVOCATIONS: list[tuple[str, str, dict[str, int]]] = [
    ("decode", "matvec", {"N": 1024, "K": 1024, **MATVEC}),
    ("fused_dqp", "matvec", {"N": 2048, "K": 2048, **MATVEC}),
    ("flow_kv", "attention", token_attention(16, 8, 128)),
    ("flow_kv", "attention", token_attention(4, 1, 256)),
    ("flow_qkv", "attention", prompt_attention(0, 128, 0)),
    ("flow_qkv", "attention", prompt_attention(256, 128, 128)),
    ("dequant", "dequant", {"blocks": 256}),
    ("dequant_bfp16", "dequant", {"blocks": 512}),
    ("gemm", "gemm", {"M": 512, "K": 512, "N": 1024}),
    ("gemm_bfp16", "gemm", {"M": 512, "K": 512, "N": 1024}),
    ("short_gemm", "project", {"M": 64, "K": 1024, "N": 2048}),
    ("gemm", "gate", {"M": 600, "N": 768, "kind": 1}),
    ("gemm", "add_norm", {"M": 64, "K": 2048, "n": 2048, **NORM}),
    ("gemm", "rotate", rotation(8, 64, 1, M=64, x_stride=512)),
    ("vector_ops", "rms_norm", {"n": 4096, "residual": 1, "eps_bits": bits(1e-6)}),
    ("vector_ops", "rope", rotation(8, 128, 1)),
    ("vector_ops", "move_heads", {"heads": 32, "dim": 80, "x_stride": 80, "y_stride": 128,
                                  "copies": 1}),
    ("vector_ops", "glu", {"n": 2048, "kind": 1}),
    ("fused_layer", "layer", LAYER),
    ("fused_layer", "layer", {**LAYER, **GEMMA}),
    ("fused_layer", "head", {"N": 4096 + 32, "hidden": 1024, "eps_bits": bits(1e-6)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("design", "sequence", "parameters"), INVOCATIONS,
    ids=[f"{design}-{sequence}" for design, sequence, _ in INVOCATIONS],
)  # fmt: skip
def test_the_simulator_takes_as_long_as_the_closed_form_allows(
    design: str, sequence: str, parameters: dict[str, int]
) -> None:
    """The closed form says how long each part is at work, and assumes which of them overlap. At
    best all do, so the busiest part is a lower bound; at worst none does, and they add up."""
    results = TimeOnly(make_design(design, NPU2)).time(sequence, parameters)
    simulated = sum(result.seconds for result in results)
    total = parts(cost_of(design, sequence, parameters)[1])
    assert max(total.values()) <= simulated <= sum(total.values())
