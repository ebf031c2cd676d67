"""Initializers that a session replaces: add_initializer, add_external_initializers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor, run, session_options
from projection_calls import make_weights, q4nx_model
from provider_calls import devices, needs_provider

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]
IDS = np.array([7, 0, 63])
N, K = 96, 64
pytestmark = pytest.mark.usefixtures("provider")


def initializers(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "table": rng.normal(size=(64, K)).astype(np.float32),
        "norm": rng.uniform(0.5, 2, K).astype(np.float32),
        "B": rng.integers(0, 256, (N, K // 32, 16), np.uint8),
        "scales": rng.uniform(0.01, 0.1, (N, K // 32)).astype(np.float32),
    }


MODEL, NEW = initializers(0), initializers(1)


def model(given: dict[str, Array]) -> onnx.ModelProto:
    """An embedding, a norm and a projection."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], name="embedding"),
        helper.make_node("SimplifiedLayerNormalization", ["x", "norm"], ["a"], name="norm_node"),
        helper.make_node("MatMulNBits", ["a", "B", "scales"], ["Y"], name="projection",
                         domain="com.microsoft", K=K, N=N, bits=4, block_size=32),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [onnx_tensor(name, array) for name, array in given.items()],
    )
    return model_of(graph)


def ort_value(array: Array) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def results(
    source: bytes | str, options: onnxruntime.SessionOptions, *, provider: bool
) -> tuple[Array, set[str]]:
    """Y, and the names of the provider's nodes."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if provider:
        options.add_provider_for_devices(devices()[:1], {})
    session = onnxruntime.InferenceSession(source, options, enable_fallback=False)
    parts = session.get_provider_graph_assignment_info()
    claimed = {n.name for part in parts if part.ep_name == NAME for n in part.get_nodes()}
    return run(session, {"ids": IDS})["Y"], claimed


def distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@needs_provider
@pytest.mark.parametrize(
    ("names", "claimed"),
    [
        ([], {"embedding", "norm_node", "projection"}),
        (["table"], {"norm_node", "projection"}),
        (["norm"], {"projection"}),
        (["B"], set()),
        (["scales"], set()),
        (["table", "norm", "B", "scales"], set()),
    ],
)
@pytest.mark.parametrize("level", [0, 99])
def test_a_node_that_reads_an_override_stays_and_takes_it(
    names: list[str], claimed: set[str], level: int, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {name: ort_value(NEW[name]) for name in names}  # must outlive the sessions

    def overriding() -> onnxruntime.SessionOptions:
        options = session_options()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
        options.log_severity_level = 1
        for name, value in values.items():
            options.add_initializer(name, value)
        return options

    source = model(MODEL).SerializeToString()
    expected, _ = results(source, overriding(), provider=False)
    old, _ = results(source, session_options(), provider=False)
    capfd.readouterr()
    actual, its = results(source, overriding(), provider=True)
    log = capfd.readouterr().err
    assert its == claimed
    # Other roundings: weights' scales, and activations, in bfloat16.
    assert distance(actual, expected) <= 0.03
    assert not names or distance(old, expected) > 0.3
    for name in names:
        assert re.search(f"the session options replace .*'{name}'.* \\(add_initializer\\)", log)


@needs_provider
def test_external_initializers_are_packed_as_they_are_given(tmp_path: Path) -> None:
    onnx.save_model(model(MODEL), tmp_path / "model.onnx", save_as_external_data=True,
                    location="data", size_threshold=0)  # fmt: skip
    options = session_options()
    values = [ort_value(array) for array in NEW.values()]
    options.add_external_initializers(list(NEW), values)
    actual, claimed = results(str(tmp_path / "model.onnx"), options, provider=True)
    assert claimed == {"embedding", "norm_node", "projection"}
    fresh = model(NEW).SerializeToString()
    expected, _ = results(fresh, session_options(), provider=True)
    np.testing.assert_array_equal(actual, expected)


def test_a_compiled_model_takes_an_override() -> None:
    a = np.random.default_rng(3).normal(size=(3, 320)).astype(np.float32)
    old, new = (q4nx_model(make_weights(40, 320, seed=seed), a) for seed in (0, 1))
    (packed,) = (t for t in onnx.load_from_string(new).graph.initializer if t.name == "W")
    value = ort_value(onnx.numpy_helper.to_array(packed))
    ys = []
    for source, overrides in ((old, {"W": value}), (new, {}), (old, {})):
        options = session_options()
        options.register_custom_ops_library(ort_aie_ep.library_path())
        for name, given in overrides.items():
            options.add_initializer(name, given)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        ys.append(run(session, {"A": a})["Y"])
    np.testing.assert_array_equal(ys[0], ys[1])
    assert distance(ys[2], ys[1]) > 0.3
