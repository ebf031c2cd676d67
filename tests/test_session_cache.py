"""`ort_aie_ep.session`: what it opens, and what its cache keeps, rebuilds and refuses."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnxruntime
import pytest
from commands import succeeded
from model_folders import DATA
from provider_calls import needs_provider

import ort_aie_ep
from ort_aie_ep.compiler import cache, cache_entries
from ort_aie_ep.compiler import compile as compiler
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import open_session

LLAMA = DATA / "llama"
TOKENS = np.random.default_rng(0).integers(3, 100, 20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, used by default, that trusts file times at once."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SETTLED_NS", -1)
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LLAMA, tmp_path / "model"))


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The models that were compiled since then."""
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
    """Changes the weights file, but not its size."""
    path = model / "model.onnx.data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2", "qwen3_5"])
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
    real = cache.file_hash
    monkeypatch.setattr(cache, "file_hash", lambda path: hashed.append(path.name) or real(path))
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


def test_a_change_of_the_code_that_compiles_compiles_anew(
    folder: Path, compilations: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for digest in ("yesterday", "today", "today"):
        monkeypatch.setattr(cache, "code_digest", lambda digest=digest: digest)
        ort_aie_ep.session(LLAMA)
    assert len(compilations) == 2


def test_the_hash_of_the_code_knows_each_pass_and_the_native_module(tmp_path: Path) -> None:
    installed = Path(ort_aie_ep.__file__).parent
    names = [*cache.ROOMS, *(path.name for path in installed.glob("*.py"))]
    package = tmp_path / "ort_aie_ep"
    package.mkdir()
    for name in [*names, *(path.name for path in installed.glob("_native*.so"))]:
        if (installed / name).is_dir():
            # Excludes what another process compiles meanwhile.
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(installed / name, package / name, ignore=ignored)
        else:
            shutil.copyfile(installed / name, package / name)

    def digest() -> str:
        code = "from ort_aie_ep.compiler import cache; print(cache.code_digest(), cache.__file__)"
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={k: v for k, v in environment.items() if k != "PYTHONSAFEPATH"}, cwd=tmp_path,
        )  # fmt: skip
        value, _, file = done.stdout.strip().partition(" ")
        assert Path(file).is_relative_to(tmp_path)
        return value

    seen = [digest()]
    for name in ("graph_passes/projection/norm.py", "compiler/compiled_folder.py"):
        path = package / name
        path.write_text(path.read_text() + "# mended\n")
        seen.append(digest())
    (native,) = package.glob("_native*.so")
    native.write_bytes(native.read_bytes() + b"\0")  # past its sections
    seen.append(digest())
    assert len(set(seen)) == 4
    assert seen[0] == cache.code_digest()


def test_the_hash_of_the_code_knows_the_packages_that_it_compiles_with() -> None:
    names = {
        f"{name}-{metadata.version(name)}.dist-info"
        for name in ("onnx", "onnx_ir", "onnxscript", "numpy")
    }
    assert set(cache._versions()) == names


def test_the_hash_of_the_code_has_all_modules_that_a_compilation_takes(tmp_path: Path) -> None:
    code = f"""
import sys, ort_aie_ep
ort_aie_ep.compile({str(LLAMA)!r}, {str(tmp_path / "compiled")!r})
print(*(m.__file__ for n, m in sys.modules.items() if n.startswith("ort_aie_ep")), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    package = Path(ort_aie_ep.__file__).parent
    modules = [Path(line).relative_to(package) for line in done.stdout.split("\n") if line]
    rooms = {path.parts[0] for path in modules if len(path.parts) > 1}
    assert rooms - {"hub"} == set(cache.ROOMS)  # which finds the model, and changes nothing in it


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
        for _ in range(2)
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
    with pytest.raises(AieError, match=r"model\.onnx changed"):
        ort_aie_ep.session(model)
    assert entries(folder) == []


def test_a_failing_compilation_leaves_nothing(folder: Path) -> None:
    with pytest.raises(AieError, match="'/nothing'"):
        ort_aie_ep.session(LLAMA, quantize="q4nx", keep=["/nothing"])
    assert entries(folder) == []


def test_work_of_a_killed_process_goes_away(folder: Path) -> None:
    old, new = folder / ".work-old", folder / ".work-new"
    for path in (old, new):
        (path / "entry").mkdir(parents=True)
    yesterday = time.time() - cache_entries.LEFTOVER_SECONDS - 60
    os.utime(old, (yesterday, yesterday))
    ort_aie_ep.session(LLAMA)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AieError, match=r"Not a directory.*ORT_AIE_CACHE"):
        ort_aie_ep.session(LLAMA, cache_dir=tmp_path / "file" / "cache")


def test_a_filled_cache_may_be_read_only(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ort_aie_ep.session(LLAMA)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "write_json", refuse)
    ort_aie_ep.session(model)
    with pytest.raises(AieError, match=r"Permission denied"):
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
        with pytest.raises(AieError, match=r"compiled/model\.onnx"):
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
    """In another process, because registering a provider affects the whole process."""
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


@pytest.mark.parametrize("provider", [False, pytest.param(True, marks=needs_provider)])
def test_a_process_may_have_one_pool_of_threads(
    provider: bool, folder: Path, tmp_path: Path
) -> None:
    """In another process, whose sessions may then have no threads of their own."""
    code = f"""
