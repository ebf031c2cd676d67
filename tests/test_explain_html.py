"""`ort-aie explain --html`: the page agrees with the table on each node, and fetches nothing."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from builder_nodes import projection_model
from commands import ort_aie
from hypothesis import given, settings
from hypothesis import strategies as st
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.explain.explain import CPU_EP, GONE, HOST, NodeFate, explain
from ort_aie_ep.explain.html.graph import DrawnGraph, DrawnNode, without_folded
from ort_aie_ep.explain.html.groups import groups_of
from ort_aie_ep.explain.html.layout import HEIGHT, SMALL_WIDTH, WIDTH, Layout, lay_out
from ort_aie_ep.explain.html.page import page, write_page
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "llama"


class Page(HTMLParser):
    """A page's scripts, and every address that an element names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.links: list[str] = []
        self._inside = False
        self.feed(text)
        self.graph: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self._inside = True
            self.scripts.append("")
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def page_of(model: Path, **options: Any) -> Page:
    return Page(page(explain(model, **options), ["a line"]))


def drawn_nodes(graph: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in graph["nodes"] if "runs" in node]


def edges_of(graph: dict[str, Any], view: dict[str, Any]) -> set[tuple[str, str]]:
    names = [node["name"] for node in graph["nodes"]]
    edges = [edge for group in view["groups"] for *edge, _ in group["edges"]] + view["far"]
    return {(names[source], names[target]) for source, target in edges}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("html") / "compiled"
    ort_aie_ep.compile(LLAMA, folder)
    return folder


# --- what is drawn ---


@pytest.mark.parametrize("model", ["llama", "phi", "gemma3", "dynamo"])
def test_the_page_tells_what_explain_tells(model: str) -> None:
    explanation = explain(DATA / model)
    graph = page_of(DATA / model).graph
    told = [
        (node["name"], graph["targets"][node["runs"]], node.get("becomes", ""), node.get("why", ""))
        for node in drawn_nodes(graph)
    ]
    assert told == [(n.node, n.runs, n.becomes, n.not_npu) for n in explanation.nodes]
    assert [(plan["name"], plan["steps"]) for plan in graph["plans"]] == [
        (plan.node, len(plan.steps)) for plan in explanation.plans
    ]
    *fewer, view = graph["views"]
    places = [place for group in view["groups"] for place in group["nodes"]]
    assert sorted(places) == list(range(len(graph["nodes"])))
    gone = {place for place, n in enumerate(explanation.nodes) if n.runs == "folded away"}
    assert len(fewer) == bool(gone)


def test_lines_lead_from_who_writes_a_value_to_who_reads_it() -> None:
    graph = page_of(LLAMA).graph
    drawn = edges_of(graph, graph["views"][-1])
    model = onnx.load(LLAMA / "model.onnx", load_external_data=False).graph
    writers = {value: node.name for node in model.node for value in node.output if value}
    writers |= {value.name: value.name for value in model.input}
    expected = {
        (writers[value], node.name)
        for node in model.node
        for value in node.input
        if value in writers
    }
    expected |= {(writers[value.name], value.name) for value in model.output}
    assert drawn == expected


def test_nodes_that_are_folded_away_are_left_out_first_and_lines_go_on_through_them() -> None:
    graph = page_of(LLAMA).graph
    first, whole = graph["views"]
    gone = {node["name"] for node in drawn_nodes(graph) if node["runs"] == 3}
    reshape, gather = "/model/embed_tokens/Reshape", "/model/embed_tokens/GatherBlockQuantized"
    assert reshape in gone
    assert (reshape, gather) in edges_of(graph, whole)
    shown = {graph["nodes"][n]["name"] for group in first["groups"] for n in group["nodes"]}
    assert shown == {node["name"] for node in graph["nodes"]} - gone
    assert edges_of(graph, first) == {
        edge for edge in edges_of(graph, whole) if not gone & set(edge)
    }


def test_a_line_goes_on_through_a_node_that_is_folded_away() -> None:
    def fate(name: str, runs: str) -> DrawnNode:
        return DrawnNode(name, "Relu", fate=NodeFate(name, "Relu", "", runs, ""))

    nodes = (
        DrawnNode("x", "input"), DrawnNode("unread", "input"), fate("a", HOST), fate("b", GONE),
        fate("c", GONE), fate("d", CPU_EP),
    )  # fmt: skip
    shown, lines = without_folded(DrawnGraph(nodes, ((0, 2), (2, 3), (3, 4), (4, 5))))
    assert (shown, lines) == ({0, 2, 5}, ((0, 2), (2, 5)))
    shown, lines = without_folded(DrawnGraph(nodes, ((0, 2), (1, 3), (2, 3), (3, 4), (4, 5))))
    assert (shown, lines) == ({0, 1, 2, 5}, ((0, 2), (1, 5), (2, 5)))


