"""Bodies of If, Loop and Scan: passes see each body, and nothing across its edges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from builder_nodes import matmul_nbits, projection_weights, save
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor, session_options
from optimum_models import write_export

import ort_aie_ep
from ort_aie_ep import AieError
from ort_aie_ep.cli.tables import explanation_table, outcomes_table, plans_line
from ort_aie_ep.compiler.compiled_folder import CompileResult
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.models.integrity import REPORT

Array = npt.NDArray[Any]
DATA = Path(__file__).parent.parent / "data"
K = 96
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", K])


def value(name: str, kind: int = TensorProto.FLOAT, dims: Sequence[Any] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, ["batch", K] if dims is None else dims)


def flag(name: str) -> Any:
    return value(name, TensorProto.BOOL, [])


def number(name: str) -> Any:
    return value(name, TensorProto.INT64, [])


class Weights:
    """Int4 matrices (K, K) by name, as initializers for the graph that shall hold them."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, Array]] = {}

    def product(self, a: str, y: str, matrix: str, name: str | None = None) -> onnx.NodeProto:
        seed = len(self.tensors)
        weights = self.tensors.setdefault(
            matrix, projection_weights(K, K, prefix=matrix, seed=seed, zero_points=True)
        )
        # The values stay small over many steps.
        weights[f"{matrix}.scales"] *= np.float32(0.03 / weights[f"{matrix}.scales"].max())
        return matmul_nbits(a, y, weights, K, K, name=f"/{y}" if name is None else name)

    def initializers(self, *matrices: str) -> list[onnx.TensorProto]:
        return [
            onnx_tensor(name, array)
            for matrix in matrices or self.tensors
            for name, array in self.tensors[matrix].items()
        ]


def branch(name: str, nodes: Sequence[onnx.NodeProto], *outputs: str, **options: Any) -> Any:
    return helper.make_graph(nodes, name, [], [value(o) for o in outputs], **options)


def choice(condition: str, yes: Any, no: Any, y: str, name: str = "/if") -> onnx.NodeProto:
    return helper.make_node("If", [condition], [y], name=name, then_branch=yes, else_branch=no)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    initializers: Sequence[onnx.TensorProto],
    *outputs: str,
) -> onnx.ModelProto:
    results = [value(name) for name in outputs or ("y",)]
    return model_of(helper.make_graph(nodes, "main", [X, *inputs], results, initializers))


def in_floats(graph: onnx.GraphProto) -> None:
    """Writes each MatMulNBits as a MatMul: ONNX Runtime 1.23 computes MatMulNBits in bodies
    wrongly."""
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    for name in [name for name in tensors if name.endswith(".B")]:
        matrix = name.removesuffix(".B")
        codes, points = (
            np.stack([x & 15, x >> 4], -1).reshape(K, -1)
            for x in (tensors[name], tensors[f"{matrix}.zero_points"])
        )
        scales = tensors[f"{matrix}.scales"]
        points = points[:, : scales.shape[1]].astype(np.float32)
        dense = (codes - points.repeat(32, 1)) * scales.repeat(32, 1)
        graph.initializer.append(onnx_tensor(f"{matrix}.float", dense.T.astype(np.float32)))
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            inputs = [node.input[0], node.input[1].removesuffix(".B") + ".float"]
            node.CopyFrom(helper.make_node("MatMul", inputs, node.output))
        for attribute in node.attribute:
            in_floats(attribute.g)


