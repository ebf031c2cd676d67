"""What environments can do with the package alone, with one of its extras, or with an ONNX Runtime.

The environments link what is installed here (`environments`), so they cost no download.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from environments import Environment, make_environment, with_dependencies

import ort_aie_ep
from ort_aie_ep.requirements import SIMULATOR, TOOLS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LLAMA = ROOT / "tests" / "data" / "llama"
HEAD_SIZE = json.loads((LLAMA / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
NAME = "AieExecutionProvider"
TOKENS = [5, 9, 100, 7]


def installs(environment: Environment, *requirements: str) -> str:
    """The end of an error: without pip there, and of no package that an index has by our name."""
    command = f"uv pip install --python {environment.python} {shlex.join(requirements)}"
    return f"not installed: {command}"


# The command, as pip's `ort-aie` calls it.
MODULE, FUNCTION = PROJECT["scripts"]["ort-aie"].split(":")
COMMAND = f"import sys; from {MODULE} import {FUNCTION}; sys.argv[0] = 'ort-aie'; {FUNCTION}()"
CALLS = {
    "ort-aie": ("-c", COMMAND, "doctor"),
    "python -m": ("-m", "ort_aie_ep", "--version"),
    "compile": ("-c", "import ort_aie_ep; ort_aie_ep.compile('a', 'b')"),
    "session": ("-c", "import ort_aie_ep; ort_aie_ep.session('a')"),
}

# Logits of a prompt on the CPU, from the provider or from a compiled model's operators.
RUN = f"""
import sys
import numpy, onnxruntime, ort_aie_ep

