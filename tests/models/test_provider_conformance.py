"""What ONNX Runtime expects of each plugin execution provider, as far as Python can see it.

Claims that repeat, sessions that leave nothing behind, threads, options, devices, other providers,
and registrations. Tests of registrations run in processes of their own, because these, loaded
libraries and memory belong to a process.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from model_folders import DATA, MODELS, few
from op_models import ORT_VERSION
from provider_calls import devices, needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.provider import NAME

LLAMA = DATA / "llama"
DOCS = Path(__file__).parent.parent.parent / "docs"
PROMPT = np.array([5, 9, 100, 7, 11])

pytestmark = needs_provider


def logits(session: onnxruntime.InferenceSession, folder: Path) -> Any:
    return Decoder(session, find_model(folder), 16).forward(PROMPT)


def claims(session: onnxruntime.InferenceSession) -> list[tuple[str, list[str]]]:
    """The nodes of each part of the graph, and who has them."""
    parts = session.get_provider_graph_assignment_info()
    return sorted((p.ep_name, sorted(node.name for node in p.get_nodes())) for p in parts)


def in_threads(work: Mapping[str, Callable[[], object]]) -> None:
    """Runs each function in a thread of its name, all at once; fails with what threads raised."""
    raised: dict[str, BaseException] = {}
    start = threading.Barrier(len(work))

    def run_one(name: str) -> None:
        try:
            start.wait()
            work[name]()
        except BaseException as error:
            raised[name] = error

    threads = [threading.Thread(target=run_one, name=name, args=(name,)) for name in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("name", few(MODELS))
def test_claims_are_the_same_in_each_session(name: str) -> None:
    """After sessions of other models and options, beside live ones, and in another thread."""
    model = find_model(DATA / name).model
    first = provider_session(model)
    expected = claims(first)
    assert NAME in {provider for provider, _ in expected}
    provider_session(LLAMA / "model.onnx", {"numerics": "int8", "stoppable": "yes"})
    assert claims(provider_session(model)) == expected
    again: list[onnxruntime.InferenceSession] = []
    in_threads({f"opens {name}": lambda: again.append(provider_session(model))})
    assert claims(again[0]) == claims(first) == expected


def state(folder: Path) -> dict[str, object]:
    """What a session could leave behind in the process and in the folders that it may write to."""
    gc.collect()
    files = {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}
    maps = Path("/proc/self/maps").read_text(errors="replace")
    return {
        "files": files,
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "maps": [line for line in maps.splitlines() if line.endswith(".onnx.data")],
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "environment": dict(os.environ),
        "counters": ort_aie_ep.npu_counters(),
        "devices": [(d.ep_name, d.ep_vendor, d.ep_metadata, d.ep_options) for d in devices()],
    }


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.usefixtures("provider")
def test_a_session_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    for file in ("model.onnx", "model.onnx.data", "genai_config.json"):
        (tmp_path / file).write_bytes((LLAMA / file).read_bytes())
    monkeypatch.chdir(tmp_path)
    options: list[onnxruntime.SessionOptions] = []
    entries = {"ort_aie.log": "quiet", "session.disable_prepacking": "1"}
    given = {"numerics": "int8", "stoppable": "no"}

    def use(run: bool) -> None:
        session = provider_session("model.onnx", given, entries=entries, change=options.append)
        if run:
            logits(session, tmp_path)

    use(run=True)  # the first starts what the process keeps
    before = state(tmp_path)
    for run_too in (False, True):
        use(run_too)
        assert state(tmp_path) == before
    with pytest.raises(Exception, match="numerics=fp4"):
        provider_session("model.onnx", {"numerics": "fp4"})
    assert state(tmp_path) == before
    assert given == {"numerics": "int8", "stoppable": "no"}
    for key, value in entries.items():
        assert options[-1].get_session_config_entry(key) == value
    # The same options make another session.
    again = onnxruntime.InferenceSession("model.onnx", options[-1], enable_fallback=False)
    plain = provider_session("model.onnx", given)
    np.testing.assert_array_equal(logits(again, tmp_path), logits(plain, tmp_path))


@pytest.mark.usefixtures("provider")
def test_named_threads_open_and_run_sessions_of_several_models() -> None:
    """One session for all threads, with caches for each, and sessions that come and go."""
    names = [name for name in ("llama", "phi3", "gpt_oss", "qwen3") if name in MODELS]
    shared = {name: provider_session(DATA / name / "model.onnx") for name in names}
    expected = {name: logits(session, DATA / name) for name, session in shared.items()}

    def check(session: onnxruntime.InferenceSession, name: str) -> None:
        np.testing.assert_array_equal(logits(session, DATA / name), expected[name])

    def opens(name: str) -> None:
        for _ in range(3):
            session = provider_session(DATA / name / "model.onnx")
            assert claims(session) == claims(shared[name])
            check(session, name)

    def runs(name: str) -> None:
        for _ in range(3):
            check(shared["llama"], "llama")
            check(shared[name], name)

    for work in ({f"opens {n}": lambda n=n: opens(n) for n in names},
                 {f"runs {n}": lambda n=n: runs(n) for n in names},
                 {"opens llama": lambda: opens("llama"), "runs llama": lambda: runs("llama"),
                  "also runs llama": lambda: runs("llama")}):  # fmt: skip
        in_threads(work)


def documented() -> dict[str, list[str]]:
    """The values of each option as docs/options.md lists them; none where it describes them."""
    text = (DOCS / "options.md").read_text()
    table = text.split("## When a session opens")[1].split("Write an option")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, flags=re.M)
    return {name: re.findall(r"(?:^|, |: )`(\w+)`(?= \(|,|$)", values) for name, values in rows}


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        pytest.param(name, value, marks=pytest.mark.in_turn if value == "sim" else ())
        for name, values in [*documented().items(), ("overlays", ["/no"]), ("prompt_chunk", ["9"])]
        for value in values
    ],
)
def test_each_documented_value_of_an_option_is_accepted(option: str, value: str) -> None:
    error = ""
    try:
        provider_session(LLAMA / "model.onnx", {option: value})
    except Exception as refused:
        error = str(refused)
    no_device = value in ("xrt", "sim") and f"target={value}" in error
    assert not error or no_device


@pytest.mark.usefixtures("provider")
def test_other_options_and_values_are_refused_by_name() -> None:
    model = LLAMA / "model.onnx"
    options = documented()
    with pytest.raises(Exception, match="option 'numeric' is unknown") as unknown:
        provider_session(model, {"numeric": "int8"})
    named = str(unknown.value).split("expected one of ")[1]
    assert "the nearest is 'numerics'" in str(unknown.value)
    assert set(re.findall(r"\w+", named)) >= set(options)
    for option, values in options.items():
        if not values:
            continue
        with pytest.raises(Exception, match=f"{option}=loud is unknown; expected ") as refused:
            provider_session(model, {option: "loud"})
        listed = str(refused.value).split("expected ")[1].split("\n")[0]
        assert set(re.findall(r"\w+", listed)) - {"or"} == set(values)
    with pytest.raises(Exception, match="prompt_chunk=many"):
        provider_session(model, {"prompt_chunk": "many"})


@pytest.mark.usefixtures("provider")
def test_each_device_runs_a_model_and_says_where() -> None:
    assert devices()
    for device in devices():
        assert (device.ep_name, device.ep_vendor) == (NAME, "ort_aie_ep")
        assert device.ep_metadata["kernels"]
        npu = device.device.type == onnxruntime.OrtHardwareDeviceType.NPU
        why_not = "why_not_npu" in device.ep_metadata
        assert device.ep_metadata["target"] == ("xrt" if npu and not why_not else "host")
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices([device], {})
        session = onnxruntime.InferenceSession(LLAMA / "model.onnx", options, enable_fallback=False)
        assert session.get_providers()[0] == NAME
        assert np.isfinite(logits(session, LLAMA)).all()


@pytest.mark.skipif(ORT_VERSION < (1, 25), reason="the provider has no name before 1.25")
@pytest.mark.usefixtures("provider")
def test_the_first_of_two_providers_has_the_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    def opened(*providers: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return onnxruntime.InferenceSession(
            LLAMA / "model.onnx", options, providers=providers, enable_fallback=False
        )

    cpu = "CPUExecutionProvider"
    first, only = opened(NAME, cpu), opened(NAME)
    assert claims(first) == claims(only)
    np.testing.assert_array_equal(logits(first, LLAMA), logits(only, LLAMA))
    capfd.readouterr()
    second = opened(cpu, NAME)
    assert {provider for provider, _ in claims(second)} == {cpu}
    assert "cannot be assigned" not in capfd.readouterr().err
    np.testing.assert_array_equal(logits(second, LLAMA), logits(opened(cpu), LLAMA))


PRELUDE = """
import sys
from pathlib import Path
import numpy as np, onnxruntime, ort_aie_ep
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.models.folder import find_model