def test_shapes_behind_weights_of_four_bits_are_inferred(tmp_path: Path) -> None:
    model = projection_model(n=40, k=320)
    (projection,) = model.graph.node
    projection.output[0] = "h"
    model.graph.node.append(onnx.helper.make_node("Transpose", ["h"], ["y"], perm=[0, 2, 1]))
    model.graph.node.append(onnx.helper.make_node("Relu", ["y"], ["z"], name="/relu"))
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "model.onnx")
    graph = page_of(tmp_path / "model.onnx").graph
    types = dict(graph["tensors"])
    assert types["h"] == types["x"].replace("320", "40")
    assert re.fullmatch(r"float32 \[.*, 40, .*\]", types["y"])


def test_each_tensor_of_a_plans_steps_has_type_and_shape(compiled: Path) -> None:
    graph = page_of(compiled).graph
    assert all(re.fullmatch(r"\w+ \[.*\]", kind) for _, kind in graph["tensors"])
    steps = [node for node in drawn_nodes(graph) if node.get("plan")]
    (plan,) = graph["plans"]
    assert len(steps) == plan["steps"]
    (logits,) = [node for node in steps if node["name"] == "/lm_head/MatMul_Q4"]
    hidden, vocabulary = 192, 500
    assert graph["tensors"][logits["reads"][0]][1] == (
        f"float32 [batch_size, sequence_length, {hidden}]"
    )
    assert graph["tensors"][logits["writes"][0]] == [
        "logits",
        f"float32 [batch_size, sequence_length, {vocabulary}]",
    ]


def test_each_layer_of_many_is_a_piece_of_its_own(tmp_path: Path) -> None:
    synth("tiny-llama", tmp_path / "model", layers=36)
    groups = page_of(tmp_path / "model").graph["views"][-1]["groups"]
    titles = [group["title"] for group in groups]
    assert titles[:2] == ["before the layers", "layers.0"]
    assert titles[-1] == "after the layers"
    assert [title for title in titles if title.startswith("layers.")][:36] == [
        f"layers.{layer}" for layer in range(36)
    ]
    # Layers 1 to 35 differ only in their names, so they are drawn alike.
    drawings = {json.dumps([g["places"], g["size"]]) for g in groups[2:37]}
    assert len(drawings) == 1


def test_a_layer_of_many_nodes_is_several_pieces() -> None:
    """Each reads the node before it and a mask, so the edges alone pass a million rows by."""
    fate = NodeFate("", "Relu", "", CPU_EP, "", 0, 0)
    nodes = (
        DrawnNode("mask", "input"),
        *(DrawnNode(f"/layers.0/{n}", "Relu", fate=fate) for n in range(1500)),
    )
    edges = [(n, n + 1) for n in range(1, 1500)] + [(0, n) for n in range(1, 1501)]
    groups = groups_of(DrawnGraph(nodes, tuple(sorted(edges))))
    assert [n for group in groups for n in group.nodes] == list(range(1501))
    assert max(len(group.nodes) for group in groups) <= 240
    assert [group.title for group in groups[:2]] == [
        "layers.0, part 1 of 7",
        "layers.0, part 2 of 7",
    ]
    assert all(group.layer for group in groups)


