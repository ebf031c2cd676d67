"""What `run`, `bench` and `accuracy` feed models that need more than tokens and a KV cache, and
what they and `compile` say about models that they cannot feed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from json_mutations import mutations, refusal
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder, stop_tokens
from ort_aie_ep.runtime.sessions import Options, open_edited, open_session
from ort_aie_ep.tools.bench.accuracy import with_accuracy_level

LLAMA = Path(__file__).parent / "data" / "llama"
HIDDEN, TAPS, LAYER = 192, 3, 2  # the convolution's, a layer after the two with attention
FLOAT = ir.DataType.FLOAT
PROMPT = "def main(argv):"

Edit = Callable[[ir.Graph, dict[str, Any]], None]
"""Changes a graph and the genai_config.json that describes it."""


def edited(folder: Path, *edits: Edit) -> Path:
    shutil.copytree(LLAMA, folder)
    model = ir.load(folder / "model.onnx")
    config = json.loads((folder / "genai_config.json").read_text())
    for edit in edits:
        edit(model.graph, config)
    model.graph.sort()
    ir.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


def graph_input(graph: ir.Graph, name: str, dtype: ir.DataType, shape: list[Any]) -> ir.Value:
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    graph.inputs.append(value)
    return value


def op(graph: ir.Graph, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
    node = ir.node(op_type, inputs, attributes, name=f"/new/{op_type}_{len(graph)}")
    graph.append(node)
    return node.outputs[0]


def constant(graph: ir.Graph, array: Any) -> ir.Value:
    name = f"new.constant.{len(graph.initializers)}"
    value = ir.Value(name=name, const_value=ir.tensor(np.asarray(array), name=name))
    graph.register_initializer(value)
    return value


def embedding(graph: ir.Graph) -> ir.Value:
    return next(
        node for node in graph if "Gather" in node.op_type and "embed" in node.name
    ).outputs[0]


def add_to_embedding(graph: ir.Graph, make: Callable[[ir.Value], ir.Value]) -> None:
    rows = embedding(graph)
    readers = [(use.node, use.idx) for use in rows.uses()]
    total = op(graph, "Add", rows, make(rows))
    for node, index in readers:
        node.replace_input_with(index, total)


def short_convolution(prefix: str = "past.%d.conv") -> Edit:
    """LFM2's convolution over each channel's last tokens. The state keeps all but the newest."""
    past_name = prefix.replace("%d", str(LAYER))
    present_name = past_name.replace("past_key_values", "present").replace("past", "present")

    def edit(graph: ir.Graph, config: dict[str, Any]) -> None:
        past = graph_input(graph, past_name, FLOAT, ["batch_size", HIDDEN, TAPS - 1])
        kernel = np.random.default_rng(1).normal(0, 0.5, (HIDDEN, 1, TAPS)).astype(np.float32)

        def convolved(rows: ir.Value) -> ir.Value:
            columns = op(graph, "Transpose", rows, perm=[0, 2, 1])
            window = op(graph, "Concat", past, columns, axis=2)
            start, end, axis = (constant(graph, [n]) for n in (1 - TAPS, 2**63 - 1, 2))
            present = op(graph, "Slice", window, start, end, axis)
            present.name, present.type = present_name, ir.TensorType(FLOAT)
            present.shape = ir.Shape(["batch_size", HIDDEN, TAPS - 1])
            graph.outputs.append(present)
            mixed = op(graph, "Conv", window, constant(graph, kernel), group=HIDDEN)
            return op(graph, "Transpose", mixed, perm=[0, 2, 1])

        add_to_embedding(graph, convolved)
        decoder = config["model"]["decoder"]
        config["model"]["type"] = "lfm2"
        decoder |= {
            "layer_types": ["full_attention", "full_attention", "conv"],
            "conv_cache_size": TAPS - 1,
            "num_hidden_layers": LAYER + 1,
        }
        if prefix == "past.%d.conv":
            decoder["inputs"]["past_conv_names"] = "past.%d.conv"
            decoder["outputs"]["present_conv_names"] = "present.%d.conv"

    return edit


def three_positions(weights: tuple[float, float, float]) -> Edit:
    """position_ids as in Qwen-VL: time, height and width, weighted, shift the embedding."""

    def edit(graph: ir.Graph, config: dict[str, Any]) -> None:
        shape = [3, "batch_size", "sequence_length"]
        positions = graph_input(graph, "position_ids", ir.DataType.INT64, shape)

        def moved(_: ir.Value) -> ir.Value:
            numbers = op(graph, "Cast", positions, to=FLOAT)
            factors = constant(graph, np.array(weights, np.float32).reshape(3, 1, 1))
            weighted = op(graph, "Mul", numbers, factors)
            total = op(graph, "ReduceSum", weighted, constant(graph, [0]), keepdims=0)
            return op(graph, "Unsqueeze", total, constant(graph, [2]))

        add_to_embedding(graph, moved)
        config["model"]["decoder"]["inputs"]["position_ids"] = "position_ids"

    return edit


def exact(folder: Path, capacity: int = 100) -> Decoder:
    """With float activations, on ONNX Runtime's CPU EP."""
    found = find_model(folder)
    return Decoder(open_edited(with_accuracy_level(found, 0), folder, Options()), found, capacity)