def run(path: Path, feeds: Mapping[str, Array]) -> list[Array]:
    options = session_options()
    options.log_severity_level = 3
    options.register_custom_ops_library(ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(
        str(path / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    results: list[Array] = session.run(None, dict(feeds))
    return results


def feeds_of(**others: Any) -> dict[str, Array]:
    x = np.random.default_rng(3).standard_normal((2, K)).astype(np.float32)
    return {"x": x} | {name: np.array(array) for name, array in others.items()}


def compiled(source: onnx.ModelProto, folder: Path, **options: Any) -> CompileResult:
    floats = onnx.ModelProto.FromString(source.SerializeToString())
    in_floats(floats.graph)
    save(floats, folder / "floats")
    save(source, folder / "source")
    return ort_aie_ep.compile(folder / "source", folder / "out", **options)


def assert_same(folder: Path, *calls: Mapping[str, Array]) -> None:
    for feeds in calls:
        pairs = zip(run(folder / "floats", feeds), run(folder / "out", feeds), strict=True)
        for expected, actual in pairs:
            assert expected.shape == actual.shape
            # int8 activations (1/127 of the largest of 32) and bfloat16 scales: independent errors,
            # relative to the norm of the whole result; a few products one after the other.
            assert np.linalg.norm(actual - expected) <= 0.05 * np.linalg.norm(expected)


def becomes(result: CompileResult) -> dict[str, tuple[str | None, str]]:
    return {o.node: (o.becomes, o.body) for o in result.outcomes}


def merged(weights: Weights) -> onnx.ModelProto:
    """Two branches that share a matrix and have one each. Nothing else in the model is int4."""
    yes = branch(
        "yes", [weights.product("x", "a", "shared"), weights.product("a", "b", "first")], "b"
    )
    no = branch(
        "no", [weights.product("x", "c", "shared"), weights.product("c", "d", "second")], "d"
    )
    return model([choice("on", yes, no, "y")], [flag("on")], weights.initializers())


def test_branches_that_share_weights_are_compiled_and_told_apart(tmp_path: Path) -> None:
    result = compiled(merged(Weights()), tmp_path)
    then, other = "then_branch of '/if'", "else_branch of '/if'"
    assert becomes(result) == {
        "/a": ("aie.Q4NXMatMul", then), "/b": ("aie.Q4NXMatMul", then),
        "/c": ("aie.Q4NXMatMul", other), "/d": ("aie.Q4NXMatMul", other),
    }  # fmt: skip
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_weights_that_branches_share_are_written_once(tmp_path: Path) -> None:
    result = compiled(merged(Weights()), tmp_path)
    blocks = 3 * 4608  # (ceil(96 / 32), ceil(96 / 256)), each on a page of its own
    assert result.weight_bytes == 3 * -(-blocks // 4096) * 4096
    written = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    places: dict[str, int] = {}
    for attribute in written.graph.node[0].attribute:
        for tensor in attribute.g.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            places[tensor.name] = int(entries["offset"])
    assert len(places) == 4
    assert len(set(places.values())) == 3
    assert not written.graph.initializer


def test_weights_that_a_branch_shares_with_the_main_graph(tmp_path: Path) -> None:
    weights = Weights()
    yes = branch("yes", [weights.product("h", "b", "shared")], "b")
    no = branch("no", [helper.make_node("Neg", ["h"], ["c"])], "c")
    nodes = [weights.product("x", "h", "shared"), choice("on", yes, no, "y")]
    result = compiled(model(nodes, [flag("on")], weights.initializers()), tmp_path)
    assert {o.becomes for o in result.outcomes} == {"aie.Q4NXMatMul"}
    assert result.weight_bytes == 4 * 4096
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_weights_of_a_branch_itself_and_names_that_both_branches_use(tmp_path: Path) -> None:
    first, second = Weights(), Weights()
    second.tensors["other"] = {}  # another seed
    graphs = [
        branch(
            name, [weights.product("x", "a", "own")], "a", initializer=weights.initializers("own")
        )
        for name, weights in (("yes", first), ("no", second))
    ]
    result = compiled(model([choice("on", *graphs, "y")], [flag("on")], []), tmp_path)
    assert [o.node for o in result.outcomes] == ["/a -> a", "/a -> a (2)"]
    assert len({o.body for o in result.outcomes}) == 2
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))
    differ = [run(tmp_path / "out", feeds_of(on=on))[0] for on in (True, False)]
    assert not np.allclose(*differ, rtol=0.1)


def test_a_body_in_a_body_reads_what_lies_outside_of_both(tmp_path: Path) -> None:
    weights = Weights()
    inner = choice(
        "off",
        branch("inner_yes", [weights.product("h", "a", "shared")], "a"),
        branch("inner_no", [weights.product("g", "b", "shared")], "b"),
        "c",
        "/inner",
    )
    yes = branch("yes", [helper.make_node("Neg", ["x"], ["g"]), inner], "c")
    no = branch("no", [weights.product("h", "d", "other")], "d")
    nodes = [weights.product("x", "h", "shared"), choice("on", yes, no, "y")]
    source = model(nodes, [flag("on"), flag("off")], weights.initializers())
    result = compiled(source, tmp_path)
    bodies = {o.node: o.body for o in result.outcomes}
    assert bodies == {
        "/h": "", "/d": "else_branch of '/if'",
        "/a": "then_branch of '/inner' in then_branch of '/if'",
        "/b": "else_branch of '/inner' in then_branch of '/if'",
    }  # fmt: skip
    assert {o.becomes for o in result.outcomes} == {"aie.Q4NXMatMul"}
    assert_same(
        tmp_path, *(feeds_of(on=on, off=off) for on in (True, False) for off in (True, False))
    )


def test_the_body_of_a_loop(tmp_path: Path) -> None:
    weights = Weights()
    step = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["again"]),
            weights.product("state", "next", "matrix"),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "step",
        [number("i"), flag("more"), value("state")],
        [flag("again"), value("next"), value("seen")],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], name="/loop", body=step)
    source = model([loop], [number("n")], weights.initializers())
    (outcome,) = compiled(source, tmp_path).outcomes
    assert (outcome.becomes, outcome.body) == ("aie.Q4NXMatMul", "body of '/loop'")
    assert_same(tmp_path, feeds_of(n=3), feeds_of(n=0))


