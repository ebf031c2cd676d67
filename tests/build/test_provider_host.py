"""A C++ program without Python runs the demo model on AieExecutionProvider."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from cmake_program import run_cmake

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.generate import Decoder
from ort_aie_ep.model_folder import find_model

HOST = Path(__file__).parent / "provider_host"
NAME = "AieExecutionProvider"
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
HEAD_SIZE = 32  # of the demo model
PROMPT, NEW = [5, 9, 100, 7], 16

headers_api = int(re.findall(r"ORT_API_VERSION (\d+)", _native.ONNXRUNTIME_HEADERS)[0])
pytestmark = pytest.mark.skipif(
    headers_api < 24, reason="built with headers that lack what the provider needs"
)


def run(*command: str | Path | int) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built with the headers that CMake finds for the library too."""
    build = tmp_path_factory.mktemp("provider_host")
    run_cmake("-S", HOST, "-B", build)
    run_cmake("--build", build)
    return build / "provider_host"


def runtime() -> Path:
    """ONNX Runtime's C library as the Python wheel carries it."""
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    return library


def python_tokens() -> tuple[list[int], int]:
    """The same continuation in Python, and the number of nodes that the provider runs."""
    folder = find_model(DEMO)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(str(folder.model), options, enable_fallback=False)
    assigned = session.get_provider_graph_assignment_info()
    decoder = Decoder(session, folder, len(PROMPT) + NEW)
    tokens: list[int] = []
    logits = decoder.prefill(np.array(PROMPT))
    while len(tokens) < NEW:
        tokens.append(int(logits.argmax()))
        logits = decoder.forward(np.array(tokens[-1:]))[-1]
    return tokens, sum(len(part.get_nodes()) for part in assigned if part.ep_name == NAME)


def test_a_program_without_python_generates_the_same_tokens(host: Path) -> None:
    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    try:
        tokens, nodes = python_tokens()
    finally:
        onnxruntime.unregister_execution_provider_library(NAME)
    output = run(host, runtime(), ort_aie_ep.library_path(), DEMO / "model.onnx",
                 HEAD_SIZE, NEW, *PROMPT)  # fmt: skip
    line, count = output.splitlines()
    assert list(map(int, line.split())) == tokens
    assert int(count) == nodes > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("libort_aie_ep_none.so", "libort_aie_ep_none.so"), ("libort_aie_ep_stub.so", "symbol")],
)
def test_a_wrong_library_is_an_error_and_no_crash(host: Path, name: str, message: str) -> None:
    library = Path(ort_aie_ep.library_path()).with_name(name)
    arguments = [host, runtime(), library, DEMO / "model.onnx", HEAD_SIZE, NEW, *PROMPT]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
