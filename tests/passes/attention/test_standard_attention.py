"""ONNX's Attention and RotaryEmbedding: what they become, compared with ONNX Runtime and ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from op_models import FLOAT16, FLOAT32, ONNX_TYPES, ORT_VERSION, open_session, run

from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
H, KV, D = 4, 2, 8

pytestmark = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="compares with ONNX Runtime's Attention of 1.31"
)


def random(*shape: int, seed: int = 0, dtype: npt.DTypeLike = FLOAT32) -> Array:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(dtype)


def feeds(
    *,
    batch: int = 2,
    queries: int = 5,
    keys: int | None = None,
    past: int | None = None,
    split: bool = True,
    dtype: npt.DTypeLike = FLOAT32,
) -> Feeds:
    """Q, K, V as (B, H, T, D) or (B, T, H * D), and the cache."""
    made: Feeds = {}
    for seed, (name, heads, tokens) in enumerate(
        [("Q", H, queries), ("K", KV, keys or queries), ("V", KV, keys or queries)]
    ):
        x = random(batch, heads, tokens, D, seed=seed, dtype=dtype)
        made[name] = x if split else joined(x)
    if past is not None:
        for seed, name in enumerate(("past_key", "past_value"), 3):
            made[name] = random(batch, KV, past, D, seed=seed, dtype=dtype)
    return made


def joined(x: Array) -> Array:
    """(B, H, T, D) -> (B, T, H * D)."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: Feeds,
    outputs: list[str],
    *,
    initializers: Feeds | None = None,
    opset: int = 23,
    dims: dict[str, list[int | str]] | None = None,
) -> onnx.ModelProto:
    """A model whose inputs declare only the heads' dimensions, as exports for any length do.

    `dims` holds the dimensions of inputs and outputs that differ.
    """
    element = ONNX_TYPES[next(iter(inputs.values())).dtype]

    def shape(name: str, x: Array) -> list[int | str]:
        known = {4: {1, 3}, 3: {2}}.get(x.ndim, set())
        given: list[int | str] = [
            n if i in known or n == 1 else f"{name}_{i}" for i, n in enumerate(x.shape)
        ]
        of_batch = name in INPUTS[:3] or (x.ndim == 4 and x.shape[0] > 1)
        return ["batch", *given[1:]] if of_batch else given

    values = [
        helper.make_tensor_value_info(k, ONNX_TYPES[x.dtype], (dims or {}).get(k) or shape(k, x))
        for k, x in inputs.items()
    ]
    constants = [
        helper.make_tensor(k, ONNX_TYPES[x.dtype], x.shape, x.tobytes(), raw=True)
        for k, x in (initializers or {}).items()
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        values,
        [helper.make_tensor_value_info(name, element, (dims or {}).get(name)) for name in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def attention(
    inputs: Feeds, *, presents: bool | None = None, opset: int = 23, **attributes: Any
) -> onnx.ModelProto:
    """One Attention of `inputs`, named as the operator names them."""
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    if inputs["Q"].ndim == 3:
        attributes = {"q_num_heads": H, "kv_num_heads": KV} | attributes
    outputs = OUTPUTS[: 3 if ("past_key" in inputs if presents is None else presents) else 1]
    node = helper.make_node("Attention", names, outputs, name="/attention", **attributes)
    return model_of([node], inputs, outputs, opset=opset)


def compiled(model: onnx.ModelProto) -> tuple[ir.Model, dict[str, str]]:
    """The model after the passes, and what became of its nodes, or why they stayed."""
    graph_model = ir.from_proto(model)
    outcomes = run_passes(graph_model).outcomes.values()
    return graph_model, {o.node: o.becomes or o.reason for o in outcomes}


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def bound(inputs: Feeds, dtype: np.dtype[Any] = FLOAT32) -> float:
    """Twice the error of attention in float32: scores of D products, of vectors no longer than 8 (5
    deviations), scaled by at most 1, and sums over fewer than 600 keys of values below 5.

    In float16 each side rounds its result. ONNX Runtime also rounds its queries, weights and
    products, with D independent roundings in a score."""
    error = (2 * (D + 16) * 64 + 600 + 8) * 2**-24 * 5
    if dtype == FLOAT16:
        error += 2**-11 * (2 * 8 * 64 / np.sqrt(D) + 2) * 5
    return 2 * error


def check(model: onnx.ModelProto, inputs: Feeds, *, becomes: str = "aie.FlowAttention") -> ir.Model:
    """Compares the compiled model with the original, in ONNX Runtime and in the reference
    evaluator."""
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == becomes
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)
    expected = dict(zip(actual, ReferenceEvaluator(model).run(list(actual), inputs), strict=True))
    dtype = inputs["Q"].dtype
    for name, theirs in (*expected.items(), *runtime(model, inputs).items()):
        assert actual[name].shape == theirs.shape
        difference = np.abs(actual[name].astype(np.float64) - theirs)
        assert difference.max(initial=0) <= bound(inputs, dtype), name
    return changed


def runtime(model: onnx.ModelProto, inputs: Feeds) -> Feeds:
    return run(open_session(model.SerializeToString()), inputs)


# --- layouts, lengths and the cache ---------------------------------------------------------------


@pytest.mark.parametrize(("opset", "split"), [(23, True), (24, False)])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [None, 0, 1, 300])
@pytest.mark.parametrize("queries", [1, 5, 70])
def test_layouts_and_caches(
    opset: int, split: bool, causal: int, past: int | None, queries: int
) -> None:
    inputs = feeds(queries=queries, past=past, split=split)
    model = check(attention(inputs, opset=opset, is_causal=causal), inputs)
    assert operators(model).count("FlowAttention") == 1
    if not split:
        assert operators(model) == ["FlowAttention"]