def test_the_body_of_a_scan(tmp_path: Path) -> None:
    weights = Weights()
    step = helper.make_graph(
        [weights.product("row", "z", "matrix"), helper.make_node("Add", ["z", "state"], ["sum"]),
         helper.make_node("Identity", ["sum"], ["seen"])],
        "step",
        [value("state"), value("row")],
        [value("sum"), value("seen")],
    )  # fmt: skip
    scan = helper.make_node("Scan", ["x", "rows"], ["y", "all"], name="/scan", body=step,
                            num_scan_inputs=1)  # fmt: skip
    rows = value("rows", dims=["n", "batch", K])
    result = compiled(model([scan], [rows], weights.initializers()), tmp_path)
    body = "body of '/scan'"
    assert {*becomes(result).values()} == {("aie.Q4NXMatMul", body), ("aie.Add", body)}
    feeds = feeds_of()
    assert_same(tmp_path, feeds | {"rows": np.stack([feeds["x"], -feeds["x"], feeds["x"]])})


def norm(a: str, y: str) -> onnx.NodeProto:
    return helper.make_node("SimplifiedLayerNormalization", [a, "w"], [y], name=f"/{y}", axis=-1)


def row() -> onnx.TensorProto:
    return onnx_tensor("w", np.linspace(0.5, 1.5, K).astype(np.float32))


