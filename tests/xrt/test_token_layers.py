"""A token's layers on the overlay `fused_layer`: the bits of the overlay `decode`, or why not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_calls import SIMULATED, SMALL, Call, calls, empty_cache, more

import ort_aie_ep
from ort_aie_ep import npu_counters
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.prediction.compiled import plans_in
from ort_aie_ep.prediction.composition import schedule
from ort_aie_ep.tools.synth import synth

pytestmark = [SIMULATED, pytest.mark.usefixtures("overlays")]
OF_4 = {**SMALL, "kv_heads": 4}  # KV heads
LLAMA = replace(SHAPES["llama-3.2-1b"], **OF_4)
FAMILIES: dict[str, Shape] = {
    "llama": LLAMA,
    "qwen3": replace(SHAPES["qwen3-0.6b"], **OF_4),
    # Norms of both outputs; layers alternate between a window and all keys.
    "gemma3": replace(SHAPES["gemma3-1b"], **SMALL, window=4, global_every=2),
}


@contextmanager
def without_packages(overlays: Path, aside: Path) -> Iterator[None]:
    """Sessions that are opened in the meantime find no package of fused_layer, nor of the form of
    the models' weights, which are symmetric."""
    moved = [overlays / "fused_layer", *overlays.glob("*_symmetric")]
    assert len(moved) == 7
    aside.mkdir()
    for package in moved:
        shutil.move(package, aside)
    try:
        yield
    finally:
        for package in moved:
            shutil.move(aside / package.name, overlays)


def tokens(shape: Shape, compiled: Path, prompt: int, count: int) -> tuple[list[Call], int]:
    """Tokens on the modelled NPU, and how many of them ran as layers."""
    model = (empty_cache(shape, prompt + count + 1), shape.vocab, compiled)
    before = npu_counters().layer_tokens
    made = calls(*model, ["host", *["sim"] * count], prompt=prompt)[1:]
    assert [call.counted("submissions") for call in made] == [1] * count
    assert not any(call.counted("fallbacks") for call in made)
    return made, npu_counters().layer_tokens - before


# Prompts end before a chunk of keys does: 4,096 elements of a head.
@pytest.mark.parametrize(
    ("family", "prompt"),
    [
        ("llama", 62),
        *(pytest.param(*o, marks=pytest.mark.in_turn) for o in (("qwen3", 31), ("gemma3", 15))),
    ],
)
def test_layers_have_the_bits_of_the_overlay_decode(
    family: str, prompt: int, overlays: Path, tmp_path: Path
) -> None:
    shape = FAMILIES[family]
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled")
    before = npu_counters().widened
    got, layered = tokens(shape, tmp_path / "compiled", prompt, 4)
    assert layered == 4
    assert npu_counters().widened == before
    with without_packages(overlays, tmp_path / "aside"):
        expected, layered = tokens(shape, tmp_path / "compiled", prompt, 4)
    assert layered == 0
    # Queries, keys and values in one; output; gate, up and down; the vocabulary.
    reason = "no overlays for groups of 32, symmetric"
    assert more(before, npu_counters().widened) == {reason: 5 * shape.layers + 1}
    (plan,) = plans_in(load_model(tmp_path / "compiled" / "model.onnx"))
    assert schedule(plan, 1, 2, {"decode"})["widened"] == {(4, 32, False): reason}
    assert schedule(plan, 1, 2, {"decode", "decode_32_symmetric"})["widened"] == {}
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
        assert np.isfinite(one.logits).all()
        assert np.std(one.logits) > 0
        for name, rows in other.cache.items():
            np.testing.assert_array_equal(one.cache[name], rows, name)
    assert len(got[0].cache) == 2 * shape.layers


OTHERS = {
    "kv_heads=2 of head_dim=64 must have a multiple of 256 elements": replace(LLAMA, kv_heads=2),
    "head_dim=96 must be 64, 128 or 256: pad q, k and v with zeros": replace(LLAMA, head_dim=96),
    "hidden=384 must be a multiple of 256 up to 8192": replace(LLAMA, hidden=384),
    "ffn=640 must be a multiple of 256, 512 to 20480: the gate stays in L1": (
        replace(LLAMA, ffn=640)
    ),
}


@pytest.mark.parametrize(
    "reason",
    [pytest.param(r, marks=pytest.mark.in_turn if at else []) for at, r in enumerate(OTHERS)],
)
def test_other_layers_run_on_decode_and_the_reason_is_counted(reason: str, tmp_path: Path) -> None:
    shape = OTHERS[reason]
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled")
    assert refused(shape, tmp_path / "compiled") == {reason: 1}


def refused(shape: Shape, compiled: Path) -> dict[str, int]:
    """The reasons of a token's session; `explain` has the same one."""
    before = npu_counters().layers_refused
    _, layered = tokens(shape, compiled, 3, 1)
    assert layered == 0
    reasons = more(before, npu_counters().layers_refused)
    assert [explained(compiled)] == list(reasons)
    return reasons


def explained(compiled: Path) -> str:
    plans = plans_in(load_model(compiled / "model.onnx"))
    asked = (schedule(plan, 1, 2, {"decode", "fused_layer"}) for plan in plans)
    return next(filter(None, (one["layers_refused"] for one in asked)), "")


def test_attention_without_a_plan_is_counted(tmp_path: Path) -> None:
    ort_aie_ep.compile(synth(LLAMA, tmp_path / "model"), tmp_path / "compiled", plan=False)
    reason = "attention that is a node by itself, without a plan"
    before = npu_counters().layers_refused
    calls(empty_cache(LLAMA), LLAMA.vocab, tmp_path / "compiled", ["host", "sim"])
    assert more(before, npu_counters().layers_refused) == {reason: LLAMA.layers}
    assert explained(tmp_path / "compiled") == reason
