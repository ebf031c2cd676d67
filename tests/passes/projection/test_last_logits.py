"""`compile --last-logits`, and models that the builder pruned to their last position."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from builder_nodes import matmul_nbits, projection_model, projection_weights, save
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor
from optimum_models import write_export
from provider_calls import devices
from text_host import Host

import ort_aie_ep
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.graph_passes.projection.last_logits import keep_last_logits
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session

Array = npt.NDArray[Any]

DATA = Path(__file__).parents[2] / "data"
SHOWN_RIGHT = [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]]
SHOWN_LEFT = [row[::-1] for row in SHOWN_RIGHT]
LAST_RIGHT, LAST_LEFT = [5, 1, 3], [5, 5, 5]
# One row and six rows add float32 in different orders, so a rounding to int8 or bfloat16 may differ
# in one element out of hundreds.
TOLERANCE = 1e-4


def batch(rows: int, columns: int, vocab: int = 350, seed: int = 0) -> Array:
    return np.random.default_rng([seed, rows]).integers(3, vocab, (rows, columns))


def rows_of(logits: Array, last: Sequence[int]) -> Array:
    return logits[np.arange(len(last)), last][:, None]


def edited(source: Path, folder: Path, edit: Callable[[ir.Model], object]) -> Path:
    shutil.copytree(source, folder)
    model = ir.load(folder / "model.onnx")
    edit(model)
    ir.save(model, folder / "model.onnx")
    return folder


# phi's lm_head has a bias, llama's is tied to the embedding.
@pytest.mark.parametrize("name", ["llama", "phi", "llama_asym"])
def test_each_rows_last_token_of_a_batch_padded_on_the_right(name: str, tmp_path: Path) -> None:
    """On ONNX Runtime's CPU EP alone, before and after the pass: only the row differs."""
    folder = edited(DATA / name, tmp_path / "last", keep_last_logits)
    whole, last = (Host(f / "model.onnx", library=False) for f in (DATA / name, folder))
    tokens, mask = batch(3, 6), np.array(SHOWN_RIGHT)
    actual = last(tokens, mask)
    assert actual.shape[:2] == (3, 1)
    expected = rows_of(whole(tokens, mask), LAST_RIGHT)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE)
    # The next token of each row, beyond its padding.
    tokens, mask = batch(3, 1, seed=1), np.hstack([mask, np.ones((3, 1), np.int64)])
    np.testing.assert_allclose(last(tokens, mask), whole(tokens, mask), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("shown", "last"), [(SHOWN_RIGHT, LAST_RIGHT), (SHOWN_LEFT, LAST_LEFT)], ids=["right", "left"]
)
def test_each_rows_last_token_of_an_exported_model(
    shown: list[list[int]], last: list[int], tmp_path: Path
) -> None:
    """A token's place is its index in the mask, also in later turns."""
    source = write_export("llama", tmp_path / "source")
    pruned = Host(edited(source, tmp_path / "p", keep_last_logits) / "model.onnx", library=False)
    whole = Host(source / "model.onnx", library=False)
    mask = np.zeros((3, 0), np.int64)
    for turn in range(2):
        tokens, mask = batch(3, 6, vocab=250, seed=turn), np.hstack([mask, shown])
        expected = rows_of(whole(tokens, mask), last)
        np.testing.assert_allclose(pruned(tokens, mask), expected, atol=TOLERANCE)


def test_a_compiled_model_gives_each_rows_last_token(tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "all")
    ort_aie_ep.compile(DATA / "llama", tmp_path / "last", last_logits=True)
    whole, last = (Host(tmp_path / n / "model.onnx") for n in ("all", "last"))
    tokens, mask = batch(3, 6), np.array(SHOWN_RIGHT)
    expected = rows_of(whole(tokens, mask), LAST_RIGHT)
    np.testing.assert_allclose(last(tokens, mask), expected, atol=TOLERANCE)


