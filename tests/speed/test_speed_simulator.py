"""The performance model's closed forms compared with the simulator, which executes the designs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from time_only import TimeOnly

from ort_aie_ep.aie_kernels.dequant import design as dequant
from ort_aie_ep.aie_kernels.dequant.cost import dequant as dequant_cost
from ort_aie_ep.aie_kernels.dequant_bfp16 import design as dequant_bfp16
from ort_aie_ep.aie_kernels.flow_kv import design as flow_kv
from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv as flow_kv_cost
from ort_aie_ep.aie_kernels.flow_qkv import design as flow_qkv
from ort_aie_ep.aie_kernels.flow_qkv.cost import flow_qkv as flow_qkv_cost
from ort_aie_ep.aie_kernels.fused_dqp import design as fused_dqp
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp as fused_dqp_cost
from ort_aie_ep.aie_kernels.fused_layer import cost as closed
from ort_aie_ep.aie_kernels.fused_layer import design as fused_layer
from ort_aie_ep.aie_kernels.fused_layer.cost import Layer
from ort_aie_ep.aie_kernels.gemm import design as gemm
from ort_aie_ep.aie_kernels.gemm.cost import gemm as gemm_cost
from ort_aie_ep.aie_kernels.gemm.cost import row_gate, row_norm, row_rotation
from ort_aie_ep.aie_kernels.gemm_bfp16 import design as gemm_bfp16
from ort_aie_ep.aie_kernels.kernel_cycles import OURS
from ort_aie_ep.aie_kernels.machine import Machine, Step
from ort_aie_ep.aie_kernels.short_gemm import design as short_gemm
from ort_aie_ep.aie_kernels.short_gemm.cost import short_gemm as short_gemm_cost
from ort_aie_ep.aie_kernels.vector_ops import design as vector_ops
from ort_aie_ep.aie_kernels.vector_ops.cost import (
    gated,
    rms_norm,
    rope,
    token_append,
    token_norm,
    token_rope,
)
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.npu.terms.eras import ERAS

NPU2 = device("npu2")
# Both take their constants from costs.py. The closed forms count the commands between operators and
# the last kernel, but neither hops nor FIFOs, and they add up phases that may overlap at an
# operator's ends: 4 to 40 µs of the 25 to 500 simulated here.
TOLERANCE = 0.12


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def errors(
    design: Design, sequence: str, parameters: Mapping[str, int], steps: tuple[Step, ...]
) -> dict[str, float]:
    """By era, how much more than the simulator the closed form takes, relatively."""
    found = {}
    for era in ERAS.values():
        results = TimeOnly(design, era).time(sequence, parameters)
        machine = replace(Machine.of(era), kernels=OURS)
        found[era.name] = machine.seconds(steps) / sum(r.seconds for r in results) - 1
    return found


def compare(
    design: Design,
    sequence: str,
    parameters: Mapping[str, int],
    steps: tuple[Step, ...],
    tolerance: float = TOLERANCE,
) -> None:
    for era, error in errors(design, sequence, parameters, steps).items():
        assert error == pytest.approx(0, abs=tolerance), era


@pytest.mark.parametrize(
    ("n", "k", "columns", "form"),
    [
        (1024, 1024, 4, SHIPPING), (2048, 2048, 8, SHIPPING),
        (2048, 2048, 4, BlockForm(group=128, minima=False)),
    ],
)  # fmt: skip
def test_fused_dqp_takes_what_the_simulator_takes(
    n: int, k: int, columns: int, form: BlockForm
) -> None:
    compare(
        fused_dqp.build(NPU2, columns, form), "matvec",
        {"N": n, "K": k, "bias": 0, "activation": 0}, fused_dqp_cost(n, k, columns, OURS, form),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(16, 8, 128), (4, 1, 256), pytest.param(12, 6, 128, marks=pytest.mark.in_turn)],
)
def test_flow_kv_takes_what_the_simulator_takes(heads: int, kv_heads: int, head_dim: int) -> None:
    keys = 1024
    compare(
        flow_kv.build(NPU2), "attention",
        {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "context": keys,
            "capacity": keys, "window": 0, "scale_bits": bits(0.1), "softcap_bits": 0,
        },
        flow_kv_cost(keys, heads, kv_heads, head_dim, None, kernels=OURS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "past", "heads", "kv_heads", "head_dim", "window"),
    [
        (256, 0, 4, 2, 128, 0),
        pytest.param(512, 0, 8, 2, 64, 0, marks=pytest.mark.in_turn),
        (256, 256, 4, 2, 128, 128),
    ],
)
def test_flow_qkv_takes_what_the_simulator_takes(
    prompt: int, past: int, heads: int, kv_heads: int, head_dim: int, window: int
) -> None:
    compare(
        flow_qkv.build(NPU2), "attention",
        {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "prompt": prompt,
            "past": past, "capacity": past + prompt, "window": window, "causal": 1,
            "scale_bits": bits(0.1), "softcap_bits": 0,
        },
        flow_qkv_cost(prompt, past, heads, kv_heads, head_dim, window or None, kernels=OURS),
    )  # fmt: skip


def test_dequant_takes_what_the_simulator_takes() -> None:
    compare(
        dequant.build(NPU2),
        "dequant",
        {"blocks": 256},
        dequant_cost(1024, 2048, kernels=OURS),
    )


def test_dequant_to_bfp16_takes_what_the_simulator_takes() -> None:
    steps = dequant_cost(1024, 4096, kernels=OURS, bfp16=True)
    compare(dequant_bfp16.build(NPU2), "dequant", {"blocks": 512}, steps)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(512, 512, 1024), pytest.param(300, 256, 1536, marks=pytest.mark.in_turn)]
)
def test_gemm_takes_what_the_simulator_takes(m: int, k: int, n: int) -> None:
    compare(gemm.build(NPU2), "gemm", {"M": m, "K": k, "N": n}, gemm_cost(m, k, n, OURS))


def test_gemm_on_bfp16_takes_what_the_simulator_takes() -> None:
    shape = {"M": 512, "K": 512, "N": 1024}
    compare(gemm_bfp16.build(NPU2), "gemm", shape, gemm_cost(512, 512, 1024, OURS, bfp16=True))


@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 1024, 2048), pytest.param(100, 512, 2304, marks=pytest.mark.in_turn)]
)
def test_short_gemm_takes_what_the_simulator_takes(m: int, k: int, n: int) -> None:
    compare(
        short_gemm.build(NPU2), "project", {"M": m, "K": k, "N": n},
        short_gemm_cost(m, k, n, kernels=OURS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "gelu"), [pytest.param(64, 2048, False, marks=pytest.mark.in_turn), (600, 768, True)]
)
def test_a_gate_of_rows_takes_what_the_simulator_takes(m: int, n: int, gelu: bool) -> None:
    compare(
        gemm.build(NPU2), "gate",
        {"M": m, "N": n, "kind": int(gelu), "gate_stride": n, "up_stride": n},
        row_gate(m, n, gelu, OURS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "k", "residual", "norm"),
    [
        pytest.param(64, 2048, True, True, marks=pytest.mark.in_turn),
        (600, 768, False, True),
        (64, 1024, True, False),
    ],
)
def test_a_norm_of_rows_takes_what_the_simulator_takes(
    m: int, k: int, residual: bool, norm: bool
) -> None:
    compare(
        gemm.build(NPU2), "add_norm",
        {
            "M": m, "K": k, "n": k, "residual": int(residual), "norm": int(norm),
            "eps_bits": bits(1e-6),
        },
        row_norm(m, k, residual, norm, OURS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("m", "heads", "head_dim", "rotary_dim", "norm", "append"),
    [
        (64, 32, 64, 64, False, False),
        pytest.param(64, 16, 128, 128, True, False, marks=pytest.mark.in_turn),
        (64, 8, 64, 64, True, True),
        pytest.param(600, 4, 256, 64, False, True, marks=pytest.mark.in_turn),
        (64, 8, 128, 0, False, True),
    ],
)
def test_heads_of_rows_take_what_the_simulator_takes(
    m: int, heads: int, head_dim: int, rotary_dim: int, norm: bool, append: bool
) -> None:
    # Left out: slabs of weights and of tables fill before their heads, and commands of a result's
    # tasks wait for the one before. A prompt's layer spends little of its time in these operators.
    tolerance = 0.2
    cache = {"position": 8, "capacity": m + 8} if append else {}
    compare(
        gemm.build(NPU2), "append_rows" if append else "rotate",
        {
            "M": m, "kv_heads" if append else "heads": heads, "head_dim": head_dim,
            "rotary_dim": rotary_dim, "interleaved": 0, "norm": int(norm),
            "eps_bits": bits(1e-6), "x_stride": heads * head_dim, **cache,
        },
        row_rotation(m, heads, head_dim, rotary_dim, norm=norm, append=append, kernels=OURS),
        tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("n", [1152, 4096])
def test_the_norm_of_one_row_takes_what_the_simulator_takes(n: int, residual: bool) -> None:
    compare(
        vector_ops.build(NPU2), "rms_norm",
        {"n": n, "rows": 1, "residual": int(residual), "eps_bits": bits(1e-6)},
        token_norm(n, residual, OURS),
    )  # fmt: skip


def test_the_norms_of_rows_on_one_core_take_what_the_simulator_takes() -> None:
    rows, n = 16, 2048
    compare(
        vector_ops.build(NPU2), "rms_norm",
        {"n": n, "rows": rows, "residual": 1, "eps_bits": bits(1e-6)}, rms_norm(rows, n, OURS),
    )  # fmt: skip


def rotation(heads: int, head_dim: int, norm: bool, tokens: int = 1) -> dict[str, int]:
    return {
        "heads": heads, "tokens": tokens, "head_dim": head_dim, "rotary_dim": head_dim,
        "interleaved": 0, "norm": int(norm), "eps_bits": bits(1e-6),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "head_dim", "norm"),
    [(32, 64, False), (14, 64, False), (8, 128, True), (4, 256, True)],
)
def test_the_rotation_of_one_row_takes_what_the_simulator_takes(
    heads: int, head_dim: int, norm: bool
) -> None:
    compare(
        vector_ops.build(NPU2), "rope", rotation(heads, head_dim, norm),
        token_rope(heads, head_dim, norm, OURS),
    )  # fmt: skip


@pytest.mark.parametrize("norm", [False, True])
def test_the_rotation_of_rows_takes_what_the_simulator_takes(norm: bool) -> None:
    compare(
        vector_ops.build(NPU2), "rope", rotation(8, 128, norm, tokens=32),
        rope(32, 8, 1, 128, norm, OURS)[:1],
    )  # fmt: skip


def cached(heads: int, head_dim: int, capacity: int = 256, tokens: int = 1) -> dict[str, int]:
    return {
        "kv_heads": heads, "tokens": tokens, "head_dim": head_dim, "rotary_dim": 0,
        "interleaved": 0, "norm": 0, "eps_bits": 0, "position": 8, "capacity": capacity,
    }  # fmt: skip


# Heads that are more than 4 MB apart are a task each; few heads are written several times.
@pytest.mark.parametrize(
    ("heads", "head_dim", "capacity"), [(8, 64, 256), (2, 256, 16384), (2, 64, 256)]
)
def test_an_append_takes_what_the_simulator_takes(heads: int, head_dim: int, capacity: int) -> None:
    compare(
        vector_ops.build(NPU2), "append", cached(heads, head_dim, capacity),
        token_append(heads, head_dim, capacity, OURS),
    )  # fmt: skip


VECTOR, PAPERS = vector_ops.build, "papers' programs: "
OUTSIDE = {
    "a small product": (
        gemm.build, "gemm", {"M": 64, "K": 256, "N": 256}, gemm_cost(64, 256, 256, OURS), 0.18,
    ),
    "a small product of Q4NX weights": (
        short_gemm.build, "project", {"M": 64, "K": 256, "N": 2048},
        short_gemm_cost(64, 256, 2048, kernels=OURS), 0.27,
    ),
    "few blocks": (
        dequant.build, "dequant", {"blocks": 32}, dequant_cost(32, 8192, kernels=OURS), 0.19,
    ),
    "a short row": (
        VECTOR, "glu", {"n": 768, "rows": 1, "kind": 0}, gated(1, 768, False, OURS), 0.15,
    ),
    # A channel that goes idle before its task is there.
    "a single piece": (VECTOR, "append", cached(1, 256), token_append(1, 256, 256, OURS), -0.13),
    PAPERS + "a token's norm": (
        VECTOR, "rms_norm", {"n": 1152, "rows": 1, "residual": 1, "eps_bits": 0},
        rms_norm(1, 1152, OURS), 0.45,
    ),
    PAPERS + "a token's rotation": (
        VECTOR, "rope", rotation(8, 64, norm=False), rope(1, 8, 1, 64, False, OURS)[:1], 0.27,
    ),
    PAPERS + "a token's keys": (
        VECTOR, "append", cached(8, 64), rope(1, 1, 8, 64, False, OURS)[2:], 0.98,
    ),
    PAPERS + "values of rows": (
        VECTOR, "append", cached(8, 128, tokens=32), rope(32, 1, 8, 128, False, OURS)[2:], 0.20,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_these_are_outside_of_that_as_the_docs_say(name: str) -> None:
    build, sequence, parameters, steps, worst = OUTSIDE[name]
    found = errors(build(NPU2), sequence, parameters, steps)
    assert max(found.values(), key=abs) == pytest.approx(worst, abs=0.006)


def test_moved_heads_take_what_the_simulator_takes() -> None:
    compare(
        vector_ops.build(NPU2), "move_heads",
        {"heads": 32, "dim": 80, "x_stride": 80, "y_stride": 128, "copies": 1},
        token_rope(32, 80, False, OURS),
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "n", "gelu"), [(1, 2048, True), (4, 8192, False)])
def test_glu_takes_what_the_simulator_takes(rows: int, n: int, gelu: bool) -> None:
    compare(
        vector_ops.build(NPU2), "glu", {"n": n, "rows": rows, "kind": int(gelu)},
        gated(rows, n, gelu, OURS),
    )  # fmt: skip


LLAMA = Layer(512, 8, 4, 64, 64, 1024)
LAYERS = {
    "llama": (LLAMA, 600),
    "qwen3": (replace(LLAMA, kv_heads=8, head_dim=128, rotary=128, head_norm=True), 300),
    "gemma3": (
        Layer(768, 4, 2, 256, 256, 2560, window=100, gelu=True, head_norm=True, post_norm=True),
        200,
    ),
    "gemma4": (Layer(768, 8, 1, 256, 256, 1536, gelu=True, head_norm=True, post_norm=True), 900),
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
        whole_layer, "layer", parameters,
        (*closed.projections(layer, OURS), *closed.attention(layer, context, OURS),
         *closed.between(layer)),
    )  # fmt: skip


def test_the_vocabulary_takes_what_the_simulator_takes(whole_layer: Design) -> None:
    parameters = {"N": 4096 + 32, "hidden": 1024, "eps_bits": bits(1e-6)}
    compare(whole_layer, "head", parameters, closed.head(4096 + 32, 1024, OURS))
