"""examples/cpp without Python: a compiled model through its operators, and a model through the
provider."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from cmake_program import run_cmake

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.running.generate import Decoder

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"
NAME = "AieExecutionProvider"
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
HEAD_SIZE = 32  # the demo model's
PROMPT, NEW = [5, 9, 100, 7], 16

headers_api = int(re.findall(r"ORT_API_VERSION (\d+)", _native.ONNXRUNTIME_HEADERS)[0])
pytestmark = [
    pytest.mark.in_turn,  # tests/ops has what it calls
    pytest.mark.skipif(
        headers_api < 24, reason="built with headers that lack what the provider needs"
    ),
]


def run(*command: str | Path | int) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built with the same headers that CMake finds for the library."""
    build = tmp_path_factory.mktemp("example")
    # ONNX Runtime's C library from the Python wheel, under the names that linking and loading need.
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (build / name).symlink_to(library)
    library_option = f"-DONNXRUNTIME_LIBRARY={build / 'libonnxruntime.so'}"
    run_cmake("-S", EXAMPLE, "-B", build, library_option)
    run_cmake("--build", build)
    return build / "generate"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "demo"
    ort_aie_ep.compile(DEMO, folder)
    return folder


def provider_tokens() -> tuple[list[int], int]:
    """The continuation in Python, and the number of nodes that the provider runs."""
    folder = find_model(DEMO)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(str(folder.model), options, enable_fallback=False)
    assigned = session.get_provider_graph_assignment_info()
    return (
        greedy(session, folder),
        sum(len(part.get_nodes()) for part in assigned if part.ep_name == NAME),
    )


def greedy(session: onnxruntime.InferenceSession, folder: ModelFolder) -> list[int]:
    decoder = Decoder(session, folder, len(PROMPT) + NEW)
    tokens: list[int] = []
    logits = decoder.prefill(np.array(PROMPT))
    while len(tokens) < NEW:
        tokens.append(int(logits.argmax()))
        logits = decoder.forward(np.array(tokens[-1:]))[-1]
    return tokens


def test_the_operators_generate_the_same_tokens(program: Path, compiled: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(str(compiled / "model.onnx"), options)
    output = run(program, "ops", ort_aie_ep.library_path(), compiled / "model.onnx",
                 HEAD_SIZE, NEW, *PROMPT)  # fmt: skip
    assert list(map(int, output.split())) == greedy(session, find_model(compiled))


def test_the_provider_generates_the_same_tokens(program: Path) -> None:
    onnxruntime.register_execution_provider_library(NAME, ort_aie_ep.library_path())
    try:
        tokens, nodes = provider_tokens()
    finally:
        onnxruntime.unregister_execution_provider_library(NAME)
    output = run(program, "provider", ort_aie_ep.library_path(), DEMO / "model.onnx",
                 HEAD_SIZE, NEW, *PROMPT)  # fmt: skip
    line, count = output.splitlines()
    assert list(map(int, line.split())) == tokens
    assert int(count) == nodes > 0


@pytest.mark.parametrize(
    ("door", "name", "message"),
    [
        ("ops", "libort_aie_ep_none.so", "libort_aie_ep_none.so"),
        ("provider", "libort_aie_ep_none.so", "libort_aie_ep_none.so"),
        ("ops", "libort_aie_ep_stub.so", "/nowhere"),  # the stub looks for it
        ("provider", "libort_aie_ep_stub.so", "symbol"),
    ],
)
def test_a_wrong_library_is_an_error_and_no_crash(
    program: Path, door: str, name: str, message: str
) -> None:
    library = Path(ort_aie_ep.library_path()).with_name(name)
    arguments = [program, door, library, DEMO / "model.onnx", HEAD_SIZE, NEW, *PROMPT]
    done = subprocess.run(
        list(map(str, arguments)),
        env={**os.environ, "ORT_AIE_LIBRARY": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