LIBRARY, NAME = ort_aie_ep.library_path(), "AieExecutionProvider"
PROMPT, NEW = [5, 9, 100, 7, 11], 16

def register(name=NAME):
    onnxruntime.register_execution_provider_library(name, LIBRARY)

def unregister(name=NAME):
    onnxruntime.unregister_execution_provider_library(name)

def devices():
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME]

def options():
    result = onnxruntime.SessionOptions()
    result.intra_op_num_threads = 2
    result.log_severity_level = 4
    return result

def provider_session(folder, device=0):
    with_provider = options()
    with_provider.add_provider_for_devices([devices()[device]], {})
    model = str(find_model(Path(folder)).model)
    return onnxruntime.InferenceSession(model, with_provider, enable_fallback=False)

def custom_op_session(folder):
    with_ops = options()
    with_ops.register_custom_ops_library(LIBRARY)
    return onnxruntime.InferenceSession(str(find_model(Path(folder)).model), with_ops)

def text(session, folder, prompt=PROMPT):
    decoder = Decoder(session, find_model(Path(folder)), len(prompt) + NEW)
    tokens, logits = [], decoder.prefill(np.array(prompt))
    while len(tokens) < NEW:
        tokens.append(int(logits.argmax()))
        logits = decoder.forward(np.array(tokens[-1:]))[-1]
    return tokens
