"""`ort_aie_ep.session`: what it opens, and what its cache keeps, rebuilds and refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_aie_ep
from ort_aie_ep import cache, compiler
from ort_aie_ep.errors import AieError
from ort_aie_ep.generate import Decoder
from ort_aie_ep.model_folder import find_model
from ort_aie_ep.sessions import open_session

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "llama"
MODELS = sorted(path.parent.name for path in DATA.glob("*/genai_config.json"))
TOKENS = np.random.default_rng(0).integers(3, 100, 20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which is the default one, and trusts file times at once."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SETTLED_NS", -1)
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LLAMA, tmp_path / "model"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The models that were compiled since."""
    seen: list[Path] = []
    real = compiler.compile_model

    def compile_model(source: Path, *args: Any, **kwargs: Any) -> Any:
        seen.append(source)
        return real(source, *args, **kwargs)

    monkeypatch.setattr(compiler, "compile_model", compile_model)
    return seen


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "sources")


def logits(session: onnxruntime.InferenceSession) -> Any:
    return Decoder(session, find_model(LLAMA), 32).forward(TOKENS)


def change_a_weight(model: Path) -> None:
    """Another file of the same size."""
    path = model / "model.onnx.data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_session_of_a_compilation(name: str, folder: Path, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    compiled = find_model(tmp_path / "compiled")
    ours = Decoder(ort_aie_ep.session(DATA / name), find_model(DATA / name), 32)
    theirs = Decoder(open_session(compiled.model), compiled, 32)
    np.testing.assert_array_equal(ours.forward(TOKENS), theirs.forward(TOKENS))


def test_an_entry_holds_the_weights_once_and_no_other_file_of_the_folder(folder: Path) -> None:
    ort_aie_ep.session(LLAMA)
    (entry,) = entries(folder)
    names = {path.name for path in entry.iterdir()}
    assert names == {"model.onnx", "model.onnx.data", compiler.REPORT, cache.MANIFEST}