def ort_aie(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


# Names from genai_config.json, genai's defaults, and the names of later versions.
@pytest.mark.parametrize("names", ["past.%d.conv", "past_conv.%d", "past_key_values.%d.conv_state"])
def test_a_state_goes_on_from_call_to_call(names: str, tmp_path: Path) -> None:
    decoder = exact(edited(tmp_path / "model", short_convolution(names)))
    tokens = np.random.default_rng(0).integers(3, decoder.vocabulary, 60)
    whole = decoder.forward(tokens)
    decoder.reset()
    steps = [decoder.forward(part) for part in np.split(tokens, [1, 2, 30, 31, 57])]
    # Float sums of some hundred terms in another order, layer after layer; logits are below 10.
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-4)
    plain = exact(LLAMA).forward(tokens)
    assert np.abs(whole - plain).max() > 0.1  # the convolution takes part


def test_positions_of_three_axes_are_the_place_of_the_token_thrice(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(3, 500, 20)
    plain = exact(LLAMA).forward(tokens)
    balanced = edited(tmp_path / "balanced", three_positions((1.0, -3.0, 2.0)))
    np.testing.assert_allclose(exact(balanced).forward(tokens), plain, atol=1e-4)
    decoder = exact(edited(tmp_path / "moved", three_positions((0.01, 0.02, 0.03))))
    whole = decoder.forward(tokens)
    assert np.abs(whole - plain).max() > 0.1
    decoder.reset()
    steps = [decoder.forward(part) for part in np.split(tokens, [7, 8])]
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-4)


def test_compile_proposes_what_then_works(tmp_path: Path) -> None:
    """For a model with states and positions of three axes: run and bench."""
    edits = (short_convolution(), three_positions((0.01, 0.0, 0.0)))
    source, compiled = edited(tmp_path / "source", *edits), tmp_path / "compiled"
    result = ort_aie("compile", source, compiled)
    assert f"ort-aie run {compiled} '{PROMPT}'" in result.stderr
    ran = ort_aie("run", compiled, PROMPT, "--max-tokens", 8)
    assert ran.exit_code == 0, ran.stderr
    words = ("--prompt-lengths", 16, "--new-tokens", 2, "--runs", 1)
    measured = ort_aie("bench", compiled, "--baseline", source, *words)
    assert measured.exit_code == 0, measured.stderr
    scored = ort_aie("accuracy", compiled, "--baseline", source, "--tokens", 30,
                     "--decode-tokens", 30, "--window", 16)  # fmt: skip
    assert scored.exit_code == 0, scored.stderr


