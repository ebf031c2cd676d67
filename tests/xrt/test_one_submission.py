"""For each family in ONNX Runtime, a token of a whole decoder is one submission, and so is a prompt
on overlays of one xclbin."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from op_models import session_options
from optimum_models import quantise, write_export

import ort_aie_ep
from ort_aie_ep import npu_counters
from ort_aie_ep.aie_kernels.build import designs_on
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.npu.packages.simulated import write_simulated_packages
from ort_aie_ep.npu.terms.device import device
from ort_aie_ep.prediction.compiled import read_plans
from ort_aie_ep.prediction.composition import OVERLAYS, compose
from ort_aie_ep.runtime.counters import NpuCounters
from ort_aie_ep.tools.synth import synth

pytestmark = pytest.mark.skipif(
    not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file(),
    reason="built without XRT's headers",
)
PROMPT, CAPACITY = 5, 16
WINDOW, WINDOW_CAPACITY = 4, 6  # the second token is the first that moves a windowed cache
MOST_RUNS = 24  # in one of XRT's lists
# The host's part of a token: the row of the embedding, and Gemma's scale of it.
BEFORE_THE_RUN = {"rows of an embedding", "a vector operator on what the host has"}

# Real heads, with few channels and a small vocabulary.
SMALL = {"hidden": 256, "ffn": 512, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 512}
LLAMA = replace(SHAPES["llama-3.2-1b"], **SMALL)
FAMILIES: dict[str, Shape] = {
    "llama": LLAMA,
    "qwen3": replace(SHAPES["qwen3-0.6b"], **SMALL),
    # Layers alternate between a window and all keys.
    "gemma3": replace(SHAPES["gemma3-1b"], **SMALL, window=WINDOW, global_every=2),
    # The builder's graph of Phi-3 is Llama's, with one key per query.
    "phi3": replace(LLAMA, heads=8, kv_heads=8, head_dim=96, tied=False),
    "mistral": replace(SHAPES["mistral-7b"], **SMALL, window=WINDOW, global_every=1000),
    # Keys of a token smaller than the device's smallest transfer, also normalised.
    "heads of 32": replace(LLAMA, heads=8, head_dim=32),
    "normalised heads of 32": replace(SHAPES["qwen3-0.6b"], **{**SMALL, "head_dim": 32}),
}


@pytest.fixture(autouse=True)
def overlays(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


def open_session(
    folder: Path, target: str, overlays: Path | None = None
) -> onnxruntime.InferenceSession:
    options = session_options()
    if overlays is not None:
        options.add_session_config_entry("ort_aie.overlays", str(overlays))
    options.register_custom_ops_library(str(ort_aie_ep.library_path()))
    options.add_session_config_entry("ort_aie.target", target)
    options.add_session_config_entry("ort_aie.numerics", "bf16")
    return onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )


def more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    new = {reason: count - before.get(reason, 0) for reason, count in after.items()}
    return {reason: count for reason, count in new.items() if count}


class Call:
    """The last token's logits, the cache, and what the NPU counted."""

    def __init__(
        self, outputs: dict[str, np.ndarray], before: NpuCounters, after: NpuCounters
    ) -> None:
        self.logits = outputs["logits"][0, -1].astype(np.float64)
        self.cache = {
            name.replace("present", "past_key_values"): value
            for name, value in outputs.items()
            if name.startswith("present")
        }
        self.submissions = after.submissions - before.submissions
        self.runs = after.runs - before.runs
        self.fallbacks = after.fallbacks - before.fallbacks
        self.host_steps = more(before.host_steps, after.host_steps)
        self.between = more(before.host_steps_between, after.host_steps_between)


def empty_cache(shape: Shape, capacity: int = CAPACITY) -> dict[str, Any]:
    """With room for all tokens; a layer with a window keeps little more than the window."""

    def rows(layer: int) -> np.ndarray:
        own = WINDOW_CAPACITY if shape.is_local(layer) else capacity
        return np.zeros((1, shape.kv_heads, own, shape.head_dim), np.float32)

    return {
        f"past_key_values.{layer}.{what}": rows(layer)
        for layer in range(shape.layers)
        for what in ("key", "value")
    }


def calls(
    cache: dict[str, Any],
    vocab: int,
    folder: Path,
    targets: list[str],
    *,
    prompt: int = PROMPT,
    positions: bool = False,
    session: onnxruntime.InferenceSession | None = None,
    overlays: Path | None = None,
) -> list[Call]:
    """Runs the prompt on the first target, then a token on each of the others, with one cache: in a
    session for each target, or all in one."""
    sessions = {
        target: session or open_session(folder, target, overlays) for target in set(targets)
    }
    names = [o.name for o in sessions[targets[0]].get_outputs()]
    ids = np.random.default_rng(0).integers(0, vocab, prompt + len(targets))
    found, seen = [], 0
    for i, target in enumerate(targets):
        count = prompt if i == 0 else 1
        feeds = {
            "input_ids": ids[None, seen : seen + count],
            "attention_mask": np.ones((1, seen + count), np.int64),
            **cache,
        }
        if positions:
            feeds["position_ids"] = np.arange(seen, seen + count)[None]
        seen += count
        before = npu_counters()
        outputs = dict(zip(names, sessions[target].run(None, feeds), strict=True))
        found.append(Call(outputs, before, npu_counters()))
        cache = found[-1].cache
    return found


def check(shape: Shape, folder: Path, tokens: int) -> None:
    ort_aie_ep.compile(synth(shape, folder / "model"), folder / "compiled")
    model = (empty_cache(shape), shape.vocab, folder / "compiled")
    device = calls(*model, ["host", *["sim"] * tokens])[1:]
    host = calls(*model, ["host"] * (1 + tokens))[1:]
    compare(device, host, shape.layers)


