"""onnxruntime-genai's MtpGenerator: a head drafts from the model's hidden states.

The head is the demonstration model itself, reading a little of the hidden state beside its
embedding. So it is right sometimes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from model_folders import edited
from provider_calls import registered_in_genai

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.drafts import Drafts, _Guessing
from ort_aie_ep.running.loop import open_loop
from ort_aie_ep.running.turns import Turn
from ort_aie_ep.runtime.provider import NAME
from ort_aie_ep.runtime.sessions import Options

og = pytest.importorskip("onnxruntime_genai")

DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
PROMPT = "import os\nimport sys\n\nclass Server"
WIDTH, NEW = 256, 60


@pytest.fixture(scope="module")
def provider() -> Iterator[None]:
    with registered_in_genai(og):
        yield


def value(name: str, dtype: ir.DataType, width: int) -> ir.Value:
    shape = ir.Shape(["batch_size", "sequence_length", width])
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)


def give_hidden_states(model: ir.Model, name: str) -> None:
    """Those after the last norm, as the builder's include_hidden_states does."""
    head = next(o for o in model.graph.outputs if o.name == "logits").producer()
    assert head is not None
    hidden = head.inputs[0]
    assert hidden is not None
    hidden.name, hidden.type = name, ir.TensorType(ir.DataType.FLOAT)
    hidden.shape = ir.Shape(["batch_size", "sequence_length", WIDTH])
    model.graph.outputs.append(hidden)


def read_hidden_states(model: ir.Model) -> None:
    hidden = value("hidden_states", ir.DataType.FLOAT, WIDTH)
    model.graph.inputs.append(hidden)
    rows = next(n for n in model.graph if n.op_type == "GatherBlockQuantized").outputs[0]
    uses = [*rows.uses()]
    small = ir.Value(name="small", const_value=ir.tensor(np.float32(0.02), name="small"))
    model.graph.register_initializer(small)
    scaled = ir.node("Mul", [hidden, small], name="/mtp/Mul")
    total = ir.node("Add", [rows, scaled.outputs[0]], name="/mtp/Add")
    for use in uses:
        use.node.replace_input_with(use.idx, total.outputs[0])
    gather = rows.producer()
    assert gather is not None
    model.graph.insert_after(gather, [scaled, total])


def halve_logits(model: ir.Model) -> None:
    """genai 0.18 converts logits to float32 here, and refuses those that are float32 already."""
    index, logits = next((i, o) for i, o in enumerate(model.graph.outputs) if o.name == "logits")
    logits.name = "logits_float32"
    cast = ir.node("Cast", [logits], {"to": ir.DataType.FLOAT16.value}, name="/half/Cast")
    half = cast.outputs[0]
    half.name, half.type = "logits", ir.TensorType(ir.DataType.FLOAT16)
    half.shape = logits.shape
    head = logits.producer()
    assert head is not None
    model.graph.insert_after(head, cast)
    model.graph.outputs[index] = half


def make(folder: Path) -> tuple[Path, Path]:
    """A model and its head."""
    for name in ("main", "head"):
        shutil.copytree(DEMO, folder / name)
        model = ir.load(folder / name / "model.onnx")
        give_hidden_states(model, "hidden_states" if name == "main" else "hidden_states_out")
        if name == "head":
            read_hidden_states(model)
        halve_logits(model)
        ir.save(model, folder / name / "model.onnx")

    with edited(folder / "main" / "genai_config.json") as config:
        decoder = config["model"]["decoder"]
        decoder["outputs"]["hidden_states"] = "hidden_states"
        config["model"]["mtp"] = {
            "filename": "mtp.onnx",
            "num_hidden_layers": 1,
            "num_key_value_heads": decoder["num_key_value_heads"],
            "head_size": decoder["head_size"],
            "main_hidden_states": "hidden_states",
            "outputs": {"hidden_states": "hidden_states_out"},
        }
    with edited(folder / "head" / "genai_config.json") as config:
        config["model"]["decoder"]["inputs"]["hidden_states"] = "hidden_states"
        config["model"]["decoder"]["outputs"]["hidden_states"] = "hidden_states_out"
    return folder / "main", folder / "head"


def through(door: str, source: Path, target: Path) -> Any:
    if door == "compiled":
        ort_aie_ep.compile(source, target)
        return og.Model(str(target))
    shutil.copytree(source, target)
    with edited(target / "genai_config.json") as config:
        config["model"]["decoder"]["session_options"]["provider_options"] = [{NAME: {}}]
    return og.Model(str(target))


def parameters(model: Any, prompt: Any, **speculative: int) -> Any:
    made = og.GeneratorParams(model)
    made.set_search_options(max_length=len(prompt) + NEW, do_sample=False)
    made.set_speculative_options(**speculative)
    return made


def drafted_by_genai(main: Any, head: Any, prompt: Any, count: int) -> Any:
    drafted = og.MtpGenerator(main, head, parameters(main, prompt, max_draft_tokens=count))
    drafted.append_tokens(prompt)
    while not drafted.is_done():
        drafted.generate_next_token()
    return drafted


@pytest.mark.parametrize("door", ["compiled", "source"])
def test_a_heads_drafts_give_the_greedy_text(door: str, provider: None, tmp_path: Path) -> None:
    main, head = (
        through(door, source, tmp_path / f"{door}_{source.name}") for source in make(tmp_path)
    )
    prompt = og.Tokenizer(main).encode(PROMPT)
    alone = og.Generator(main, parameters(main, prompt))
    alone.append_tokens(prompt)
    while not alone.is_done():
        alone.generate_next_token()
    for count in (1, 3):
        drafted = drafted_by_genai(main, head, prompt, count)
        # The first tokens are likelier than any other by far more than rounding.
        assert drafted.get_sequence()[:40].tolist() == alone.get_sequence(0)[:40].tolist()
        told = drafted.get_stats()
        assert 0 < told["accepts"] < told["trials"]


def test_the_loop_takes_as_many_of_a_heads_drafts_as_genai(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = make(tmp_path)
    shutil.copy(other / "model.onnx", source / "mtp.onnx")
    main, head = (through("compiled", f, tmp_path / f"c_{f.name}") for f in (source, other))
    prompt = og.Tokenizer(main).encode(PROMPT)
    # As many guesses as may be, all by the head.
    monkeypatch.setattr(Drafts, "_best", lambda _, g: (max(g)[0], max(g)[0]))
    monkeypatch.setattr(Drafts, "_by_copying", lambda *_: _Guessing(0, 0.0))
    turn = Turn(prompt.tolist(), max_tokens=NEW, ignore_end=True)
    for count, slots in ((1, 1), (3, 2)):
        loop = open_loop(find_model(tmp_path / "c_main"), Options(), slots, 600, draft=count)
        texts = [loop.add(turn) for _ in range(slots)]
        while loop.waiting or loop.texts:
            loop.step()
        told = drafted_by_genai(main, head, prompt, count)
        for text in texts:
            assert text.tokens[:40] == told.get_sequence()[:40].tolist()
            assert text.drafting is not None
            # genai's last call may go beyond the text.
            assert 0 <= told.get_stats()["accepts"] - text.drafting.taken <= count