def test_genai_gives_a_model_with_states_the_same_text(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    source = edited(tmp_path / "source", short_convolution())
    ort_aie_ep.compile(source, tmp_path / "compiled")
    texts = [
        ort_aie("run", tmp_path / "compiled", PROMPT, "--max-tokens", 20, "--host", host).stdout
        for host in ("session", "genai")
    ]
    # Its decoder turns half a character into one replacement mark or into several.
    session, genai = (text.replace("\ufffd", "").strip() for text in texts)
    assert session == genai
    assert len(session) > 20


def without_embedding(graph: ir.Graph, config: dict[str, Any]) -> None:
    """As the builder's exclude_embeds."""
    rows = embedding(graph)
    shape = ["batch_size", "sequence_length", HIDDEN]
    given = graph_input(graph, "inputs_embeds", FLOAT, shape)
    ir.convenience.replace_all_uses_with(rows, given)
    graph.remove(rows.producer(), safe=True)
    graph.inputs.remove(graph.inputs[0])
    inputs = config["model"]["decoder"]["inputs"]
    inputs["inputs_embeds"] = inputs.pop("input_ids")


def without_lm_head(graph: ir.Graph, config: dict[str, Any]) -> None:
    """As the builder's exclude_lm_head."""
    logits = next(value for value in graph.outputs if value.name == "logits")
    head = logits.producer()
    hidden = head.inputs[0]
    hidden.name, hidden.type = "hidden_states", ir.TensorType(FLOAT)
    graph.outputs[list(graph.outputs).index(logits)] = hidden
    graph.remove(head, safe=True)
    config["model"]["decoder"]["outputs"] = {"hidden_states": "hidden_states"}


def with_cross_attention(graph: ir.Graph, config: dict[str, Any]) -> None:
    """As Whisper's decoder, beside an encoder."""
    cross = graph_input(graph, "past_key_cross_0", FLOAT, ["batch_size", 2, 3, 32])
    mean = op(graph, "ReduceMean", cross)
    add_to_embedding(graph, lambda _: mean)
    config["model"]["encoder"] = {"filename": "encoder.onnx"}


def with_unknown(graph: ir.Graph, config: dict[str, Any]) -> None:
    value = graph_input(graph, "temperature", FLOAT, [])
    add_to_embedding(graph, lambda _: value)


SESSION = "onnxruntime.InferenceSession({model!r}, options)"
GENAI = "model = onnxruntime_genai.Model({folder!r})"
UNFIT: dict[str, tuple[Edit, str, str]] = {
    "exclude_embeds": (without_embedding, "it takes inputs_embeds, which another model", SESSION),
    "exclude_lm_head": (without_lm_head, "it has no output named logits", SESSION),
    "an encoder's decoder": (
        with_cross_attention, "it decodes an encoder's output: past_key_cross_0", GENAI,
    ),
    "an unknown input": (with_unknown, "its inputs temperature are not part of a text", SESSION),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_model_that_no_command_feeds_gets_a_step_that_works(case: str, tmp_path: Path) -> None:
    edit, reason, step = UNFIT[case]
    source, compiled = edited(tmp_path / "source", edit), tmp_path / "compiled"
    if case == "an encoder's decoder":
        onnx.save(onnx.load(LLAMA / "model.onnx"), source / "encoder.onnx")
    result = ort_aie("compile", source, compiled)
    assert result.exit_code == 0, result.stderr
    assert "ort-aie run" not in result.stderr
    step = step.format(model=str(compiled / "model.onnx"), folder=str(compiled))
    assert step in result.stderr
    open_session(compiled / "model.onnx")
    failed = ort_aie("run", compiled, PROMPT)
    assert failed.exit_code == 1
    assert reason in failed.stderr


def test_a_cache_of_another_rank_is_named(tmp_path: Path) -> None:
    def edit(graph: ir.Graph, config: dict[str, Any]) -> None:
        value = graph_input(graph, "past_key_values.9.key", FLOAT, [2, "batch", 2, "past", 32])
        mean = op(graph, "ReduceMean", value, keepdims=0)
        add_to_embedding(graph, lambda _: mean)

    folder = find_model(edited(tmp_path / "model", edit))
    with pytest.raises(AieError, match=r"past_key_values\.9\.key has the shape \[2, 'batch'"):
        Decoder(open_session(folder.model), folder, 8)


def test_bench_compares_the_last_token_alone_where_only_one_side_gives_more(tmp_path: Path) -> None:
    ort_aie_ep.compile(LLAMA, tmp_path / "compiled", last_logits=True)
    result = ort_aie(
        "bench", tmp_path / "compiled", "--baseline", LLAMA, "--prompt-lengths", 32,
        "--new-tokens", 4, "--runs", 1, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    agreement = json.loads(result.stdout)["agreement"]
    assert agreement["positions"] == 4
    assert agreement["largest_difference"] < agreement["largest_logit"] / 8


def test_a_damaged_genai_config_is_run_or_named(tmp_path: Path) -> None:
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    folder = Path(shutil.copytree(demo, tmp_path / "model"))
    path = folder / "genai_config.json"
    session = open_session(folder / "model.onnx", Options(threads=1))

    def run() -> None:
        found = find_model(folder)
        stop_tokens(found)
        Decoder(session, found, 8).forward(np.array([3, 4]))

    said = []
    for data in mutations(path.read_text(), seed=14, count=150):
        path.write_bytes(data)
        said.append(refusal(run))
    assert 20 < sum(map(bool, said)) < 150
    assert any("head_size must be a whole number from 1 to" in text for text in said)
