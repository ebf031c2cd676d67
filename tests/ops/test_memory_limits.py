"""Memory that runs out in the middle of an operator gives a Python exception, on whatever thread it
happens, and the session continues when there is memory again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from crafted_models import python
from op_models import FLOAT32, one_op_model
from provider_calls import needs_provider

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]

# Each limit runs in its own process, forked from one that has imported everything. `when` says what
# is limited: creating the session, or the first prompt. It prints how many processes ended in which
# way. After a failure, it lifts the limit, and the same call must succeed.
LIMITED = f"""
import collections, json, os, resource, signal, sys, time
import numpy as np, onnxruntime

library, door, when, model, feeds, *limits = sys.argv[1:]
# A failed run is logged, and reported to telemetry (since 1.31), which logs that it failed. Log
# lines are written in destructors, where an exception ends the process, and all of that is ONNX
# Runtime.
onnxruntime.disable_telemetry_events()
onnxruntime.set_default_logger_severity(4)

def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

def settle():
    # A thread of the pool requests thread-local memory for ONNX Runtime as it starts, and the
    # dynamic loader ends the process (127) if that is missing: all must sleep before a limit.
    def state(thread):
        with open(f"/proc/self/task/{{thread}}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    while any(state(t) != "S" for t in os.listdir("/proc/self/task") if int(t) != os.getpid()):
        time.sleep(0.001)

def limited(more, call):
    everything = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + more, everything[1]))
    try:
        return call()
    except Exception:
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, everything)

def attempt(more):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # ONNX Runtime waits forever where it cannot start all of its threads.
    options.intra_op_num_threads = 1 if when == "session" else 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if door == "provider":
        onnxruntime.register_execution_provider_library("{NAME}", library)
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "{NAME}"]
        options.add_provider_for_devices(devices[:1], {{}})
    else:
        options.register_custom_ops_library(library)
    create = lambda: onnxruntime.InferenceSession(model, options)
    if when == "session":
        session = limited(more, create)
        (session or create()).run(None, arrays)
        return session is not None
    session = create()
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4
    settle()
    found = limited(more, lambda: session.run(None, arrays, quiet))
    expected = session.run(None, arrays)
    if found is not None:  # and not half a result that is called a success
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)
    return found is not None

def end(limit):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 2
        try:
            code = 0 if attempt(int(limit)) else 1
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {{0: "success", 1: "exception"}}.get(status, str(status))

with np.load(feeds) as file:
    arrays = dict(file)
ends = collections.Counter()
for limit in limits:
    ends[end(limit)] += 1
print(json.dumps(ends))
"""


def ends(
    model: bytes, feeds: dict[str, Array], folder: Path, door: str, when: str, limits: range
) -> dict[str, int]:
    (folder / "model.onnx").write_bytes(model)
    np.savez(folder / "feeds.npz", **feeds)
    printed = python(
        LIMITED, ort_aie_ep.library_path(), door, when, folder / "model.onnx", folder / "feeds.npz",
        *limits, timeout=800,
    )  # fmt: skip
    found: dict[str, int] = json.loads(printed)
    return found


K, N = 14336, 128


def projection(door: str, level: int) -> bytes:
    rng = np.random.default_rng(0)
    if door == "provider":
        inputs = {"A": np.zeros((1, K), FLOAT32),
                  "B": rng.integers(0, 256, (N, K // 32, 16), dtype=np.uint8),
                  "scales": np.ones((N, K // 32), FLOAT32)}  # fmt: skip
        given = {"K": K, "N": N, "bits": 4, "block_size": 32, "accuracy_level": level}
        return one_op_model("MatMulNBits", inputs, {"Y": FLOAT32}, given, domain="com.microsoft",
                            constants=("B", "scales"))  # fmt: skip
    blocks = np.zeros((N // 32, K // 256, 5120), np.uint8)
    inputs = {"A": np.zeros((1, K), FLOAT32), "W": blocks}
    given = {"K": K, "N": N, "format": _native.FORMAT, "accuracy_level": level}
    return one_op_model("Q4NXMatMul", inputs, {"Y": FLOAT32}, given, constants=("W",))


# Buffers of a prompt are 2 MB of activations on the caller and 0.9 MB (int8: 0.5 MB) of unpacked
# weights on each of four threads: steps of 384 KB put the end of memory into each of them.
LIMITS = range(0, 9 << 20, 384 << 10)


# For 40 rows weights are unpacked as they are multiplied, for 64 rows they are unpacked first.
@pytest.mark.parametrize(
    ("level", "rows"), [(0, 40), pytest.param(4, 64, marks=pytest.mark.in_turn)]
)
def test_a_prompt_that_does_not_fit_into_memory_is_an_exception(
    level: int, rows: int, tmp_path: Path
) -> None:
    a = np.random.default_rng(1).standard_normal((rows, K), FLOAT32)
    found = ends(projection("custom ops", level), {"A": a}, tmp_path, "custom ops", "run", LIMITS)
    assert set(found) == {"success", "exception"}, found


@needs_provider
def test_packing_without_memory_is_an_exception(tmp_path: Path) -> None:
    a = np.ones((1, K), FLOAT32)
    limits = range(0, 40 << 20, 4 << 20)
    found = ends(projection("provider", 0), {"A": a}, tmp_path, "provider", "session", limits)
    assert set(found) == {"success", "exception"}, found


def test_attention_and_embedding_without_memory_are_exceptions(tmp_path: Path) -> None:
    heads, dim, tokens = 8, 256, 256
    feeds = {
        "query": np.ones((1, tokens, 3 * heads * dim), FLOAT32),
        "seqlens_k": np.full(1, tokens - 1, np.int32),
        "total_sequence_length": np.full(1, tokens, np.int32),
    }
    inputs = {"query": feeds["query"], "key": None, "value": None, "past_key": None,
              "past_value": None} | feeds  # fmt: skip
    outputs = dict.fromkeys(("Y", "present_key", "present_value"), FLOAT32)
    given = {"num_heads": heads, "kv_num_heads": heads, "format": _native.FORMAT}
    model = one_op_model("FlowAttention", inputs, outputs, given)
    limits = range(0, 20 << 20, 3 << 19)
    found = ends(model, feeds, tmp_path, "custom ops", "run", limits)
    assert set(found) == {"success", "exception"}, found

    inputs = {"W": np.zeros((1, K // 256, 5120), np.uint8), "indices": np.zeros(64, np.int64)}
    given = {"K": K, "N": 32, "dtype": 1, "format": _native.FORMAT}
    model = one_op_model("Q4NXGather", inputs, {"Y": FLOAT32}, given, constants=("W",))
    feeds = {"indices": np.zeros(64, np.int64)}
    limits = range(0, 5 << 20, 512 << 10)
    found = ends(model, feeds, tmp_path, "custom ops", "run", limits)
    assert set(found) == {"success", "exception"}, found
