"""examples/cpp with a wrong library; tests/doors has what it generates."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from cmake_program import example_program

import ort_aie_ep
from ort_aie_ep import _native

DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"

headers_api = int(re.findall(r"ORT_API_VERSION (\d+)", _native.ONNXRUNTIME_HEADERS)[0])
pytestmark = [
    pytest.mark.in_turn,  # tests/ops has what it calls
    pytest.mark.skipif(
        headers_api < 24, reason="built with headers that lack what the provider needs"
    ),
]


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
    door: str, name: str, message: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = example_program(tmp_path_factory.getbasetemp() / "doors" / "example")
    library = Path(ort_aie_ep.library_path()).with_name(name)
    arguments = [program, door, library, DEMO / "model.onnx", 32, 16, 5, 9]
    done = subprocess.run(
        list(map(str, arguments)),
        env={**os.environ, "ORT_AIE_LIBRARY": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
