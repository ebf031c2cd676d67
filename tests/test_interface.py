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
from commands import ort_aie
from json_mutations import mutations, refusal

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder, stop_tokens
from ort_aie_ep.runtime.sessions import Options, open_edited, open_session
from ort_aie_ep.tools.bench.accuracy import with_accuracy_level

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "llama"
HIDDEN = 192
FLOAT = ir.DataType.FLOAT
PROMPT = "def main(argv):"

Edit = Callable[[ir.Graph, dict[str, Any]], None]
"""Changes a graph and the genai_config.json that describes it."""


def edited(folder: Path, *edits: Edit, source: Path = LLAMA) -> Path:
    shutil.copytree(source, folder)
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


def exact(folder: Path, capacity: int = 100) -> Decoder:
    """With float activations, on ONNX Runtime's CPU EP."""
    found = find_model(folder)
    return Decoder(open_edited(with_accuracy_level(found, 0), folder, Options()), found, capacity)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_a_state_goes_on_from_call_to_call(name: str) -> None:
    """Of convolutions and recurrences; tests/doors compares texts with genai's."""
    decoder = exact(DATA / name)
    tokens = np.random.default_rng(0).integers(3, decoder.vocabulary, 60)
    whole = decoder.forward(tokens)
    decoder.reset()
    steps = [decoder.forward(part) for part in np.split(tokens, [1, 2, 30, 31, 57])]
    # Float sums of some hundred terms in another order, layer after layer; logits are below 10.
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-4)


# genai's defaults, and the names of later versions.
@pytest.mark.parametrize("names", ["past_conv.%d", "past_key_values.%d.conv_state"])
def test_states_have_other_names_than_those_of_the_config(names: str, tmp_path: Path) -> None:
    def rename(graph: ir.Graph, config: dict[str, Any]) -> None:
        decoder = config["model"]["decoder"]
        del decoder["inputs"]["past_conv_names"], decoder["outputs"]["present_conv_names"]
        present = names.replace("past_key_values", "present").replace("past", "present")
        for values, name in ((graph.inputs, names), (graph.outputs, present)):
            for value in values:
                if value.name.endswith(".conv"):
                    value.name = name % int(value.name.split(".")[1])

    folder = edited(tmp_path / "model", rename, source=DATA / "lfm2")
    renamed, plain = exact(folder), exact(DATA / "lfm2")
    for tokens in (np.arange(3, 43), np.array([7])):
        np.testing.assert_array_equal(renamed.forward(tokens), plain.forward(tokens))


def test_compile_proposes_what_then_works(tmp_path: Path) -> None:
    """For a model with states and positions of three axes: run and bench."""
    source, compiled = DATA / "qwen3_5", tmp_path / "compiled"
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