@pytest.mark.parametrize("split", [True, False])
def test_presents_without_a_past(split: bool) -> None:
    inputs = feeds(split=split)
    check(attention(inputs, presents=True, is_causal=1), inputs)


def test_a_past_whose_present_nobody_wants() -> None:
    """ONNX Runtime 1.31 refuses it."""
    inputs = feeds(past=20)
    model = attention(inputs, presents=False, is_causal=1)
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == "aie.FlowAttention"
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)["Y"]
    (expected,) = ReferenceEvaluator(model).run(["Y"], inputs)
    assert np.abs(actual - expected).max() <= bound(inputs)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("queries", "keys"), [(5, 40), (40, 5), (1, 9)])
def test_keys_of_another_sequence(causal: int, queries: int, keys: int) -> None:
    """With causality, query t sees keys 0 to t: ONNX counts from the upper left."""
    inputs = feeds(queries=queries, keys=keys)
    check(attention(inputs, is_causal=causal), inputs)


def test_float16() -> None:
    inputs = feeds(past=20, dtype=FLOAT16)
    check(attention(inputs, is_causal=1), inputs)


@pytest.mark.parametrize("attributes", [{"scale": 0.7}, {"softcap": 2.0}, {"softmax_precision": 1}])
def test_attributes(attributes: dict[str, Any]) -> None:
    inputs = feeds(past=20)
    check(attention(inputs, is_causal=1, **attributes), inputs)


# --- masks ----------------------------------------------------------------------------------------

