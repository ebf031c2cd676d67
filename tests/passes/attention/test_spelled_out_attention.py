"""Attention without a cache that an exporter spelled out, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from op_models import open_session, run
from vision_tower import SPELLINGS, picture_encoder, vision_tower

import ort_aie_ep

H, D = 3, 72


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_vision_tower(spelling: str, tmp_path: Path) -> None:
    model, products = vision_tower(hidden=144, spelling=spelling)
    onnx.save(model, tmp_path / "tower.onnx")
    result = ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "out", quantize="bf16")
    became = [(o.op_type, o.becomes) for o in result.outcomes]
    assert not [o for o in result.outcomes if o.op_type == "MatMul" and o.becomes is None]
    assert became.count(("MatMul", "aie.GEMM")) == products
    kept = {node.op_type for node in onnx.load(result.path / "tower.onnx").graph.node}
    assert kept == {"Add", "LayerNormalization", "Plan"}  # Add: of the positions
    x = np.random.default_rng(0).standard_normal((3, 9, 75)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "tower.onnx")), {"x": x})["features"]
    # Weights and activations of each product are rounded to bfloat16; independent errors add up in
    # squares.
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8


def test_a_layer_with_the_widths_of_siglip(tmp_path: Path) -> None:
    # More than a tile of queries and a chunk of keys, of SigLIP's 4,096.
    patches = 272
    model, products = vision_tower(patches, 588, 1152, 4304, 1, heads=16, spelling="eager")
    onnx.save(model, tmp_path / "tower.onnx")
    result = ort_aie_ep.compile(tmp_path / "tower.onnx", tmp_path / "out", quantize="bf16")
    x = np.random.default_rng(0).standard_normal((1, patches, 588)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "tower.onnx")), {"x": x})["features"]
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8  # as above


def test_a_picture_of_896_pixels_becomes_256_tokens(tmp_path: Path) -> None:
    model, products = picture_encoder()
    onnx.save(model, tmp_path / "vision.onnx")
    result = ort_aie_ep.compile(tmp_path / "vision.onnx", tmp_path / "out", quantize="bf16")
    left = {(o.op_type, o.reason) for o in result.outcomes if o.becomes is None}
    assert left == {("Conv", "no aie operator")}
    x = np.random.default_rng(0).uniform(-1, 1, (1, 3, 896, 896)).astype(np.float32)
    expected = run(open_session(model.SerializeToString()), {"x": x})["features"]
    actual = run(open_session(str(result.path / "vision.onnx")), {"x": x})["features"]
    assert actual.shape == (1, 256, 96)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error <= np.sqrt(2 * products) * 2.0**-8  # as above
