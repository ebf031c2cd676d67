"""Writing EPContext models: several sessions at once, models that ONNX Runtime cannot write, and
nodes of several files."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from op_models import FLOAT32, ORT_VERSION, model_of, one_op_model, run, session_options
from projection_calls import activations, make_weights
from provider_calls import devices, needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

Array = npt.NDArray[Any]
pytestmark = [needs_provider, pytest.mark.usefixtures("provider")]

N, K = 96, 512


def options() -> onnxruntime.SessionOptions:
    """Of a compiler."""
    given = session_options(threads=1)
    given.log_severity_level = 4
    given.add_provider_for_devices(devices()[:1], {})
    return given


def projection(seed: int = 0) -> bytes:
    w = make_weights(N, K, seed=seed)
    inputs = {"A": np.zeros((1, K), FLOAT32), "B": w.b, "scales": w.scales}
    given = {"K": K, "N": N, "bits": 4, "block_size": 32}
    return one_op_model("MatMulNBits", inputs, {"Y": FLOAT32}, given, domain="com.microsoft",
                        constants=("B", "scales"))  # fmt: skip


def compile_to(model: bytes, context: Path, flags: int = 0) -> None:
    """Writes a context model by ONNX Runtime's compile API, which opens no session that could
    run."""
    onnxruntime.ModelCompiler(options(), model, flags=flags).compile_to_file(str(context))


def write(model: bytes, context: Path, compiler: bool = False) -> str:
    """Writes a context model; returns an empty string, or why it was not written."""
    try:
        compile_to(model, context) if compiler else provider_session(model, context=context)
    except Exception as error:
        return str(error)
    return ""


def product(model: Path | bytes | onnxruntime.InferenceSession) -> Array:
    opened = model if isinstance(model, onnxruntime.InferenceSession) else provider_session(model)
    return run(opened, {"A": activations(3, K)})["Y"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


CONFLICT = ("is being written by another session", "exists already")


def check_written(model: bytes, context: Path, said: list[str]) -> None:
    """Checks that some session wrote a model that runs, and that the others report that they did
    not."""
    assert "" in said
    for error in said:
        assert not error or any(reason in error for reason in CONFLICT), error
    assert {path.name for path in context.parent.iterdir()} == {"ctx.onnx", "ctx.onnx.aie"}
    np.testing.assert_array_equal(product(context), product(model))


@pytest.mark.parametrize("compiler", [False, True])
def test_threads_that_write_one_context_leave_one_that_runs(compiler: bool, tmp_path: Path) -> None:
    model = projection()
    with ThreadPoolExecutor(4) as threads:
        for attempt in range(3):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            said = threads.map(lambda f: write(model, f, compiler), [folder / "ctx.onnx"] * 4)
            check_written(model, folder / "ctx.onnx", list(said))


WRITE = f"""
import sys, onnxruntime
library, model, compiler, *contexts = sys.argv[1:]
onnxruntime.register_execution_provider_library("{NAME}", library)
for context in contexts:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "{NAME}"]
    options.add_provider_for_devices(devices[:1], {{}})
    try:
        if compiler == "True":
            onnxruntime.ModelCompiler(options, model).compile_to_file(context)
        else:
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", context)
            onnxruntime.InferenceSession(model, options)
        print()
    except Exception as error:
        print(str(error).replace(chr(10), " "))