def test_reopening_reads_no_weights(
    folder: Path, model: Path, compilations: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(ort_aie_ep.session(model))
    hashed: list[str] = []
    real = cache._file_hash
    monkeypatch.setattr(cache, "_file_hash", lambda path: hashed.append(path.name) or real(path))
    for source in (model, model / "model.onnx"):
        np.testing.assert_array_equal(logits(ort_aie_ep.session(source)), expected)
    assert len(compilations) == 1
    assert set(hashed) == {"model.onnx"}


def test_the_same_model_elsewhere_has_the_same_entry(
    folder: Path, model: Path, compilations: list[Path]
) -> None:
    ort_aie_ep.session(LLAMA)
    ort_aie_ep.session(model)
    assert len(compilations) == 1


def test_another_weight_is_another_model(folder: Path, model: Path) -> None:
    before = logits(ort_aie_ep.session(model))
    change_a_weight(model)
    assert not np.array_equal(logits(ort_aie_ep.session(model)), before)
    assert len(entries(folder)) == 2


def test_times_of_a_file_that_was_just_written_are_not_trusted(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 3600 * 10**9)
    ort_aie_ep.session(model)
    assert not (folder / "sources").exists()


def test_each_choice_has_an_entry(folder: Path) -> None:
    def past_type(session: onnxruntime.InferenceSession) -> str:
        return next(i.type for i in session.get_inputs() if i.name.startswith("past"))

    def rows(session: onnxruntime.InferenceSession) -> Any:
        return next(o.shape[1] for o in session.get_outputs() if o.name == "logits")

    plain = ort_aie_ep.session(LLAMA)
    halved = ort_aie_ep.session(LLAMA, kv="f16")
    last = ort_aie_ep.session(LLAMA, last_logits=True)
    ort_aie_ep.session(LLAMA, fuse=False)
    assert (past_type(plain), past_type(halved)) == ("tensor(float)", "tensor(float16)")
    assert (rows(plain) == 1, rows(last) == 1) == (False, True)
    assert len(entries(folder)) == 4


def test_another_version_compiles_anew(
    folder: Path, compilations: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ort_aie_ep.session(LLAMA)
    monkeypatch.setattr(ort_aie_ep, "__version__", "99.0")
    ort_aie_ep.session(LLAMA)
    assert len(compilations) == 2


def truncate(entry: Path) -> None:
    os.truncate(entry / "model.onnx.data", 4096)


def scribble(entry: Path) -> None:
    path = entry / "model.onnx"
    path.write_bytes(bytes(path.stat().st_size))


def forget(entry: Path) -> None:
    (entry / cache.MANIFEST).unlink()


def garble(entry: Path) -> None:
    (entry / cache.MANIFEST).write_text("[1]")


def flatten(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("no folder")


@pytest.mark.parametrize("damage", [truncate, scribble, forget, garble, flatten])
def test_a_broken_entry_is_rebuilt(damage: Callable[[Path], None], folder: Path) -> None:
    expected = logits(ort_aie_ep.session(LLAMA))
    (entry,) = entries(folder)
    damage(entry)
    np.testing.assert_array_equal(logits(ort_aie_ep.session(LLAMA)), expected)
    assert entries(folder) == [entry]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"stats": 1}'])
def test_a_broken_index_is_rewritten(content: str, folder: Path, compilations: list[Path]) -> None:
    ort_aie_ep.session(LLAMA)
    (index,) = (folder / "sources").iterdir()
    good = index.read_text()
    index.write_text(content)
    ort_aie_ep.session(LLAMA)
    assert index.read_text() == good
    assert len(compilations) == 1


def test_an_entry_that_appears_meanwhile_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compiler.compile_model
    inodes = []

    def compile_model(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(compiler, "compile_model", real)
        ort_aie_ep.session(LLAMA)  # as another process would
        inodes.append(entries(folder)[-1].stat().st_ino)
        return real(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_model", compile_model)
    ort_aie_ep.session(LLAMA)
    (entry,) = entries(folder)
    assert [entry.stat().st_ino] == inodes


def test_processes_share_a_cache(folder: Path) -> None:
    code = f"import ort_aie_ep; print(len(ort_aie_ep.session({str(LLAMA)!r}).get_inputs()))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate()[0].strip() for process in processes]
    assert len(set(outputs)) == 1
    assert int(outputs[0]) > 2
    assert len(entries(folder)) == 1


def test_a_model_that_changes_meanwhile_is_refused(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compiler.compile_model

    def compile_model(*args: Any, **kwargs: Any) -> Any:
        change_a_weight(model)
        return real(*args, **kwargs)

    monkeypatch.setattr(compiler, "compile_model", compile_model)
    with pytest.raises(AieError, match="changed while it was read"):
        ort_aie_ep.session(model)
    assert entries(folder) == []


def test_a_failing_compilation_leaves_nothing(folder: Path) -> None:
    with pytest.raises(AieError, match="kv"):
        ort_aie_ep.session(LLAMA, kv="f8")
    assert entries(folder) == []


def test_work_of_a_killed_process_goes_away(folder: Path) -> None:
    old, new = folder / ".work-old", folder / ".work-new"
    for path in (old, new):
        (path / "entry").mkdir(parents=True)
    yesterday = time.time() - cache.LEFTOVER_SECONDS - 60
    os.utime(old, (yesterday, yesterday))
    ort_aie_ep.session(LLAMA)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AieError, match=r"cannot be written \(Not a directory\).*ORT_AIE_CACHE"):
        ort_aie_ep.session(LLAMA, cache_dir=tmp_path / "file" / "cache")


def test_a_filled_cache_may_be_read_only(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ort_aie_ep.session(LLAMA)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "_write_json", refuse)
    ort_aie_ep.session(model)
    with pytest.raises(AieError, match=r"cannot be written \(Permission denied\)"):
        ort_aie_ep.session(model, fuse=False)
    assert len(entries(folder)) == 1


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    assert cache.cache_folder() == Path("/home/me/.cache/ort_aie_ep/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache.cache_folder() == Path("/shared/ort_aie_ep/models")
    monkeypatch.setenv(cache.VARIABLE, "/own")
    assert cache.cache_folder() == Path("/own")
    assert cache.cache_folder(tmp_path) == tmp_path


def test_a_compiled_model_is_opened_as_it_is(
    folder: Path, tmp_path: Path, compilations: list[Path]
) -> None:
    ort_aie_ep.compile(LLAMA, tmp_path / "compiled")
    compilations.clear()
    for _ in range(2):
        session = ort_aie_ep.session(tmp_path / "compiled")
        np.testing.assert_array_equal(logits(session), logits(ort_aie_ep.session(LLAMA)))
    assert compilations == [LLAMA / "model.onnx"]
    for choice in ({"kv": "f16"}, {"last_logits": True}, {"fuse": False}):
        with pytest.raises(AieError, match="is compiled already"):
            ort_aie_ep.session(tmp_path / "compiled", **choice)  # type: ignore[arg-type]


def test_given_options_count_and_may_be_given_again(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    first = ort_aie_ep.session(LLAMA, session_options=options)
    second = ort_aie_ep.session(LLAMA, session_options=options)
    assert first.get_session_options().intra_op_num_threads == 1
    assert first.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_array_equal(logits(first), logits(second))


def test_the_library_may_be_registered_already(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(ort_aie_ep.library_path())
    expected = logits(ort_aie_ep.session(LLAMA))
    np.testing.assert_array_equal(
        logits(ort_aie_ep.session(LLAMA, session_options=options)), expected
    )


@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="the plugin interface lacks custom-op domains before 1.24",
)
def test_providers_of_given_options_stay(folder: Path) -> None:
    """In another process: registering a provider concerns all of it."""
    code = f"""
import onnxruntime, ort_aie_ep
name = "AieExecutionProvider"
onnxruntime.register_execution_provider_library(name, ort_aie_ep.library_path())
options = onnxruntime.SessionOptions()
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
options.add_provider_for_devices(devices, {{}})
for _ in range(2):
    session = ort_aie_ep.session({str(LLAMA)!r}, session_options=options)
    print(*session.get_providers())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["AieExecutionProvider", "CPUExecutionProvider"] * 2


def test_a_refused_option_is_told(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op_thread_affinities", "nonsense")
    options.intra_op_num_threads = 2
    with pytest.raises(AieError, match="cannot be opened"):
        ort_aie_ep.session(LLAMA, session_options=options)


def test_progress_is_told_of_a_compilation_only(folder: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    ort_aie_ep.session(LLAMA, progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] > 0
    calls.clear()
    ort_aie_ep.session(LLAMA, progress=lambda *call: calls.append(call))
    assert calls == []


def test_the_package_stays_light_and_no_module_hides_the_function(folder: Path) -> None:
    code = f"""
import sys, ort_aie_ep
print("onnxruntime" in sys.modules, "onnx_ir" in sys.modules)
ort_aie_ep.session({str(LLAMA)!r})
import ort_aie_ep.sessions, ort_aie_ep.explain, ort_aie_ep.pair
print(callable(ort_aie_ep.session), callable(ort_aie_ep.compile))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "True"]
