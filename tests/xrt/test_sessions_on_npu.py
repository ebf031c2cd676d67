"""Ops through ONNX Runtime on the modelled NPU, compared with the host target."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.formats import bf16_blocks, bfp16
from ort_aie_ep.runtime.counters import NpuCounters, npu_counters

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("ops", "passes", "")]

from attention_calls import INPUT_NAMES, Inputs, attributes, model_of
from expanded import expanded
from op_models import one_op_model, open_session, run
from projection_calls import activations, make_weights, project
from vision_tower import vision_tower

pytestmark = pytest.mark.skipif(
    not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file(),
    reason="built without XRT's headers",
)
Array = npt.NDArray[Any]
DIM = 64
QUARTER = np.array([0.25], np.float32)


@pytest.fixture(autouse=True)
def overlays(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


def quarters(rng: np.random.Generator, *shape: int) -> Array:
    """Values that are exact in bfloat16, and in one bfp16 block."""
    return (rng.integers(-3, 4, shape) / 4).astype(np.float32)


def counted(before: NpuCounters) -> tuple[int, dict[str, int], int]:
    """(steps of the device, steps of the host, rows of the cache sent) since `before`."""
    now = npu_counters()
    assert now.fallbacks == before.fallbacks
    hosts = {
        reason: count - before.host_steps.get(reason, 0)
        for reason, count in now.host_steps.items()
        if count != before.host_steps.get(reason, 0)
    }
    sent = now.cache_rows_sent - before.cache_rows_sent
    return now.device_steps - before.device_steps, hosts, sent


@pytest.mark.parametrize(
    "kind", ["plain", "window", "window of a full cache", "left padding", "int8"]
)
def test_prompt_and_tokens_of_attention(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, kv_heads, capacity = 4, 2, 16
    a = attributes(heads, kv_heads)
    cache, scales, hidden = np.dtype(np.float16), {}, 0
    if kind == "window":  # left behind by the last prompt, which the cache has no room for
        capacity, a = 7, replace(a, sliding_window_cache=1, local_window_size=6)
    if kind == "window of a full cache":  # a prompt longer than the window, then a past behind it
        a = replace(a, local_window_size=3)
    if kind == "left padding":
        hidden = 2
    if kind == "int8":
        cache, scales = np.dtype(np.int8), dict.fromkeys(("k_scale", "v_scale"), QUARTER)
        per_tensor = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        a = replace(a, kv_cache_bit_width=8, **per_tensor)

    def call(tokens: int, total: int, past: list[Array]) -> Inputs:
        inputs: Inputs = dict.fromkeys(INPUT_NAMES)
        inputs |= {
            "query": quarters(rng, 1, tokens, (heads + 2 * kv_heads) * DIM),
            "past_key": past[0], "past_value": past[1],
            "seqlens_k": np.array([total - 1], np.int32),
            "total_sequence_length": np.array(total, np.int32),
            **scales,
        }  # fmt: skip
        if hidden:
            inputs["attention_mask"] = (np.arange(total) >= hidden).astype(np.int64)[None]
        return inputs

    rng = np.random.default_rng(3)
    nothing = [np.zeros((1, kv_heads, capacity, DIM), cache)] * 2
    sessions = {}
    for target in ("host", "sim"):
        monkeypatch.setenv("ORT_AIE_TARGET", target)
        sessions[target] = open_session(model_of(a, call(1, 1, nothing)))
    pasts = dict.fromkeys(sessions, nothing)
    before, total = npu_counters(), 0
    for tokens in (5, 1, 1, 3):
        total += tokens
        inputs = call(tokens, total, nothing)
        outputs = {}
        for target, session in sessions.items():
            inputs |= {"past_key": pasts[target][0], "past_value": pasts[target][1]}
            result = run(session, inputs)
            outputs[target] = result["output"]
            pasts[target] = [result["present_key"], result["present_value"]]
        for mine, theirs in zip(pasts["sim"], pasts["host"], strict=True):
            assert mine.tobytes() == theirs.tobytes()
        # Queries, keys and values are exact, and so are codes and values scaled by a power of two.
        # Each numerator, at most 1, is rounded to bfp16 beside others after an approximation
        # of exp and before sums of at least 1, above and below the line; values are at most 3/4.
        # The output is a bfloat16.
        bound = 2 * total * (bfp16.ERROR + 2.0**-8) * 0.75 + 2.0**-8 * 0.75
        if kind == "int8":
            # The host may use integers for queries, which moves a score, of 64 products with keys
            # of at most 3/4, by half a step of 3/4 / 16,256 each, and likewise for numerators.
            score = DIM**0.5 * 0.75 * 0.75 / 16256 / 2
            bound += (2 * score + 2 / 65535 * total) * 0.75
        np.testing.assert_allclose(outputs["sim"], outputs["host"], rtol=0, atol=bound)
    # Every visible row was sent once: K and V of two heads.
    assert counted(before) == (4, {}, 2 * kv_heads * (total - hidden))


@pytest.mark.parametrize(("rows", "n", "bits"), [(1, 256, 4), (3, 96, 2)])
def test_projections(rows: int, n: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w, a = make_weights(n, 300, bits=bits), activations(rows, 300)
    monkeypatch.setenv("ORT_AIE_TARGET", "host")
    host = project(w, a)
    monkeypatch.setenv("ORT_AIE_TARGET", "sim")
    before = npu_counters()
    sim = project(w, a)
    assert counted(before) == (1, {}, 0)
    # Both round activations to bfloat16. The NPU's output is a bfloat16; dequantised weights are
    # rounded (2^-8), and both operands of a prompt go through bfp16.
    magnitude = np.abs(a) @ np.abs(w.dequantised).T
    bound = 2.0**-8 * magnitude + (bfp16_error(a, w.dequantised) if rows > 1 else 0)
    assert (np.abs(sim - host) <= bound + 2.0**-8 * np.abs(host)).all()


def test_an_unquantised_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(5).standard_normal((200, 300)).astype(bf16_blocks.bfloat16)
    a, bias = activations(3, 300), activations(200)
    model = one_op_model(
        "GEMM",
        {"A": a, "W": bf16_blocks.pack(w), "bias": bias},
        {"Y": a.dtype},
        {"K": 300, "N": 200, "format": _native.FORMAT},
        constants=("W", "bias"),
    )
    results, before = {}, npu_counters()
    for target in ("host", "sim"):
        monkeypatch.setenv("ORT_AIE_TARGET", target)
        results[target] = run(open_session(model), {"A": a})["Y"]
    assert counted(before) == (1, {}, 0)
    # The NPU rounds operands to bfp16 and the product, before the bias, to bfloat16.
    product = np.abs(results["host"] - bias)
    bound = bfp16_error(a, w.astype(np.float64)) * (1 + 2.0**-8) + 2.0**-8 * product
    assert (np.abs(results["sim"] - results["host"]) <= bound).all()


def test_an_unquantised_vision_tower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, products = vision_tower(patches=12, hidden=128, ffn=256, layers=1)
    onnx.save(model, tmp_path / "tower.onnx")
    compiled = ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "compiled", quantize="bf16")
    x = activations(1, 12, 75)
    results, before = {}, npu_counters()
    for target in ("host", "sim"):
        monkeypatch.setenv("ORT_AIE_TARGET", target)
        session = open_session(str(compiled.path / "tower.onnx"))
        results[target] = run(session, {"x": x})["features"]
    ops = Counter(n.op_identifier()[:2] for n in expanded(compiled.path, "tower.onnx").graph)
    vectors = {"a vector operator on several rows": ops["aie", "Add"] + ops["aie", "Activation"]}
    assert counted(before)[:2] == (products + 1, vectors)  # and attention
    # bfp16 is off by a part of the largest of eight, which is at most sqrt(8) times their root mean
    # square: of two operands in each product and in attention's two. Independent errors
    # add up in squares.
    bound = np.sqrt(2 * (products + 2)) * np.sqrt(8) * bfp16.ERROR
    error = np.linalg.norm(results["sim"] - results["host"])
    assert 0 < error <= bound * np.linalg.norm(results["host"])


def bfp16_error(a: Array, weights: Array) -> Array:
    """For a . weights^T: the error of rounding both operands to bfp16, a part of the largest of
    eight. Both errors at once add 1 % at most."""

    def eights(x: Array) -> tuple[Array, Array]:
        padded = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, -x.shape[1] % 8)))
        largest = padded.reshape(len(x), -1, 8).max(-1, keepdims=True)
        return padded, np.broadcast_to(largest, (*largest.shape[:2], 8)).reshape(len(x), -1)

    (x, largest), (w, widest) = eights(a), eights(weights)
    error: Array = bfp16.ERROR * 1.01 * (largest @ w.T + x @ widest.T)
    return error
