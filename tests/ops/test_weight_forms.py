"""Weights in any form: groups of 32 to 256, with minima and without, beside the shipping form.

The shipping form's bytes are held against an example of the format, its products against ONNX
Runtime's; so what is asked of the others is that they give the same bits.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import numpy_q4nx as q4nx
import onnx
import pytest
import q8nx
from code_bytes import pack_codes
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import BlockForm

Array = npt.NDArray[Any]

FORMS = [
    BlockForm(bits, group, minima)
    for bits, group, minima in product((4, 2, 8), q4nx.GROUPS, (True, False))
]
N, K = 70, 700  # neither fills its last block, and K ends within a group of 64, 128 and 256


def parts(form: BlockForm, n: int = N, k: int = K) -> tuple[Array, Array, Array | None]:
    """Codes, scales and minima (of 8 bits zero points), or None."""
    rng = np.random.default_rng([form.bits, form.group, form.minima, n, k])
    groups = -(-k // form.group)
    codes = rng.integers(0, 2**form.bits, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.5, 2.0, (n, groups)).astype(np.float32)
    if not form.minima:
        return codes, scales, None
    if form.bits == 8:
        return codes, scales, rng.integers(0, 256, (n, groups), dtype=np.uint8)
    return codes, scales, rng.standard_normal((n, groups)).astype(np.float32)


def packed(form: BlockForm, codes: Array, scales: Array, minima: Array | None) -> Array:
    if form.bits == 8:
        return q8nx.pack(codes, scales, minima, form.group)
    return q4nx.pack(codes, scales, minima, form.bits, form.group)


def widened(form: BlockForm, codes: Array, scales: Array, minima: Array | None) -> Array:
    """The same weights with groups of 32 and minima."""
    times, groups = form.group // q4nx.GROUP, -(-codes.shape[1] // q4nx.GROUP)

    def repeat(values: Array) -> Array:
        return np.repeat(values, times, axis=1)[:, :groups]

    if form.bits == 8:
        points = np.full_like(scales, 128, np.uint8) if minima is None else minima
        return q8nx.pack(codes, repeat(scales), repeat(points))
    rounded = scales.astype(q4nx.bfloat16).astype(np.float32)
    if minima is None:
        minima = -(2.0 ** (form.bits - 1)) * rounded
    return q4nx.pack(codes, repeat(rounded), repeat(minima), form.bits)


def native_bits(values: Array | None, form: BlockForm) -> Array | None:
    if values is None or form.bits == 8:
        return values
    return values.astype(q4nx.bfloat16).view(np.uint16)


@pytest.mark.parametrize("form", FORMS, ids=str)
@given(shape=st.tuples(st.integers(1, 100), st.integers(1, 600)))
@settings(max_examples=25)
def test_python_and_native_agree_on_the_bytes(form: BlockForm, shape: tuple[int, int]) -> None:
    codes, scales, minima = parts(form, *shape)
    blocks = packed(form, codes, scales, minima)
    assert blocks.shape == form.blocks_shape(*shape)
    if form.bits == 8:
        native = _native.pack_q8nx(codes, scales, minima, form.group)
        back: Any = _native.unpack_q8nx(blocks, *shape, form.group, form.minima)
        again: Any = q8nx.unpack(blocks, *shape, form)
    else:
        native = _native.pack(
            codes, native_bits(scales, form), native_bits(minima, form), form.bits, form.group
        )
        back = _native.unpack(blocks, *shape, form.group, form.minima)
        again = q4nx.unpack(blocks, *shape, form)
    np.testing.assert_array_equal(native, blocks)
    for ours, theirs in zip(back, again, strict=True):
        np.testing.assert_array_equal(ours, theirs.view(ours.dtype))
    stored = [x if x is None or form.bits == 8 else x.astype(q4nx.bfloat16)
              for x in (scales, minima)]  # fmt: skip
    for part, given_part in zip(again, (codes, *stored), strict=False):
        if given_part is not None:
            np.testing.assert_array_equal(part, given_part)
    wide = widened(form, codes, scales, minima)
    weights = _native.dequantize(wide, *shape)
    np.testing.assert_array_equal(
        _native.dequantize(blocks, *shape, form.group, form.minima), weights
    )
    definition = q8nx if form.bits == 8 else q4nx
    np.testing.assert_array_equal(definition.dequantize(blocks, *shape, form), weights)
    if form.bits != 8:
        shipping = _native.widen(blocks, *shape, form.group, form.minima)
        np.testing.assert_array_equal(q4nx.dequantize(shipping, *shape), weights)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("numerics", ["bf16", "int8"])
def test_products_have_the_bits_of_the_shipping_form(isa: str, numerics: str) -> None:
    """One row, few rows in one tile and in several, and many rows as a GEMM."""
    rng = np.random.default_rng(7)
    for form in FORMS:
        sources = parts(form)
        small, wide = packed(form, *sources), widened(form, *sources)
        for rows, gemm in ((1, False), (3, False), (11, False), (5, True)):
            a = rng.standard_normal((rows, K)).astype(np.float32)
            y = _native.project(
                a, small, N, numerics, isa, gemm=gemm, group=form.group, minima=form.minima
            )
            expected = _native.project(a, wide, N, numerics, isa, not form.minima, gemm=gemm)
            np.testing.assert_array_equal(
                y.view(np.uint32), expected.view(np.uint32), f"{form}, {rows} rows, gemm {gemm}"
            )


def matmul_nbits(form: BlockForm) -> onnx.ModelProto:
    """x (rows, K) -> MatMulNBits with blocks of `form.group`, symmetric without minima."""
    rng = np.random.default_rng(3)
    n, k, blocks = 96, 512, 512 // form.group
    constants = {
        "B": pack_codes(rng.integers(0, 2**form.bits, (n, k), dtype=np.uint8), form.bits).reshape(
            n, blocks, -1
        ),
        "scales": rng.uniform(0.5, 2.0, (n, blocks)).astype(np.float32),
    }
    if form.minima:
        points = rng.integers(0, 2**form.bits, (n, blocks), dtype=np.uint8)
        constants["zero_points"] = pack_codes(
            np.pad(points, ((0, 0), (0, -blocks % (8 // form.bits)))), form.bits
        ).reshape(n, -1)
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", name="projection",
        K=k, N=n, bits=form.bits, block_size=form.group, accuracy_level=4,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "forms",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", n])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_compiler_keeps_the_form_of_the_source(form: BlockForm, tmp_path: Any) -> None:
    import ort_aie_ep

    source = tmp_path / "model.onnx"
    onnx.save(matmul_nbits(form), source)
    x = np.random.default_rng(4).standard_normal((3, 512)).astype(np.float32)
    results = []
    for compatible in (False, True):
        target = tmp_path / f"compiled_{compatible}"
        ort_aie_ep.compile(source, target, plan=False, q4nx_compatible=compatible)
        (node,) = onnx.load(target / "model.onnx").graph.node
        attributes = {a.name: a.i for a in node.attribute}
        stored = BlockForm(form.bits) if compatible else form
        assert BlockForm.of(attributes) == stored
        assert attributes["format"] == (1 if stored == BlockForm(form.bits) else 2)
        results.append(ort_aie_ep.session(target).run(None, {"x": x})[0])
    np.testing.assert_array_equal(*results)


def test_explain_tells_of_gate_and_up_that_are_two_steps(tmp_path: Any) -> None:
    import ort_aie_ep
    from ort_aie_ep.explain.explain import explain

    model = matmul_nbits(BlockForm(4, 32, False))
    up = onnx.compose.add_prefix(matmul_nbits(BlockForm(4, 128, False)), "up_").graph
    up.node[0].input[0] = "x"
    gated = [(["y"], "Sigmoid", "slope"), (["y", "slope"], "Mul", "a"), (["a", "up_y"], "Mul", "z")]
    model.graph.node.extend(up.node)
    model.graph.node.extend(
        helper.make_node(op, inputs, [name], name) for inputs, op, name in gated
    )
    model.graph.initializer.extend(up.initializer)
    model.graph.output[0].name = "z"
    source, compiled = tmp_path / "model.onnx", tmp_path / "compiled"
    onnx.save(model, source)
    ort_aie_ep.compile(source, compiled)
    expected = (("gate and up, whose weights have different forms", 1),)
    assert explain(source).apart == explain(compiled).apart == expected


def test_forms_that_do_not_exist_are_refused() -> None:
    for arguments, named in (({"bits": 3}, "bits"), ({"group": 48}, "group")):
        with pytest.raises(AieError, match=named):
            BlockForm(**arguments)
    blocks = packed(FORMS[1], *parts(FORMS[1]))
    with pytest.raises(AieError, match=re.escape("(3, 3, 4224)")):
        q4nx.unpack(blocks, N, K, BlockForm(4, 128, minima=False))