SHAPES = [
    (5, 25),
    (2, 1, 5, 25),
    (1, 1, 5, 25),
    (2, 4, 5, 25),
    (1, 4, 5, 25),
    (4, 5, 25),
    (1, 5, 25),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_masks(shape: tuple[int, ...], kind: str, causal: int, softcap: float) -> None:
    inputs = feeds(past=20)
    shown = np.random.default_rng(3).random(shape) < 0.6
    shown[..., 2, :] = False  # a query that sees no keys gives zeros
    inputs["attn_mask"] = shown if kind == "bool" else np.where(shown, random(*shape), -np.inf)
    inputs["attn_mask"] = inputs["attn_mask"].astype(bool if kind == "bool" else np.float32)
    check(attention(inputs, is_causal=causal, softcap=softcap), inputs)


@pytest.mark.parametrize("shape", [(2, 1, 1, 25), (1, 1, 1, 25), (2, 4, 1, 25), (1, 25)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_for_all_queries(shape: tuple[int, ...], kind: str) -> None:
    """ONNX Runtime 1.31 refuses them, and the reference evaluator applies their one query to the
    causal order too. They mean what they broadcast to."""
    inputs = feeds(past=20)
    shown = np.random.default_rng(4).random(shape) < 0.6
    inputs["attn_mask"] = (
        shown if kind == "bool" else np.where(shown, 0, -np.inf).astype(np.float32)
    )
    model = attention(inputs, is_causal=1)
    changed, _ = compiled(model)
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)["Y"]
    inputs["attn_mask"] = np.broadcast_to(inputs["attn_mask"], (*shape[:-2], 5, 25)).copy()
    (expected,) = ReferenceEvaluator(model).run(["Y"], inputs)
    assert np.abs(actual - expected).max() <= bound(inputs)


def test_a_mask_of_keys_alone_hides_keys() -> None:
    """So that no time goes into left padding."""
    inputs = feeds(past=20) | {"attn_mask": np.ones((2, 1, 1, 25), bool)}
    changed, _ = compiled(attention(inputs))
    (node,) = (n for n in changed.graph if n.op_type == "FlowAttention")
    assert len(node.inputs) == 17


def test_a_mask_is_converted_once_for_all_layers() -> None:
    inputs = feeds() | {"attn_mask": np.ones((5, 5), bool)}
    nodes = [
        helper.make_node("Attention", [q, "K", "V", "attn_mask"], [y], name=f"/{y}")
        for q, y in (("Q", "hidden"), ("hidden", "Y"))
    ]
    changed, _ = compiled(model_of(nodes, inputs, ["Y"]))
    assert operators(changed).count("Where") == 1


@pytest.mark.parametrize("counts", [(4, 9), (9, 9), (0, 3), (1, 2)])
def test_valid_keys_of_a_cache_outside(counts: tuple[int, int]) -> None:
    for split in (True, False):
        inputs = feeds(queries=3, keys=9, split=split) | {"nonpad_kv_seqlen": np.array(counts)}
        check(attention(inputs, opset=24), inputs)


def test_a_query_masked_by_the_lowest_float_takes_the_mean() -> None:
    """The reference does this; ONNX Runtime 1.31 gives zeros."""
    inputs = feeds()
    mask = np.zeros((5, 5), np.float32)
    mask[1] = np.finfo(np.float32).min
    inputs["attn_mask"] = mask
    model = attention(inputs)
    changed, _ = compiled(model)
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)["Y"]
    (expected,) = ReferenceEvaluator(model).run(["Y"], inputs)
    assert np.abs(actual - expected).max() <= bound(inputs)
    assert not runtime(model, inputs)["Y"][:, :, 1].any()


@pytest.mark.parametrize(
    "attributes",
    [
        {"left_window_size": 3, "is_causal": 1},
        {"left_window_size": 0, "right_window_size": 0},
        {"left_window_size": 3, "right_window_size": 2, "is_causal": 1},
        {"right_window_size": 0},
    ],
)
@pytest.mark.parametrize("past", [None, 20])
def test_windows_of_opset_25(attributes: dict[str, int], past: int | None) -> None:
    """ONNX Runtime 1.31 does not know the attributes."""
    inputs = feeds(past=past)
    model = attention(inputs, opset=25, **attributes)
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == "aie.FlowAttention"
    changed.opset_imports[""] = 24
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)["Y"]
    (expected,) = ReferenceEvaluator(model).run(["Y"], inputs)
    assert np.abs(actual - expected).max() <= bound(inputs)


# --- around the attention -------------------------------------------------------------------------


