"""Regions as aie.Plan: bit for bit the results of a node for each step, whatever surrounds them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights
from expanded import expanded
from model_folders import DATA, MODELS, few
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor, open_session
from text_host import Host

import ort_aie_ep
from ort_aie_ep.cli.tables import plans_line
from ort_aie_ep.explain import explain as explaining
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.explain.overlays import Overlays, packages
from ort_aie_ep.graph_passes import DOMAIN, FORMAT, Divider, PlanSteps, run_passes
from ort_aie_ep.graph_passes import plan as make_plans
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.graph_passes.plans import PLAN
from ort_aie_ep.machine import Finding
from ort_aie_ep.models.integrity import REPORT

Array = npt.NDArray[Any]
LENGTHS = (40, 1, 1, 9, 1)  # a prompt, tokens, a turn on a filled cache, a token
K = 96


def both_ways(source: Path, work: Path, **options: Any) -> tuple[Path, Path]:
    """The model compiled with plans, and with a node for each step."""
    for name, plan in (("plan", True), ("steps", False)):
        ort_aie_ep.compile(source, work / name, plan=plan, **options)
    return work / "plan", work / "steps"


def ours(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes() if node.domain == DOMAIN]


def conversation(folder: Path) -> list[Array]:
    """The logits of seeded tokens in pieces of LENGTHS, and the caches after them."""
    host, rng = Host(folder / "model.onnx", numerics="auto"), np.random.default_rng(7)
    logits = [host(rng.integers(3, 100, (1, length))) for length in LENGTHS]
    return [*logits, *host.past.values()]


def assert_same_bits(actual: list[Array], expected: list[Array]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module", params=few(MODELS))
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return both_ways(DATA / request.param, tmp_path_factory.mktemp(request.param))


def test_a_plan_has_the_bits_of_its_steps(folders: tuple[Path, Path]) -> None:
    plan, steps = folders
    expected = conversation(steps)
    assert_same_bits(conversation(plan), expected)
    # A part of the outputs alone.
    host = Host(plan / "model.onnx", numerics="auto")
    names = [output.name for output in host.session.get_outputs()]
    host.outputs = ["logits", names[-1]]
    prompt = np.random.default_rng(7).integers(3, 100, (1, LENGTHS[0]))
    np.testing.assert_array_equal(host(prompt), expected[0])


def test_a_plan_is_the_nodes_of_its_steps(folders: tuple[Path, Path]) -> None:
    def described(model: ir.Model) -> list[Any]:
        nodes = [node for node in model.graph if node.domain == DOMAIN]
        return sorted((n.name, n.op_type, len(n.inputs), len(n.outputs)) for n in nodes)

    plan, steps = folders
    assert set(ours(ir.load(plan / "model.onnx"))) == {PLAN}
    assert PLAN not in ours(ir.load(steps / "model.onnx"))
    assert described(expanded(plan)) == described(ir.load(steps / "model.onnx"))


@pytest.mark.parametrize("npu", [False, True])
def test_reports_and_explanations_have_the_same_rows(
    folders: tuple[Path, Path], npu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if npu:
        (tmp_path / explaining.XRT_TARGET).touch()
        monkeypatch.setattr(explaining, "library_path", lambda: str(tmp_path / "library.so"))
        monkeypatch.setattr(explaining, "find_npu", lambda: (Finding("NPU", "NPU2"),))
        monkeypatch.setattr(explaining, "npu_device", lambda: "npu2")
        found = Overlays(dict.fromkeys(packages(), tmp_path), (), ())
        monkeypatch.setattr(explaining, "find_overlays", lambda *_: found)
    plan, steps = folders
    reports = [json.loads((folder / REPORT).read_text()) for folder in folders]
    assert reports[0]["plans"]
    for report in reports:
        del report["files"]  # of the same names, with other nodes
    assert reports[0] | {"plans": [], "divided_by": []} == reports[1]
    assert rows_of(plan) == rows_of(steps)


def rows_of(folder: Path) -> list[str]:
    """The rows of `explain`, without the plans, which `--no-plan` does not make."""
    return sorted(str(replace(node, plan="")) for node in explain(folder).nodes)


@pytest.mark.parametrize("name", few(MODELS))
def test_source_report_and_compiled_model_tell_of_the_same_plans(name: str, tmp_path: Path) -> None:
    result = ort_aie_ep.compile(DATA / name, tmp_path / "compiled")
    before, after = explain(DATA / name), explain(tmp_path / "compiled")
    assert before.plans == after.plans == result.plans
    assert before.divided_by == after.divided_by == result.divided_by
    report = json.loads((tmp_path / "compiled" / REPORT).read_text())
    assert [tuple(plan["steps"]) for plan in report["plans"]] == [p.steps for p in result.plans]
    assert [node["node"] for node in report["divided_by"]] == [d.node for d in result.divided_by]
    # Each node that becomes an aie operator is in its step's plan, and no other node is in a plan.
    assert {node.becomes != "" for node in before.nodes if node.plan} == {True}
    assert all(node.plan for node in before.nodes if node.becomes)
    for plan in after.plans:
        names = {node.node for node in after.nodes if node.plan == plan.node}
        assert names == set(plan.steps)
        assert names <= {node.node for node in before.nodes if node.plan == plan.node}


def test_what_divides_phi_is_named() -> None:
    """A layer's MLP is parallel to its attention, and the norm after both is not part of a step."""
    phi = explain(DATA / "phi")
    assert [len(plan.steps) for plan in phi.plans] == [7, 7, 1]
    assert {d.op for d in phi.divided_by} == {"com.microsoft.SkipLayerNormalization"}
    assert {d.reason for d in phi.divided_by} == {"no aie operator"}
    assert plans_line(phi.plans, phi.divided_by) == (
        "3 plans of 7, 7 and 1 steps; divided by ONNX Runtime's nodes: "
        "2 SkipLayerNormalization (no aie operator)"
    )
    norms = [n.node for n in phi.nodes if n.op == "com.microsoft.SkipLayerNormalization"]
    assert [d.node for d in phi.divided_by] == norms