# phi's lm_head has a bias, gemma3's logits are capped, lfm2 has states, qwen3_5 is several plans.
@pytest.mark.parametrize("door", ["compiled", "steps", "provider"])
@pytest.mark.parametrize("name", ["llama", "phi", "gemma3", "lfm2", "qwen3_5"])
def test_a_caller_says_how_many_last_tokens_have_logits(
    name: str, door: str, provider: None, tmp_path: Path
) -> None:
    source = find_model(DATA / name)
    if door == "provider":
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(devices()[:1], {})
        session = onnxruntime.InferenceSession(source.model, options)
    else:
        ort_aie_ep.compile(DATA / name, tmp_path / "compiled", plan=door == "compiled")
        session = open_session(find_model(tmp_path / "compiled").model, Options())
    tokens = np.random.default_rng(0).integers(3, 300, 100)
    # Of 100 tokens the last layer leaves rows out; 60 rows are computed by the kernels of 100.
    for count, wanted in ((17, 1), (17, 3), (17, 99), (100, 60)):
        every, last = (
            Decoder(session, source, 100).forward(tokens[:count], rows) for rows in (0, wanted)
        )
        assert (len(every), len(last)) == (count, min(count, wanted))
        np.testing.assert_allclose(last, every[-len(last) :], atol=TOLERANCE)


FORWARD = """
import sys
from pathlib import Path
import numpy as np
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
folder = find_model(Path(sys.argv[1]))
Decoder(open_session(folder.model, Options()), folder, 100).forward(np.arange(3, 103), 1)
"""


@pytest.mark.parametrize("last_logits", [False, True])
def test_the_last_layer_computes_few_rows_that_nobody_reads(
    last_logits: bool, tmp_path: Path
) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "compiled", last_logits=last_logits)
    timeline = tmp_path / "timeline.json"
    told = {"ORT_AIE_LOG": "trace", "ORT_AIE_TRACE": str(timeline)}
    command = [sys.executable, "-c", FORWARD, str(tmp_path / "compiled")]
    subprocess.run(command, env={**os.environ, **told}, check=True)
    steps = [e["args"] for e in json.loads(timeline.read_text())["traceEvents"]]
    rows = {step["node"]: step["rows"] for step in steps if "rows" in step}
    first, last = (rows[f"/model/layers.{i}/mlp/down_proj/MatMul_Q4"] for i in (0, 1))
    assert (first, rows["/lm_head/MatMul_Q4"]) == (100, 1)
    assert last < 70


def test_of_several_sequences_all_tokens_have_logits(tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "compiled")
    host = Host(tmp_path / "compiled" / "model.onnx")
    with ort_aie_ep.logits_of_last(1):
        assert host(batch(2, 6), np.ones((2, 6), np.int64)).shape[:2] == (2, 6)
    for kept, rows in ((2, 2), (0, 6)):
        with ort_aie_ep.logits_of_last(kept):
            with ort_aie_ep.logits_of_last(1):
                pass  # what is said inside ends there
            host = Host(tmp_path / "compiled" / "model.onnx")
            assert host(batch(1, 6), np.ones((1, 6), np.int64)).shape[:2] == (1, rows)


def test_a_mask_longer_than_the_tokens_so_far_means_no_padding(tmp_path: Path) -> None:
    """Hosts with static shapes give such a mask, and GroupQueryAttention counts lengths from its
    ones."""
    ort_aie_ep.compile(DATA / "llama", tmp_path / "all")
    ort_aie_ep.compile(DATA / "llama", tmp_path / "last", last_logits=True)
    mask = np.array([[1, 1, 1, 1, 1, 0, 0]])
    hosts = [Host(tmp_path / n / "model.onnx") for n in ("all", "last")]
    logits = [host(batch(1, 5), mask) for host in hosts]
    np.testing.assert_allclose(logits[1], logits[0][:, -1:], atol=TOLERANCE)


def test_a_row_without_any_token_gets_the_last_position(tmp_path: Path) -> None:
    source = head_model(tmp_path / "source")
    ort_aie_ep.compile(source, tmp_path / "last", last_logits=True)
    tokens = batch(2, 4, vocab=60)
    whole = Host(source / "model.onnx", library=False)(tokens, np.array([[0] * 4, [1] * 4]))
    last = Host(tmp_path / "last" / "model.onnx")(tokens, np.array([[0] * 4, [1] * 4]))
    assert_close(last, whole[:, -1:])


def assert_close(actual: Array, expected: Array) -> None:
    """For head_model: its 4-bit projection is computed in bfloat16, 2^-8 of a term."""
    assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()


# Each node from the lm_head's output h to the logits; c is 30 and v a vector.
BEHIND: dict[str, list[tuple[str, list[str], dict[str, int]]]] = {
    "nothing": [],
    "Gemma 2's soft cap": [("Div", ["h", "c"], {}), ("Tanh", ["0"], {}), ("Mul", ["1", "c"], {})],
    "Granite's scaling": [("Mul", ["h", "c"], {})],
    "a bias, a mask of the vocabulary, a cast": [
        ("Add", ["v", "h"], {}), ("Where", ["some", "c", "0"], {}), ("Cast", ["1"], {"to": 1}),
    ],
}  # fmt: skip