def compare(device: list[Call], host: list[Call], layers: int, bound: float | None = None) -> None:
    # The device rounds to bfloat16, each time by at most 2^-8 of the value. In a layer it rounds
    # the row before and after two norms, the sum and its norm's result (with norms behind: two
    # more), projections' results (q, k, v, o, gate and up, down), rotated and normalised q and k,
    # the attention's output and the MLP's product. These errors are independent and add up in
    # squares. A layer passes an error on at about its size, because its residual is its own input.
    bound = bound or 2.0**-8 * np.sqrt(18 * layers)
    for token, (got, want) in enumerate(zip(device, host, strict=True)):
        assert got.submissions == 1, (token, got.between)
        assert 1 <= got.runs <= MOST_RUNS, token
        assert got.between == {}, token
        assert got.host_steps.keys() <= BEFORE_THE_RUN, token
        assert got.fallbacks == 0, token
        assert want.submissions == 0, token
        error = np.sqrt(((got.logits - want.logits) ** 2).mean()) / want.logits.std()
        assert 0 < error <= bound, token  # another arithmetic, so the bits differ from the host's


# The executor's own case, tokens_of_decoders, has all families, of many layers.
QUICK = {"llama", "normalised heads of 32"}


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f in QUICK else pytest.mark.in_turn) for f in FAMILIES]
)
def test_a_token_is_one_submission(family: str, tmp_path: Path) -> None:
    check(FAMILIES[family], tmp_path, tokens=3)


@pytest.mark.in_turn
def test_a_token_of_36_layers_is_one_submission(tmp_path: Path) -> None:
    check(replace(FAMILIES["qwen3"], layers=36), tmp_path, tokens=1)


@pytest.mark.in_turn
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_token_of_an_optimum_export_is_one_submission(family: str, tmp_path: Path) -> None:
    """Their caches grow, and their angles are computed by the CPU EP."""
    export = quantise(write_export(family, tmp_path / "export"), tmp_path / "quantised")
    ort_aie_ep.compile(export, tmp_path / "compiled")
    inputs = {
        value.name: value.shape
        for value in open_session(tmp_path / "compiled", "host").get_inputs()
    }
    cache = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
        for name, shape in inputs.items()
        if name.startswith("past_key_values")
    }
    vocab = json.loads((export / "config.json").read_text())["vocab_size"]
    model, positions = (cache, vocab, tmp_path / "compiled"), "position_ids" in inputs
    device = calls(*model, ["host", "sim", "sim"], positions=positions)[1:]
    host = calls(*model, ["host"] * 3, positions=positions)[1:]
    compare(device, host, len(cache) // 2)


@pytest.mark.in_turn
def test_a_prompt_is_one_submission(tmp_path: Path) -> None:
    """Its keys are rotated and appended by the overlay that multiplies; a token continues them."""
    shape, prompt = replace(LLAMA, layers=1), 64
    folder, overlays = tmp_path / "compiled", tmp_path / "overlays"
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), folder)
    designs = designs_on(device("npu2"))
    write_simulated_packages(overlays, {name: designs[name] for name in OVERLAYS & designs.keys()})
    model = (empty_cache(shape, 96), shape.vocab, folder)
    found = calls(*model, ["sim"] * 2, prompt=prompt, overlays=overlays)
    # Products of bfp16, as in test_demo_model_on_sim.py: six in a row, and the logits.
    bound = 2.0**-7 * np.sqrt(8 / 3) * np.sqrt(2 * (6 * shape.layers + 1))
    compare(found, calls(*model, ["host"] * 2, prompt=prompt), shape.layers, bound)
    plans = read_plans(folder).plans
    for call, tokens in zip(found, (prompt, 1), strict=True):
        composed = compose(plans, tokens, prompt + (tokens == 1))
        assert (call.submissions, call.runs) == (composed.submissions, composed.timing.runs)


def test_what_divides_a_token_has_its_reason(tmp_path: Path) -> None:
    """The device rotates multiples of 32 dimensions."""
    shape = replace(LLAMA, head_dim=48, layers=3)
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled")
    model = (empty_cache(shape), shape.vocab, tmp_path / "compiled")
    for call in calls(*model, ["host", "sim", "sim"])[1:]:
        assert call.submissions == 1 + shape.layers
        assert call.between == {"queries, keys and values that the host prepares": shape.layers}
        assert call.host_steps.keys() <= BEFORE_THE_RUN


@pytest.mark.in_turn
def test_users_of_one_model_are_kept_apart(tmp_path: Path) -> None:
    """Two threads in one session, while others are opened and closed."""
    shape, folder = replace(FAMILIES["qwen3"], layers=1), tmp_path / "compiled"
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), folder)

    def user(session: onnxruntime.InferenceSession | None = None) -> list[np.ndarray]:
        # Prompts of threads: test_threads.py.
        model = (empty_cache(shape), shape.vocab, folder)
        found = calls(*model, ["sim"] * 4, prompt=1, session=session)
        return [call.logits for call in found]

    alone = user()
    session = open_session(folder, "sim")
    before = npu_counters()
    with ThreadPoolExecutor() as threads:
        jobs = [threads.submit(user, s) for s in (session, session, None, None)]
        found = [job.result() for job in jobs]
    found.append(user(session))
    assert npu_counters().fallbacks == before.fallbacks
    for logits in found:
        np.testing.assert_array_equal(logits, alone)
