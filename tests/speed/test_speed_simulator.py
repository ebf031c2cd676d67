"""The time of a stream, by which `predict` goes, beside the simulator, which executes the words."""

from __future__ import annotations

import numpy as np
import pytest
from time_only import TimeOnly

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.build import make_design
from ort_aie_ep.npu.packages.package import build_runs, manifest, predicted
from ort_aie_ep.npu.terms.arguments import together
from ort_aie_ep.npu.terms.device import device

NPU2 = device("npu2")


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


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
def test_the_simulator_takes_as_long_as_the_stream_is_predicted_to(
    design: str, sequence: str, parameters: dict[str, int]
) -> None:
    made = make_design(design, NPU2)
    places = together(made.sequences[sequence].argument_bytes(parameters))
    runs = build_runs(predicted(manifest(made), NPU2), sequence, parameters, places)
    seconds = sum(run["predicted_seconds"] - _npu.DISPATCH_SECONDS for run in runs)
    simulated = sum(result.seconds for result in TimeOnly(made).time(sequence, parameters))
    # A stream leaves out the way of the first objects through memory tiles and of results after the
    # work: the more, the smaller the shape.
    assert seconds == pytest.approx(simulated, rel=0.2, abs=1e-6)