def head_model(
    folder: Path, *, block_size: int = 32, behind: str = "nothing", masked: bool = True
) -> Path:
    """input_ids -> Gather -> MatMulNBits -> lm_head in blocks of `block_size` -> elementwise ->
    logits, saved as an .onnx file's folder."""
    width, vocab = 64, 96
    proj = projection_weights(width, width, prefix="proj")
    head = projection_weights(vocab, width, block_size=block_size, prefix="lm_head", seed=1)
    rng = np.random.default_rng(3)
    constants = {
        "table": rng.normal(size=(64, width)).astype(np.float32),
        "c": np.array(30, np.float32),
        "v": rng.normal(size=vocab).astype(np.float32),
        "some": np.arange(vocab) % 5 == 0,
    }
    chain = BEHIND[behind]
    names = ["h", *(str(i) for i in range(len(chain)))]
    names[-1] = "logits"
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="/embed"),
        matmul_nbits("x", "y", proj, width, width),
        matmul_nbits(
            "y", names[0], head, vocab, width, block_size=block_size, name="/lm_head/MatMul"
        ),
        *(
            helper.make_node(
                op,
                [names[int(i) + 1] if i.isdigit() else names[0] if i == "h" else i for i in inputs],
                [name],
                name=f"/lm_head/{op}",
                **attributes,
            )
            for (op, inputs, attributes), name in zip(chain, names[1:], strict=True)
        ),
    ]
    ids, shown = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
        for name, length in (("input_ids", "sequence"), ("attention_mask", "total"))
    )
    graph = helper.make_graph(
        nodes, "main_graph", [ids, shown] if masked else [ids],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", vocab])],
        [onnx_tensor(key, array) for key, array in (constants | proj | head).items()],
    )  # fmt: skip
    save(model_of(graph), folder)
    return folder


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("block_size", [32, 16])  # 16: stays MatMulNBits, on the CPU EP
def test_the_row_is_chosen_before_the_projection(
    behind: str, block_size: int, tmp_path: Path
) -> None:
    source = head_model(tmp_path / "source", block_size=block_size, behind=behind)
    ort_aie_ep.compile(source, tmp_path / "last", last_logits=True)
    model = ir.load(tmp_path / "last" / "model.onnx")
    expand_plans(model)
    graph = model.graph
    head = next(n for n in graph if n.name == "/lm_head/MatMul")
    chosen = head.inputs[0].producer()
    assert chosen.op_type == ("SelectRows" if block_size == 32 else "GatherND")
    assert head.op_type == ("Q4NXMatMul" if block_size == 32 else "MatMulNBits")
    assert [str(d) for d in graph.outputs[0].shape] == ["batch", "1", "96"]
    tokens, mask = batch(3, 6, vocab=60), np.array(SHOWN_RIGHT)
    whole = Host(source / "model.onnx", library=False)(tokens, mask)
    last = Host(tmp_path / "last" / "model.onnx")(tokens, mask)
    assert_close(last, rows_of(whole, LAST_RIGHT))


def test_a_float_lm_head_keeps_the_last_row_too(tmp_path: Path) -> None:
    """In optimum's exports its matrix is a Transpose of the embedding, or a constant."""
    source = write_export("llama", tmp_path / "source")
    ort_aie_ep.compile(source, tmp_path / "last", last_logits=True)
    graph = ir.load(tmp_path / "last" / "model.onnx").graph
    assert graph.outputs[0].producer().inputs[0].producer().op_type == "GatherND"


def prepend(model: ir.Model, nodes: Sequence[ir.Node], constants: dict[str, Array]) -> None:
    """Puts `nodes` between head_model's lm_head and its input."""
    head = next(node for node in model.graph if node.name == "/lm_head/MatMul")
    values = {}
    for name, array in constants.items():
        values[name] = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        model.graph.register_initializer(values[name])
    source = head.inputs[0]
    for node in nodes:
        node.replace_input_with(0, source)
        for i, value in enumerate(node.inputs[1:], 1):
            node.replace_input_with(i, values[value.name])
        source = node.outputs[0]
    model.graph.insert_before(head, list(nodes))
    head.replace_input_with(0, source)
    logits = model.graph.outputs[0]
    logits.shape = ir.Shape([logits.shape[0], 1, logits.shape[2]])