@pytest.mark.parametrize("read_in_branch", [False, True])
def test_a_value_that_a_branch_reads_has_more_than_one_reader(
    read_in_branch: bool, tmp_path: Path
) -> None:
    """A norm goes into the one projection that reads it, unless a branch reads it too."""
    weights = Weights()
    yes = branch("yes", [helper.make_node("Neg", ["n" if read_in_branch else "p"], ["b"])], "b")
    no = branch("no", [helper.make_node("Abs", ["p"], ["c"])], "c")
    nodes = [norm("x", "n"), weights.product("n", "p", "matrix"), choice("on", yes, no, "y")]
    result = compiled(model(nodes, [flag("on")], [*weights.initializers(), row()]), tmp_path)
    assert becomes(result)["/n"][0] == ("aie.RMSNorm" if read_in_branch else "aie.Q4NXMatMul")
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_nothing_is_fused_across_the_edge_of_a_body(tmp_path: Path) -> None:
    """A norm outside, its one projection inside; a projection outside, its bias added inside."""
    weights = Weights()
    add = helper.make_node("Add", ["p", "bias"], ["c"], name="/add")
    yes = branch("yes", [weights.product("n", "b", "first")], "b")
    no = branch("no", [add], "c")
    nodes = [norm("x", "n"), weights.product("x", "p", "second"), choice("on", yes, no, "y")]
    bias = onnx_tensor("bias", np.linspace(-1, 1, K).astype(np.float32))
    source = model(nodes, [flag("on")], [*weights.initializers(), row(), bias])
    assert set(becomes(compiled(source, tmp_path))) == {"/b", "/p"}
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_fusions_happen_inside_of_bodies(tmp_path: Path) -> None:
    weights = Weights()
    add = helper.make_node("Add", ["p", "bias"], ["b"], name="/add")
    yes = branch("yes", [norm("x", "n"), weights.product("n", "p", "matrix"), add], "b")
    no = branch("no", [helper.make_node("Neg", ["x"], ["c"])], "c")
    bias = onnx_tensor("bias", np.linspace(-1, 1, K).astype(np.float32))
    source = model(
        [choice("on", yes, no, "y")], [flag("on")], [*weights.initializers(), row(), bias]
    )
    found = becomes(compiled(source, tmp_path))
    assert {node: to for node, (to, _) in found.items()} == dict.fromkeys(
        ("/n", "/p", "/add"), "aie.Q4NXMatMul"
    )
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_two_alike_ifs_with_other_bodies_stay_two(tmp_path: Path) -> None:
    """The passes look for common subexpressions if there is an Attention."""
    weights = Weights()
    ifs = [
        choice(
            "on",
            branch(f"yes {i}", [weights.product("x", f"a{i}", f"m{i}")], f"a{i}"),
            branch(f"no {i}", [helper.make_node("Neg", ["x"], [f"b{i}"])], f"b{i}"),
            f"y{i}",
            f"/if{i}",
        )
        for i in range(2)
    ]
    tokens = onnx_tensor("tokens", np.array([1, -1, K], np.int64))
    flat = onnx_tensor("flat", np.array([-1, K], np.int64))
    attention = [
        helper.make_node("Reshape", ["y0", "tokens"], ["q"]),
        helper.make_node("Attention", ["q", "q", "q"], ["o"], q_num_heads=6, kv_num_heads=6),
        helper.make_node("Reshape", ["o", "flat"], ["y"]),
    ]
    graph = helper.make_graph(
        [*ifs, *attention], "main", [X, flag("on")], [value("y"), value("y1")],
        [*weights.initializers(), tokens, flat],
    )  # fmt: skip
    source = model_of(graph, 23)
    result = compiled(source, tmp_path)
    assert [becomes(result)[n][0] for n in ("/a0", "/a1", "Attention -> o")] == [
        "aie.Q4NXMatMul", "aie.Q4NXMatMul", "aie.FlowAttention",
    ]  # fmt: skip
    # Not compared on ONNX Runtime 1.23, which does not know Attention.
    if hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_an_if_whose_result_nobody_reads_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    weights = Weights()
    inner = choice(
        "on",
        branch("inner_yes", [weights.product("h", "a", "unread")], "a"),
        branch("inner_no", [helper.make_node("Neg", ["h"], ["b"])], "b"),
        "c",
        "/inner",
    )
    yes = branch("yes", [inner], "c")
    no = branch("no", [helper.make_node("Neg", ["h"], ["d"])], "d")
    nodes = [
        weights.product("x", "h", "read"),
        helper.make_node("Neg", ["h"], ["y"]),
        choice("on", yes, no, "e"),
    ]
    source = model(nodes, [flag("on")], weights.initializers())
    result = compiled(source, tmp_path)
    assert result.weight_bytes == 4 * 4096
    assert set(becomes(result)) == {"/h"}
    assert_same(tmp_path, feeds_of(on=True))


