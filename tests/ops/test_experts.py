"""aie.Q4NXMoE on the host, made from QMoE: against numpy, and against ONNX Runtime's QMoE."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from expert_models import (
    FC1,
    FC2,
    PLACES,
    Built,
    Experts,
    build,
    exact,
    experts_folder,
    experts_model,
    feeds_of,
    needs_qmoe,
    reference,
    to_bf16,
    to_int8,
)
from op_models import (
    BFLOAT16,
    FLOAT16,
    ORT_VERSION,
    ROUNDOFF,
    one_op_model,
    open_session,
    run,
)
from provider_calls import needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep import _native

Array = npt.NDArray[Any]

# The reference rounds activations as the op does. A value of which float32 and float64 lie on two
# sides of a rounding is rounded differently: few are, and each moves the norm of a result by less
# than 2^-8 of the share of one in-feature.
TOLERANCE = 2.0**-12
# Lookups in tables of int16 (AVX2, host/kernels/README.md): 12 in a group of 32, each off by at
# most half of 1/32767 of the largest sum of four activations, which is about 3 times their root
# mean square times 2. Over a group's result, about √32 of that root mean square, this is less
# than 2^-10.
LOOKUPS = 2.0**-10
GPT_OSS = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 1.5}
# Rows that are not whole blocks, in several of them.
UNEVEN = Experts(experts=8, hidden=320, inter=288, biases=True, zero_points=True)
CASES = {
    "interleaved": Experts(),
    "uneven": UNEVEN,
    "gpt-oss": Experts(biases=True, attributes=GPT_OSS),
    "separate": Experts(activation="silu", fusion=0, fc3=True, biases=True),
    "all experts": Experts(top_k=4),
    "one expert": Experts(experts=1, top_k=1),
    "8 bits": replace(UNEVEN, bits=8),
}
# What ONNX Runtime's CPU kernel refuses, although the schema has a meaning for it.
TAKEN_HERE = {
    # In blocks, it rounds activations to 8 bits.
    "8 bits in blocks": Experts(bits=8, block_size=64, hidden=320, inter=64, zero_points=True),
    "8 and 4 bits": Experts(bits={"fc1": 4, "fc2": 8}),
    "2 and 4 bits": Experts(bits={"fc1": 2, "fc2": 4}),
    "4 and 2 bits": Experts(bits={"fc1": 4, "fc2": 2}, zero_points=True),
    "concatenated": Experts(fusion=2, biases=True),
    "fp4": Experts(experts=8, hidden=320, inter=288, biases=True, fp4=True, attributes=GPT_OSS),
    "swiglu of two tensors": Experts(fusion=0, fc3=True, biases=True, attributes=GPT_OSS),
    "geglu": Experts(activation="geglu"),
    "geglu, concatenated": Experts(activation="geglu", fusion=2, biases=True),
    "relu, gated": Experts(activation="relu", fusion=0, fc3=True),
    "identity, gated": Experts(activation="identity", fusion=0, fc3=True),
    "limit after activation": Experts(
        attributes={"swiglu_limit": 0.5, "swiglu_limit_after_activation": 1}
    ),
}
NUMERICS: dict[str, Callable[[Array], Array]] = {"bf16": to_bf16, "int8": to_int8}

# Runs one token, then reports how many bytes of the mapped weights are resident, and how many bytes
# the process holds besides.
MEASURE = """
import json, os, sys
import numpy as np, onnxruntime, ort_aie_ep