def node(op: str, *constants: str, **attributes: int) -> ir.Node:
    names = ("first", *constants)
    return ir.node(op, [ir.Value(name=n) for n in names], attributes, name=f"/prune/{op}")


INT = np.int64
PRUNED: dict[str, Callable[[ir.Model], None]] = {
    "as the builder does": lambda model: prepend(
        model,
        [node("Gather", "end", axis=1), node("Unsqueeze", "axis")],
        {"end": np.array(-1, INT), "axis": np.array([1], INT)},
    ),
    "by Gather": lambda model: prepend(
        model, [node("Gather", "end", axis=1)], {"end": np.array([-1], INT)}
    ),
    "by Slice": lambda model: prepend(
        model,
        [node("Slice", "start", "end", "axis")],
        {"start": np.array([-1], INT), "end": np.array([2**63 - 1], INT), "axis": np.array([1])},
    ),
}


@pytest.mark.parametrize("way", PRUNED)
@pytest.mark.parametrize("asked", [False, True])
def test_a_pruned_model_gives_each_rows_last_token(way: str, asked: bool, tmp_path: Path) -> None:
    source = head_model(tmp_path / "source")
    pruned = edited(source, tmp_path / "pruned", PRUNED[way])
    result = ort_aie_ep.compile(pruned, tmp_path / "compiled", last_logits=asked)
    notes = json.loads((tmp_path / "compiled" / "ort_aie_report.json").read_text())["notes"]
    if not asked:
        assert "prune_lm_head" in notes[0]
    assert result.notes == tuple(notes)
    tokens, mask = batch(3, 6, vocab=60), np.array(SHOWN_RIGHT)
    whole = Host(source / "model.onnx", library=False)(tokens, mask)
    last = Host(tmp_path / "compiled" / "model.onnx")(tokens, mask)
    assert_close(last, rows_of(whole, LAST_RIGHT))


def test_a_pruned_model_without_a_mask_stays_and_says_so(tmp_path: Path) -> None:
    source = head_model(tmp_path / "source", masked=False)
    pruned = edited(source, tmp_path / "pruned", PRUNED["as the builder does"])
    result = ort_aie_ep.compile(pruned, tmp_path / "compiled")
    assert "attention_mask" in result.notes[0]


def behind_by_hand(op: str, *inputs: str) -> Callable[[ir.Model], None]:
    """Makes the logits `op` of the lm_head's output h and of other values, by name."""

    def edit(model: ir.Model) -> None:
        graph = model.graph
        logits = graph.outputs[0]
        head = logits.producer()
        values = {v.name: v for n in graph for v in n.outputs} | dict(graph.initializers)
        logits.name = "h"
        new = ir.node(op, [logits if n == "h" else values[n] for n in inputs], name="/new")
        new.outputs[0].name = "logits"
        new.outputs[0].type, new.outputs[0].shape = logits.type, logits.shape
        graph.insert_after(head, new)
        graph.outputs[0] = new.outputs[0]

    return edit


def read_elsewhere(model: ir.Model) -> None:
    behind_by_hand("Tanh", "h")(model)
    model.graph.outputs.append(model.graph.outputs[0].producer().inputs[0])


REFUSED: dict[str, tuple[Callable[[ir.Model], object], str]] = {
    "no mask": (
        lambda model: model.graph.inputs.pop(),
        r"no graph input attention_mask \(batch, tokens\) says where the rows",
    ),
    "a sum over the vocabulary": (
        behind_by_hand("Softmax", "h"),
        r"'logits' is computed by '/new' \(Softmax\), which is neither a projection nor an elem",
    ),
    "two inputs with rows": (
        behind_by_hand("Mul", "h", "h"),
        r"'/new' \(Mul\) has two inputs with rows: 'h' and 'h'",
    ),
    "read elsewhere": (read_elsewhere, r"all rows of 'h' are used elsewhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(case: str, tmp_path: Path) -> None:
    edit, message = REFUSED[case]
    source = edited(head_model(tmp_path / "source"), tmp_path / "edited", edit)
    with pytest.raises(ort_aie_ep.AieError, match=f"last logits: {message}"):
        ort_aie_ep.compile(source, tmp_path / "out", last_logits=True)
    assert not (tmp_path / "out").exists()


def test_a_graph_without_logits_is_refused(tmp_path: Path) -> None:
    onnx.save(projection_model(), tmp_path / "model.onnx")
    with pytest.raises(ort_aie_ep.AieError, match=r"'logits'"):
        ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "out", last_logits=True)
    assert not (tmp_path / "out").exists()