"""


def run(code: str, *arguments: str | Path, **environment: str) -> list[str]:
    """The lines that a process prints. Checks that it succeeds."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout.splitlines()


TWO_RUNTIMES = """
import json, shutil
import onnxruntime_genai as og

source, compiled, with_provider = sys.argv[1:]
shutil.copytree(source, with_provider)
path = Path(with_provider) / "genai_config.json"
config = json.loads(path.read_text())
decoder = config["model"]["decoder"]
decoder.setdefault("session_options", {})["provider_options"] = [{NAME: {}}]
path.write_text(json.dumps(config))

register()
og.register_execution_provider_library(NAME, LIBRARY)
# All four are open before the first runs.
sessions = [(provider_session(source), source), (custom_op_session(compiled), compiled)]
models = [og.Model(with_provider), og.Model(compiled)]
generators = []
for model in models:
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(PROMPT) + NEW, do_sample=False)
    generators.append(og.Generator(model, params))
    generators[-1].append_tokens(PROMPT)
# The two of genai take turns.
for _ in range(NEW):
    for generator in generators:
        generator.generate_next_token()
for session, folder in sessions:
    print(text(session, folder))
for generator in generators:
    print([int(token) for token in generator.get_sequence(0)][len(PROMPT):])
# One runtime's provider goes, the other's stays.
del generator, generators, params, model, models
og.unregister_execution_provider_library(NAME)
print(text(*sessions[0]))
print(text(provider_session(source), source))
"""


@pytest.mark.skipif(find_spec("onnxruntime_genai") is None, reason="needs onnxruntime-genai")
def test_two_runtimes_use_both_doors_at_once(tmp_path: Path) -> None:
    ort_aie_ep.compile(LLAMA, tmp_path / "compiled", fuse=False)
    texts = run(TWO_RUNTIMES, LLAMA, tmp_path / "compiled", tmp_path / "with_provider")
    assert len(texts) == 6
    assert len(set(texts)) == 1


SESSIONS = """
import ctypes, gc

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))

register()
for count in range(1, 101):
    text(provider_session(sys.argv[1]), sys.argv[1])
    if count in (20, 100):
        print(resident())
"""


def test_100_sessions_leave_no_memory_behind() -> None:
    # Resident memory without file pages, which come and go with the kernel's cache. One arena,
    # because otherwise threads that meet in malloc make more of them, depending on the machine's
    # load.
    after_20, after_100 = map(int, run(SESSIONS, LLAMA, MALLOC_ARENA_MAX="1"))
    # Weights are packed into whole pages, so a session that forgets to free any leaves at least a
    # page each. Free memory between other allocations stays far below that.
    assert after_100 - after_20 < 80 * 4096


TWO_NAMES = """
register("first")
register("second")
print(len(devices()))
sessions = [provider_session(sys.argv[1], device) for device in (0, 1)]
texts = [text(session, sys.argv[1]) for session in sessions]
print(texts[0] == texts[1])
try:
    register("first")
except Exception as error:
    print(error)
print(len(devices()))
del sessions
unregister("first")
print(len(devices()), text(provider_session(sys.argv[1]), sys.argv[1]) == texts[0])
"""


def test_a_library_has_two_names_but_each_only_once() -> None:
    count, equal, error, count_after, without_first = run(TWO_NAMES, LLAMA)
    assert (count, equal, count_after, without_first) == ("2", "True", "2", "1 True")
    assert "first" in error
    assert "already" in error


AGAIN = """
register()
expected = text(provider_session(sys.argv[1]), sys.argv[1])
for _ in range(20):
    unregister()
    assert not devices()
    register()
    assert text(provider_session(sys.argv[1]), sys.argv[1]) == expected
unregister()
try:
    unregister()
except Exception as error:
    print(error)
register()
print("registered")
"""


def test_the_library_goes_and_comes_back() -> None:
    error, last = run(AGAIN, LLAMA)
    assert "AieExecutionProvider" in error
    assert last == "registered"


OUTLIVED = """
import gc, threading

register()
source = sys.argv[1]
sessions = [provider_session(source) for _ in range(3)]
expected = text(sessions[0], source)
texts = {}

def work(index):
    for _ in range(3):
        texts[threading.current_thread().name] = text(sessions[index], source)

threads = [threading.Thread(target=work, args=(i,), name=f"runs session {i}") for i in range(3)]
for thread in threads:
    thread.start()
unregister()
for thread in threads:
    thread.join()
assert texts == {thread.name: expected for thread in threads}, texts
assert not devices()
register()
sessions.append(provider_session(source))
# The oldest goes after its registration, beside a new one; the others go when the process ends.
del sessions[0]
gc.collect()
assert all(text(session, source) == expected for session in sessions)
unregister()
print("done", flush=True)
"""


def test_sessions_outlive_the_registration() -> None:
    assert run(OUTLIVED, LLAMA) == ["done"]
