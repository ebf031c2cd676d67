"""Whole models in ONNX Runtime on the modelled NPU: as near to the host as roundings allow, with
the submissions and runs that are predicted; a token is one submission, and so is a prompt on
overlays of one xclbin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_calls import (
    PROMPT,
    SIMULATED,
    SMALL,
    WINDOW,
    Array,
    Call,
    calls,
    empty_cache,
    growing_cache,
)

import ort_aie_ep
from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.packages.simulated import write_simulated_packages
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.prediction.compiled import read_plans
from ort_aie_ep.prediction.composition import OVERLAYS, compose
from ort_aie_ep.tools.synth import synth

pytestmark = [SIMULATED, pytest.mark.usefixtures("overlays")]
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
MOST_RUNS = 24  # in one of XRT's lists
# The host's part of a token: the row of the embedding, and Gemma's scale of it.
BEFORE_THE_RUN = {"rows of an embedding", "a vector operator on what the host has"}

LLAMA = replace(SHAPES["llama-3.2-1b"], **SMALL)
QWEN3 = replace(SHAPES["qwen3-0.6b"], **SMALL)
FAMILIES: dict[str, Shape] = {
    "llama": LLAMA,
    # Layers alternate between a window and all keys.
    "gemma3": replace(SHAPES["gemma3-1b"], **SMALL, window=WINDOW, global_every=2),
    # The builder's graph of Phi-3 is Llama's, with one key per query.
    "phi3": replace(LLAMA, heads=8, kv_heads=8, head_dim=96, tied=False),
    "mistral": replace(SHAPES["mistral-7b"], **SMALL, window=WINDOW, global_every=1000),
    # Keys of a token smaller than the device's smallest transfer, and normalised.
    "normalised heads of 32": replace(SHAPES["qwen3-0.6b"], **{**SMALL, "head_dim": 32}),
    "36 layers": replace(QWEN3, layers=36),
}


def near(got: Array, want: Array, bound: float) -> None:
    error = np.sqrt(((got - want) ** 2).mean()) / want.std()
    assert 0 < error <= bound  # another arithmetic, so the bits differ from the host's


def tokens_bound(layers: int) -> float:
    # The device rounds to bfloat16, each time by at most 2^-8 of the value. In a layer it rounds
    # the row before and after two norms, the sum and its norm's result (with norms behind: two
    # more), projections' results (q, k, v, o, gate and up, down), rotated and normalised q and k,
    # the attention's output and the MLP's product. These errors are independent and add up in
    # squares. A layer passes an error on at about its size, because its residual is its own input.
    return float(2.0**-8 * np.sqrt(18 * layers))


def prompts_bound(layers: int) -> float:
    # Prompts are multiplied as bfp16: both operands of a product are off by at most 2^-7 of the
    # largest of eight, at most sqrt(8) times their root mean square, and evenly up to that. The
    # products of a layer that follow each other (q, k, v and output, attention's two, gate and up,
    # down), and the logits', add their independent errors in squares.
    return float(2.0**-7 * np.sqrt(8 / 3) * np.sqrt(2 * (6 * layers + 1)))


def one_submission(found: list[Call], host: list[Call], bound: float) -> None:
    for got, want in zip(found, host, strict=True):
        assert got.counted("submissions") == 1, got.between
        assert 1 <= got.counted("runs") <= MOST_RUNS
        assert got.between == {}
        assert got.host_steps.keys() <= BEFORE_THE_RUN
        assert got.counted("fallbacks") == 0
        assert want.counted("submissions") == 0
        near(got.logits, want.logits, bound)


def as_predicted(found: list[Call], folder: Path, prompt: int, first: int) -> None:
    """The calls from `first` new tokens on do what the performance model says."""
    seen = prompt + 1 - first
    for call, tokens in zip(found, [first] + [1] * (len(found) - 1), strict=True):
        seen += tokens
        composed = compose(read_plans(folder).plans, tokens, seen, one_xclbin=False)
        assert call.host_steps == composed.host_steps
        assert call.counted("device_steps") == composed.device_steps
        assert call.counted("submissions") == composed.submissions
        assert call.counted("runs") == composed.timing.runs
        assert call.counted("fallbacks") == 0


# The executor's own case, tokens_of_decoders, has all families, of many layers.
QUICK = {"llama", "normalised heads of 32"}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f in QUICK else pytest.mark.in_turn) for f in FAMILIES]
)
def test_a_token_is_one_submission(family: str, tmp_path: Path) -> None:
    shape, folder = FAMILIES[family], tmp_path / "compiled"
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), folder)
    model, tokens = (empty_cache(shape), shape.vocab, folder), 1 if family == "36 layers" else 3
    found = calls(*model, ["host", *["sim"] * tokens])[1:]
    one_submission(found, calls(*model, ["host"] * (1 + tokens))[1:], tokens_bound(shape.layers))
    as_predicted(found, folder, PROMPT, 1)


# Of models whose prompts run on the device: how they are compiled. The products of a prompt take
# most of the simulator's time. The host prepares heads of 48 dimensions.
PROMPTS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "all logits": (QWEN3, {"last_logits": False}),
    "a node for each step": (LLAMA, {"plan": False}),
    "heads that the host prepares": (replace(LLAMA, head_dim=48), {}),
    "weights that stay floats": (LLAMA, {"quantize": "bf16"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.in_turn if i else []) for i, n in enumerate(PROMPTS)]
)
def test_a_prompt_and_tokens_are_those_of_the_host_and_as_predicted(
    name: str, tmp_path: Path
) -> None:
    shape, options = PROMPTS[name]
    shape, prompt, folder = replace(shape, layers=1), 3, tmp_path / "compiled"
    model = synth(shape, tmp_path / "model", int4="quantize" not in options)
    ort_aie_ep.compile(model, folder, **options)
    cached = (empty_cache(shape), shape.vocab, folder)
    found = calls(*cached, ["sim"] * 3, prompt=prompt)
    on_host = calls(*cached, ["host"] * 3, prompt=prompt)
    with ort_aie_ep.logits_of_last(1):
        last = calls(*cached, ["sim"], prompt=prompt)  # its lm_head reads a part of what is there
    for got, want in zip([*found, *last], [*on_host, on_host[0]], strict=True):
        near(got.logits, want.logits, prompts_bound(shape.layers))
    as_predicted(found, folder, prompt, prompt)
    divided = {key for call in found[1:] for key in (*call.between, *call.host_steps)}
    if name == "heads that the host prepares":
        assert "queries, keys and values that the host prepares" in divided
    if name == "weights that stay floats":
        assert "a single row of an unquantised projection" in divided


@pytest.mark.in_turn
def test_a_prompt_is_one_submission(tmp_path: Path) -> None:
    """Its keys are rotated and appended by the overlay that multiplies; a token continues them."""
    shape, prompt = replace(LLAMA, layers=1), 64
    folder, packages = tmp_path / "compiled", tmp_path / "overlays"
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), folder)
    designs = designs_on(device("npu2"))
    write_simulated_packages(packages, {name: designs[name] for name in OVERLAYS & designs.keys()})
    model = (empty_cache(shape, 96), shape.vocab, folder)
    found = calls(*model, ["sim"] * 2, prompt=prompt, overlays=str(packages))
    one_submission(found, calls(*model, ["host"] * 2, prompt=prompt), prompts_bound(shape.layers))
    plans = read_plans(folder).plans
    for call, tokens in zip(found, (prompt, 1), strict=True):
        composed = compose(plans, tokens, prompt + (tokens == 1))
        runs = (call.counted("submissions"), call.counted("runs"))
        assert runs == (composed.submissions, composed.timing.runs)


@pytest.mark.in_turn
@pytest.mark.parametrize("plan", [True, False])
def test_a_long_prompt_and_tokens_are_those_of_the_host(plan: bool, tmp_path: Path) -> None:
    """FlowQKV's super-chunk is 256 queries at 64 dimensions and two queries a KV head."""
    folder = tmp_path / "compiled"
    ort_aie_ep.compile(DEMO, folder, plan=plan)
    decoder = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    cache = growing_cache(folder, decoder["num_key_value_heads"], decoder["head_size"])
    layers = len(cache) // 2
    found, host = (
        calls(cache, 900, folder, [target] * 9, prompt=300, prompt_chunk="270")
        for target in ("sim", "host")
    )
    want = np.array([call.logits for call in host])
    error = np.sqrt(((np.array([c.logits for c in found]) - want) ** 2).mean(axis=1))
    # As in prompts_bound, of half a step of the largest of eight.
    bound = 2.0**-7 * np.sqrt(6 * layers) * want.std(axis=1)
    if plan:
        # Residuals of tokens stay on the device, and their sums, two per layer, are bfloat16: they
        # move by up to 2^-8, and by less than 2^-9 in the root of the mean of squares
        # (docs/architecture.md, Numerics). That is less than the above, but some tokens of this
        # model are several times as sensitive to any rounding as others (in float64, each of the
        # ten sums alone, and the cache's rows). The errors of all tokens add up in squares, like
        # those of the products.
        bound = np.sqrt(bound**2 + 2 * layers * 2.0**-18 * (want**2).mean(axis=1))
        assert (error**2).mean() <= (bound**2).mean(), error / bound
        assert np.median(error / bound) <= 0.5
    else:
        assert (error <= bound).all(), error / bound