def held():
    mapped = anonymous = 0
    of_weights = False
    with open("/proc/self/smaps", errors="replace") as file:
        for line in file:
            key, _, rest = line.partition(":")
            if key == "Rss" and of_weights:
                mapped += int(rest.split()[0]) * 1024
            elif key == "Anonymous":
                anonymous += int(rest.split()[0]) * 1024
            elif "-" in key.split()[0]:
                of_weights = line.endswith("source.onnx.data\\n")
    return np.array([mapped, anonymous])

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.register_custom_ops_library(ort_aie_ep.library_path())
before = held()
session = onnxruntime.InferenceSession(sys.argv[1], options)
session.run(None, {{"x": np.ones((1, 1, {hidden}), "f4"), "router": np.ones((1, {experts}), "f4")}})
print(json.dumps((held() - before).tolist()))
"""


def compiled(case: Experts, folder: Path) -> Path:
    """The compiled model of `case`, whose QMoE has become Q4NXMoE."""
    result = ort_aie_ep.compile(experts_folder(case, folder / "source"), folder / "compiled")
    (outcome,) = result.outcomes
    assert (outcome.becomes, outcome.reason) == ("aie.Q4NXMoE", "")
    return folder / "compiled" / "model.onnx"


def in_numerics(case: Experts, numerics: str) -> Experts:
    """The case with the accuracy_level that asks for these numerics."""
    level = {"bf16": 0, "int8": 4}[numerics]
    return replace(case, attributes={**case.attributes, "accuracy_level": level})


def distance(y: Array, expected: Array) -> float:
    """The norm of the difference over that of `expected`."""
    difference = y.astype(np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_token_and_prompt_match_the_reference(tmp_path: Path, case: Experts, numerics: str) -> None:
    session = open_session(str(compiled(in_numerics(case, numerics), tmp_path)))
    for rows in (1, 3, 70):
        feeds = feeds_of(case, rows)
        y = run(session, feeds)["y"]
        assert y.shape == feeds["x"].shape
        # A prompt's products may be more exact (prompts_in_bf16), and its weights are rounded.
        tolerance = TOLERANCE if rows < 70 else ROUNDOFF[BFLOAT16] * 4
        assert distance(y, reference(case, feeds, NUMERICS[numerics])) < tolerance


@pytest.mark.parametrize("case", TAKEN_HERE.values(), ids=TAKEN_HERE)
def test_each_value_that_only_this_op_takes_matches_the_reference(
    tmp_path: Path, case: Experts
) -> None:
    session = open_session(str(compiled(case, tmp_path)))
    feeds = feeds_of(case, 3)
    two_bits = any(case.bits_of(name) == 2 for name in case.shapes())
    tolerance = TOLERANCE + (LOOKUPS if two_bits else 0)
    assert distance(run(session, feeds)["y"], reference(case, feeds, to_bf16)) < tolerance


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_activations_of_16_bits(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    case = replace(UNEVEN, dtype=dtype)
    session = open_session(str(compiled(case, tmp_path)))
    feeds = feeds_of(case, 3)
    y = run(session, feeds)["y"]
    assert y.dtype == dtype
    assert distance(y, reference(case, feeds, to_bf16)) < TOLERANCE + ROUNDOFF[dtype]


@needs_qmoe
@pytest.mark.parametrize("case", ["interleaved", "gpt-oss"])
def test_onnx_runtime_computes_the_reference(tmp_path: Path, case: str) -> None:
    feeds = feeds_of(CASES[case], 5)
    folder = experts_folder(CASES[case], tmp_path / "source")
    y = run(open_session(str(folder / "model.onnx")), feeds)["y"]
    # Its sums are float32.
    assert distance(y, reference(CASES[case], feeds, exact)) < 100 * 2.0**-24


def test_of_equal_logits_the_later_expert_is_chosen(tmp_path: Path) -> None:
    case = Experts(experts=8)
    feeds = feeds_of(case, 2)
    feeds["router"][:] = [[0, 1, 1, 1, 0, 0, 0, 0], [2, 2, 2, 2, 2, 2, 2, 2]]
    y = run(open_session(str(compiled(case, tmp_path))), feeds)["y"]
    assert distance(y, reference(case, feeds, to_bf16)) < TOLERANCE
    if ORT_VERSION >= (1, 31):
        theirs = run(open_session(str(tmp_path / "source" / "model.onnx")), feeds)["y"]
        assert distance(theirs, reference(case, feeds)) < 100 * 2.0**-24


@pytest.mark.parametrize(
    ("expert", "logits"),
    [*((slice(None), bad) for bad in (np.nan, np.inf, -np.inf)), *((e, np.nan) for e in range(4))],
)
def test_logits_that_are_no_numbers_give_zeros(
    tmp_path: Path, expert: slice | int, logits: float
) -> None:
    feeds = feeds_of(Experts(), 2)
    feeds["router"][0, expert] = logits
    y = run(open_session(str(compiled(Experts(), tmp_path))), feeds)["y"]
    np.testing.assert_array_equal(y[0, 0], 0)
    assert np.isfinite(y[0, 1]).all()
    assert y[0, 1].any()


def test_limits_keep_a_nan(tmp_path: Path) -> None:
    case = CASES["gpt-oss"]
    session = open_session(str(compiled(case, tmp_path)))
    for rows in (2, 70):
        feeds = feeds_of(case, rows)
        feeds["x"][0, 0, 3] = np.nan
        y = run(session, feeds)["y"]
        assert np.isnan(y[0, 0]).all()
        assert np.isfinite(y[0, 1:]).all()


@pytest.mark.parametrize("numerics", NUMERICS)
def test_a_row_does_not_depend_on_the_others_nor_on_the_threads(
    tmp_path: Path, numerics: str
) -> None:
    path = str(compiled(in_numerics(UNEVEN, numerics), tmp_path))
    sessions = [open_session(path, threads=n) for n in (1, 2, 5)]
    feeds = feeds_of(UNEVEN, 4)
    whole = run(sessions[0], feeds)["y"]
    for row in range(4):
        one = {"x": feeds["x"][:, row : row + 1], "router": feeds["router"][row : row + 1]}
        for session in sessions:
            np.testing.assert_array_equal(run(session, one)["y"][0, 0], whole[0, row])
    prompt = feeds_of(UNEVEN, 70)
    results = [run(session, prompt)["y"] for session in sessions]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


# Streamed, and expert by expert.
@pytest.mark.parametrize(("name", "rows", "chunk"), [("uneven", 40, 16), ("all experts", 150, 60)])
def test_prompts_in_chunks_are_the_same_rows(
    name: str, rows: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(compiled(CASES[name], tmp_path))
    feeds = feeds_of(CASES[name], rows)
    whole = run(open_session(path), feeds)["y"]
    monkeypatch.setenv("ORT_AIE_PROMPT_CHUNK", str(chunk))
    y = run(open_session(path), feeds)["y"]
    # A chunk may stream what the whole prompt multiplies in a GEMM, whose weights are rounded.
    assert distance(y, reference(CASES[name], feeds, to_bf16)) < ROUNDOFF[BFLOAT16] * 4
    assert distance(y, whole.astype(np.float64)) < ROUNDOFF[BFLOAT16] * 4


def test_no_rows_give_no_rows(tmp_path: Path) -> None:
    feeds = {name: x[..., :0, :] for name, x in feeds_of(Experts(), 1).items()}
    assert run(open_session(str(compiled(Experts(), tmp_path))), feeds)["y"].shape == (1, 0, 64)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("x", (1, 3, 64), r"input router must be float \(3, 4\), got float \(2, 4\)"),
        ("router", (1, 4), r"input router must be float \(2, 4\), got float \(1, 4\)"),
        ("router_weights", (3, 4), r"input router_weights must be .* got float \(3, 4\)"),
    ],
)
def test_a_call_with_other_shapes_says_which(
    tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    case = Experts(router_weights=True)
    ort_aie_ep.compile(experts_folder(case, tmp_path / "source"), tmp_path / "out", plan=False)
    feeds = feeds_of(case, 2) | {name: np.zeros(shape, np.float32)}
    with pytest.raises(Exception, match=words):
        run(open_session(str(tmp_path / "out" / "model.onnx")), feeds)


def op_inputs() -> dict[str, Array]:
    """Inputs of an aie.Q4NXMoE of 2 experts, 64 x 32."""
    return {
        "x": np.ones((1, 64), np.float32),
        "router": np.ones((1, 2), np.float32),
        "gate": np.zeros((2, 1, 1, 5120), np.uint8),
        "down": np.zeros((2, 2, 1, 5120), np.uint8),
        "up": np.zeros((2, 1, 1, 5120), np.uint8),
        "bias": np.zeros((2, 32), np.float32),
    }


OP = {"K": 64, "N": 32, "experts": 2, "top_k": 1, "activation": "silu", "format": _native.FORMAT}


@pytest.mark.parametrize(
    ("attributes", "inputs", "words"),
    [
        ({"top_k": 3}, {}, "1 <= top_k <= experts"),
        ({"activation": "tanh"}, {}, "attribute activation must be silu, .* got 'tanh'"),
        ({"activation": "swiglu", "alpha": 0.0}, {}, "attribute alpha must be a number other"),
        ({"bits": 3}, {}, "attribute bits must be"),
        ({}, {"gate": np.zeros((1, 1, 5120), np.uint8)}, r"input W_gate must be uint8 \(2, 1, 1"),
        ({}, {"down": np.zeros((2, 1, 1, 5120), np.uint8)}, r"input W_down must be uint8 \(2, 2,"),
        ({}, {"bias": np.zeros((2, 31), np.float32)}, r"input bias_gate must be float \(2, 32\)"),
        ({"scores": "softmax"}, {}, "attribute scores must be sigmoid, got 'softmax'"),
        ({}, {"x": np.ones((1, 32), np.float32)}, r"input X must be \(..., 64\), got \(1, 32\)"),
        (
            {},
            {"router": np.ones((1, 3), np.float32)},
            r"router must be float \(1, 2\), got float ",
        ),
        (
            {},
            {"router": np.ones((1, 2), np.float16)},
            r"router must be .*, got float16",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    attributes: dict[str, Any], inputs: dict[str, Array], words: str
) -> None:
    given = op_inputs() | inputs
    model = one_op_model(
        "Q4NXMoE", given, {"y": np.float32}, OP | attributes,
        constants=("gate", "down", "up", "bias"),
    )  # fmt: skip
    with pytest.raises(Exception, match=words):
        run(open_session(model), given)


@needs_provider
def test_two_layers_may_read_the_same_constants_differently(provider: None) -> None:
    """FC1 of both is (4, 64, 64): gate and up of the one, all rows of the other."""
    cases = [Experts(fusion=2), Experts(activation="silu", fusion=0, inter=64)]
    built = [build(case) for case in cases]
    for place in PLACES[FC1][:2]:
        built[1].inputs[place] = built[0].inputs[place]
    models = [experts_model(case, its) for case, its in zip(cases, built, strict=True)]
    feeds = feeds_of(cases[0], 3)
    expected = [run(provider_session(model.SerializeToString()), feeds)["y"] for model in models]

    both, (_, other) = models[0], models
    shared = {tensor.name for tensor in both.graph.initializer if tensor.name.startswith(FC1)}
    for tensor in other.graph.initializer:
        if tensor.name not in shared:
            tensor.name += " of the other"
            both.graph.initializer.append(tensor)
    (node,) = other.graph.node
    node.name = "other"
    node.input[:] = [
        name + " of the other" if name.startswith(FC2) else name for name in node.input
    ]
    node.output[0] = other.graph.output[0].name = "z"
    both.graph.node.append(node)
    both.graph.output.append(other.graph.output[0])
    y = run(provider_session(both.SerializeToString()), feeds)
    np.testing.assert_array_equal(y["y"], expected[0])
    np.testing.assert_array_equal(y["z"], expected[1])


def test_expert_weights_are_mapped_and_not_copied(tmp_path: Path) -> None:
    case = Experts(experts=32, hidden=1024, inter=512, top_k=2)
    # All experts have the weights of one, which are made sooner.
    one = build(replace(case, experts=1))
    inputs = {at: (name, np.repeat(x, case.experts, 0)) for at, (name, x) in one.inputs.items()}
    onnx.save(experts_model(case, Built(inputs, {}, {})), tmp_path / "source.onnx")
    ort_aie_ep.compile(tmp_path / "source.onnx", tmp_path / "compiled")
    code = MEASURE.format(hidden=case.hidden, experts=case.experts)
    path = tmp_path / "compiled" / "source.onnx"
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    mapped, anonymous = json.loads(result.stdout)
    weight_bytes = path.with_name("source.onnx.data").stat().st_size
    assert weight_bytes > 28e6
    assert anonymous < weight_bytes / 2  # what a session needs anyway
    # Two experts of 32, and what Linux reads around them.
    assert 0 < mapped < weight_bytes / 4
