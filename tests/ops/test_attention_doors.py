"""GroupQueryAttention through both doors, compiled and provider, beside ONNX Runtime and float64.

Models without a projection of ort_aie_ep, so nothing is rounded but by attention; `amx_standin` has
kernels that multiply prompts in bfloat16 on any CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from attention_calls import (
    Array,
    Inputs,
    attributes,
    flow_attention,
    given_attributes,
    multiplies_in_bfloat16,
    random_inputs,
    why_no_cpu_operator,
)
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ORT_VERSION,
    QUANTISED_CACHES,
    ROUNDOFF,
    one_op_model,
    open_session,
    run,
)
from provider_calls import provider_session
from reference import AttentionAttributes, group_query_attention

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

PER_CHANNEL = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}


pytestmark = pytest.mark.usefixtures("provider")


def doors(
    model: bytes, folder: Path, *, since: tuple[int, ...] = (), **config: str
) -> dict[str, onnxruntime.InferenceSession]:
    """Sessions of one model, none of whose attentions is left: compiled, and by the provider, if
    ONNX Runtime has known the operator `since` its version."""
    source = folder / "source"
    source.mkdir(parents=True)
    (source / "model.onnx").write_bytes(model)
    ort_aie_ep.compile(source, folder / "compiled")
    compiled = onnx.load(folder / "compiled" / "model.onnx")
    assert "GroupQueryAttention" not in {node.op_type for node in compiled.graph.node}
    entries = {f"ort_aie.{name}": value for name, value in config.items()}
    opened = {"compiled": open_session(str(folder / "compiled" / "model.onnx"), config=entries)}
    if max((1, 24), since) <= ORT_VERSION:
        opened["provider"] = provider_session(model, config)
        info = opened["provider"].get_provider_graph_assignment_info()
        assert {part.ep_name for part in info} == {NAME}
    return opened


def gqa_model(a: AttentionAttributes, inputs: Inputs) -> bytes:
    query, past = inputs["query"], inputs["past_key"]
    assert query is not None
    assert past is not None
    types = {"output": query.dtype, "present_key": past.dtype, "present_value": past.dtype}
    dims = {"past_key": past.shape, "past_value": past.shape}
    return one_op_model("GroupQueryAttention", inputs, types, given_attributes(a),
                        domain="com.microsoft", dims=dims)  # fmt: skip


# --- numbers --------------------------------------------------------------------------------------

CACHES = {
    "float": (FLOAT32, FLOAT32, {}),
    "float16": (FLOAT16, FLOAT16, {}),
    "float16 cache of float": (FLOAT32, FLOAT16, {}),
    "bfloat16": (BFLOAT16, BFLOAT16, {}),
    "int8": (FLOAT32, FLOAT32, PER_CHANNEL | {"kv_cache_bit_width": 8}),
    "int8 of float16": (FLOAT16, FLOAT16, PER_CHANNEL | {"kv_cache_bit_width": 8}),
    "int4": (FLOAT32, FLOAT32, PER_CHANNEL | {"kv_cache_bit_width": 4}),
}
CALLS = ((40, 40), (1, 41), (20, 61))  # a prompt, a token and a later part: tokens, and in all


def calls_of(cache: str) -> list[tuple[AttentionAttributes, Inputs]]:
    """Scores of up to about 30: an error of 2^-9 in one moves a weight by a twentieth."""
    dtype, cached, options = CACHES[cache]
    a = attributes(**options)
    made = []
    for sequence, total in CALLS:
        inputs = random_inputs(a, sequence, lengths=(total,), capacity=64, dtype=dtype,
                               cache_dtype=cached, packed=False)  # fmt: skip
        query = inputs["query"]
        assert query is not None
        inputs["query"] = (4 * query.astype(np.float32)).astype(dtype)
        made.append((a, {name: clean(x) for name, x in inputs.items()}))
    return made


def clean(x: Array | None) -> Array | None:
    """ONNX Runtime multiplies weights of 0 by rows that do not hold a token yet."""
    return x if x is None or x.dtype.kind in "iu" else np.nan_to_num(x)


def error_of(y: Array, expected: Array) -> float:
    return float(np.abs(y.astype(np.float64) - expected.astype(np.float64)).max())


def exact(a: AttentionAttributes, inputs: Inputs) -> Array:
    """In float64, not rounded to the output's type."""
    wide = dict(inputs)
    for name in ("query", "key", "value"):
        x = inputs[name]
        assert x is not None
        wide[name] = x.astype(np.float64)
    # The cache keeps its own type.
    return group_query_attention(a, wide).output


@pytest.mark.parametrize("cache", CACHES)
def test_attention_is_as_exact_as_onnx_runtimes(cache: str, tmp_path: Path) -> None:
    """Alone it multiplies in float32 through both doors, whatever kernels the CPU has.

    Float32 arithmetic moves a score by (D + 16) 2^-24 |q| |k| and a weight by as much, on both
    sides of the softmax; T keys add as many roundings; the output is rounded to its type once.
    ONNX Runtime rounds at least there too: the largest of a thousand such roundings is more than
    half of the largest there can be, so its error has a factor of 2.
    """
    calls = calls_of(cache)
    # Until then a cache had the type of the query.
    since = QUANTISED_CACHES if "int" in cache or cache == "float16 cache of float" else ()
    opened = doors(gqa_model(*calls[0]), tmp_path, since=since)
    for a, inputs in calls:
        result, expected = group_query_attention(a, inputs), exact(a, inputs)
        query, dim = inputs["query"], result.present_key.shape[-1]
        assert query is not None
        score = (dim + 16) * 2**-24 * result.largest_score
        arithmetic = (2 * score + (result.cache_rows[0] + 8) * 2**-24) * result.largest_value
        rounding = ROUNDOFF[query.dtype] * np.abs(expected).max()
        if not why_no_cpu_operator(a, inputs):
            theirs = run(open_session(gqa_model(a, inputs)), inputs)["output"]
            rounding = min(rounding, 2 * error_of(theirs, expected))
        for door, session in opened.items():
            error = error_of(run(session, inputs)["output"], expected)
            assert error <= arithmetic + rounding, door


@pytest.mark.in_turn  # check_isas.sh runs this file with the stand-in too
def test_so_it_is_with_kernels_of_bfloat16() -> None:
    """The same tests in a process whose kernels multiply prompts in bfloat16 where they may."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__,
         "-k", "as_exact or asked_for"],
        env=os.environ | {"ORT_AIE_ISA": "amx_standin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_bfloat16_is_used_where_it_is_asked_for(tmp_path: Path) -> None:
    ((a, inputs), *_) = calls_of("float16")
    if not multiplies_in_bfloat16(a, inputs):
        pytest.skip("these kernels have no products of bfloat16")
    if ORT_VERSION < (1, 24):
        pytest.skip("custom ops read session config entries from 1.24 on")
    model = gqa_model(a, inputs)
    rounded = flow_attention(a, inputs)["output"]  # by the custom op alone
    for door, session in doors(model, tmp_path / "asked", numerics="bf16").items():
        np.testing.assert_array_equal(run(session, inputs)["output"], rounded, err_msg=door)
    for session in doors(model, tmp_path / "auto").values():
        assert error_of(run(session, inputs)["output"], exact(a, inputs)) < 0.1 * error_of(
            rounded, exact(a, inputs)
        )