"""


@pytest.mark.parametrize("compiler", [False, True])
def test_processes_that_write_one_context_leave_one_that_runs(
    compiler: bool, tmp_path: Path
) -> None:
    model = projection()
    (tmp_path / "model.onnx").write_bytes(model)
    contexts = [tmp_path / str(attempt) / "ctx.onnx" for attempt in range(4)]
    for context in contexts:
        context.parent.mkdir()
    arguments = [ort_aie_ep.library_path(), tmp_path / "model.onnx", compiler, *contexts]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE, *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=300)[0].splitlines() for process in started]
    for context, errors in zip(contexts, zip(*said, strict=True), strict=True):
        check_written(model, context, list(errors))


def test_weights_of_a_removed_model_are_replaced(tmp_path: Path) -> None:
    context = tmp_path / "ctx.onnx"
    kept = provider_session(projection(1), context=context)  # its weights stay mapped
    context.unlink()
    check_written(projection(2), context, [write(projection(2), context)])
    del kept


def test_each_node_reads_the_file_that_it_names(tmp_path: Path) -> None:
    models = [projection(seed) for seed in (1, 2)]
    nodes, a = [], activations(3, K)
    for i, model in enumerate(models):
        provider_session(model, context=tmp_path / f"ctx{i}.onnx")
        (node,) = onnx.load(tmp_path / f"ctx{i}.onnx", load_external_data=False).graph.node
        node.output[0], node.name = f"Y{i}", f"node{i}"
        nodes.append(node)
    graph = helper.make_graph(
        nodes,
        "both",
        [helper.make_tensor_value_info("A", TensorProto.FLOAT, [None, K])],
        [helper.make_tensor_value_info(f"Y{i}", TensorProto.FLOAT, None) for i in range(2)],
    )
    onnx.save(model_of(graph), tmp_path / "both.onnx")
    outputs = run(provider_session(tmp_path / "both.onnx"), {"A": a})
    for i, model in enumerate(models):
        expected = run(provider_session(model), {"A": a})["Y"]
        np.testing.assert_array_equal(outputs[f"Y{i}"], expected)


def test_compiling_again_replaces_a_model_that_others_have_open(tmp_path: Path) -> None:
    """As ONNX Runtime replaces it, unless its flag says otherwise."""
    context, first, second = tmp_path / "ctx.onnx", projection(1), projection(2)
    for path in (context, tmp_path / "ctx.onnx.aie"):
        path.write_bytes(b"x")  # neither is ours
    compile_to(first, context)
    assert sorted(contents(tmp_path)) == ["ctx.onnx", "ctx.onnx.aie"]
    opened = provider_session(context)
    compile_to(second, context)
    assert sorted(contents(tmp_path)) == ["ctx.onnx", "ctx.onnx.aie"]
    np.testing.assert_array_equal(product(opened), product(first))
    np.testing.assert_array_equal(product(context), product(second))
    before = contents(tmp_path)
    with pytest.raises(Exception, match="ctx"):
        compile_to(first, context, onnxruntime.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS)
    assert contents(tmp_path) == before


def test_what_cannot_be_replaced_by_the_weights_is_named(tmp_path: Path) -> None:
    place = tmp_path / "ctx.onnx.aie"
    place.mkdir()
    with pytest.raises(Exception, match=r"ctx\.onnx\.aie is not a regular file"):
        compile_to(projection(), tmp_path / "ctx.onnx")
    place.rmdir()
    place.symlink_to(tmp_path / "nothing")
    with pytest.raises(Exception, match=r"ctx\.onnx\.aie .* link"):
        compile_to(projection(), tmp_path / "ctx.onnx")
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("there", [False, True])
def test_a_compilation_that_fails_leaves_what_was_there(there: bool, tmp_path: Path) -> None:
    """Here ONNX Runtime fails after the provider has compiled its nodes."""
    context = tmp_path / "ctx.onnx"
    if there:
        compile_to(projection(1), context)
    before = contents(tmp_path)
    model = onnx.load_from_string(projection(2))  # and a node that ONNX Runtime keeps
    model.graph.node.append(helper.make_node("Max", ["Y", "least"], ["Z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, N), FLOAT32), "least"))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    compiler = onnxruntime.ModelCompiler(
        options(),
        model.SerializeToString(),
        external_initializers_file_path="nowhere/data",
        external_initializers_size_threshold=0,
    )
    with pytest.raises(Exception, match="nowhere/data"):
        compiler.compile_to_file(str(context))
    assert contents(tmp_path) == before
    if there:
        np.testing.assert_array_equal(product(context), product(projection(1)))


@pytest.mark.skipif(ORT_VERSION < (1, 27), reason="the provider is not told that it only compiles")
def test_a_model_in_memory_needs_a_path_for_its_weights(tmp_path: Path) -> None:
    source, context = tmp_path / "model.onnx", tmp_path / "ctx.onnx"
    source.write_bytes(projection())
    compiler = onnxruntime.ModelCompiler(options(), str(source))
    for compile_ in ("compile_to_bytes", "compile_to_stream"):
        arguments = [[].append] if compile_ == "compile_to_stream" else []
        with pytest.raises(Exception, match=r"ep\.context_file_path"):
            getattr(compiler, compile_)(*arguments)
        assert list(tmp_path.iterdir()) == [source]
    given = options()
    given.add_session_config_entry("ep.context_file_path", str(context))
    context.write_bytes(onnxruntime.ModelCompiler(given, str(source)).compile_to_bytes())
    np.testing.assert_array_equal(product(context), product(projection()))


def rotation_by_length(rows: int, initializers: bool) -> bytes:
    """Attention whose rotary embedding tables come out of an If, as in Phi-3."""
    dim, heads = 32, 2

    def branch(name: str) -> onnx.GraphProto:
        tables = [
            numpy_helper.from_array(np.ones((rows, dim // 2), FLOAT32), f"{name}_{table}")
            for table in ("cos", "sin")
        ]
        if initializers:
            nodes = [helper.make_node("Identity", [t.name], [f"{t.name}_out"]) for t in tables]
        else:
            nodes = [helper.make_node("Constant", [], [f"{t.name}_out"], value=t) for t in tables]
        outputs = [
            helper.make_tensor_value_info(f"{t.name}_out", TensorProto.FLOAT, [rows, dim // 2])
            for t in tables
        ]
        return helper.make_graph(nodes, name, [], outputs, tables if initializers else [])

    given = {"num_heads": heads, "kv_num_heads": heads, "do_rotary": 1}
    inputs = ["query", "", "", "past_key", "past_value", "seqlens_k", "total", "cos", "sin"]
    outputs = ["Y", "present_key", "present_value"]
    nodes = [
        helper.make_node("Greater", ["total", "limit"], ["is_long"]),
        helper.make_node("If", ["is_long"], ["cos", "sin"], name="rotation",
                         then_branch=branch("long"), else_branch=branch("short")),
        helper.make_node("GroupQueryAttention", inputs, outputs, domain="com.microsoft", **given),
    ]  # fmt: skip
    past = ["batch", heads, "past", dim]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("query", TensorProto.FLOAT, ["b", "s", 3 * heads * dim]),
            helper.make_tensor_value_info("past_key", TensorProto.FLOAT, past),
            helper.make_tensor_value_info("past_value", TensorProto.FLOAT, past),
            helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["b"]),
            helper.make_tensor_value_info("total", TensorProto.INT32, [1]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.array([16], np.int32), "limit")],
    )
    serialised: bytes = model_of(graph).SerializeToString()
    return serialised


@pytest.mark.parametrize("initializers", [False, True])
def test_tensors_in_branches_are_a_reason_and_leave_nothing(
    initializers: bool, tmp_path: Path
) -> None:
    model = rotation_by_length(64, initializers)
    provider_session(model)
    said = write(model, tmp_path / "ctx.onnx")
    assert "'rotation' holds a tensor of 4096 bytes" in said
    unnamed = onnx.load_from_string(model)
    unnamed.graph.node[1].name = ""
    said = write(unnamed.SerializeToString(), tmp_path / "ctx.onnx")
    assert "'If -> cos' holds a tensor of 4096 bytes" in said
    assert not list(tmp_path.iterdir())


def test_what_is_written_of_a_model_with_small_constants_in_branches_opens(tmp_path: Path) -> None:
    """ONNX Runtime before 1.31 writes them twice, and cannot open such a model."""
    said = write(rotation_by_length(1, False), tmp_path / "ctx.onnx")
    assert ("holds a tensor of 64 bytes, and ONNX Runtime 1." in said) == (ORT_VERSION < (1, 31))
    if said:
        assert not list(tmp_path.iterdir())
    else:
        provider_session(tmp_path / "ctx.onnx")


def test_a_model_that_onnxruntime_then_cannot_write_leaves_nothing(tmp_path: Path) -> None:
    """When it copies the graph, it refuses initializers of branches, even small ones."""
    context = tmp_path / "ctx.onnx"
    if not write(rotation_by_length(1, True), context):
        pytest.skip("this ONNX Runtime writes it")
    assert not list(tmp_path.iterdir())


def test_nodes_of_a_branch_and_of_the_graph_are_not_mixed(tmp_path: Path) -> None:
    """ONNX Runtime compiles them separately, for one context model."""
    w = make_weights(N, K)
    given = {"K": K, "N": N, "bits": 4, "block_size": 32, "domain": "com.microsoft"}

    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("MatMulNBits", ["A", "B", "scales"], [f"Y_{name}"], name, **given)
        output = helper.make_tensor_value_info(f"Y_{name}", TensorProto.FLOAT, [None, N])
        return helper.make_graph([node], name, [], [output])

    nodes = [
        helper.make_node("MatMulNBits", ["A", "B", "scales"], ["Y"], **given),
        helper.make_node("If", ["first"], ["Z"],
                         then_branch=branch("yes"), else_branch=branch("no")),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("A", TensorProto.FLOAT, [None, K]),
            helper.make_tensor_value_info("first", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "YZ"],
        [numpy_helper.from_array(w.b, "B"), numpy_helper.from_array(w.scales, "scales")],
    )
    model = model_of(graph).SerializeToString()
    provider_session(model)
    said = write(model, tmp_path / "ctx.onnx")
    assert "nodes of a branch or body" in said
    assert not list(tmp_path.iterdir())


def product_then_branch(reads_itself: bool) -> bytes:
    """x -> MatMulNBits -> If, of whose branches one adds an initializer of the graph around it; the
    graph may read it too."""
    w = make_weights(N, K)
    product = helper.make_node("MatMulNBits", ["A", "B", "scales"], ["P"], K=K, N=N, bits=4,
                               block_size=32, domain="com.microsoft")  # fmt: skip
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, inputs, [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, N])],
        )
        for name, op, inputs in (("then", "Add", ["P", "added"]), ("else", "Relu", ["P"]))
    }
    nodes = [product, helper.make_node("If", ["first"], ["Y"], name="choice", **branches)]
    if reads_itself:
        nodes.append(helper.make_node("Sub", ["P", "added"], ["Z"]))
    constants = {"B": w.b, "scales": w.scales, "added": np.ones(N, np.float32)}
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("A", TensorProto.FLOAT, [None, K]),
            helper.make_tensor_value_info("first", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [None, N])
            for node in nodes[1:]
        ],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
        value_info=[helper.make_tensor_value_info("P", TensorProto.FLOAT, [None, N])],
    )
    serialised: bytes = model_of(graph).SerializeToString()
    return serialised


@pytest.mark.parametrize("compiler", [False, True])
def test_an_initializer_that_a_branch_alone_reads_is_a_reason(
    compiler: bool, tmp_path: Path
) -> None:
    """ONNX Runtime leaves it out of its own model, and then calls that model unsorted."""
    model, context = product_then_branch(reads_itself=False), tmp_path / "ctx.onnx"
    provider_session(model)
    said = write(model, context)
    if compiler:
        with pytest.raises(Exception, match="'added'") as raised:
            onnxruntime.ModelCompiler(options(), model).compile_to_file(str(context))
        said = str(raised.value)
    assert "'choice' reads the initializer 'added'" in said
    assert not list(tmp_path.iterdir())


def test_an_initializer_that_the_graph_reads_too_is_written(tmp_path: Path) -> None:
    model = product_then_branch(reads_itself=True)
    assert write(model, tmp_path / "ctx.onnx") == ""
    if ORT_VERSION < (1, 31):
        return  # it writes no types of what a branch reads, and cannot open the result
    feeds = {"A": activations(3, K), "first": np.array(True)}
    expected = provider_session(model).run(["Y"], feeds)[0]
    np.testing.assert_array_equal(
        provider_session(tmp_path / "ctx.onnx").run(["Y"], feeds)[0], expected
    )
