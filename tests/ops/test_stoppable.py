"""RunOptions.terminate during a prompt: ONNX Runtime looks at it between nodes, and with the option
`stoppable` a layer is a node."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from model_folders import DATA
from op_models import ORT_VERSION, open_session
from provider_calls import needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

MODEL = DATA / "llama"
LAYERS = 2


pytestmark = pytest.mark.usefixtures("provider")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stoppable")
    ort_aie_ep.compile(MODEL, folder / "whole")
    ort_aie_ep.compile(MODEL, folder / "layers", stoppable=True)
    return folder


def session_of(door: str, compiled: Path, *, stoppable: bool) -> onnxruntime.InferenceSession:
    if door == "provider":
        return provider_session(find_model(MODEL).model, {"stoppable": "yes"} if stoppable else {})
    return open_session(str(find_model(compiled / ("layers" if stoppable else "whole")).model))


DOORS = [pytest.param("provider", marks=needs_provider), "compiled"]


@pytest.mark.parametrize("door", DOORS)
def test_layers_that_are_nodes_compute_the_same(door: str, compiled: Path) -> None:
    folder = find_model(MODEL)
    one, other = (
        Decoder(session_of(door, compiled, stoppable=stoppable), folder, 64)
        for stoppable in (False, True)
    )
    tokens = np.random.default_rng(0).integers(3, one.vocabulary, 40)
    for part in np.split(tokens, [20, 21, 22, 39]):
        np.testing.assert_array_equal(one.forward(part), other.forward(part))


def test_each_layer_is_a_node(compiled: Path) -> None:
    for name, count in (("whole", 1), ("layers", LAYERS)):
        graph = onnx.load(compiled / name / "model.onnx", load_external_data=False).graph
        assert sum(node.op_type == "Plan" for node in graph.node) == count
    if ORT_VERSION < (1, 24):
        return
    for stoppable, count in (("no", 1), ("yes", LAYERS)):
        session = provider_session(find_model(MODEL).model, {"stoppable": stoppable})
        parts = session.get_provider_graph_assignment_info()
        assert sum(part.ep_name == NAME for part in parts) == count


@needs_provider
def test_a_whole_plan_refuses_to_be_stoppable(compiled: Path) -> None:
    config = {"ort_aie.stoppable": "yes"}
    with pytest.raises(Exception, match=f"{LAYERS} layers.*--stoppable"):
        open_session(str(compiled / "whole" / "model.onnx"), config=config)
    open_session(str(compiled / "layers" / "model.onnx"), config=config)


@pytest.mark.parametrize("door", DOORS)
def test_a_prompt_ends_after_the_layer_that_runs(door: str, compiled: Path) -> None:
    """Another thread sets the flag as soon as the first layer has written keys into the cache."""
    session = session_of(door, compiled, stoppable=True)
    rows, count = 16, 256  # as many tokens as the rotation has positions
    decoder = json.loads((MODEL / "genai_config.json").read_text())["model"]["decoder"]
    binding, run_options = session.io_binding(), onnxruntime.RunOptions()
    caches: dict[str, Any] = {}
    for value in session.get_inputs():
        if value.name.startswith("past_key_values"):
            given = np.zeros(
                (rows, decoder["num_key_value_heads"], count, decoder["head_size"]), "f4"
            )
        elif value.name == "attention_mask":
            given = np.ones((rows, count), np.int64)
        elif value.name == "position_ids":
            given = np.tile(np.arange(count), (rows, 1))
        else:
            given = np.random.default_rng(0).integers(3, 100, (rows, count))
        caches[value.name] = given
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(given))
    presents = {}
    for value in session.get_outputs():
        if value.name.startswith("present"):
            past = caches[value.name.replace("present", "past_key_values")]
            presents[value.name] = np.zeros_like(past)
            memory = onnxruntime.OrtValue.ortvalue_from_numpy(presents[value.name])
            binding.bind_ortvalue_output(value.name, memory)
        else:
            binding.bind_output(value.name)
    first, last = (presents[f"present.{layer}.key"] for layer in (0, LAYERS - 1))

    def stop() -> None:
        while not first[0, 0, 0].any():
            pass
        run_options.terminate = True

    watcher = threading.Thread(target=stop, daemon=True)
    watcher.start()
    with pytest.raises(Exception, match="terminate flag"):
        session.run_with_iobinding(binding, run_options)
    watcher.join()
    assert first.any()
    assert not last.any()