def test_a_constant_outside_that_a_branch_takes_in(tmp_path: Path) -> None:
    weights = Weights()
    bias = np.linspace(-1, 1, K).astype(np.float32)
    constant = helper.make_node("Constant", [], ["bias"], value=onnx_tensor("bias", bias))
    add = helper.make_node("Add", ["p", "bias"], ["b"], name="/add")
    yes = branch("yes", [weights.product("x", "p", "matrix"), add], "b")
    no = branch("no", [helper.make_node("Sub", ["x", "bias"], ["c"])], "c")
    nodes = [constant, choice("on", yes, no, "y")]
    result = compiled(model(nodes, [flag("on")], weights.initializers()), tmp_path)
    assert set(becomes(result)) == {"/p", "/add"}
    assert_same(tmp_path, feeds_of(on=True), feeds_of(on=False))


def test_explain_and_the_table_say_which_body_a_node_is_in(tmp_path: Path) -> None:
    source = merged(Weights())
    result = compiled(source, tmp_path)
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert {n["node"]: n["body"] for n in report["nodes"]} == {
        o.node: o.body for o in result.outcomes
    }
    bodies = {o.node: o.body for o in result.outcomes} | {"/if": ""}
    for folder in ("source", "out"):
        explained = explain(tmp_path / folder)
        assert {node.node: node.body for node in explained.nodes} == bodies
        assert plans_line(explained.plans, explained.divided_by) == (
            "2 plans of 2 and 2 steps, 2 in bodies of If, Loop or Scan"
        )
    for table in (
        outcomes_table(result.outcomes),
        explanation_table(explain(tmp_path / "source"), each_node=False),
        explanation_table(explain(tmp_path / "out"), each_node=True),
    ):
        (column,) = (c for c in table.columns if c.header == "in")
        assert {str(cell) for cell in column.cells} - {""} == set(bodies.values()) - {""}


def merged_decoder(folder: Path) -> onnx.ModelProto:
    """The model twice, as the branches of an If, as optimum's merged decoders have them."""
    source = onnx.load(folder / "model.onnx")
    graph = source.graph
    branches = []
    for name in ("then_branch", "else_branch"):
        body = onnx.GraphProto(name=name)
        for node in graph.node:
            body.node.add().CopyFrom(node)
        for entry in graph.output:
            body.output.add().CopyFrom(entry)
        body.value_info.extend(graph.value_info)
        renamed = {entry.name: f"{name}.{entry.name}" for entry in graph.output}
        for node in body.node:
            node.output[:] = [renamed.get(o, o) for o in node.output]
            node.input[:] = [renamed.get(i, i) for i in node.input]
        for entry in body.output:
            entry.name = renamed[entry.name]
        branches.append(body)
    outputs = [entry.name for entry in graph.output]
    del graph.node[:], graph.value_info[:]
    graph.node.add().CopyFrom(
        helper.make_node("If", ["use_cache_branch"], outputs, name="optimum::if",
                         then_branch=branches[0], else_branch=branches[1])
    )  # fmt: skip
    graph.input.append(value("use_cache_branch", TensorProto.BOOL, [1]))
    return source


