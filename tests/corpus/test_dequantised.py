"""DequantizeLinear of 4-bit weights: packed as it dequantises them, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy_q4nx as q4nx
import onnx
import onnx_ir as ir
import pytest
from graphs import Array, Entry, Given, Graph
from onnx import TensorProto, helper
from op_models import open_session, run
from weights import dequantisations, dequantised

from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.graph_passes.projection import dequantize
from ort_aie_ep.models.onnx_file import load_model

PRODUCTS = [entry for entry in dequantisations() if entry.becomes.startswith("Q4NX")]


def model_of(text: str, given: dict[str, Given]) -> onnx.ModelProto:
    return Graph(Entry("a product", text, "", given=given)).model()


def compiled(model: onnx.ModelProto) -> tuple[ir.Model, dict[str, str]]:
    changed = ir.from_proto(model)
    outcomes = run_passes(changed).outcomes.values()
    return changed, {o.node: o.becomes or o.reason for o in outcomes}


def of_runtime(model: onnx.ModelProto) -> Array:
    """The matrix as ONNX Runtime dequantises it, in float32."""
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    del graph.graph.node[1:], graph.graph.input[:], graph.graph.output[:]
    graph.graph.output.append(helper.make_empty_tensor_value_info("m"))
    found: Array = run(open_session(graph.SerializeToString()), {})["m"].astype(np.float32)
    return found


def check_packed(model: onnx.ModelProto) -> None:
    """Whether each packed tensor is the matrix, (N, K), or its transpose."""
    matrix = of_runtime(model)
    changed, outcomes = compiled(model)
    assert outcomes["/m"].startswith("aie.Q4NX")
    packed = {node.inputs[0 if node.op_type == "Q4NXGather" else 1]: node for node in changed.graph}
    for value, node in packed.items():
        assert value is not None
        assert value.const_value is not None
        ints = {n: a.as_int() for n, a in node.attributes.items() if a.type == ir.AttributeType.INT}
        n, k = ints["N"], ints["K"]
        blocks = value.const_value.numpy()
        found = q4nx.dequantize(blocks, n, k, q4nx.BlockForm.of(ints))
        np.testing.assert_array_equal(found, matrix.T if "_kn" in (value.name or "") else matrix)


@pytest.mark.parametrize("entry", PRODUCTS, ids=lambda entry: entry.name)
def test_weights_are_packed_as_they_are_dequantised(entry: Entry) -> None:
    check_packed(Graph(entry).model())


@pytest.mark.parametrize(("k", "n"), [(32, 1), (256, 32), (300, 33), (288, 7), (1000, 64)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("chunk", [1, 20_000])
def test_odd_sizes_in_chunks(
    k: int, n: int, turned: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequantize, "CHUNK_BYTES", chunk)
    check_packed(model_of(*dequantised(k=k, n=n, points=True, turned=turned)))


def test_a_matrix_that_is_used_plain_and_transposed_is_packed_for_each() -> None:
    text, given = dequantised(scales="one")
    check_packed(model_of(f"{text}; back = Transpose<perm=[1, 0]>(m); z = MatMul(y, back)", given))


def test_external_data(tmp_path: Path) -> None:
    model = model_of(*dequantised(points=True))
    expected = of_runtime(model)
    onnx.save_model(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="data",
        size_threshold=100,
    )  # fmt: skip
    loaded = load_model(tmp_path / "model.onnx")
    run_passes(loaded)
    blocks = loaded.graph.initializers["codes_kn_q4nx"].const_value
    assert blocks is not None
    np.testing.assert_array_equal(q4nx.dequantize(blocks.numpy(), *expected.T.shape), expected.T)


def test_a_transpose_that_transposes_nothing_is_none() -> None:
    """Blocks along the in-features, which are rows then."""
    text, given = dequantised(k=64, turned=True, axis=0)
    model = model_of(text.replace("perm=[1, 0]", "perm=[0, 1]"),
                     given | {"scales": np.full((2, 64), 0.125, np.float32)})  # fmt: skip
    feeds = {"x": np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)}
    expected = run(open_session(model.SerializeToString()), feeds)["y"]
    changed, _ = compiled(model)
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), feeds)["y"]
    np.testing.assert_array_equal(actual, expected)
    assert "DequantizeLinear" in [node.op_type for node in changed.graph]


@pytest.mark.parametrize("options", [{"op": "Gather", "turned": True}, {}])
def test_another_type_than_that_of_the_scales_stays(options: dict[str, Any]) -> None:
    model = model_of(*dequantised(**options))
    model.opset_import[0].version = 23
    kind = helper.make_attribute("output_dtype", TensorProto.FLOAT16)
    model.graph.node[0].attribute.append(kind)
    _, outcomes = compiled(model)
    assert outcomes["/y"] == "its output_dtype is FLOAT16 and its scales FLOAT"


def test_scales_that_do_not_fit_are_an_error() -> None:
    text, given = dequantised()
    with pytest.raises(AieError, match=r"'/y'.*'scales' .*\(9, 70\)"):
        compiled(model_of(text, given | {"scales": np.ones((9, 70), np.float32)}))