door, model = sys.argv[1:]
options = onnxruntime.SessionOptions()
if door == "provider":
    name = ort_aie_ep.get_ep_name()
    onnxruntime.register_execution_provider_library(name, ort_aie_ep.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
    options.add_provider_for_devices(devices[:1], {{"target": "host"}})
else:
    options.register_custom_ops_library(ort_aie_ep.get_library_path())
session = onnxruntime.InferenceSession(model, options, enable_fallback=False)
tokens = numpy.array([{TOKENS}])
feeds = {{
    i.name: numpy.zeros((1, i.shape[1], 0, {HEAD_SIZE}), numpy.float32)  # the KV cache
    for i in session.get_inputs() if len(i.shape) == 4
}}
feeds |= {{"input_ids": tokens, "attention_mask": numpy.ones_like(tokens)}}
print(*{{d.ep_metadata["version"] for d in devices}} if door == "provider" else "")
print(*session.get_providers())
print(*session.run(["logits"], feeds)[0][0, -1].tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Environment:
    return make_environment(folder / "alone", ["ort_aie_ep"])


@pytest.fixture(scope="module")
def tools(folder: Path) -> Environment:
    """The extra [tools] without ONNX Runtime."""
    needed = with_dependencies(EXTRAS["tools"]) - {"onnxruntime"}
    return make_environment(folder / "tools", ["ort_aie_ep", *needed])


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Environment:
    """The package and an ONNX Runtime, as pip installs them by these two names."""
    needed = with_dependencies(["onnxruntime"])
    return make_environment(folder / "runtime", ["ort_aie_ep", *needed])


@pytest.fixture(scope="module")
def compiled(folder: Path) -> Path:
    ort_aie_ep.compile(LLAMA, folder / "compiled")
    return folder / "compiled" / "model.onnx"


def test_every_extra_that_runs_the_package_brings_the_tools() -> None:
    def brought(extra: str) -> set[str]:
        own = {f"ort_aie_ep[{name}]": name for name in EXTRAS}
        named = EXTRAS[extra]
        return {extra}.union(*(brought(own[line]) for line in named if line in own))

    for extra in ("genai", "batch", "npu", "test"):
        assert "tools" in brought(extra), extra


def test_what_is_looked_for_is_what_the_extras_bring() -> None:
    def modules(extra: str) -> set[str]:
        names = (line.split(">=")[0] for line in EXTRAS[extra])
        return {name.replace("-", "_") for name in names}

    assert set(TOOLS) == modules("tools")
    assert set(SIMULATOR) <= modules("tools") | modules("npu")


# --- the package alone ---


def test_the_package_alone_gives_what_onnx_runtime_asks_of_a_provider(alone: Environment) -> None:
    path, name, names, version = alone.succeeds(
        "from ort_aie_ep import *\n"
        "print(get_library_path(), get_ep_name(), get_ep_names(), __version__, sep='\\n')"
    )
    assert Path(path) == alone.packages / "ort_aie_ep" / "libort_aie_ep.so"
    assert name == NAME
    assert names == str([NAME])
    assert version == importlib.metadata.version("ort_aie_ep")


def test_asking_for_the_library_imports_nothing_but_the_package() -> None:
    code = (
        "import sys, ort_aie_ep\n"
        "ort_aie_ep.get_library_path(), ort_aie_ep.get_ep_names()\n"
        "heavy = {'numpy', 'onnxruntime', 'ort_aie_ep._native', 'importlib.metadata'}\n"
        "print(*heavy & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_the_package_alone_counts_what_the_npu_has_done(alone: Environment) -> None:
    (line,) = alone.succeeds("import ort_aie_ep; print(ort_aie_ep.npu_counters().device_steps)")
    assert line == "0"


@pytest.mark.parametrize("call", CALLS)
def test_the_package_alone_says_what_else_needs(alone: Environment, call: str) -> None:
    error = alone.fails(*CALLS[call])
    assert "ml_dtypes, numpy, onnx_ir" in error
    assert installs(alone, "ml_dtypes>=0.4", "numpy>=1.26") in error


def test_a_package_without_its_library_says_so(tmp_path: Path, alone: Environment) -> None:
    incomplete = make_environment(tmp_path / "incomplete", [])
    source, copy = alone.packages / "ort_aie_ep", incomplete.packages / "ort_aie_ep"
    copy.mkdir()
    for file in source.iterdir():
        if file.suffix != ".so":
            (copy / file.name).symlink_to(file)
    error = incomplete.fails("-c", "import ort_aie_ep; ort_aie_ep.get_library_path()")
    assert error.endswith(
        f"{copy / 'libort_aie_ep.so'} is missing: reinstall the package ort_aie_ep"
    )


# --- the tools without ONNX Runtime ---


@pytest.mark.parametrize("call", ["compile", "session"])
def test_a_missing_runtime_is_named_by_itself(tools: Environment, call: str) -> None:
    end = installs(tools, "onnxruntime>=1.23")
    named = f"ort_aie_ep.{call} needs ONNX Runtime, which is {end}"
    assert tools.fails(*CALLS[call]).endswith(named)


def test_commands_that_open_no_model_need_no_runtime(tools: Environment) -> None:
    done = tools.run("-m", "ort_aie_ep", "predict", "llama-3.2-1b", "--contexts", "64", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environment"]["onnxruntime"] == "not installed"


def test_doctor_finds_that_the_runtime_is_missing(tools: Environment) -> None:
    done = tools.run("-m", "ort_aie_ep", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    remedies = {finding["name"]: finding["remedy"] for finding in report["software"]}
    assert remedies["onnxruntime"] in installs(tools, "onnxruntime>=1.23")
    assert not report["working"]


@pytest.mark.parametrize("call", ["compile", "session"])
def test_what_uninstalling_leaves_of_a_runtime_is_not_one(
    tools: Environment, call: str, tmp_path: Path
) -> None:
    (tmp_path / "onnxruntime" / "__pycache__").mkdir(parents=True)
    done = tools.run(*CALLS[call], environment={"PYTHONPATH": str(tmp_path)})
    end = installs(tools, "onnxruntime>=1.23")
    assert done.stderr.endswith(f"ort_aie_ep.{call} needs ONNX Runtime, which is {end}\n")


def test_a_runtime_of_another_distribution_is_found(tools: Environment, tmp_path: Path) -> None:
    """Such as onnxruntime-gpu, which has the module onnxruntime."""
    (tmp_path / "onnxruntime").symlink_to(Path(onnxruntime.__file__).parent)
    information = tmp_path / "onnxruntime_gpu-1.99.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: onnxruntime-gpu\nVersion: 1.99.0\n")
    (information / "RECORD").write_text("onnxruntime/__init__.py,,\n")
    done = tools.run(
        "-m", "ort_aie_ep", "doctor", "--json", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    found = {finding["name"]: finding["found"] for finding in report["software"]}
    assert found["onnxruntime"] == report["environment"]["onnxruntime"] == "1.99.0"
    assert report["working"]


# --- an ONNX Runtime and nothing else ---


def logits(lines: list[str]) -> np.ndarray[Any, Any]:
    return np.array(list(map(float, lines[-1].split())))


@pytest.mark.parametrize("door", ["provider", "operators"])
def test_a_bare_runtime_runs_models_through_both_doors(
    runtime: Environment, compiled: Path, door: str
) -> None:
    if door == "provider" and not hasattr(
        onnxruntime.InferenceSession, "get_provider_graph_assignment_info"
    ):
        pytest.skip("ONNX Runtime takes this provider from 1.24 on")
    model = LLAMA / "model.onnx" if door == "provider" else compiled
    lines = runtime.succeeds(RUN, door, model)
    # The library has the package's version.
    assert lines[0] == (ort_aie_ep.__version__ if door == "provider" else "")
    assert (NAME in lines[1].split()) == (door == "provider")
    here = subprocess.run(
        [sys.executable, "-P", "-c", RUN, "operators", compiled],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    np.testing.assert_array_equal(logits(lines), logits(here.stdout.splitlines()))


def test_a_bare_runtime_does_not_make_up_for_the_tools(runtime: Environment) -> None:
    error = runtime.fails("-m", "ort_aie_ep", "doctor")
    assert "ml_dtypes, onnx_ir" in error
    assert installs(runtime, "ml_dtypes>=0.4", "onnx-ir>=1.1") in error


# --- an ONNX Runtime that is too old ---

GET_ERROR_CODE, GET_ERROR_MESSAGE, CREATE_ENV = 1, 2, 3
REGISTER_PROVIDER = 301  # positions in OrtApi, which only grows at its end
NOT_IMPLEMENTED = 9


def too_old(version: str) -> str:
    return (
        f"ort_aie_ep needs ONNX Runtime 1.23 or newer, and this is {version}: install a newer "
        "onnxruntime"
    )


# Where `make test` puts a runtime from PyPI.
OLD = Path(sys.prefix) / "onnxruntime-1.22.1"


@pytest.fixture(scope="module")
def old(folder: Path) -> Environment:
    """The package, its tools, and a real ONNX Runtime that is too old for it."""
    if not (OLD / "onnxruntime").is_dir():
        pytest.skip(f"there is no {OLD}, which `make test` makes where PyPI has a wheel")
    needed = with_dependencies(EXTRAS["tools"]) - {"onnxruntime"}
    environment = make_environment(folder / "old", ["ort_aie_ep", *needed])
    (environment.packages / "onnxruntime").symlink_to(OLD / "onnxruntime")
    return environment


REGISTER = f"""
import ctypes, sys

runtime = ctypes.CDLL(sys.argv[1])
runtime.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
get_api = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)
api = get_api(runtime.OrtGetApiBase()[0])(22)

def call(place, result, *arguments):
    return ctypes.CFUNCTYPE(result, *map(type, arguments))(api[place])(*arguments)

env = ctypes.c_void_p()
name = ctypes.c_char_p(b"aie")
assert not call({CREATE_ENV}, ctypes.c_void_p, ctypes.c_int(2), name, ctypes.pointer(env))
path = ctypes.c_char_p(sys.argv[2].encode())
status = ctypes.c_void_p(call({REGISTER_PROVIDER}, ctypes.c_void_p, env, name, path))
print(call({GET_ERROR_CODE}, ctypes.c_int, status))
print(call({GET_ERROR_MESSAGE}, ctypes.c_char_p, status).decode())
"""


def test_a_real_runtime_that_is_too_old_does_not_get_the_operators(old: Environment) -> None:
    code = (
        "import onnxruntime, ort_aie_ep\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.register_custom_ops_library(ort_aie_ep.get_library_path())"
    )
    assert old.fails("-c", code).endswith(too_old("1.22.1"))


def test_a_real_runtime_that_is_too_old_does_not_get_the_provider(old: Environment) -> None:
    (library,) = (OLD / "onnxruntime" / "capi").glob("libonnxruntime.so.*")
    code, message = old.succeeds(REGISTER, library, ort_aie_ep.get_library_path())
    assert (int(code), message) == (NOT_IMPLEMENTED, too_old("1.22.1"))


def test_commands_name_a_runtime_that_is_too_old(old: Environment) -> None:
    assert too_old("1.22.1") in old.fails("-m", "ort_aie_ep", "compile", LLAMA, "there")
    assert not (old.folder / "there").exists()


def test_doctor_names_a_runtime_that_is_too_old(old: Environment) -> None:
    done = old.run("-m", "ort_aie_ep", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert not report["working"]
    assert too_old("1.22.1") in report["host"][-1]["remedy"]


# --- the Python of the modelled NPU ---


def test_a_python_that_cannot_run_the_modelled_npu_answers_why(alone: Environment) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rw") as stream:
        number = theirs.fileno()
        command = [alone.python, "-P", "-m", "ort_aie_ep.modelled_npu", "--device", "npu2",
                   "--socket", str(number), "--memory", "0"]  # fmt: skip
        with subprocess.Popen(command, pass_fds=[number], cwd=alone.folder) as process:
            theirs.close()  # so that a process that ends without an answer ends the stream
            stream.write('{"op": "hello"}\n')
            stream.flush()
            reply = json.loads(stream.readline())
            assert process.wait() == 0
    assert reply["ok"] is False
    assert reply["error"] == (
        f"the modelled NPU, which runs in {alone.python}, needs ml_dtypes, numpy, simpy, which are "
        + installs(alone, "ml_dtypes>=0.4", "numpy>=1.26", "simpy>=4.1")
    )


@pytest.mark.skipif(
    not Path(ort_aie_ep.get_library_path()).with_name("libort_aie_sim.so").is_file(),
    reason="built without XRT's headers",
)
def test_a_session_on_the_modelled_npu_says_what_its_python_lacks(
    alone: Environment, compiled: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, "operators", compiled],
        env={
            **os.environ,
            "ORT_AIE_TARGET": "sim",
            "ORT_AIE_SIM_PYTHON": str(alone.python),
            "ORT_AIE_ON_DEVICE_ERROR": "raise",
            "XDG_CACHE_HOME": str(tmp_path),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "'simpy>=4.1'" in done.stderr