def layer(
    *,
    rotary: str = "",
    normed: str = "",
    appended: bool = False,
    repeated: bool = False,
    causal: int = 0,
    **options: Any,
) -> tuple[list[onnx.NodeProto], list[str]]:
    """x, k, v (B, T, C) -> heads -> rotation -> Attention -> (B, T, C), as exporters write it."""
    nodes, heads = [], {}
    for name in ("q", "k", "v"):
        last = f"{name}.tokens"
        nodes.append(helper.make_node("Reshape", [name, f"{name}.shape"], [last]))
        norm, swap = (
            helper.make_node("RMSNormalization", ["", f"{name}.norm"], [f"{name}.normed"],
                             name=f"/{name}.norm", epsilon=1e-4),
            helper.make_node("Transpose", [""], [f"{name}.heads"], perm=[0, 2, 1, 3]),
        )  # fmt: skip
        normed_here = normed if name != "v" else ""
        steps_of = {"": [swap], "tokens": [norm, swap], "heads": [swap, norm]}
        for node in steps_of[normed_here]:
            node.input[0] = last
            last = node.output[0]
            nodes.append(node)
        heads[name] = last
        if rotary and name != "v":
            angles = {
                "": ["cos", "sin", "ids"],
                "com.microsoft": ["ids", "cos", "sin"],
                "rows": ["cos", "sin"],
            }[rotary if rotary != "ai.onnx" else ""]
            domain = "com.microsoft" if rotary == "com.microsoft" else ""
            nodes.append(
                helper.make_node(
                    "RotaryEmbedding", [heads[name], *angles], [f"{name}.rotated"],
                    name=f"/{name}.rotary", domain=domain, **options,
                )
            )  # fmt: skip
            heads[name] = f"{name}.rotated"
    outputs = ["out"]
    if appended:
        for name, past in (("k", "past_key"), ("v", "past_value")):
            present = past.replace("past", "present")
            nodes.append(helper.make_node("Concat", [past, heads[name]], [present], axis=-2))
            heads[name] = present
            outputs.append(present)
    for name in ("k", "v") if repeated else ():
        steps = {
            "Unsqueeze": (heads[name], "axis 2"),
            "Expand": (f"{name}.Unsqueeze", "group"),
            "Reshape": (f"{name}.Expand", "repeated.shape"),
        }
        for op_type, inputs in steps.items():
            nodes.append(helper.make_node(op_type, inputs, [f"{name}.{op_type}"]))
        heads[name] = f"{name}.Reshape"
    nodes += [
        helper.make_node("Attention", [*heads.values()], ["y"], name="/attention",
                         is_causal=causal),
        helper.make_node("Transpose", ["y"], ["y.tokens"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["y.tokens", "out.shape"], ["out"]),
    ]  # fmt: skip
    return nodes, outputs


def layer_model(
    *, batch: int = 2, tokens: int = 6, past: int | None = None, rotary: str = "", width: int = D,
    opset: int = 23, **options: Any,
) -> tuple[onnx.ModelProto, Feeds]:  # fmt: skip
    inputs: Feeds = {
        name: random(batch, tokens, count * D, seed=seed)
        for seed, (name, count) in enumerate((("q", H), ("k", KV), ("v", KV)))
    }
    if past is not None:
        for seed, name in enumerate(("past_key", "past_value"), 3):
            inputs[name] = random(batch, KV, past, D, seed=seed)
    constants: Feeds = {
        f"{name}.shape": np.array([0, 0, count, D])
        for name, count in (("q", H), ("k", KV), ("v", KV))
    }
    constants["out.shape"] = np.array([0, 0, H * D])
    constants |= {
        "axis 2": np.array([2]),
        "group": np.array([1, 1, H // KV, 1, 1]),
        "repeated.shape": np.array([0, H, -1, D]),
    }
    constants |= {f"{name}.norm": np.linspace(0.5, 1.5, D).astype(np.float32) for name in "qk"}
    if rotary:
        angles = np.arange(50)[:, None] * 10000.0 ** (-np.arange(width // 2) / (width // 2))
        cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        ids = np.random.default_rng(9).integers(0, 50, (batch, tokens))
        if rotary == "rows":
            inputs |= {"cos": cos[ids], "sin": sin[ids]}
        else:
            constants |= {"cos": cos, "sin": sin}
            inputs["ids"] = ids
        if width != D:
            options["rotary_embedding_dim"] = width
            if rotary == "com.microsoft":
                options["num_heads"] = H
    nodes, outputs = layer(rotary=rotary, appended=past is not None, **options)
    dims: dict[str, list[int | str]] = {
        name: ["batch", "tokens", inputs[name].shape[2]] for name in ("q", "k", "v")
    }
    dims |= {name: ["batch", KV, "total", D] for name in OUTPUTS[1:3]}
    return model_of(nodes, inputs, outputs, initializers=constants, opset=opset, dims=dims), inputs


def check_layer(model: onnx.ModelProto, inputs: Feeds) -> tuple[ir.Model, dict[str, str]]:
    changed, outcomes = compiled(model)
    assert outcomes["/attention"] == "aie.FlowAttention"
    actual = run(open_session(ir.to_proto(changed).SerializeToString()), inputs)
    for name, theirs in runtime(model, inputs).items():
        assert np.abs(actual[name] - theirs).max() <= bound(inputs), name
    return changed, outcomes


def test_transposes_and_reshapes_around_it_go() -> None:
    model, inputs = layer_model()
    changed, _ = check_layer(model, inputs)
    assert operators(changed) == ["FlowAttention"]


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("past", [0, 20])
@pytest.mark.parametrize("rotary", ["", "ai.onnx"])
def test_a_cache_that_a_concat_extends(tokens: int, past: int, rotary: str) -> None:
    model, inputs = layer_model(tokens=tokens, past=past, rotary=rotary)
    changed, _ = check_layer(model, inputs)
    assert operators(changed) == ["FlowAttention"]
    assert [v.name for v in changed.graph.outputs] == ["out", "present_key", "present_value"]


@pytest.mark.parametrize("past", [None, 20])
@pytest.mark.parametrize("rotary", ["", "rows"])
def test_key_value_heads_that_are_repeated_for_their_group(past: int | None, rotary: str) -> None:
    model, inputs = layer_model(past=past, rotary=rotary, repeated=True)
    changed, _ = check_layer(model, inputs)
    assert not {"Expand", "Concat", "Transpose"} & set(operators(changed))
    (node,) = (n for n in changed.graph if n.op_type == "FlowAttention")
    assert node.attributes["kv_num_heads"].as_int() == KV


def test_heads_in_another_order_are_not_a_repetition() -> None:
    """As with np.tile: query head h reads key-value head h % KV."""
    model, inputs = layer_model(repeated=True)
    for tensor in model.graph.initializer:
        if tensor.name == "axis 2":
            tensor.CopyFrom(helper.make_tensor("axis 2", onnx.TensorProto.INT64, [1], [1]))
        if tensor.name == "group":
            sizes = [1, H // KV, 1, 1, 1]
            tensor.CopyFrom(helper.make_tensor("group", onnx.TensorProto.INT64, [5], sizes))
    changed, _ = check_layer(model, inputs)
    assert operators(changed).count("Expand") == 2


def test_angles_that_are_computed_twice_are_one() -> None:
    model, inputs = layer_model(rotary="rows")
    for node in model.graph.node:
        if node.name == "/k.rotary":
            node.input[1:3] = ["k.cos", "k.sin"]
        elif node.name == "/q.rotary":
            node.input[1:3] = ["q.cos", "q.sin"]
    first = [
        helper.make_node("Neg", [angle], [f"{name}.{angle}"])
        for name in "qk" for angle in ("cos", "sin")
    ]  # fmt: skip
    nodes = [*first, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    _, outcomes = check_layer(model, inputs)
    assert outcomes["/k.rotary"] == "aie.FlowAttention"


def test_with_causality_an_extended_cache_is_keys_like_others() -> None:
    """Because ONNX then counts query t from the first of all keys."""
    model, inputs = layer_model(tokens=6, past=20, causal=1)
    changed, _ = check_layer(model, inputs)
    assert operators(changed).count("Concat") == 2


@pytest.mark.parametrize("rotary", ["ai.onnx", "com.microsoft", "rows"])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [D, 4])
def test_rotations_become_part_of_it(rotary: str, interleaved: int, width: int) -> None:
    model, inputs = layer_model(rotary=rotary, width=width, interleaved=interleaved)
    if rotary == "com.microsoft" and width != D:
        for node in model.graph.node:
            if node.name == "/k.rotary":
                next(a for a in node.attribute if a.name == "num_heads").i = KV
    changed, outcomes = check_layer(model, inputs)
    assert outcomes["/q.rotary"] == outcomes["/k.rotary"] == "aie.FlowAttention"
    assert "RotaryEmbedding" not in operators(changed)
    if rotary != "rows":
        assert operators(changed) == ["FlowAttention"]


@pytest.mark.parametrize("rotary", ["", "ai.onnx", "com.microsoft", "rows"])
@pytest.mark.parametrize("place", ["tokens", "heads"])  # before or behind the Transpose
def test_norms_of_heads_become_part_of_it(rotary: str, place: str) -> None:
    model, inputs = layer_model(rotary=rotary, normed=place)
    changed, outcomes = check_layer(model, inputs)
    assert outcomes["/q.norm"] == outcomes["/k.norm"] == "aie.FlowAttention"
    assert "RMSNormalization" not in operators(changed)
    (node,) = (n for n in changed.graph if n.op_type == "FlowAttention")
    assert [v.name for v in node.inputs[14:16] if v] == ["q.norm", "k.norm"]


def test_a_norm_of_heads_that_something_else_reads_is_left() -> None:
    model, inputs = layer_model(normed="heads")
    dims = ["batch", H, "tokens", D]
    model.graph.output.append(helper.make_tensor_value_info("q.normed", 1, dims))
    changed, outcomes = check_layer(model, inputs)
    assert "/q.norm" not in outcomes or outcomes["/q.norm"] != "aie.FlowAttention"
    assert operators(changed).count("FlowAttention") == 1


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_rotations_of_joined_heads(domain: str) -> None:
    inputs = feeds(split=False, past=4)
    angles = np.arange(50)[:, None] * 10000.0 ** (-np.arange(D // 2) / (D // 2))
    constants = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    inputs["ids"] = np.random.default_rng(9).integers(0, 50, (2, 5))
    order = ["ids", "cos", "sin"] if domain else ["cos", "sin", "ids"]
    nodes = [
        helper.make_node("RotaryEmbedding", [name, *order], [f"{name}.rotated"], domain=domain,
                         name=f"/{name}.rotary", num_heads=heads)
        for name, heads in (("Q", H), ("K", KV))
    ]  # fmt: skip
    nodes.append(
        helper.make_node("Attention", ["Q.rotated", "K.rotated", "V", "", *list(inputs)[3:5]],
                         OUTPUTS[:3], name="/attention", is_causal=1, q_num_heads=H,
                         kv_num_heads=KV)
    )  # fmt: skip
    changed, outcomes = check_layer(
        model_of(nodes, inputs, OUTPUTS[:3], initializers=constants), inputs
    )
    assert operators(changed) == ["FlowAttention"]
    assert outcomes["/Q.rotary"] == "aie.FlowAttention"


def test_rotations_that_others_read_stay() -> None:
    model, inputs = layer_model(rotary="ai.onnx")
    model.graph.output.append(helper.make_tensor_value_info("k.rotated", 1, None))
    changed, outcomes = check_layer(model, inputs)
    assert outcomes["/k.rotary"] == "others read the rotated value as well"
    assert operators(changed).count("RotaryEmbedding") == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"interleaved": 1}, "queries and keys are rotated differently"),
        ({"scale": 2.0}, "scale or is_packed_batching is not at its default"),
    ],
)
def test_rotations_that_stay(change: dict[str, Any], reason: str) -> None:
    model, inputs = layer_model(rotary="com.microsoft")
    node = next(n for n in model.graph.node if n.name == "/k.rotary")
    node.attribute.extend(helper.make_attribute(k, v) for k, v in change.items())
    _, outcomes = check_layer(model, inputs)
    assert outcomes["/q.rotary"] == outcomes["/k.rotary"] == reason


def test_rotations_before_other_nodes_stay() -> None:
    inputs = feeds(split=False)
    inputs["ids"] = np.zeros((2, 5), np.int64)
    inputs |= {"seqlens": np.full(2, 4, np.int32), "total": np.array([5], np.int32)}
    constants = {name: np.ones((50, D // 2), np.float32) for name in ("cos", "sin")}
    nodes = [
        helper.make_node("RotaryEmbedding", [name, "ids", "cos", "sin"], [f"{name}.rotated"],
                         domain="com.microsoft", name=f"/{name}.rotary")
        for name in "QKV"
    ]  # fmt: skip
    nodes += [
        helper.make_node("GroupQueryAttention",
                         ["Q.rotated", "K.rotated", "V", "", "", "seqlens", "total"], OUTPUTS[:3],
                         domain="com.microsoft", num_heads=H, kv_num_heads=KV),
        helper.make_node("Neg", ["V.rotated"], ["other"]),
    ]  # fmt: skip
    nodes.append(
        helper.make_node("RotaryEmbedding", ["V", "ids", "cos", "sin"], ["rotated"],
                         domain="com.microsoft", name="/alone.rotary")
    )  # fmt: skip
    outputs = [*OUTPUTS[:3], "other", "rotated"]
    _, outcomes = compiled(model_of(nodes, inputs, outputs, initializers=constants))
    assert (
        outcomes["/Q.rotary"]
        == outcomes["/K.rotary"]
        == (
            "the attention cannot do it: that needs queries and keys that are rotated alike and "
            "read by it alone, tables of known width and one position for each token, "
            "(batch, sequence)"
        )
    )
    assert outcomes["/V.rotary"] == "it feeds Neg, not an Attention"
    alone = "its result is an output of the graph, and no Attention's input"
    assert outcomes["/alone.rotary"] == alone


# --- what stays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "attributes", "reason"),
    [
        ({}, {"softmax_precision": 11}, "softmax_precision is DOUBLE; FlowAttention's is FLOAT"),
        ({"window": 1}, {"left_window_size": 2},
         "a window that reaches later keys, or without causality"),
        ({"nonpad": 1}, {"is_causal": 1},
         "nonpad_kv_seqlen with is_causal=1 places the queries of each batch row elsewhere"),
        ({"nonpad": 1, "mask": 1}, {},
         "with nonpad_kv_seqlen, attn_mask may be shorter than the keys"),
        ({"row": 1}, {}, "attn_mask has 1 dimensions; expected 2 to 4"),
        ({"scores": 1}, {}, "output_qk asks for the score matrix, which chunked attention never"),
        ({"values": 16}, {}, "heads of V have 16 channels, those of Q 8; expected as many"),
        ({"dim": 12}, {}, "heads have 12 channels; expected a multiple of 8"),
        ({"unknown": 1}, {}, "the number of heads or their dimension is not known before it runs"),
    ],
)  # fmt: skip
def test_what_stays_says_why(
    options: dict[str, int], attributes: dict[str, int], reason: str
) -> None:
    inputs = feeds()
    if "values" in options:
        inputs["V"] = random(2, KV, 5, 16)
    if "dim" in options:
        inputs = {name: random(2, H, 5, 12) for name in ("Q", "K", "V")}
    if "nonpad" in options:
        inputs["nonpad_kv_seqlen"] = np.array([3, 5])
    if "mask" in options:
        inputs["attn_mask"] = np.ones((5, 5), bool)
    if "row" in options:
        inputs["attn_mask"] = np.ones(5, bool)
    model = attention(inputs, opset=25 if "window" in options else 24, **attributes)
    if "scores" in options:
        model.graph.node[0].output.extend(["", "", "scores"])
        model.graph.output.append(helper.make_tensor_value_info("scores", 1, None))
    if "unknown" in options:
        model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "head_dim"
    changed, outcomes = compiled(model)
    assert outcomes["/attention"].startswith(reason)
    assert operators(changed) == ["Attention"]