def test_many_plans_are_counted_and_not_listed() -> None:
    plans = [PlanSteps(f"aie.Plan.{i}", ("a", "b", "c")[: i % 3 + 1]) for i in range(9)]
    nodes = [Divider(f"{op}.{i}", op, "why") for op in "VWXYZ" for i in range("VWXYZ".find(op) + 1)]
    line = plans_line(plans, nodes)
    assert line == (
        "9 plans of 1 to 3 steps; divided by ONNX Runtime's nodes: 5 Z (why), 4 Y (why), "
        "3 X (why), 2 W (why) and 1 V (why)"
    )
    assert plans_line([PlanSteps("aie.Plan.0", ("a",))], []) == "1 plan of 1 step"


@pytest.mark.parametrize("options", [{"kv": "int8"}, {"kv": "f16"}, {"last_logits": True}])
def test_with_another_interface_too(options: dict[str, Any], tmp_path: Path) -> None:
    plan, steps = both_ways(DATA / "llama", tmp_path, **options)
    assert_same_bits(conversation(plan), conversation(steps))


# --- damaged recipes ---

SMALL = f"""recipe 1
inputs 3
step RMSNorm first
float epsilon 0x1p-10
int K 96
int format {FORMAT}
reads 0 1
writes 3
step Add second
int format {FORMAT}
reads 3 2
writes 4
outputs 4
"""


def small_model(recipe: str, outputs: int = 1) -> bytes:
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node("Plan", ["x", "g", "b"], names, domain=DOMAIN, name="it", recipe=recipe)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", K])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [onnx_tensor(name, np.ones(K, np.float32)) for name in "gb"],
    )
    serialised: bytes = model_of(graph).SerializeToString()
    return serialised


