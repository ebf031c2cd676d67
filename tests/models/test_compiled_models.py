"""Compiled models compared with ONNX Runtime's CPU EP, in InferenceSession and
onnxruntime-genai."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
import pytest
from expanded import expanded
from op_models import ORT_VERSION, session_options

import ort_aie_ep

DATA = Path(__file__).parent.parent / "data"
MODELS = ("llama", "llama_asym", "qwen2", "qwen3", "gemma3", "phi", "phi3", "mistral", "smollm",
          "olive", "quark")  # fmt: skip
PROMPTS, NEW_TOKENS = 20, 24

Array = npt.NDArray[np.float32]


def slide(model: ir.Model) -> None:
    """Mistral's window, which builder 0.18 leaves out, on a full-length cache."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes.add(ir.AttrInt64("local_window_size", 24))


def forget_positions(model: ir.Model) -> None:
    """SmolLM3's layers without rotary embedding: there every fourth, here the last."""
    node = [node for node in model.graph if node.op_type == "GroupQueryAttention"][-1]
    node.attributes.add(ir.AttrInt64("do_rotary", 0))
    for index in (7, 8):
        node.replace_input_with(index, None)


# Models that the builder does not write, made from its own by an edit.
EDITED = {"mistral_window": ("mistral", slide), "smollm_nope": ("smollm", forget_positions)}


@dataclass(frozen=True)
class Case:
    """A source folder, its compiled folder, and the source with float-exact projections."""

    name: str
    source: Path
    compiled: Path
    exact: Path

    @property
    def config(self) -> dict:
        return json.loads((self.source / "genai_config.json").read_text())["model"]

    def prompts(self, count: int) -> Iterator[list[int]]:
        rng = np.random.default_rng(2024)
        for _ in range(count):
            length = int(rng.integers(1, 60))
            yield [int(t) for t in rng.integers(3, self.config["vocab_size"], length)]


@pytest.fixture(scope="session", params=[*MODELS, *EDITED])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name = request.param
    if name == "mistral_window" and ORT_VERSION < (1, 24):
        pytest.skip("before 1.24, ONNX Runtime's window is one key longer than its size")
    work = tmp_path_factory.mktemp(name)
    source = DATA / name
    if name in EDITED:
        base, edit = EDITED[name]
        source = work / "source"
        shutil.copytree(DATA / base, source)
        model = ir.load(source / "model.onnx")
        edit(model)
        ir.save(model, source / "model.onnx")
    ort_aie_ep.compile(source, work / "compiled")
    shutil.copytree(source, work / "exact")
    model = ir.load(work / "exact" / "model.onnx")
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes.add(ir.AttrInt64("accuracy_level", 0))
    ir.save(model, work / "exact" / "model.onnx")
    return Case(name, source, work / "compiled", work / "exact")


class Decoder:
    """Runs a decoder token by token or in pieces, passing the KV cache from call to call."""

    def __init__(self, folder: Path, config: dict, ours: bool, numerics: str = "bf16") -> None:
        options = session_options()
        options.log_severity_level = 3
        if ours:
            options.register_custom_ops_library(ort_aie_ep.library_path())
            # The environment, because ops read session entries from ONNX Runtime 1.24 on.
            os.environ["ORT_AIE_NUMERICS"] = numerics
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        os.environ.pop("ORT_AIE_NUMERICS", None)
        self.outputs = [output.name for output in self.session.get_outputs()]
        decoder = config["decoder"]
        heads, dim = decoder["num_key_value_heads"], decoder["head_size"]
        window = decoder.get("sliding_window", {}).get("window_size", 0)
        self.past = {
            entry.name: np.zeros((1, heads, window * ("sliding" in str(entry.shape)), dim), "f4")
            for entry in self.session.get_inputs()
            if entry.name.startswith("past_key_values")
        }
        self.total = 0

    def __call__(self, tokens: list[int]) -> Array:
        """Logits (len(tokens), vocab)."""
        self.total += len(tokens)
        feed = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, self.total), np.int64),
            **self.past,
        }
        results = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        logits: Array = results.pop("logits")
        self.past = {
            name.replace("present", "past_key_values"): value for name, value in results.items()
        }
        return logits[0]


LENGTHS = (40, 1, 1, 9, 30, 1, 17, 1)  # a prompt, tokens, later turns on a filled cache


def teacher_forced(decoder: Decoder, vocab: int) -> Array:
    """Logits (100, vocab) of seeded tokens, fed in pieces of LENGTHS."""
    rng = np.random.default_rng(7)
    return np.concatenate(
        [decoder([int(t) for t in rng.integers(3, vocab, length)]) for length in LENGTHS]
    )


@pytest.fixture(scope="session")
def tolerance(case: Case) -> float:
    """The largest expected difference of a logit under `bf16` numerics.

    The yardstick is ONNX Runtime's own accuracy_level 4, which rounds activations to 1/127 of the
    largest of 32: a relative error about four times that of bfloat16's 8 bits. ort_aie_ep also
    rounds scales and dequantised weights to bfloat16, so it may come near, but not exceed it.
    """
    vocab = case.config["vocab_size"]
    exact = teacher_forced(Decoder(case.exact, case.config, ours=False), vocab)
    int8 = teacher_forced(Decoder(case.source, case.config, ours=False), vocab)
    return float(np.abs(exact - int8).max())


@pytest.mark.parametrize(("numerics", "factor"), [("bf16", 1), ("int8", 2)])
def test_logits_match_at_every_position_of_prompts_turns_and_tokens(
    case: Case, tolerance: float, numerics: str, factor: int
) -> None:
    vocab = case.config["vocab_size"]
    expected = teacher_forced(Decoder(case.exact, case.config, ours=False), vocab)
    actual = teacher_forced(
        Decoder(case.compiled, case.config, ours=True, numerics=numerics), vocab
    )
    # int8 numerics have accuracy_level 4's error, plus the rounding of weights.
    np.testing.assert_allclose(actual, expected, atol=factor * tolerance, rtol=0)


def test_greedy_text_equals_until_the_reference_is_undecided(case: Case, tolerance: float) -> None:
    for prompt in case.prompts(PROMPTS):
        ours = Decoder(case.compiled, case.config, ours=True)
        reference = Decoder(case.exact, case.config, ours=False)
        tokens = prompt
        for _ in range(NEW_TOKENS):
            expected, actual = reference(tokens)[-1], ours(tokens)[-1]
            second, best = np.partition(expected, -2)[-2:]
            # The two best may both move by the tolerance, towards each other.
            if best - second < 2 * tolerance:
                break
            assert actual.argmax() == expected.argmax()
            tokens = [int(expected.argmax())]


def test_inputs_and_outputs_keep_names_types_and_shapes(case: Case) -> None:
    def signature(folder: Path) -> list[tuple[str, object, str]]:
        graph = ir.load(folder / "model.onnx").graph
        return [(v.name, v.dtype, str(v.shape)) for v in (*graph.inputs, *graph.outputs)]

    assert signature(case.compiled) == signature(case.source)


def test_no_projection_or_attention_stays_behind(case: Case) -> None:
    ops = {(node.domain, node.op_type) for node in expanded(case.compiled).graph}
    assert {("aie", "Q4NXMatMul"), ("aie", "FlowAttention")} <= ops
    left = {"MatMulNBits", "GroupQueryAttention", "GatherBlockQuantized"}
    assert not left & {op for _, op in ops}
