"""Checkpoints and LoRA adapters: what is merged into what, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoints import (
    LAYER,
    Array,
    adapter,
    checkpoint,
    halves,
    python_with_builder,
    save_tensors,
    weights,
)

from ort_aie_ep.compiler.checkpoint.build import built_model
from ort_aie_ep.compiler.checkpoint.options import BuildOptions
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.adapter import read_adapter
from ort_aie_ep.models.checkpoint import read_checkpoint

Q, O = f"{LAYER}.q_proj.weight", f"{LAYER}.o_proj.weight"  # noqa: E741


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "SRC")


def built(source: Path, lora: Path, tmp_path: Path) -> tuple[list[str], dict[str, Array]]:
    """The files that the builder sees, and the values of the tensors."""
    python = python_with_builder(tmp_path / "py", STANDIN_SEEN=tmp_path / "seen.json")
    options = BuildOptions(adapter=lora)
    with built_model(source, tmp_path / "out", options, python=python):
        seen = json.loads((tmp_path / "seen.json").read_text())
    tensors = {name: np.array(value, np.float32) for name, value in seen["tensors"].items()}
    return seen["files"], tensors


def product(tensors: dict[str, Array], module: str) -> Array:
    a, b = (tensors[f"{LAYER}.{module}.lora_{half}.weight"] for half in "AB")
    return b.astype(np.float64) @ a.astype(np.float64)


def test_an_adapter_is_added_to_the_matrices_that_it_names(source: Path, tmp_path: Path) -> None:
    lora = halves("q_proj", 8, 6) | halves("o_proj", 6, 8, seed=20)
    (source / "additional_chat_templates").mkdir()
    files, tensors = built(source, adapter(tmp_path / "lora", lora), tmp_path)
    assert files == sorted(path.name for path in source.iterdir())
    # Sums are rounded to float32, and once more to float16.
    expected = weights(8, 6, seed=2) + 2.0 * product(lora, "q_proj")
    np.testing.assert_allclose(tensors[Q], expected, rtol=0, atol=16 * 2.0**-24)
    expected = weights(6, 8, seed=4, dtype=np.float16) + 2.0 * product(lora, "o_proj")
    np.testing.assert_allclose(tensors[O], expected, rtol=2.0**-11, atol=16 * 2.0**-24)
    np.testing.assert_array_equal(tensors["lm_head.weight"], weights(9, 6, seed=5))
    np.testing.assert_array_equal(tensors[f"{LAYER}.q_proj.bias"], weights(8, seed=3))


def test_tensors_that_an_adapter_has_whole_replace_the_checkpoints(
    source: Path, tmp_path: Path
) -> None:
    new = {f"{LAYER}.q_proj.bias": weights(8, seed=30), "lm_head.weight": weights(9, 6, seed=31)}
    lora = adapter(tmp_path / "lora", halves("q_proj", 8, 6) | new, modules_to_save=["lm_head"])
    _, tensors = built(source, lora, tmp_path)
    for name, values in new.items():
        np.testing.assert_array_equal(tensors[name], values)


def test_a_change_is_added_to_the_layer_that_the_adapter_brings(
    source: Path, tmp_path: Path
) -> None:
    lora, base = halves("q_proj", 8, 6), weights(8, 6, seed=32)
    both = {**lora, f"{LAYER}.q_proj.base_layer.weight": base}
    _, tensors = built(source, adapter(tmp_path / "lora", both), tmp_path)
    expected = base + 2.0 * product(lora, "q_proj")
    np.testing.assert_allclose(tensors[Q], expected, rtol=0, atol=16 * 2.0**-24)


def test_dora_scales_rows_to_their_magnitudes(source: Path, tmp_path: Path) -> None:
    lora, norms = halves("q_proj", 8, 6), np.abs(weights(8, seed=40)) + 1
    both = {**lora, f"{LAYER}.q_proj.lora_magnitude_vector": norms}
    _, tensors = built(source, adapter(tmp_path / "lora", both, use_dora=True), tmp_path)
    np.testing.assert_allclose(np.linalg.norm(tensors[Q], axis=1), norms, rtol=1e-6)
    direction = weights(8, 6, seed=2) + 2.0 * product(lora, "q_proj")
    cosine = (tensors[Q] * direction).sum(1) / norms / np.linalg.norm(direction, axis=1)
    np.testing.assert_allclose(cosine, 1, rtol=1e-6)


def test_embeddings_and_conv1d_are_transposed(source: Path, tmp_path: Path) -> None:
    stem = "model.embed_tokens.lora_embedding_"
    lora = {f"{stem}A": weights(2, 9, seed=50), f"{stem}B": weights(6, 2, seed=51)}
    _, tensors = built(source, adapter(tmp_path / "lora", lora), tmp_path)
    expected = weights(9, 6, seed=1) + 2.0 * (lora[f"{stem}B"] @ lora[f"{stem}A"]).T
    np.testing.assert_allclose(tensors["model.embed_tokens.weight"], expected, atol=1e-5)
    lora = halves("q_proj", 6, 8)
    (merge,) = read_adapter(
        adapter(tmp_path / "conv", lora, fan_in_fan_out=True), read_checkpoint(source)
    ).merges
    assert merge.transposed


@pytest.mark.parametrize(
    ("config", "rank", "scale"),
    [
        ({}, 2, 2.0),
        ({"use_rslora": True}, 2, 4 / 2**0.5),
        ({"rank_pattern": {"q_proj": 4}}, 4, 1.0),
        ({"rank_pattern": {"layers.[0-3].self_attn.q_proj": 4}, "use_rslora": True}, 4, 2.0),
        ({"rank_pattern": {"o_proj": 4, "_proj": 5}}, 2, 2.0),
        ({"alpha_pattern": {"q_proj": 6}}, 2, 3.0),
        ({"alpha_pattern": {r"^model\.layers\.\d+\.self_attn\.q_proj|k_proj": 6}}, 2, 3.0),
    ],
)
def test_the_factor_follows_rank_alpha_and_patterns(
    source: Path, tmp_path: Path, config: dict[str, object], rank: int, scale: float
) -> None:
    lora = adapter(tmp_path / "lora", halves("q_proj", 8, 6, rank), **config)
    (merge,) = read_adapter(lora, read_checkpoint(source)).merges
    assert merge.scale == pytest.approx(scale)


def test_names_of_models_with_pictures_are_those_of_their_checkpoints(tmp_path: Path) -> None:
    source = tmp_path / "SRC"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    stored = f"language_model.{LAYER}.q_proj.weight"
    save_tensors({stored: weights(8, 6)}, source / "model.safetensors")
    prefix = "base_model.model.model.language_model."
    lora = {name.removeprefix("model."): part for name, part in halves("q_proj", 8, 6).items()}
    (merge,) = read_adapter(
        adapter(tmp_path / "lora", lora, prefix), read_checkpoint(source)
    ).merges
    assert merge.tensor == stored


ONE_HALF = {f"{LAYER}.q_proj.lora_A.weight": weights(2, 6)}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (None, {"peft_type": "IA3"}, "peft_type is IA3; only LORA adapters can be merged"),
        (None, {"peft_type": ...}, "peft_type is missing"),
        (None, {"r": ...}, "r is missing"),
        (None, {"r": 0}, "r must be a whole number of at least 1, got 0"),
        (None, {"lora_alpha": "x"}, "lora_alpha must be a number, got 'x'"),
        (None, {"alpha_pattern": {"[": 3}}, "alpha_pattern.[ is not a pattern"),
        (None, {"rank_pattern": {"(.*)*x": 3}}, "rank_pattern.(.*)*x is more than a name with"),
        (None, {"rank_pattern": {".*.*.*.*x": 3}}, "and up to 3 repetitions"),
        (None, {"target_parameters": ["experts"]}, r"target_parameters is ['experts'], which"),
        (None, {"alora_invocation_tokens": [1]}, "alora_invocation_tokens is [1], which adding"),
        (None, {"trainable_token_indices": [1]}, "trainable_token_indices is [1], which adding"),
        (None, {"of_tomorrow": True}, "of_tomorrow is True, which adding to the weights cannot"),
        (None, {"init_lora_weights": "pissa_niter_4"}, "which changes the checkpoint's weights"),
        ({}, {}, "has no lora_A and lora_B"),
        (ONE_HALF, {}, f"{LAYER}.q_proj has lora_A alone"),
        (halves("q_proj", 8, 6, 3), {}, "expected (2, 6) for rank 2"),
        (halves("q_proj", 8, 7), {}, f"and {Q} of (8, 6)"),
        (halves("v_proj", 8, 6), {}, f"changes {LAYER}.v_proj.weight, which"),
        (halves("q_proj", 8, 6) | {"lm_head.weight": weights(10, 6)}, {},
         "lm_head.weight is (10, 6), but lm_head.weight of the checkpoint is (9, 6)"),
        (halves("q_proj", 8, 6) | {f"{LAYER}.o_proj.lora_magnitude_vector": weights(6)}, {},
         "o_proj has a magnitude, but no lora_A and lora_B"),
        (halves("q_proj", 8, 6) | {f"{LAYER}.q_proj.lora_magnitude_vector": weights(6)}, {},
         "expected (8,) for rank 2"),
    ],
)  # fmt: skip
def test_an_adapter_that_cannot_be_merged_is_refused_by_name(
    source: Path,
    tmp_path: Path,
    tensors: dict[str, Array] | None,
    config: dict[str, object],
    message: str,
) -> None:
    lora = adapter(tmp_path / "lora", tensors, **config)
    with pytest.raises(AieError, match=re.escape(message)):
        read_adapter(lora, read_checkpoint(source))


def test_an_adapter_cannot_change_one_use_of_a_shared_matrix(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "SRC", tie_word_embeddings=True)
    new = {**halves("q_proj", 8, 6), "lm_head.weight": weights(9, 6)}
    lora = adapter(tmp_path / "lora", new)
    with pytest.raises(AieError, match=r"embedding and lm_head"):
        read_adapter(lora, read_checkpoint(source))


def test_a_quantised_checkpoint_takes_no_adapter(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "SRC", quantization_config={"quant_method": "gptq"})
    with pytest.raises(AieError, match="SRC"):
        read_adapter(adapter(tmp_path / "lora"), read_checkpoint(source))


def test_what_is_not_an_adapter_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"adapter_config\.json"):
        read_adapter(source, read_checkpoint(source))
    lora = adapter(tmp_path / "lora")
    (lora / "adapter_model.safetensors").rename(lora / "adapter_model.bin")
    with pytest.raises(AieError, match=r"adapter_model\.safetensors"):
        read_adapter(lora, read_checkpoint(source))


# --- damaged checkpoints ---


def test_a_checkpoint_that_was_not_downloaded_whole_is_named(source: Path, tmp_path: Path) -> None:
    def damaged(name: str) -> Path:
        return Path(shutil.copytree(source, tmp_path / name))

    folder = damaged("shard")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(AieError, match=r"'model-00002\S+'"):
        read_checkpoint(folder)
    folder = damaged("short")
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(AieError, match=r"model-00001.*truncated"):
        read_checkpoint(folder)
    folder = damaged("pointer")
    (folder / "model-00001-of-00002.safetensors").write_text("version https://git-lfs/spec/v1\n")
    with pytest.raises(AieError, match=r"model-00001.*Git LFS"):
        read_checkpoint(folder)
    folder = damaged("index")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(AieError, match=r"model\.safetensors"):
        read_checkpoint(folder)
    folder = damaged("escape")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(AieError, match=r"'\.\./x'"):
        read_checkpoint(folder)
    folder = damaged("tokenizer")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(AieError, match=r"tokenizer\.json"):
        read_checkpoint(folder)
