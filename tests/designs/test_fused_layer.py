"""A whole decoder layer as one task graph: its bits are those of its operators in numpy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy_q4nx as q4nx
import pytest
from time_only import TimeOnly

from ort_aie_ep import _npu
from ort_aie_ep.aie_kernels.fused_layer import design as fused_layer
from ort_aie_ep.aie_kernels.fused_layer.reference import Layer, Operators
from ort_aie_ep.aie_kernels.reference import BF16, bits, random_blocks
from ort_aie_ep.bringup.problems import GEMMA, LLAMA
from ort_aie_ep.formats.q4nx import BlockForm
from ort_aie_ep.npu.checks.check import check
from ort_aie_ep.npu.packages.package import manifest
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import device

SHAPES: dict[str, dict[str, int]] = {
    "llama": LLAMA,
    "qwen3": LLAMA | {
        "hidden": 768, "heads": 8, "kv_heads": 8, "head_dim": 128, "rotary_dim": 128, "ffn": 1280,
        "head_norm": 1, "context": 33, "capacity": 64, "scale_bits": bits(128**-0.5),
    },
    "gemma3": GEMMA,
    "qwen2": LLAMA | {"heads": 12, "kv_heads": 4, "bias": 1, "ffn": 768, "context": 64},
    "phi": LLAMA | {
        "head_dim": 128, "rotary_dim": 96, "interleaved": 1, "kv_heads": 8, "context": 1,
        "softcap_bits": bits(30.0),
    },
    "one key-value head": LLAMA | {"heads": 4, "kv_heads": 1, "head_dim": 256, "rotary_dim": 256},
    # The layers of Gemma 4 E2B and E4B with a window: heads of 256, eight queries.
    "gemma4 e2b": GEMMA | {"heads": 8, "kv_heads": 1, "hidden": 768, "ffn": 1536},
    "gemma4 e4b": GEMMA | {"heads": 8, "ffn": 1024, "context": 40},
    "queries in two parts": LLAMA | {
        "heads": 6, "kv_heads": 1, "head_dim": 256, "rotary_dim": 256, "ffn": 512,
    },
    "queries in no parts": LLAMA | {"heads": 6, "kv_heads": 2, "head_dim": 128, "ffn": 512},
    "six key-value heads": LLAMA | {"heads": 12, "kv_heads": 6, "head_dim": 128, "ffn": 512},
    # A task for each head of new keys, and for each round of down: more than a channel takes.
    "long cache": LLAMA | {"hidden": 256, "heads": 32, "kv_heads": 8, "capacity": 32832},
    "long hidden": LLAMA | {"hidden": 6144, "ffn": 512},
    "long ffn": LLAMA | {"hidden": 256, "ffn": 13312},
    "long rows": LLAMA | {"hidden": 6144, "ffn": 13312},
}  # fmt: skip


@pytest.fixture(scope="module")
def design() -> Design:
    return fused_layer.build(device("npu2"))


@pytest.fixture(scope="module")
def session(design: Design) -> Session:
    return Session(design)


def test_overlay_passes_every_check(design: Design) -> None:
    check(design)
    # Heads of a cache too far apart for one task, rounds of down too, and more rounds than a task
    # iterates over: no queue is full for ever.
    times = TimeOnly(design)
    times.time("layer", LLAMA | {"capacity": 65536, "hidden": 1280, "ffn": 14336})
    for n in (1120, 512 * 330 + 96):
        times.time("head", {"N": n, "hidden": 256, "eps_bits": 0})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.in_turn if n == "long rows" else []) for n in SHAPES]
)
def test_layer_has_the_bits_of_its_operators(session: Session, name: str) -> None:
    layer = Layer(SHAPES[name])
    buffers = layer.random(seed=len(name))
    expected = Operators().layer(layer, buffers)
    session.run("layer", layer.parameters, buffers)
    for argument, values in expected.items():
        np.testing.assert_array_equal(buffers[argument].view(np.uint16), values.view(np.uint16))
    assert np.isfinite(buffers["y"].astype(np.float32)).all()


def test_weights_of_a_form_have_the_bits_of_the_same_codes_widened() -> None:
    """The reference widens them. They are read once."""
    form = BlockForm(group=128, minima=False)
    session, reference, layer = (
        Session(fused_layer.build(device("npu2"), form)), Operators(form), Layer(LLAMA, form),
    )  # fmt: skip
    buffers = layer.random(seed=5)
    expected = reference.layer(layer, buffers)
    (result,) = session.run("layer", layer.parameters, buffers)
    for argument, values in expected.items():
        np.testing.assert_array_equal(buffers[argument].view(np.uint16), values.view(np.uint16))
    weights = sum(values.nbytes for name, values in buffers.items() if name.startswith("w_"))
    assert weights < result.read < 1.2 * weights
    rng = np.random.default_rng(6)
    x, norm = rng.standard_normal((2, 256)).astype(BF16)
    w, y = random_blocks(rng, 1120, 256, form), np.full(1120, np.nan, BF16)
    shape = {"N": 1120, "hidden": 256, "eps_bits": bits(1e-6)}
    session.run("head", shape, {"x": x, "norm": norm, "w": w, "y": y})
    expected_y = reference.matvec(w, reference.norm(x, norm, bits(1e-6)))
    np.testing.assert_array_equal(y.view(np.uint16), expected_y.view(np.uint16))


def test_nothing_but_new_keys_and_values_leaves_between_input_and_output(session: Session) -> None:
    layer = Layer(LLAMA)
    (result,) = session.run("layer", layer.parameters, layer.random(1))
    new = 2 * layer.kv_heads * layer.head_dim * 2
    assert result.written == new + 2 * layer.hidden


def test_weights_norms_and_cached_keys_are_read_once(session: Session) -> None:
    layer = Layer(LLAMA)
    (result,) = session.run("layer", layer.parameters, layer.random(1))
    q, kv = layer.heads * 64, layer.kv_heads * 64
    weights = ((q + 2 * kv + q) * layer.hidden + 3 * layer.ffn * layer.hidden) * 5 // 8
    keys = 2 * kv * 128 * 2  # whole chunks
    assert result.read == weights + keys + 2 * 3 * layer.hidden + 512


# 33,376 are more rounds than one task has, 151,936 more than four.
@pytest.mark.parametrize(
    "outputs", [512, 1120, 128, 33_376, pytest.param(151_936, marks=pytest.mark.in_turn)]
)
def test_head_is_the_norm_and_the_vocabulary(session: Session, outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    hidden, eps = 512 if outputs < 10_000 else 256, bits(1e-6)
    x, norm = rng.standard_normal((2, hidden)).astype(BF16)
    w = random_blocks(rng, outputs, hidden)
    buffers = {"x": x, "norm": norm, "w": w, "y": np.full(outputs, np.nan, BF16)}
    session.run("head", {"N": outputs, "hidden": hidden, "eps_bits": eps}, buffers)
    reference = Operators()
    expected = reference.matvec(w, reference.norm(x, norm, eps))
    np.testing.assert_array_equal(buffers["y"].view(np.uint16), expected.view(np.uint16))


def test_reference_is_the_layer_in_float64() -> None:
    """The reference's own data movement: all of the layer once more, without its kernels."""
    layer = Layer(LLAMA)
    b = layer.random(3)
    got = Operators().layer(layer, b)["y"].astype(np.float64)
    f = {n: v.astype(np.float64) for n, v in b.items() if v.dtype == BF16}

    def norm(x: Any, w: Any) -> Any:
        return x / np.sqrt((x**2).mean() + 1e-5) * w

    def matrix(name: str, k: int) -> Any:
        blocks = b[name].reshape(-1, k // 256, 5120)
        return q4nx.dequantize(blocks, 32 * len(blocks), k).astype(np.float64)

    x = f["x"]
    qkv = matrix("w_qkv", 512) @ norm(x, f["input_norm"])
    q, k, v = np.split(qkv.reshape(-1, 64), [8, 12])
    cosine, sine = f["table"][:32], f["table"][32:64]

    def turn(h: Any) -> Any:
        a, c = np.split(h, 2, axis=-1)
        return np.hstack([a * cosine - c * sine, c * cosine + a * sine])

    cached = {n: f[n].reshape(4, 16, 8, 8, 8).transpose(0, 1, 3, 2, 4).reshape(4, 128, 64)[:, :70]
              for n in "kv"}  # fmt: skip
    cached["k"][:, 69], cached["v"][:, 69] = turn(k), v
    o = np.empty((8, 64))
    for head, query in enumerate(turn(q)):
        s = cached["k"][head // 2] @ query / 8
        p = np.exp(s - s.max())
        o[head] = p / p.sum() @ cached["v"][head // 2]
    x = x + matrix("w_o", 512) @ o.reshape(-1)
    normed = norm(x, f["ffn_norm"])
    gate, up = matrix("w_gate", 512) @ normed, matrix("w_up", 512) @ normed
    exact = x + matrix("w_down", 1024) @ (gate / (1 + np.exp(-gate)) * up)
    # Ten roundings to bfloat16 on the way, each of values no larger than the largest here.
    assert np.abs(got - exact).max() <= 10 * 2.0**-9 * np.abs(exact).max()


def test_layers_of_a_token_are_one_stream(design: Design) -> None:
    names = [a.name for a in design.sequences["layer"].arguments]
    step = {"sequence": "layer", "parameters": LLAMA, "arguments": {n: (0, 0) for n in names}}
    assert len(_npu.build(json.dumps(manifest(design)), [step] * 16)) == 1
