"""Intel's AMX tiles: kernels on the stand-in for their instructions, and on the real ones.

test_kernels.py tests the kernels of every instruction set, these among them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cmake_program import Project

from ort_aie_ep import _native

Array = npt.NDArray[Any]

STANDIN = "amx_standin"
TABLES = [isa for isa in _native.available_isas() if isa.startswith("amx")]
on_real_tiles = pytest.mark.skipif(
    bool(_native.why_no_amx()), reason=f"the stand-in alone: {_native.why_no_amx()}"
)
U = 2.0**-24  # unit roundoff of float32


def bf16_weights(weights: Array) -> Array:
    """(N, K) bfloat16 bits as blocks [K / 256][256 / 8][32 / 8][8 k][8 n] of 32 out-features."""
    n, k = weights.shape
    padded = np.zeros((-(-n // 32) * 32, -(-k // 256) * 256), np.uint16)
    padded[:n, :k] = weights
    rows, columns = padded.shape
    tiles = padded.reshape(rows // 32, 4, 8, columns // 256, 32, 8).transpose(0, 3, 4, 1, 5, 2)
    return np.ascontiguousarray(tiles).view(np.uint8).reshape(rows // 32, columns // 256, -1)


def as_float(bits: Array) -> Array:
    widened: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened


def random_bits(rng: np.random.Generator, *shape: int, lowest: int, exponents: int) -> Array:
    """bfloat16 bits of either sign, with exponents of [lowest, lowest + exponents)."""
    exponent = rng.integers(lowest, lowest + exponents, shape).astype(np.uint16)
    sign, mantissa = (rng.integers(0, most, shape).astype(np.uint16) for most in (2, 128))
    bits: Array = sign << 15 | exponent << 7 | mantissa
    return bits


@pytest.mark.parametrize("isa", TABLES)
@pytest.mark.parametrize("k", [7, 256, 700])
def test_any_number_of_rows_is_the_product_of_the_portable_kernels(isa: str, k: int) -> None:
    rng = np.random.default_rng(k)
    n = 40
    a = rng.standard_normal((33, k)).astype(np.float32)
    blocks = bf16_weights(random_bits(rng, n, k, lowest=120, exponents=8))
    most = _native.project(a, blocks, n, "bf16", isa)
    expected = _native.project(a, blocks, n, "bf16", "portable")
    weights = np.abs(_native.project(np.eye(k, dtype=np.float32), blocks, n, "bf16", "portable"))
    # Two sums of k products in float32, in different orders, each within k + 2 roundings.
    bound = 2 * (k + 2) * U * (np.abs(a) * (1 + 2.0**-8) @ weights)
    assert (np.abs(most - expected) <= bound).all()
    for rows in range(1, 33):  # a row does not depend on its tile
        y = _native.project(a[:rows], blocks, n, "bf16", isa)
        np.testing.assert_array_equal(y, most[:rows], err_msg=f"{rows} rows")


@pytest.mark.parametrize("isa", TABLES)
@pytest.mark.parametrize(("rows", "k"), [(130, 8192), (200, 4096)])
def test_rows_beyond_what_l2_holds_are_the_same_rows(isa: str, rows: int, k: int) -> None:
    rng = np.random.default_rng([rows, k])
    a = rng.standard_normal((rows, k)).astype(np.float32)
    blocks = bf16_weights(random_bits(rng, 5, k, lowest=120, exponents=8))
    y = _native.project(a, blocks, 5, "bf16", isa)
    for row in (0, 63, 64, 65, 127, 128, rows - 1):
        np.testing.assert_array_equal(
            y[row], _native.project(a[row : row + 1], blocks, 5, "bf16", isa)[0]
        )


# The calls of test_threads_and_buffers.py that multiply tiles, on any number of threads and side by
# side.
SESSIONS = """
import sys
sys.path[:0] = sys.argv[1:]
import test_threads_and_buffers as sessions
tiled = ("projection of 40 rows, level 0", "projection of 70 rows, level 0", "prompt")
sessions.CALLS = [call for call in sessions.CALLS if call[0] in tiled]
assert len(sessions.CALLS) == len(tiled)
for call in sessions.CALLS:
    sessions.test_results_do_not_depend_on_the_number_of_threads(*call)