@pytest.mark.parametrize(("name", "quantize"), [("llama", "q4nx"), ("qwen3", None)])
def test_a_merged_decoder_computes_what_its_parts_do(
    name: str, quantize: str | None, tmp_path: Path
) -> None:
    """The builder's int4 model; with `quantize`, optimum's float model, whose attention is spelled
    out."""
    config = json.loads((DATA / name / "genai_config.json").read_text())["model"]["decoder"]
    folder = DATA / name
    if quantize is not None:
        folder = write_export(name, tmp_path / "export")
        config = json.loads((folder / "config.json").read_text())
        config = {"num_key_value_heads": config["num_key_value_heads"],
                  "head_size": config["head_dim"]}  # fmt: skip
    plain = ort_aie_ep.compile(folder / "model.onnx", tmp_path / "plain", quantize=quantize)
    save(merged_decoder(folder), tmp_path / "source", external=False)
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "out", quantize=quantize)
    assert {layer.nodes for layer in result.layers} == ({2} if quantize else set())
    assert len(result.layers) == len(plain.layers)
    assert result.weight_bytes == plain.weight_bytes
    expected = Counter(o.becomes for o in plain.outcomes)
    for body in ("then_branch", "else_branch"):
        inside = (o for o in result.outcomes if o.body == f"{body} of 'optimum::if'")
        # A table that both branches share belongs to the graph around them: ONNX Runtime runs its
        # Gather.
        kept = {becomes: count for becomes, count in expected.items() if becomes != "aie.Gather"}
        found = Counter(o.becomes for o in inside)
        assert {becomes: found[becomes] for becomes in kept if becomes} == {
            becomes: count for becomes, count in kept.items() if becomes
        }
    heads, size = config["num_key_value_heads"], config["head_size"]
    rng = np.random.default_rng(5)
    feeds = {
        "input_ids": rng.integers(3, 500, (1, 4)),
        "attention_mask": np.ones((1, 7), np.int64),
    }
    if quantize is not None:
        feeds["position_ids"] = np.arange(3, 7)[None]
    for entry in result_inputs(tmp_path / "plain"):
        if entry.startswith("past"):
            feeds[entry] = rng.standard_normal((1, heads, 3, size)).astype(np.float32)
    for on in (True, False):
        outputs = run(tmp_path / "out", feeds | {"use_cache_branch": np.array([on])})
        for ours, theirs in zip(outputs, run(tmp_path / "plain", feeds), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def result_inputs(folder: Path) -> list[str]:
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    return [entry.name for entry in graph.input]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv": "f16"}, "is in the else_branch of 'optimum::if'; the type of past and present can"),
        ({"last_logits": True}, "'logits' is computed by 'optimum::if' \\(If\\)"),
    ],
)
def test_options_that_do_not_reach_into_bodies_say_so(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save(merged_decoder(DATA / "llama"), tmp_path / "source")
    with pytest.raises(AieError, match=reason):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def functions(*nodes: onnx.NodeProto, opset: int = 0) -> onnx.ModelProto:
    """x through two calls of a function that multiplies by a matrix argument.

    The function is in `opset`, by default the model's.
    """
    weights = Weights()
    first, second = weights.product("x", "h", "a"), weights.product("h", "y", "b")
    call = weights.product("in", "out", "m")  # with the function's own names
    calls = [
        helper.make_node("Product", node.input, node.output, name=node.name, domain="local")
        for node in (first, second)
    ]
    source = model(calls, [], weights.initializers("a", "b"))
    versions = {entry.domain: entry.version for entry in source.opset_import} | {"local": 1}
    if opset:
        versions[""] = opset
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    source.functions.append(
        helper.make_function("local", "Product", list(call.input), ["out"], [call, *nodes], imports)
    )
    source.opset_import.append(helper.make_opsetid("local", 1))
    return source


def test_nodes_in_functions_of_the_model_are_compiled(tmp_path: Path) -> None:
    source = functions()
    save(source, tmp_path / "source")
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "out")
    assert Counter(o.becomes for o in result.outcomes) == {"aie.Q4NXMatMul": 2}
    (expected,), (actual,) = (run(tmp_path / name, feeds_of()) for name in ("source", "out"))
    # As in assert_same.
    assert np.linalg.norm(actual - expected) <= 0.05 * np.linalg.norm(expected)


def test_a_function_in_another_opset_is_left_and_named(tmp_path: Path) -> None:
    save(functions(opset=17), tmp_path / "source")
    with pytest.raises(AieError, match=r"source/model\.onnx"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "out")
    fates = explain(tmp_path / "source").nodes
    assert {(fate.op, fate.not_npu) for fate in fates} == {("local.Product", "no aie operator")}


def test_external_data_of_a_function_stays_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(4 * K))
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[K])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(tmp_path / "secret"))
    source = functions(helper.make_node("Constant", [], ["t"], value=tensor))
    path = tmp_path / "source" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(source.SerializeToString())  # onnx.save_model would check the data
    with pytest.raises(AieError, match=r"'t' .*outside"):
        ort_aie_ep.compile(path.parent, tmp_path / "out")


def test_a_function_that_calls_itself_is_named(tmp_path: Path) -> None:
    again = helper.make_node("Product", ["in", "m.B", "m.scales", "m.zero_points"], ["again"],
                             domain="local")  # fmt: skip
    save(functions(again), tmp_path / "source")
    with pytest.raises(AieError, match=r"model\.onnx: its functions"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "out")
