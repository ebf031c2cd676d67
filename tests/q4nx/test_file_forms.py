"""The forms of GGUF files: each row of the table, beside what the package gguf makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import onnx_ir as ir
import pytest
from expert_models import FC1, FC2, FC3, Built, Experts, feeds_of, reference, to_bf16, to_int8
from onnx import helper
from op_models import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ONNX_TYPES,
    ROUNDOFF,
    model_of,
    one_op_model,
    onnx_tensor,
    open_session,
    run,
)

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.formats.file_forms import FILE_FORMS, OF_GGML_TYPE, FileForm
from ort_aie_ep.graph_passes import plan, run_passes

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")
Kind = gguf.GGMLQuantizationType

Array = npt.NDArray[Any]
N = 70  # does not fill the last row of blocks
FORMS = pytest.mark.parametrize("form", FILE_FORMS.values(), ids=FILE_FORMS)

# Bytes that fill whole structs: zeros; subnormal and largest scales of either sign; exponents of
# E8M0 at both ends; NaN of E4M3.
EXTREMES = (0x00, 0x01, 0x02, 0x03, 0x7B, 0x7F, 0x80, 0x83, 0xFB, 0xFD, 0xFE, 0xFF)


def weights_of(form: FileForm, rows: Array) -> Array:
    """What rows of a file mean, by gguf-py."""
    with np.errstate(over="ignore", invalid="ignore"):
        weights: Array = quants.dequantize(rows, Kind(form.ggml_type))
    return weights


def structs(form: FileForm, count: int, seed: int) -> Array:
    """(count, bytes) random structs without NaN, and EXTREMES first."""
    rng = np.random.default_rng([seed, form.ggml_type])
    made = rng.integers(0, 256, (count, form.row_bytes(form.columns)), np.uint8)
    made[: len(EXTREMES)] = np.array(EXTREMES, np.uint8)[:, None]
    # Of E8M0's largest exponents, products overflow to infinities, but the scale is finite.
    weights = weights_of(form, made)
    bad = np.isnan(weights) if form.name == "mxfp4" else ~np.isfinite(weights)
    made[bad.any(axis=1)] = 0
    return made


def rows_of(form: FileForm, n: int, k: int, seed: int = 0) -> Array:
    """Random rows of a file."""
    made = structs(form, n * k // form.columns, seed)
    return made.reshape(n, form.row_bytes(k))


def test_the_table_has_the_numbers_and_sizes_of_the_package() -> None:
    for form in FILE_FORMS.values():
        assert OF_GGML_TYPE[form.ggml_type] is form
        kind = Kind(form.ggml_type)
        assert kind.name.lower() == form.name
        assert gguf.GGML_QUANT_SIZES[kind] == (form.columns, form.row_bytes(form.columns))


@FORMS
@pytest.mark.parametrize("blocks", [1, 3])
def test_weights_have_the_bits_of_the_package(form: FileForm, blocks: int) -> None:
    k = blocks * form.columns
    rows = rows_of(form, N, k)
    packed = form.pack(rows, k, "t")
    assert packed.shape == form.blocks_shape(N, k)
    actual = form.dequantize(packed, N, k)
    np.testing.assert_array_equal(actual.view(np.uint32), weights_of(form, rows).view(np.uint32))


@FORMS
def test_blocks_are_the_file_in_another_order(form: FileForm) -> None:
    """All bytes come back, and rows that a block lacks are zeros."""
    k = 2 * form.columns
    rows = rows_of(form, N, k, seed=1)
    packed = form.pack(rows, k, "t")
    np.testing.assert_array_equal(form.unpack(packed, N, k), rows)
    whole = np.zeros((96, rows.shape[1]), np.uint8)
    whole[:N] = rows
    weights = form.dequantize(form.pack(whole, k, "t"), 96, k)
    np.testing.assert_array_equal(form.dequantize(packed, 96, k), weights)
    for row in (0, 31, 32, N - 1):
        alone = form.pack(rows[row : row + 1], k, "t")
        np.testing.assert_array_equal(form.unpack(alone, 1, k), rows[row : row + 1])


@FORMS
def test_scales_that_are_not_numbers_are_refused(form: FileForm) -> None:
    k = 2 * form.columns
    rows = rows_of(form, N, k)
    for fill in (0x7C, 0x7D, 0xFC, 0xFF):  # infinite or NaN in float16, finite in 8 bits
        bad = rows.copy()
        bad[N - 1, rows.shape[1] // 2 :] = fill
        if np.isfinite(weights_of(form, bad)[N - 1]).all() or form.name == "mxfp4":
            form.pack(bad, k, "t")
            continue
        with pytest.raises(AieError, match=r"blk\.0\.ffn has a scale or a minimum that is NaN"):
            form.pack(bad, k, "blk.0.ffn")


@FORMS
def test_shapes_that_do_not_fit_are_named(form: FileForm) -> None:
    k = form.columns
    rows = rows_of(form, N, k)
    with pytest.raises(AieError, match=f"a multiple of {k} for {form.name}, got N=70 K={k + 1}"):
        form.pack(rows, k + 1, "t")
    with pytest.raises(AieError, match=r"rows must be \(70, "):
        form.pack(rows, 2 * k, "t")
    with pytest.raises(ValueError, match="blocks must be"):
        form.dequantize(form.pack(rows, k, "t"), N, 2 * k)


# --- ops ------------------------------------------------------------------------------------------


@cache
def usual_structs(form: FileForm) -> Array:
    """Random structs whose weights are of a usual size."""
    made = structs(form, 20_000, 0)
    largest = np.abs(weights_of(form, made)).max(axis=1)
    return made[(largest > 0.05) & (largest < 1)]


@dataclass(frozen=True)
class Weights:
    """Blocks of (n, k) weights, and what they mean. A product adds up parts of scales times codes,
    of scales times the middle of codes, and of minima: `magnitude` (n, k) is at least their sum."""

    form: FileForm
    n: int
    k: int
    blocks: Array
    meant: Array
    magnitude: Array

    def filled(self, byte: int) -> Weights:
        """The same scales with codes of these bytes."""
        blocks = self.blocks.copy()
        blocks[..., self.form.block_bytes - 32 * self.form.columns * self.form.bits // 8 :] = byte
        meant = self.form.dequantize(blocks, self.n, self.k).astype(np.float64)
        return replace(self, blocks=blocks, meant=meant)

    @property
    def attributes(self) -> dict[str, int | str]:
        return {"K": self.k, "N": self.n, **self.form.attributes()}

    def product(self, a: Array) -> Array:
        result: Array = a.astype(np.float64) @ self.meant.T
        return result

    def error(self, a: Array, *, rounded: bool) -> Array:
        """The most that a sum in float32 is off, of as many parts as in-features and a few more
        roundings; and weights that are `rounded` to bfloat16."""
        size = np.abs(a.astype(np.float64))
        error: Array = (self.k + 8) * 2.0**-24 * (size @ self.magnitude.T)
        return error + ROUNDOFF[BFLOAT16] * (size @ np.abs(self.meant).T) * rounded


@cache
def make(form: FileForm, n: int, k: int, seed: int = 0) -> Weights:
    """Random weights of a usual size."""
    usual = usual_structs(form)
    chosen = np.random.default_rng(seed).integers(len(usual), size=n * k // form.columns)
    blocks = form.pack(usual[chosen].reshape(n, form.row_bytes(k)), k, "t")
    meant = form.dequantize(blocks, n, k).astype(np.float64)
    w = Weights(form, n, k, blocks, meant, meant)
    low, high = (w.filled(fill).meant for fill in (0x00, 0xFF))
    return replace(w, magnitude=np.abs(low) + np.abs(high) + np.abs(high - low))


def assert_within(actual: Array, expected: Array, bound: Array) -> None:
    """Also of one rounding of each to float32."""
    error = np.abs(actual - expected)
    assert (error <= bound + 2.0**-23 * np.abs(expected)).all(), (error - bound).max()


def exact_activations(rows: int, k: int, seed: int = 1) -> Array:
    """Neither bfloat16 nor int8 rounds them: in a group of 32, integers up to 127, one of which is
    that, times a power of two."""
    rng = np.random.default_rng([seed, rows, k])
    codes = rng.integers(-127, 128, (rows, k // 32, 32))
    codes[..., 0] = 127
    scales = 2.0 ** rng.integers(-9, -6, (rows, k // 32, 1))
    return (codes * scales).reshape(rows, k).astype(np.float32)


def is_rounded(form: FileForm, rows: int, numerics: str, isa: str) -> bool:
    """Whether weights are rounded to bfloat16: for many rows, where their products are."""
    if rows <= _native.most_streamed_rows(4, numerics, isa, form.name):
        return False
    return numerics == "bf16" or _native.prompts_in_bf16(isa)


# AVX-VNNI's kernels are a part of a table: for products of int8.
STANDINS = {"avx2_vnni_standin"} & {*_native.kernel_variants()["rows, int8"]}
BY_ISA = pytest.mark.parametrize("isa", [*_native.available_isas(), *STANDINS])


@FORMS
@BY_ISA
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_products(form: FileForm, isa: str, numerics: str) -> None:
    """Of one row, few and many, on the kernels of each instruction set; also with few as a GEMM."""
    if isa in STANDINS and numerics == "bf16":
        pytest.skip("kernels of int8 alone")
    for k, counts in (
        (form.columns, (*range(1, 18), 40)),
        (9 * form.columns, (1, 5, 9)),  # one group more than are decoded together
        (512, (3, 8, 70)),
        (3 * form.columns, (1, 70)),
    ):
        w = make(form, N, k)
        for rows, gemm in product(counts, (False, True)):
            a = exact_activations(rows, k)
            y = _native.project(a, w.blocks, N, numerics, isa, gemm=gemm, type=form.name)
            rounded = is_rounded(form, 1000 if gemm else rows, numerics, isa)
            assert_within(y, w.product(a), w.error(a, rounded=rounded))


@FORMS
@BY_ISA
def test_products_of_extreme_codes(form: FileForm, isa: str) -> None:
    """The largest sums of integers: codes and activations at their ends, alike or in turn."""
    k = 256
    w = make(form, 32, k)
    a = np.full((9, k), 127 / 128, np.float32)
    a[1::3] *= -1
    a[2::3, ::2] *= -1
    for fill, numerics, gemm in product((0x00, 0xFF, 0x0F, 0xAA), ("bf16", "int8"), (False, True)):
        if isa in STANDINS and numerics == "bf16":
            continue
        filled = w.filled(fill)
        rounded = is_rounded(form, 1000 if gemm else 9, numerics, isa)
        for rows in (1, 9):
            y = _native.project(a[:rows], filled.blocks, 32, numerics, isa, gemm=gemm,
                                type=form.name)  # fmt: skip
            assert_within(y, filled.product(a[:rows]), filled.error(a[:rows], rounded=rounded))


@FORMS
@pytest.mark.parametrize("isa", _native.available_isas())
def test_products_of_extreme_scales(form: FileForm, isa: str) -> None:
    k = 4 * form.columns
    rows = np.tile(structs(form, len(EXTREMES), 0), 4)
    a = exact_activations(1, k)
    size = np.abs(a).astype(np.float64) @ np.abs(weights_of(form, rows)).T
    rows = rows[size[0] < 2.0**126]
    blocks = form.pack(rows, k, "t")
    meant = form.dequantize(blocks, len(rows), k).astype(np.float64)
    # A form's codes are up to 256 times a weight, which may be as small as the smallest code. Dot
    # products of bfloat16 take weights below the normal numbers for zeros.
    error = 256 * (k + 8) * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(meant).T)
    for numerics, gemm in product(("bf16", "int8"), (False, True)):
        y = _native.project(a, blocks, len(rows), numerics, isa, gemm=gemm, type=form.name)
        rounded = ROUNDOFF[BFLOAT16] * size[:, size[0] < 2.0**126] * gemm
        lost = 2.0**-126 * np.abs(a).sum()
        assert_within(y, a.astype(np.float64) @ meant.T, error + rounded + lost)


@pytest.mark.parametrize("isa", [*_native.available_isas(), *STANDINS])
def test_a_short_cut_for_powers_of_two_changes_no_bit(isa: str) -> None:
    """One out-feature whose scales are too large for it, beside 31 others."""
    form, k = FILE_FORMS["mxfp4"], 320
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 256, (32, form.row_bytes(k)), np.uint8)
    rows[:, :: form.row_bytes(32)] %= 128  # from the smallest scale to 1
    a = rng.normal(size=(13, k)).astype(np.float32)
    large, found = rows.copy(), []
    large[31, :: form.row_bytes(32)] = 240
    for each in (rows, large):
        blocks = form.pack(each, k, "t")
        y = _native.project(a, blocks, 32, "int8", isa, gemm=True, type=form.name)
        found.append(y[:, :31])
    np.testing.assert_array_equal(*found)


@FORMS
@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    form: FileForm, isa: str, numerics: str
) -> None:
    rows = min(7, _native.most_streamed_rows(4, numerics, isa, form.name))
    assert rows > 1
    w, a = make(form, N, 512), np.random.default_rng(2).normal(size=(rows, 512)).astype(np.float32)
    together = _native.project(a, w.blocks, N, numerics, isa, type=form.name)
    for row, y in zip(a, together, strict=True):
        alone = _native.project(row[None], w.blocks, N, numerics, isa, type=form.name)
        np.testing.assert_array_equal(alone[0], y)
    for bad in (np.nan, np.inf):
        a[1, 40] = bad
        y = _native.project(a, w.blocks, N, numerics, isa, type=form.name)
        assert not np.isfinite(y[1]).any()
        np.testing.assert_array_equal(np.delete(y, 1, 0), np.delete(together, 1, 0))


@FORMS
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_matmul_with_a_bias(form: FileForm, level: int, rows: int) -> None:
    w, a = make(form, N, 512), exact_activations(rows, 512)
    bias = np.random.default_rng(3).normal(size=N).astype(np.float32)
    inputs = {"A": a, "W": w.blocks, "bias": bias}
    model = one_op_model("Q4NXMatMul", inputs, {"Y": a.dtype},
                         {**w.attributes, "accuracy_level": level},
                         constants=("W", "bias"))  # fmt: skip
    y = run(open_session(model), {"A": a})["Y"]
    bound = w.error(
        a, rounded=is_rounded(form, rows, "int8" if level else "bf16", _native.selected_isa())
    )
    assert_within(y, w.product(a) + bias, bound)


@FORMS
@pytest.mark.parametrize("level", [0, 4])
def test_gated_mlp(form: FileForm, level: int) -> None:
    k = 512
    gate, up = make(form, N, k), make(form, N, k, seed=1)
    given = {**gate.attributes, "activation": "silu", "accuracy_level": level}
    for rows in (1, 8, 70):
        a = exact_activations(rows, k)
        inputs = {"A": a, "W_gate": gate.blocks, "W_up": up.blocks}
        model = one_op_model("Q4NXGatedMLP", inputs, {"Y": a.dtype}, given,
                             constants=("W_gate", "W_up"))  # fmt: skip
        y = run(open_session(model), {"A": a})["Y"]
        rounded = is_rounded(form, rows, "int8" if level else "bf16", _native.selected_isa())
        g, u = gate.product(a), up.product(a)
        of_gate, of_up = (w.error(a, rounded=rounded) for w in (gate, up))
        with np.errstate(over="ignore"):
            silu = g / (1 + np.exp(-g))
        # The slope of SiLU is at most 1.1. The kernel's exp is off by a few units.
        bound = 1.1 * of_gate * (np.abs(u) + of_up) + np.abs(silu) * of_up
        assert_within(y, silu * u, bound + 2.0**-20 * np.abs(silu * u))


@FORMS
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_gather(form: FileForm, dtype: np.dtype[Any]) -> None:
    w = make(form, N, 2 * form.columns)
    indices = np.array([[0, 31, 32], [N - 1, -1, N]], np.int64)
    given = {**w.attributes, "dtype": ONNX_TYPES[dtype]}
    model = one_op_model("Q4NXGather", {"W": w.blocks, "indices": indices}, {"Y": dtype}, given,
                         constants=["W"])  # fmt: skip
    y = run(open_session(model), {"indices": indices})["Y"]
    expected = np.concatenate([w.meant, np.zeros((1, w.k))]).astype(np.float32)[
        [[0, 31, 32], [N - 1, N - 1, N]]
    ]
    np.testing.assert_array_equal(y, expected.astype(dtype))


PLACES = {"W_gate": FC1, "W_down": FC2, "W_up": FC3}
# Of gate, up and down; None for Q4NX.
LAYERS = [
    ("q4_k", "q4_k", "q6_k"),
    ("mxfp4", "mxfp4", "mxfp4"),
    ("q3_k", "q4_0", "q8_0"),
    ("q5_0", "q6_k", None),
    (None, None, "q4_k"),
]


@pytest.mark.parametrize(("of_gate", "of_up", "of_down"), LAYERS)
@pytest.mark.parametrize(("level", "rounding"), [(0, to_bf16), (4, to_int8)])
def test_experts_of_several_forms(
    of_gate: str | None,
    of_up: str | None,
    of_down: str | None,
    level: int,
    rounding: Callable[[Array], Array],
) -> None:
    case = Experts(experts=4, hidden=512, inter=256, activation="silu", fusion=0, fc3=True)
    blocks, meant = {}, {}
    for name, (n, k) in case.shapes().items():
        type_name = {FC1: of_gate, FC2: of_down, FC3: of_up}[name]
        for expert in range(case.experts):
            seed = 10 * expert + int(name[-1])
            if type_name is not None:
                w = make(FILE_FORMS[type_name], n, k, seed)
                packed, weights = w.blocks, w.meant
            else:
                rng = np.random.default_rng(seed)
                scales = rng.uniform(0.01, 0.02, (n, k // 32)).astype(np.float32)
                packed = q4nx.pack(rng.integers(0, 16, (n, k), np.uint8), scales, -8 * scales)
                weights = q4nx.dequantize(packed, n, k).astype(np.float64)
            blocks.setdefault(name, []).append(packed)
            meant.setdefault(name, []).append(weights)
    built = Built({}, {name: np.stack(each) for name, each in meant.items()}, {})
    given = {"K": case.hidden, "N": case.inter, "experts": case.experts, "top_k": case.top_k}
    given |= {"accuracy_level": level, "activation": "silu", "format": 3, "group": 32, "minima": 1}
    types = {"type": of_gate, "up_type": of_up, "down_type": of_down}
    given |= {name: of for name, of in types.items() if of is not None}
    for rows in (1, 3, 70):
        feeds = feeds_of(case, rows)
        x = exact_activations(rows, case.hidden).reshape(1, rows, -1) * np.float32(4)
        feeds["x"] = x
        inputs = {"X": x, "router": feeds["router"]}
        inputs |= {name: np.stack(blocks[fc]) for name, fc in PLACES.items()}
        model = one_op_model("Q4NXMoE", inputs, {"Y": x.dtype}, given,
                             constants=("W_gate", "W_down", "W_up"))  # fmt: skip
        y = run(open_session(model), {"X": x, "router": feeds["router"]})["Y"]
        expected = reference(case, feeds, rounding, built)
        # Of few rows only activations are rounded, here and there: what may differ is a value on
        # the border of two roundings (tests/ops/test_experts.py). Of many, the weights of three
        # products may be rounded to bfloat16, and activations are then rounded to that.
        tolerance = 2.0**-12 if rows < 70 else 4 * ROUNDOFF[BFLOAT16]
        error = np.linalg.norm(y.astype(np.float64) - expected, axis=-1)
        assert (error <= tolerance * np.linalg.norm(expected, axis=-1)).all(), (rows, error)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "q9_k"}, "attribute type must be one of q4_0, .*nvfp4, got 'q9_k'"),
        ({"format": 2}, "attribute type needs format 3, got 2"),
        ({"format": 4}, "the model has format 4, but this library reads formats 1 to 3"),
        ({"K": 320}, "attribute K must be a multiple of 256 for input W with type=q4_k, got 320"),
        ({"K": 768}, r"input W must be uint8 \(3, 3, 4608\) for K=768 N=70 type=q4_k, got"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    w, a = make(FILE_FORMS["q4_k"], N, 512), exact_activations(1, 512)
    model = one_op_model("Q4NXMatMul", {"A": a, "W": w.blocks}, {"Y": a.dtype},
                         {**w.attributes, **change}, constants=["W"])  # fmt: skip
    with pytest.raises(Exception, match=message):
        open_session(model)


def test_a_plan_states_the_types() -> None:
    """Gate and up become one step. The recipe has the format of its steps, and the plan the bits of
    a node for each of them."""
    gate, up = (make(FILE_FORMS["q4_k"], 256, 512, seed) for seed in (1, 2))
    down = make(FILE_FORMS["q6_k"], N, 256)
    nodes = []
    for name, w, a in (("gate", gate, "x"), ("up", up, "x"), ("down", down, "hidden")):
        inputs = [a, f"W_{name}"]
        nodes.append(
            helper.make_node("Q4NXMatMul", inputs, [name], name, domain="aie", **w.attributes)
        )
    nodes[2:2] = [
        helper.make_node("Sigmoid", ["gate"], ["slope"], "slope"),
        helper.make_node("Mul", ["gate", "slope"], ["silu"], "silu"),
        helper.make_node("Mul", ["silu", "up"], ["hidden"], "hidden"),
    ]
    float_type = ONNX_TYPES[FLOAT32]
    x = helper.make_tensor_value_info("x", float_type, ["rows", 512])
    y = helper.make_tensor_value_info("down", float_type, ["rows", N])
    weights = zip(("gate", "up", "down"), (gate, up, down), strict=True)
    constants = [onnx_tensor(f"W_{name}", w.blocks) for name, w in weights]
    source = model_of(helper.make_graph(nodes, "graph", [x], [y], constants))
    planned, divided = ir.from_proto(source), ir.from_proto(source)
    plan(planned, run_passes(planned))
    plan(divided, run_passes(divided), whole=False)
    (node,) = planned.graph
    recipe = node.attributes["recipe"].as_string()
    assert recipe.startswith("recipe 3\n")
    assert recipe.count("string type q4_k") == 1
    assert recipe.count("step Q4NX") == 2
    feeds = {"x": exact_activations(3, 512)}
    whole, each = (
        run(open_session(ir.to_proto(model).SerializeToString()), feeds)["down"]
        for model in (planned, divided)
    )
    np.testing.assert_array_equal(whole, each)


def test_explain_names_the_types(tmp_path: Path) -> None:
    of_in, of_out = make(FILE_FORMS["q4_k"], 256, 512), make(FILE_FORMS["q6_k"], 512, 256)
    inputs = {"X": exact_activations(1, 512), "router": np.zeros((1, 2), np.float32)}
    for name, w in (("W_gate", of_in), ("W_down", of_out), ("W_up", of_in)):
        inputs[name] = np.stack([w.blocks, w.blocks])
    given = {"experts": 2, "top_k": 1, "activation": "silu", "down_type": "q6_k"}
    model = one_op_model("Q4NXMoE", inputs, {"Y": FLOAT32}, given | of_in.attributes,
                         constants=("W_gate", "W_down", "W_up"))  # fmt: skip
    (tmp_path / "model.onnx").write_bytes(model)
    sizes = {of_in.form: 4 * of_in.blocks.nbytes, of_out.form: 2 * of_out.blocks.nbytes}
    assert dict(explain(tmp_path / "model.onnx").forms) == sizes
