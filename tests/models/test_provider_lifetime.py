"""AieExecutionProvider beside other sessions, other runtimes and its own earlier registrations.

Each test runs in its own process, because registrations, loaded libraries and memory belong to a
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
import pytest

import ort_aie_ep

LLAMA = Path(__file__).parent.parent / "data" / "llama"

pytestmark = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24),
    reason="the plugin interface lacks custom-op domains before 1.24",
)

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


THREADS = """
from concurrent.futures import ThreadPoolExecutor

register()
prompts = [[5, 9, 100, 7], list(range(3, 50)), [11], list(range(60, 80))]
shared = provider_session(sys.argv[1])
expected = [text(shared, sys.argv[1], prompt) for prompt in prompts]

def work(index):
    # One session for all, with caches for each, and one that comes and goes while others run.
    for _ in range(3):
        assert text(shared, sys.argv[1], prompts[index]) == expected[index]
        own = provider_session(sys.argv[1])
        assert text(own, sys.argv[1], prompts[index]) == expected[index]
    return index

with ThreadPoolExecutor(len(prompts)) as pool:
    print(*pool.map(work, range(len(prompts))))
"""


def test_threads_open_and_run_sessions_at_once() -> None:
    assert run(THREADS, LLAMA) == ["0 1 2 3"]


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