def test_a_small_recipe_runs() -> None:
    x = np.random.default_rng(0).standard_normal((2, K)).astype(np.float32)
    (y,) = open_session(small_model(SMALL)).run(None, {"x": x})
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 2.0**-10) + 1
    np.testing.assert_allclose(y, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "recipe 1",
            "recipe 4",
            "has format 4, but this library reads formats 1 to 3; make the model again",
        ),
        ("recipe 1", "", "begins with"),
        ("step RMSNorm first\n", "", "is not a line of a recipe|before a step"),
        (SMALL, "", "begins with"),
        (
            "outputs 4\n",
            "",
            "no line 'outputs', which should be its last line: the text is cut off",
        ),
        ("inputs 3\n", "", "no line 'inputs'"),
        ("writes 4\n", "", "writes no value at position 0"),
        ("RMSNorm", "Norm", "'Norm' is not an operator"),
        ("reads 3 2", "reads 4 2", "reads value 4"),
        ("reads 3 2", "reads 3 9", "no value 9"),
        ("reads 3 2", "reads -2 2", "reads value -2"),
        ("writes 4", "writes 2", "which exists already"),
        ("outputs 4", "outputs 5", "no value 5"),
        ("outputs 4", "outputs 1", "no step writes"),
        ("outputs 4", "outputs -1", "leaves out output 0"),
        ("outputs 4", "outputs 4 3", "2 outputs, but the node has 1"),
        ("inputs 3", "inputs 2147483647", "2147483647 inputs, expected at most"),
        ("inputs 3", "inputs 2147483647\nconstant 1 0 16 4", "2147483647 inputs, expected at most"),
        ("inputs 3", "inputs 99999999999", "is not a line of a recipe"),
        ("inputs 3", "inputs 3\ninputs 3", "is not a line of a recipe"),
        ("int K 96", "int K 96\nint K 96", "is not a line of a recipe"),
        ("int K 96", "int K 64", "64"),
        ("int K 96", "int Q 96", "no attribute Q"),
        ("second", "sec%2", "is not a line of a recipe"),
    ],
)
def test_a_damaged_recipe_is_one_error_when_the_session_is_made(
    old: str, new: str, says: str
) -> None:
    recipe = SMALL.replace(old, new)
    assert recipe != SMALL
    with pytest.raises(Exception, match=says) as caught:
        open_session(small_model(recipe))
    assert "terminate" not in str(caught.value)


def test_a_recipe_and_its_node_have_as_many_inputs_and_constants() -> None:
    # With one more input, values 3 and 4 of SMALL become 4 and 5.
    moved = re.sub(r"\b4$", "5", SMALL, flags=re.M).replace("writes 3", "writes 4")
    moved = moved.replace("reads 3 2", "reads 4 2")
    with pytest.raises(Exception, match="4 inputs, but the node has 3"):
        open_session(small_model(moved.replace("inputs 3", "inputs 4")))
    with pytest.raises(Exception, match="constants"):
        open_session(small_model(moved.replace("inputs 3\n", "inputs 3\nconstant 1 0 16 4\n")))


def test_sizes_that_do_not_fit_the_constants_are_refused(tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "compiled")
    path = tmp_path / "compiled" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    recipe = next(a for n in model.graph.node for a in n.attribute if a.name == "recipe")
    text = recipe.s.decode()
    for old, new in (("int K 192", "int K 512"), ("int N 192", "int N 320")):
        recipe.s = text.replace(old, new, 1).encode()
        assert recipe.s.decode() != text
        path.write_bytes(model.SerializeToString())
        with pytest.raises(Exception, match=r"aie.Plan node.*must be .*got"):
            open_session(str(path))


# Reads a recipe with as little memory and time as the largest real one leaves room for.
BOUNDED = """
import resource, sys
from ort_aie_ep import _native
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
try:
    given = [(1, [4, 4]), (7, ["n"])]
    print(len(_native.infer_recipe(sys.stdin.read(), given)))
except ValueError as error:
    print(error)
"""


def bounded(recipe: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED], input=recipe, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def gathers(count: int, read: Callable[[int], int], outputs: Iterable[int]) -> str:
    """The recipe of `count` steps, of which step i gathers by value read(i) and writes 2 + i."""
    steps = (
        f"step Gather g{i}\nint format {FORMAT}\nreads 0 {read(i)}\nwrites {2 + i}\n"
        for i in range(count)
    )
    return f"recipe 1\ninputs 2\n{''.join(steps)}outputs {' '.join(map(str, outputs))}\n"


