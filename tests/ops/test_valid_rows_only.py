"""Attention touches the rows of the cache that hold tokens it can see, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

OPS = Path(__file__).parent

# One head's cache is in separate memory, whose pages without a visible token are protected:
# touching one ends the process. The output must equal that of the same call on ordinary memory.
GUARDED = """
import ctypes, json, mmap, sys
sys.path += sys.argv[1:3]
import numpy as np
from attention_calls import SHARED, attributes, flow_attention, model_of, random_inputs
from op_models import _ort_value, _to_numpy, open_session

CAPACITY, DIM = 4096, 32
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def check(sequence, total, window, dtype):
    a = attributes(4, 1, do_rotary=1, local_window_size=window)
    inputs = random_inputs(
        a, sequence, lengths=(total,), capacity=CAPACITY, dim=DIM, cache_dtype=dtype)
    row = DIM * dtype.itemsize
    first = max(0, total - sequence - window + 1) * row // mmap.PAGESIZE if window > 0 else 0
    end = -(-total * row // mmap.PAGESIZE)
    pages = CAPACITY * row // mmap.PAGESIZE
    session, values, memories = open_session(model_of(a, inputs)), {}, []
    binding = session.io_binding()
    for entry in session.get_inputs():
        array = inputs[entry.name]
        if entry.name in SHARED.values():
            memories.append(mmap.mmap(-1, array.nbytes))
            mapped = np.frombuffer(memories[-1], dtype).reshape(array.shape)
            mapped[...] = array
            for begin, count in ((0, first), (end, pages - end)):
                size = count * mmap.PAGESIZE
                if size and protect(mapped.ctypes.data + begin * mmap.PAGESIZE, size, 0):
                    raise OSError(ctypes.get_errno(), "mprotect")
            array = mapped
        values[entry.name] = _ort_value(array)
        binding.bind_ortvalue_input(entry.name, values[entry.name])
    binding.bind_output("output", "cpu")
    for present, past in SHARED.items():
        binding.bind_ortvalue_output(present, values[past])
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(
        _to_numpy(binding.get_outputs()[0]), flow_attention(a, inputs, shared=True)["output"]
    )
    assert first + pages - end > 0

for case in json.loads(sys.argv[3]):
    print(case, flush=True)  # the last one is the one that fails
    for dtype in ("float32", "float16"):
        check(*case, np.dtype(dtype))
print("pages not touched")
"""

# Rows of a call, of the cache, and of the window.
CASES = [
    (64, 64, -1),  # a first prompt
    (1, 64, -1),
    (64, 512, -1),  # a later turn
    (1, 2048, -1),  # swept in parts by several threads
    (64, 512, 64),  # keys before the window as well
    (1, 512, 64),
]


def test_rows_without_a_visible_token_are_not_touched() -> None:
    result = subprocess.run(
        [sys.executable, "-c", GUARDED, str(OPS), str(OPS.parent), json.dumps(CASES)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + (
        result.stderr or f"ended by signal {-result.returncode}"
    )
    assert result.stdout.endswith("pages not touched\n")