sessions.test_sessions_and_calls_run_side_by_side()
"""


def test_sessions_on_the_stand_in_give_the_same_on_any_thread() -> None:
    """Tiles belong to a thread, and the threads of ONNX Runtime's pool serve any session."""
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", SESSIONS, folder, folder.parent],
        env=os.environ | {"ORT_AIE_ISA": STANDIN}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not _native.why_no_amx(), reason="this CPU has AMX")
def test_amx_that_is_asked_for_in_vain_is_refused_with_the_reason() -> None:
    script = "from ort_aie_ep import _native; print(_native.selected_isa())"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"ORT_AIE_ISA": "amx"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == (
        f"ort_aie_ep: ORT_AIE_ISA=amx is not available: {_native.why_no_amx()}; "
        f"using {done.stdout.strip()}\n"
    )


# --- the real instructions ------------------------------------------------------------------------


@pytest.mark.skipif(
    not _native.why_no_amx() or "avx512_bf16" not in _native.available_isas(),
    reason="for CPUs with AVX-512 BF16 and without AMX",
)
def test_compiled_tile_instructions_do_what_the_stand_in_does(project: Project) -> None:
    """A CPU without AMX traps on each, and the program does what the manual says instead."""
    done = subprocess.run(
        [project.build("amx_trap_test")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 1000  # instructions


@on_real_tiles
@pytest.mark.parametrize("rows", [2, 5, 16, 17, 31, 32, 33, 70])
@pytest.mark.parametrize("lowest", [1, 60, 110])  # denormals; products of them; ordinary numbers
def test_real_tiles_give_the_bits_of_the_stand_in(rows: int, lowest: int) -> None:
    rng = np.random.default_rng([rows, lowest])
    k, n = 700, 40
    a = as_float(random_bits(rng, rows, k, lowest=lowest, exponents=20))
    a[:, ::50] = as_float(random_bits(rng, rows, 14, lowest=0, exponents=1))  # denormals, zeros
    blocks = bf16_weights(random_bits(rng, n, k, lowest=lowest, exponents=20))
    real, standin = (_native.project(a, blocks, n, "bf16", isa) for isa in ("amx", STANDIN))
    np.testing.assert_array_equal(real.view(np.uint32), standin.view(np.uint32))


@on_real_tiles
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_real_tiles_pass_on_what_is_not_a_number_as_the_stand_in_does(poison: float) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((40, 256)).astype(np.float32)
    a[rng.integers(0, 40, 9), rng.integers(0, 256, 9)] = poison
    blocks = bf16_weights(random_bits(rng, 32, 256, lowest=120, exponents=8))
    real, standin = (_native.project(a, blocks, 32, "bf16", isa) for isa in ("amx", STANDIN))
    np.testing.assert_array_equal(real, standin)  # NaN equals NaN, whatever its bits


@on_real_tiles
@pytest.mark.parametrize("dim", [8, 24, 64, 80, 128])
@pytest.mark.parametrize(("rows", "keys"), [(16, 64), (29, 255), (33, 33)])
def test_real_tiles_score_as_the_stand_in(dim: int, rows: int, keys: int) -> None:
    rng = np.random.default_rng([dim, rows, keys])
    q, k, v = (rng.standard_normal((n, dim)).astype(np.float32) for n in (rows, keys, keys))
    real, standin = (
        _native.attention_chunk(q, k, v, 0.125, 0.0, "bf16", "float16", isa)[0]
        for isa in ("amx", STANDIN)
    )
    np.testing.assert_array_equal(real, standin)
