"""The library for Windows in ONNX Runtime's own onnxruntime.dll, under Wine: `make windows`.

Wine is not Windows: it shows that the DLL loads, that its paths, maps, locks and threads work, and
what it computes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ort_aie_ep
from ort_aie_ep import _native

BUILD = Path(os.environ.get("ORT_AIE_WINDOWS_BUILD", "nowhere"))
RUNTIMES = sorted(BUILD.glob("onnxruntime-*"), key=lambda path: path.name)
SOURCE = Path(ort_aie_ep.__file__).with_name("demo_model")
LINUX = Path(__file__).with_name("linux_logits.py")
HEAD = json.loads((SOURCE / "genai_config.json").read_text())["model"]["decoder"]
TOKENS = 40
UNICODE = "模型 ü"
SRC = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(
    not (BUILD / "host.exe").is_file() or not shutil.which("wine"),
    reason="there is no build for Windows, or no Wine: make windows",
)

Array = np.ndarray


@dataclass(frozen=True)
class Done:
    """What a run of the host said, and its logits."""

    text: str
    logits: Array


def windows(path: Path) -> str:
    """A path as a program in Wine sees it."""
    return "Z:" + str(path).replace("/", "\\")


@cache
def inputs() -> dict[str, Array]:
    """A prompt on an empty cache."""
    empty = np.zeros((1, HEAD["num_key_value_heads"], 0, HEAD["head_size"]), np.float32)
    tokens = np.random.default_rng(3).integers(3, 4096, (1, TOKENS))
    past = {
        f"past_key_values.{layer}.{part}": empty
        for layer in range(HEAD["num_hidden_layers"])
        for part in ("key", "value")
    }
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), **past}


def run_host(
    work: Path,
    door: str,
    model: Path,
    *entries: str,
    runtime: Path | None = None,
    library: Path | None = None,
    host: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Runs the host for Windows on a model, with the newest ONNX Runtime unless one is given."""
    given, output = work / "inputs", work / "logits"
    with given.open("wb") as file:
        for name, array in inputs().items():
            kind = 7 if array.dtype == np.int64 else 1
            shape = " ".join(map(str, array.shape))
            file.write(f"{name} {kind} {array.ndim} {shape}\n".encode() + array.tobytes() + b"\n")
    output.unlink(missing_ok=True)
    command = [
        "wine", host or BUILD / "host.exe", windows((runtime or RUNTIMES[-1]) / "onnxruntime.dll"),
        windows(library or BUILD / "ort_aie_ep.dll"), door, windows(model), windows(given),
        windows(output), *entries,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={**os.environ, "WINEDEBUG": "-all", **(environment or {})},
        capture_output=True,
        timeout=300,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace").strip()
    logits = np.fromfile(output, np.float32) if output.is_file() else np.zeros(0, np.float32)
    assert (done.returncode == 0) == (text == "ok"), (done, text)
    return Done(text, logits.reshape(-1, TOKENS, 4096)[0] if logits.size else logits)


def on_linux(work: Path, door: str, model: Path, isa: str) -> Array:
    """The same logits on Linux, with kernels of one instruction set."""
    given, output = work / "inputs.npz", work / f"linux-{isa}"
    if output.is_file():
        return np.fromfile(output, np.float32).reshape(TOKENS, 4096)
    np.savez(given, **inputs())
    subprocess.run(
        [sys.executable, LINUX, door, model, given, output],
        env={**os.environ, "ORT_AIE_ISA": isa},
        check=True,
    )
    return np.fromfile(output, np.float32).reshape(TOKENS, 4096)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows") / UNICODE
    ort_aie_ep.compile(SOURCE, folder)
    return folder / "model.onnx"


def model_of(door: str, compiled: Path) -> Path:
    return compiled if door == "custom-ops" else SOURCE / "model.onnx"


DOORS = ("custom-ops", "provider")


# Those that compute prompts in float32, AMX's do it in bfloat16; and that the library has there.
ISAS = [isa for isa in _native.available_isas() if not re.search("^amx|_standin$", isa)]


def limit(work: Path, door: str, model: Path) -> float:
    """How far logits may move where another compiler made the kernels.

    From the same sources, GCC and clang may sum in another order and fuse other multiply-adds.
    Kernels of two instruction sets differ in the same way, so their logits on Linux show how far
    that moves a result from the exact one. Both sides may be that far from it.
    """
    first = on_linux(work, door, model, ISAS[0])
    return 2 * max(float(np.abs(on_linux(work, door, model, isa) - first).max()) for isa in ISAS)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("isa", ISAS)
def test_logits_are_those_on_linux(tmp_path: Path, compiled: Path, door: str, isa: str) -> None:
    model = model_of(door, compiled)
    done = run_host(tmp_path, door, model, environment={"ORT_AIE_ISA": isa})
    assert done.text == "ok"
    expected = on_linux(tmp_path, door, model, isa)
    np.testing.assert_allclose(done.logits, expected, atol=limit(tmp_path, door, model), rtol=0)


@pytest.mark.parametrize("runtime", RUNTIMES[:-1], ids=lambda path: path.name)
def test_older_onnx_runtimes_compute_the_same(
    tmp_path: Path, compiled: Path, runtime: Path
) -> None:
    newest = run_host(tmp_path, "custom-ops", compiled)
    assert newest.text == "ok"
    done = run_host(tmp_path, "custom-ops", compiled, runtime=runtime)
    assert (done.text, done.logits.tobytes()) == ("ok", newest.logits.tobytes())


def test_the_stub_finds_the_library(tmp_path: Path, compiled: Path) -> None:
    site = tmp_path / "site-packages"
    runtime = site / "onnxruntime" / "capi"
    shutil.copytree(RUNTIMES[-1], runtime)
    # Windows also looks beside the program, where the build has the library.
    stub = Path(shutil.copy(BUILD / "ort_aie_ep_stub.dll", tmp_path))
    host = Path(shutil.copy(BUILD / "host.exe", tmp_path))

    def run() -> Done:
        return run_host(tmp_path, "custom-ops", compiled, runtime=runtime, library=stub, host=host)

    assert run().text.startswith("ort_aie_ep.dll was not found. This model was compiled by")
    (site / "ort_aie_ep").mkdir()
    shutil.copy(BUILD / "ort_aie_ep.dll", site / "ort_aie_ep")
    assert run().text == "ok"


def test_xrt_is_said_to_be_for_linux(tmp_path: Path, compiled: Path) -> None:
    done = run_host(tmp_path, "custom-ops", compiled, "ort_aie.target=xrt")
    assert "ort_aie.target=xrt" in done.text


def test_a_context_model_and_the_errors_for_its_file(tmp_path: Path) -> None:
    source, folder = SOURCE / "model.onnx", tmp_path / UNICODE
    folder.mkdir()
    context = folder / "context.onnx"
    data = folder / "context.onnx.aie"
    plain = run_host(tmp_path, "provider", source)
    written = run_host(
        tmp_path, "provider", source,
        "ep.context_enable=1", f"ep.context_file_path={windows(context)}",
    )  # fmt: skip
    assert (written.text, written.logits.tobytes()) == ("ok", plain.logits.tobytes())
    assert sorted(path.name for path in folder.iterdir()) == [context.name, data.name]
    read = run_host(tmp_path, "provider", context)
    assert (read.text, read.logits.tobytes()) == ("ok", plain.logits.tobytes())

    # A file that another model left is replaced.
    context.unlink()
    again = run_host(
        tmp_path, "provider", source,
        "ep.context_enable=1", f"ep.context_file_path={windows(context)}",
    )  # fmt: skip
    assert (again.text, again.logits.tobytes()) == ("ok", plain.logits.tobytes())

    content = data.read_bytes()
    for damaged in (content[:-4096], b"x" + content[1:], b"", None):
        data.unlink(missing_ok=True)
        if damaged is not None:
            data.write_bytes(damaged)
        done = run_host(tmp_path, "provider", context)
        assert said(done.text, windows(data)) == said(error_on_linux(tmp_path, context), str(data))


def said(text: str, file: str) -> str:
    """What the library says of a file, without its name and what ONNX Runtime adds."""
    assert file in text, text
    return text[text.index(file) + len(file) :].strip()


def error_on_linux(work: Path, model: Path) -> str:
    """The error with which the same model does not open on Linux."""
    np.savez(work / "inputs.npz", **inputs())
    done = subprocess.run(
        [sys.executable, LINUX, "provider", model, work / "inputs.npz", work / "unused"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr.strip()


def test_library_needs_only_the_system() -> None:
    listed = subprocess.run(
        ["objdump", "-p", BUILD / "ort_aie_ep.dll"], capture_output=True, text=True, check=True
    ).stdout
    imports = {line.split()[-1].lower() for line in listed.splitlines() if "DLL Name:" in line}
    assert imports
    assert {name for name in imports if not name.startswith("api-ms-win-crt-")} == {"kernel32.dll"}
    exported = listed.partition("[Ordinal/Name Pointer] Table")[2].partition("\n\n")[0]
    wanted = (
        (SRC / "ort" / "exports.map").read_text().partition("global:")[2].partition("local:")[0]
    )
    names = {line.split()[-1] for line in exported.strip().splitlines()}
    assert names == set(wanted.replace(";", " ").split())