def test_a_node_says_in_which_body_it_is(tmp_path: Path) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, 3]))
    which = ir.Value(name="which", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    bodies = []
    for op in ("Relu", "Neg"):
        inner = ir.node(op, [x], name=op)
        bodies.append(ir.Graph([], inner.outputs, nodes=[inner], name=op))
    choice = ir.node("If", [which], {"then_branch": bodies[0], "else_branch": bodies[1]}, name="if")
    choice.outputs[0].name = "y"
    choice.outputs[0].type = x.type
    graph = ir.Graph([x, which], choice.outputs, nodes=[choice], opset_imports={"": 21}, name="g")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx")
    drawn = page_of(tmp_path / "model.onnx").graph
    (bodied,) = [node for node in drawn["nodes"] if node["name"] == "Relu"]
    assert bodied["body"] == "then_branch of 'if'"
    assert drawn["tensors"][bodied["reads"][0]] == ["x", "float32 [?, 3]"]
    assert {("x", "Relu"), ("Relu", "if"), ("Neg", "if"), ("if", "y")} <= (
        edges_of(drawn, drawn["views"][-1])
    )


# --- the page ---


def test_the_page_fetches_nothing_and_a_name_in_the_model_stays_a_name(tmp_path: Path) -> None:
    model = ir.load(LLAMA / "model.onnx")
    name = "</script><script>alert(1)</script>@GRAPH@"
    next(iter(model.graph)).name = name
    (tmp_path / "<b>").mkdir()
    ir.save(model, tmp_path / "<b>" / "model.onnx", external_data="model.onnx.data")
    text = page(explain(tmp_path / "<b>" / "model.onnx"), [])
    found = Page(text)
    assert len(found.scripts) == 2
    assert name in [node["name"] for node in found.graph["nodes"]]
    assert found.links == ["data:,"]
    assert "default-src 'none'" in text
    assert "<b>" not in text
    # The namespace of SVG's elements is not fetched.
    assert set(re.findall(r"\w+://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", [b"@GRAPH@", b"@TITLE@", b"not UTF-8: \xff"])
def test_the_name_of_a_folder_stays_a_name(tmp_path: Path, name: bytes) -> None:
    folder = tmp_path / os.fsdecode(name)
    shutil.copytree(LLAMA, folder)
    write_page(explain(folder / "model.onnx"), ["@TITLE@"], tmp_path / "graph.html")
    text = (tmp_path / "graph.html").read_text()
    title = html.unescape(re.findall("<title>(.*)</title>", text)[0])
    assert title == f"{tmp_path}/{name.decode(errors='replace')}/model.onnx"
    assert Page(text).graph["model"] == f"{folder}/model.onnx"
    assert Page(text).graph["lines"] == ["@TITLE@"]


def test_the_command_writes_the_page_beside_its_table(compiled: Path, tmp_path: Path) -> None:
    html = tmp_path / "graph.html"
    result = ort_aie("explain", compiled, "--html", html)
    assert result.exit_code == 0, result.output
    assert "aie.FlowAttention" in result.stdout
    assert f"{html}" in result.stderr
    graph = Page(html.read_text()).graph
    assert all(line in result.stdout for line in graph["lines"])
    as_json = ort_aie("explain", compiled, "--html", html, "--json")
    assert len(json.loads(as_json.stdout)["nodes"]) == len(drawn_nodes(graph))


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    explanation = explain(LLAMA)
    with pytest.raises(AieError, match="nowhere"):
        write_page(explanation, [], tmp_path / "nowhere" / "graph.html")
    with pytest.raises(AieError, match=re.escape(str(tmp_path))):
        write_page(explanation, [], tmp_path)


@pytest.mark.skipif(ORT_VERSION < (1, 24), reason="the provider needs ONNX Runtime 1.24")
def test_the_page_tells_what_the_execution_provider_does() -> None:
    nodes = drawn_nodes(page_of(LLAMA, provider=True).graph)
    explanation = explain(LLAMA, provider=True)
    assert [node.get("provider", "") for node in nodes] == [n.provider for n in explanation.nodes]
    assert {"claims", "leaves"} <= {node.get("provider") for node in nodes}


# --- the layout ---


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int | None], list[tuple[int, int]], list[int]]:
    count = draw(st.integers(1, 24))
    blocks = draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=count, max_size=count))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(a, b) for a, b in draw(st.lists(pairs, max_size=40)) if a < b}
    small = draw(st.sets(st.integers(0, count - 1), max_size=4))
    return blocks, sorted(edges), sorted(small)


@settings(deadline=None, max_examples=150)
@given(graphs())
def test_nothing_overlaps_and_lines_lead_down(
    graph: tuple[list[int | None], list[tuple[int, int]], list[int]],
) -> None:
    blocks, edges, small = graph
    layout = lay_out(blocks, edges, small)
    boxes = [
        (x, y, x + (SMALL_WIDTH if node in small else WIDTH), y + HEIGHT)
        for node, (x, y) in enumerate(layout.places)
    ]
    for node, one in enumerate(boxes):
        assert min(one) >= 0
        assert one[2] <= layout.width
        assert one[3] <= layout.height
        assert not any(overlap(one, other) for other in boxes[:node])
    for (source, target), way in zip(edges, layout.ways, strict=True):
        ys = [boxes[source][3], *(y for _, y in way), boxes[target][1]]
        assert ys == sorted(ys)
    assert_blocks_hold_their_own(layout, blocks, boxes)


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether rectangles (left, top, right, bottom) overlap; a thousandth of a pixel is
    rounding."""
    return all(
        one[axis] < other[axis + 2] - 1e-3 and other[axis] < one[axis + 2] - 1e-3 for axis in (0, 1)
    )


def assert_blocks_hold_their_own(
    layout: Layout, blocks: list[int | None], boxes: list[tuple[float, float, float, float]]
) -> None:
    assert [block.block for block in layout.blocks] == sorted({b for b in blocks if b is not None})
    for block in layout.blocks:
        around = (block.left, block.top, block.left + block.width, block.top + block.height)
        for its, box in zip(blocks, boxes, strict=True):
            assert overlap(around, box) == (its == block.block)


def test_a_chain_is_a_straight_line_beside_inputs() -> None:
    # 0 → 1 → 2 → 3, and an input for 2 on either side of 1.
    layout = lay_out([0] * 6, [(0, 1), (1, 2), (2, 3), (4, 2), (5, 2)], [4, 5])
    assert max(x for x, _ in layout.places[:4]) - min(x for x, _ in layout.places[:4]) < WIDTH / 4