def test_a_recipe_takes_as_much_time_and_memory_as_it_is_long() -> None:
    count = 100_000
    recipe = gathers(count, lambda i: 1, range(2, 2 + count))
    assert bounded(recipe) == str(2 + count)


def test_a_chain_that_adds_dimensions_without_end_is_refused() -> None:
    said = bounded(gathers(12_000, lambda i: 1 + i, [2]))
    assert said == (
        "recipe of a plan: Gather 'g63' writes a value with 65 dimensions, expected at most 64"
    )
    assert bounded(gathers(63, lambda i: 1 + i, [2])) == "65"


def test_a_damaged_recipe_is_named_when_nodes_are_looked_at(tmp_path: Path) -> None:
    for recipe, says in [
        (SMALL.replace("recipe 1", "recipe 7"), r"node 'it' \(aie.Plan\).*format 7"),
        (
            SMALL.replace("inputs 3", "inputs 4")
            .replace("writes 3", "writes 5")
            .replace("reads 3 2", "reads 5 2"),
            "3 inputs and 1 outputs, its recipe 4",
        ),
        (SMALL.replace("outputs 4", "outputs -1"), "it leaves out output 0"),
        (
            SMALL.replace("inputs 3", "inputs 2\nconstant 1 0 384 96"),
            "it has constants that are not inputs",
        ),
    ]:
        (tmp_path / "model.onnx").write_bytes(small_model(recipe))
        with pytest.raises(ort_aie_ep.AieError, match=says):
            expand_plans(ir.load(tmp_path / "model.onnx"))
        with pytest.raises(ort_aie_ep.AieError, match=says):
            explain(tmp_path / "model.onnx")


# --- what is around a region ---


def chain(*middle: str, name: str = "/{}") -> onnx.ModelProto:
    """Projections of x (batch, 96) with other nodes between them, and residuals around those."""
    nodes, constants = [], []
    at = "x"
    for i, op in enumerate([*middle, ""]):
        weights = projection_weights(K, K, prefix=f"w{i}", seed=i)
        weights[f"w{i}.scales"] *= np.float32(0.3)
        constants += [onnx_tensor(key, array) for key, array in weights.items()]
        nodes.append(matmul_nbits(at, f"p{i}", weights, K, K, name=name.format(f"p{i}")))
        if op:
            nodes.append(helper.make_node(op, [f"p{i}"], [f"m{i}"], name=name.format(f"m{i}")))
            inputs = [f"m{i}", f"p{i}"]
            nodes.append(helper.make_node("Add", inputs, [f"s{i}"], name=name.format(f"s{i}")))
            at = f"s{i}"
    rows = ["batch", K]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)
    y = helper.make_tensor_value_info(f"p{len(middle)}", TensorProto.FLOAT, rows)
    between = [output for node in nodes[:-1] for output in node.output]
    types = [helper.make_tensor_value_info(v, TensorProto.FLOAT, rows) for v in between]
    return model_of(helper.make_graph(nodes, "graph", [x], [y], constants, value_info=types))


def compiled_both_ways(model: onnx.ModelProto, work: Path) -> tuple[Path, Path]:
    onnx.save(model, work / "model.onnx")
    return both_ways(work / "model.onnx", work)


def assert_both_run_alike(folders: tuple[Path, Path], **feeds: Array) -> None:
    x = np.random.default_rng(3).standard_normal((3, K)).astype(np.float32)
    plan, steps = (
        open_session(str(folder / "model.onnx")).run(None, {"x": x, **feeds}) for folder in folders
    )
    assert_same_bits(plan, steps)


def test_a_model_that_says_no_shapes_has_the_regions_of_one_that_does(tmp_path: Path) -> None:
    model = chain("Sigmoid", "Sigmoid")
    found = []
    for name in ("with", "without"):
        work = tmp_path_of(tmp_path, name)
        found.append(compiled_both_ways(model, work))
        del model.graph.value_info[:]
    recipes = [
        [n.attributes["recipe"].as_string() for n in ir.load(f / "model.onnx").graph if n.domain]
        for f, _ in found
    ]
    assert recipes[0] == recipes[1]
    assert_both_run_alike(found[1])


