"""Attention that an exporter spelled out, in whole models; small graphs are in the corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from op_models import open_session, run, session_options
from optimum_models import write_export
from vision_tower import SPELLINGS, picture_encoder, vision_tower

import ort_aie_ep
from ort_aie_ep import AieError
from ort_aie_ep.graph_passes import run_passes


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


def test_an_export_that_onnx_runtime_has_optimised_is_recognised(tmp_path: Path) -> None:
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    source = write_export("gemma3", tmp_path / "export") / "model.onnx"
    onnxruntime.InferenceSession(str(source), options)
    model = ir.load(tmp_path / "optimised.onnx")
    run_passes(model)
    assert sum(node.op_type == "FlowAttention" for node in model.graph) == 3


def test_compile_names_the_attention_where_nothing_can_be_compiled(tmp_path: Path) -> None:
    source = write_export("llama", tmp_path / "export") / "model.onnx"
    model = onnx.load(source)
    (causal,) = (node for node in model.graph.node if node.name == "/model/LessOrEqual")
    causal.op_type = "Less"
    onnx.save(model, source)
    with pytest.raises(AieError, match=r"/model/layers.0/self_attn/Softmax: its mask"):
        ort_aie_ep.compile(source.parent, tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()
