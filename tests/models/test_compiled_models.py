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
from mixed_models import to_k_quant_mixed
from model_folders import DATA, SINCE
from op_models import ORT_VERSION, session_options

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.interface import TYPES, read_interface, token_feeds

MODELS = ("llama", "llama_asym", "qwen2", "qwen3", "gemma3", "phi", "phi3", "mistral", "smollm",
          "olive", "quark", "qwen3_5", "lfm2", "lfm2_moe", "granite4", "phi4mini", "gemma4",
          "gpt_oss", "smollm3")  # fmt: skip
PROMPTS, NEW_TOKENS = 4, 24

Array = npt.NDArray[np.float32]


def slide(model: ir.Model) -> None:
    """Mistral's window, which builder 0.18 leaves out, on a full-length cache."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes.add(ir.AttrInt64("local_window_size", 24))


# Models made from the builder's by an edit.
EDITED = {
    "mistral_window": ("mistral", slide),
    "k_quant_mixed": ("llama", to_k_quant_mixed),
    "k_quant_mixed_asym": ("llama_asym", to_k_quant_mixed),
}


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
    if SINCE.get(name, (0, 0)) > ORT_VERSION:
        pytest.skip("this ONNX Runtime lacks the model's operators")
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
        window = decoder.get("sliding_window", {}).get("window_size", 0)
        sizes = {1: decoder["num_key_value_heads"], 3: decoder["head_size"]}
        self.past = {}
        for entry in self.session.get_inputs():
            if not entry.name.startswith("past_key_values"):
                continue
            # Gemma 4's layers differ in both.
            own = {axis: entry.shape[axis] for axis in sizes if isinstance(entry.shape[axis], int)}
            heads, dim = (sizes | own).values()
            rows = window if "sliding" in str(entry.shape) else 0
            self.past[entry.name] = np.zeros((1, heads, rows, dim), np.float32)
        self.interface = read_interface(
            find_model(folder), self.session.get_inputs(), self.session.get_outputs(), 0
        )
        for state in self.interface.states:
            self.past[state.past] = np.zeros(state.shape, TYPES[state.type][0])
        self.follows = {
            cache.present: cache.past for cache in (*self.interface.caches, *self.interface.states)
        }
        self.total = 0

    def __call__(self, tokens: list[int]) -> Array:
        """Logits (len(tokens), vocab)."""
        fed = token_feeds(self.interface, np.array([tokens]), np.array([self.total]))
        self.total += len(tokens)
        feed = {value.name: array for value, array in fed} | self.past
        results = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        logits: Array = results.pop("logits")
        self.past = {self.follows[name]: value for name, value in results.items()}
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