@pytest.mark.parametrize(("gate", "up"), [(1, 1), (1, 0), (0, 1)])
def test_gate_and_up_of_a_files_blocks_are_symmetric_where_both_are(gate: int, up: int) -> None:
    blocks = onnx_tensor("W", np.zeros((2, 1, 5120), np.uint8))
    given = {"domain": DOMAIN, "K": K, "N": 64, "format": FORMAT}
    nodes = [
        *(helper.make_node("Q4NXMatMul", ["x", "W"], [y], f"/{y}", symmetric=symmetric, **given)
          for y, symmetric in (("gate", gate), ("up", up))),
        helper.make_node("QuickGelu", ["gate"], ["a"], "/a", domain="com.microsoft", alpha=1.0),
        helper.make_node("Mul", ["a", "up"], ["y"], "/y"),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, ["rows", K]) for v in "xy")
    model = ir.from_proto(model_of(helper.make_graph(nodes, "graph", [x], [y], [blocks])))
    make_plans(model, run_passes(model), whole=False)
    (node,) = model.graph
    assert (node.op_type, node.attributes["symmetric"].value) == ("Q4NXGatedMLP", gate and up)


def test_a_region_of_two_types_among_nodes_of_float16(tmp_path: Path) -> None:
    """The CPU EP computes Tanh in float, and ONNX Runtime would make the region float too: values
    that the region itself casts to float16 would then meet float."""
    nodes, constants = [helper.make_node("Tanh", ["x"], ["t"])], {"gain": np.ones(K, np.float32)}
    for i, (a, y) in enumerate((("t", "a"), ("sum", "b"))):
        weights = projection_weights(K, K, prefix=f"w{i}", seed=i, dtype=np.dtype(np.float16))
        constants |= weights
        nodes.append(matmul_nbits(a, y, weights, K, K, name=f"/{y}"))
    nodes[2:2] = [
        helper.make_node("Cast", ["a"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("SimplifiedLayerNormalization", ["wide", "gain"], ["normed"], axis=-1),
        helper.make_node("Cast", ["normed"], ["narrow"], to=TensorProto.FLOAT16),
        helper.make_node("Add", ["narrow", "a"], ["sum"]),
    ]
    nodes.append(helper.make_node("Tanh", ["b"], ["y"]))
    x, y, t = (helper.make_tensor_value_info(v, TensorProto.FLOAT16, ["rows", K]) for v in "xyt")
    initializers = [onnx_tensor(name, array) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", [x], [y], initializers, value_info=[t])
    folders = compiled_both_ways(model_of(graph), tmp_path)
    assert ours(ir.load(folders[0] / "model.onnx")) == [PLAN]
    feeds = {"x": np.random.default_rng(5).standard_normal((3, K)).astype(np.float16)}
    plan, steps = (open_session(str(f / "model.onnx")).run(None, feeds) for f in folders)
    assert_same_bits(plan, steps)


def tmp_path_of(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


STRANGE = (
    " {} ",
    "{} %41\t",
    "zwei\nZeilen {}\r",
    "ümläut 注意 {} 🙂",
    "'{}\"\\",
    "%{}%",
    "{}\x7f",
)


@pytest.mark.parametrize("name", STRANGE)
def test_strange_names_of_nodes_come_back(name: str, tmp_path: Path) -> None:
    folders = compiled_both_ways(chain("Sigmoid", name=name), tmp_path)
    assert ours(ir.load(folders[0] / "model.onnx")) == [PLAN]
    names = [
        sorted(n.name or "" for n in model.graph if n.domain == DOMAIN)
        for model in (expanded(folders[0]), ir.load(folders[1] / "model.onnx"))
    ]
    assert names[0] == names[1]
    assert {name.format("p0"), name.format("p1")} <= set(names[0])
    assert_both_run_alike(folders)
    assert rows_of(folders[0]) == rows_of(folders[1])
