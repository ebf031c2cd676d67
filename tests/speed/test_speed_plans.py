"""Plans of named shapes, and the time that the performance model composes from steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.prediction.compiled import plans_in, read_plans
from ort_aie_ep.prediction.composition import compose, schedule
from ort_aie_ep.prediction.recipes import Input, PlanNode, Plans, alone
from ort_aie_ep.prediction.shapes import MODELS, plans_of, shape_of
from ort_aie_ep.tools.synth import synth

SMALL = {"hidden": 256, "ffn": 512, "layers": 3, "heads": 4, "kv_heads": 2, "vocab": 512}


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-0.6b",
        *(pytest.param(n, marks=pytest.mark.in_turn) for n in ("llama-3.2-1b", "gemma3-1b")),
    ],
)
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_named_shape_has_the_plan_of_its_compiled_model(
    name: str, tokens: int, tmp_path: Path
) -> None:
    window = 4 if SHAPES[name].window else None
    shape = replace(SHAPES[name], **SMALL, window=window, global_every=2)
    ort_aie_ep.compile(synth(shape, tmp_path / "model"), tmp_path / "compiled", last_logits=True)
    compiled = read_plans(tmp_path / "compiled")
    assert compose(compiled.plans, tokens, 9) == compose(
        plans_of(shape, BlockForm(minima=False)), tokens, 9
    )


FLOAT, UINT8, INT64 = 1, 2, 7  # of TensorProto


def blocks(n: int, k: int) -> Input:
    return Input(UINT8, SHIPPING.blocks_shape(n, k), constant=True)


def projection(k: int, n: int) -> Plans:
    inputs = Input(FLOAT, (1, "tokens", k)), blocks(n, k)
    attributes = {"K": k, "N": n, "format": 1}
    return (replace(alone("Q4NXMatMul", "p", attributes, [0, 1], 1, inputs), planned=True),)


def test_a_short_prompt_multiplies_quantised_weights() -> None:
    plans = projection(256, 512)
    assert compose(plans, 256, 300).overlays == {"short_gemm": 1}
    assert compose(plans, 257, 300).overlays == {"dequant_bfp16": 1, "gemm_bfp16": 1}


def test_each_node_is_a_plan_of_its_own() -> None:
    assert compose(projection(256, 256) * 2, 1, 1).submissions == 2


def test_more_tokens_than_the_context_are_refused() -> None:
    with pytest.raises(DesignError, match="1 to 4"):
        compose(projection(256, 256), 5, 4)


def test_tensors_that_do_not_fit_a_node_are_refused() -> None:
    (node,) = projection(256, 256)
    other = replace(node, inputs=(Input(FLOAT, (1, "tokens", 128)), *node.inputs[1:]))
    with pytest.raises(AieError, match="input A must be"):
        compose((other,), 1, 1)


def test_sizes_that_no_call_has_are_refused() -> None:
    inputs = Input(FLOAT, (1 << 40, 256)), blocks(256, 256)
    attributes = {"K": 256, "N": 256, "format": 1}
    product = alone("Q4NXMatMul", "p", attributes, [0, 1], 1, inputs).recipe
    squared = product.replace(
        "outputs 2", "step Mul m\nint format 1\nreads 2 2\nwrites 3\noutputs 3"
    )
    with pytest.raises(AieError, match="no room for the values between the steps"):
        schedule(PlanNode(squared, inputs), 1, 1)
    ids = blocks(256, 256), Input(INT64, (1 << 40,))
    gather = alone("Q4NXGather", "g", {"K": 256, "N": 256, "format": 1}, [0, 1], 1, ids)
    with pytest.raises(AieError, match="an input of integers has"):
        schedule(gather, 1, 1)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [({"num_heads": 0}, "it has 0 heads"), ({"num_heads": [4]}, "must be a number or text")],
)
def test_damaged_attributes_are_refused(attributes: dict[str, Any], words: str) -> None:
    shapes = {
        "query": [1, 1, 64],
        "key": [1, 1, 64],
        "value": [1, 1, 64],
        "k": [1, 1, "past", None],
    }
    inputs = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in {**shapes, "v": shapes["k"]}.items()
    ]
    node = ir.node("FlowAttention", inputs, attributes, domain="aie", num_outputs=3)
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"aie": 1})
    with pytest.raises(AieError, match=words):
        plans_in(ir.Model(graph, ir_version=10))


@pytest.mark.parametrize("name", MODELS)
def test_a_token_is_one_submission_and_faster_by_whole_layers(name: str) -> None:
    """The sizes of Gemma 3 1B are the only ones that are not whole objects."""
    steps = plans_of(shape_of(name))
    token = compose(steps, 1, 1024)
    apart = compose(steps, 1, 1024, fused_layers=False)
    assert token.submissions == apart.submissions == 1
    # At most as many as fit in a chain.
    assert token.timing.runs <= apart.timing.runs <= 24
    if name == "gemma3-1b":
        assert token.layers_refused == "hidden=1152 must be a multiple of 256 up to 8192"
        assert token.timing == apart.timing
    else:
        assert (token.overlays, apart.overlays) == ({"fused_layer": 1}, {"decode": 1})
        assert (token.layers_refused, token.device_steps) == ("", apart.device_steps)
        assert token.timing.seconds < apart.timing.seconds
        # Vectors between operators, and rounds of keys that pairs repeat.
        assert token.timing.read == pytest.approx(apart.timing.read, rel=0.03)


@pytest.mark.parametrize(
    ("form", "read_as"),
    [
        (SHIPPING, SHIPPING),
        (BlockForm(minima=False), BlockForm(minima=False)),
        (BlockForm(group=128, minima=False), BlockForm(group=128)),
        (BlockForm(2), SHIPPING),
    ],
)
def test_weights_are_read_in_the_form_that_has_packages(
    form: BlockForm, read_as: BlockForm
) -> None:
    (plan,) = plans_of(replace(SHAPES["llama-3.2-1b"], **SMALL), form)
    assert BlockForm(4, *schedule(plan, 1, 5)["form"]) == read_as