import numpy as np, onnx_ir as ir, onnxruntime, ort_aie_ep
from pathlib import Path
from ort_aie_ep.graph_passes.subgraph import Part
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
source, out = Path({str(LLAMA)!r}), Path({str(tmp_path)!r})
onnxruntime.set_global_thread_pool_sizes(2, 1)
if {provider}:
    name = "AieExecutionProvider"
    onnxruntime.register_execution_provider_library(name, ort_aie_ep.library_path())
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    options.add_provider_for_devices(devices[:1], {{}})
    session = onnxruntime.InferenceSession(str(source / "model.onnx"), options)
    assert session.get_providers()[0] == name
else:
    ort_aie_ep.compile(source, out / "compiled")
    session = ort_aie_ep.session(out / "compiled")
    open_session(out / "compiled" / "model.onnx", Options(threads=2))
    relu = ir.node("Relu", [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))])
    graph = ir.Graph(relu.inputs, relu.outputs, nodes=[relu], opset_imports={{"": 21}})
    relu.outputs[0].name = "y"
    part = Part(ir.Model(graph, ir_version=10), relu.inputs, relu.outputs)
    assert part.run({{"x": np.float32([-1, 2])}})[0].tolist() == [0, 2]
np.save(out / "logits.npy", Decoder(session, find_model(source), 32).forward({TOKENS.tolist()}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = logits(ort_aie_ep.session(LLAMA))
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)


def test_a_refused_option_is_named(folder: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op_thread_affinities", "nonsense")
    options.intra_op_num_threads = 2
    with pytest.raises(AieError, match=r"model\.onnx"):
        ort_aie_ep.session(LLAMA, session_options=options)


def test_only_a_compilation_reports_progress(folder: Path) -> None:
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
import ort_aie_ep.runtime.sessions, ort_aie_ep.explain.explain, ort_aie_ep.tools.bench.pair
print(callable(ort_aie_ep.session), callable(ort_aie_ep.compile))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True", "True"]


# --- size -----------------------------------------------------------------------------------------

OLDER = {"fuse": False}
NEWER = {"kv": "f16"}


def kept(folder: Path) -> list[dict[str, object]]:
    return [entry.choices for entry in cache_entries.entries(folder)]


def used_at(folder: Path, choices: dict[str, object], seconds: float) -> None:
    (entry,) = (e for e in cache_entries.entries(folder) if e.choices == choices)
    os.utime(entry.folder / cache.MANIFEST, (seconds, seconds))


def test_beyond_the_limit_what_was_used_least_recently_goes(folder: Path) -> None:
    for choices in (OLDER, NEWER):
        ort_aie_ep.session(LLAMA, **choices)  # type: ignore[arg-type]
    sizes = {str(e.choices): e.bytes for e in cache_entries.entries(folder)}
    used_at(folder, OLDER, 1000)
    used_at(folder, NEWER, 2000)
    ort_aie_ep.session(LLAMA, **OLDER)  # type: ignore[arg-type]
    gc.collect()
    limit = sizes[str(OLDER)] + sizes[str(NEWER)] + 5000
    session = ort_aie_ep.session(LLAMA, cache_limit=f"{limit}")
    assert kept(folder) == [{}, OLDER]
    assert not list(folder.glob(".work-*"))
    del session


def test_the_limit_is_the_environments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_entries.LIMIT_VARIABLE, "1kB")
    for choices in (OLDER, NEWER):
        ort_aie_ep.session(LLAMA, **choices)  # type: ignore[arg-type]
        gc.collect()
    assert kept(folder) == [NEWER]
    monkeypatch.setenv(cache_entries.LIMIT_VARIABLE, "none")
    ort_aie_ep.session(LLAMA)
    assert len(kept(folder)) == 2
    monkeypatch.setenv(cache_entries.LIMIT_VARIABLE, "much")
    with pytest.raises(AieError, match=r"ORT_AIE_CACHE_LIMIT .*'much'"):
        ort_aie_ep.session(LLAMA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5000", 5000), ("20GB", 20 * 10**9), ("1.5 kB", 1500), ("2T", 2 * 10**12), ("none", None)],
)
def test_sizes_are_written_as_people_do(text: str, expected: int | None) -> None:
    assert cache_entries.cache_limit(text) == expected


def test_an_entry_in_use_stays(folder: Path) -> None:
    session = ort_aie_ep.session(LLAMA, **OLDER)  # type: ignore[arg-type]
    used_at(folder, OLDER, 1000)
    ort_aie_ep.session(LLAMA, cache_limit="0")
    gc.collect()
    assert kept(folder) == [{}, OLDER]  # the newest was itself in use when the size was checked
    assert [entry.in_use for entry in cache_entries.entries(folder)] == [False, True]
    assert cache_entries.clear(folder).in_use == 1
    assert kept(folder) == [OLDER]
    del session
    gc.collect()
    assert cache_entries.clear(folder) == cache_entries.Cleared(1, ANY, 0)
    assert list(folder.iterdir()) == []


def test_an_entry_that_another_process_has_open_stays(folder: Path) -> None:
    code = f"""
import ort_aie_ep
session = ort_aie_ep.session({str(LLAMA)!r})
print("open", flush=True)
input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    assert cache_entries.clear(folder) == cache_entries.Cleared(0, 0, 1)
    process.communicate("\n")
    assert cache_entries.clear(folder).removed == 1


def test_work_that_goes_on_stays(folder: Path) -> None:
    folder.mkdir()
    with cache_entries.work_folder(folder) as work:
        os.utime(work, (1000, 1000))
        (folder / ".work-dead").mkdir()
        os.utime(folder / ".work-dead", (1000, 1000))
        cache_entries.clear(folder)
        assert [path.name for path in folder.iterdir()] == [work.name]


def test_an_entry_that_goes_away_meanwhile_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, compilations: list[Path]
) -> None:
    expected = logits(ort_aie_ep.session(LLAMA))
    gc.collect()
    real = cache.use

    def use(entry: Path) -> Any:
        monkeypatch.setattr(cache, "use", real)
        cache_entries.clear(folder)  # as another process would, at the worst moment
        return real(entry)

    monkeypatch.setattr(cache, "use", use)
    np.testing.assert_array_equal(logits(ort_aie_ep.session(LLAMA)), expected)
    assert len(compilations) == 2


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with written_beside(path) as first, written_beside(path) as second:
        first.write("first" * 1000)
        second.write("second")
    assert path.read_text() == "first" * 1000
    with suppress(KeyError), written_beside(path) as third:
        third.write("third")
        raise KeyError
    assert path.read_text() == "first" * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


# --- ort-aie cache --------------------------------------------------------------------------------


def test_the_command_shows_and_clears(
    folder: Path, tmp_path: Path, ends: Callable[[str], dict[str, str]]
) -> None:
    assert json.loads(succeeded("cache", "--json").output)["entries"] == []
    session = ort_aie_ep.session(LLAMA, **NEWER)  # type: ignore[arg-type]
    ort_aie_ep.session(LLAMA)
    gc.collect()
    (folder / "mine.txt").write_text("no entry")
    (folder / "sources" / "mine.c").write_text("no index")
    shown = succeeded(
        "cache",
    ).output
    for text in (
        str(LLAMA / "model.onnx"),
        "kv=f16",
        "in use",
        "kB",
    ):
        assert text in " ".join(shown.split()), text
    report = json.loads(succeeded("cache", "--json").output)
    assert [entry["choices"] for entry in report["entries"]] == [{}, NEWER]
    assert all(entry["code"] == report["code"] for entry in report["entries"])
    cleared = succeeded("cache", "--clear").output
    assert list(ends(cleared)) == ["cache"]
    del session
    gc.collect()
    succeeded("cache", "--clear", "--cache-dir", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "sources"]
    assert [path.name for path in (folder / "sources").iterdir()] == ["mine.c"]


def test_the_command_tells_what_is_broken_or_of_another_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "code_digest", lambda: "yesterday")
    ort_aie_ep.session(LLAMA)
    monkeypatch.undo()
    gc.collect()
    report = json.loads(succeeded("cache", "--json", "--cache-dir", folder).output)
    assert [entry["code"] == report["code"] for entry in report["entries"]] == [False]
    (entry,) = entries(folder)
    (entry / cache.MANIFEST).write_text("[" * 5000)
    assert "broken" in succeeded("cache", "--cache-dir", folder).output
    succeeded("cache", "--cache-dir", folder, "--clear")
