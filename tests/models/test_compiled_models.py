"""Compiled models compared with ONNX Runtime's CPU EP, in InferenceSession and
onnxruntime-genai."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from mixed_models import to_k_quant_mixed
from model_folders import DATA, SINCE
from op_models import ORT_VERSION
from text_host import Host

import ort_aie_ep

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


LENGTHS = (40, 1, 1, 9, 30, 1, 17, 1)  # a prompt, tokens, later turns on a filled cache


def teacher_forced(decoder: Host, vocab: int) -> Array:
    """Logits (100, vocab) of seeded tokens, fed in pieces of LENGTHS."""
    rng = np.random.default_rng(7)
    return np.concatenate([decoder(rng.integers(3, vocab, (1, length)))[0] for length in LENGTHS])


@pytest.fixture(scope="session")
def tolerance(case: Case) -> float:
    """The largest expected difference of a logit under `bf16` numerics.

    The yardstick is ONNX Runtime's own accuracy_level 4, which rounds activations to 1/127 of the
    largest of 32: a relative error about four times that of bfloat16's 8 bits. ort_aie_ep also
    rounds scales and dequantised weights to bfloat16, so it may come near, but not exceed it.
    """
    vocab = case.config["vocab_size"]
    exact = teacher_forced(Host(case.exact / "model.onnx", library=False), vocab)
    int8 = teacher_forced(Host(case.source / "model.onnx", library=False), vocab)
    return float(np.abs(exact - int8).max())


@pytest.mark.parametrize(("numerics", "factor"), [("bf16", 1), ("int8", 2)])
def test_logits_match_at_every_position_of_prompts_turns_and_tokens(
    case: Case, tolerance: float, numerics: str, factor: int
) -> None:
    vocab = case.config["vocab_size"]
    expected = teacher_forced(Host(case.exact / "model.onnx", library=False), vocab)
    actual = teacher_forced(Host(case.compiled / "model.onnx", numerics=numerics), vocab)
    # int8 numerics have accuracy_level 4's error, plus the rounding of weights.
    np.testing.assert_allclose(actual, expected, atol=factor * tolerance, rtol=0)


def test_greedy_text_equals_until_the_reference_is_undecided(case: Case, tolerance: float) -> None:
    for prompt in case.prompts(PROMPTS):
        ours = Host(case.compiled / "model.onnx")
        reference = Host(case.exact / "model.onnx", library=False)
        tokens = prompt
        for _ in range(NEW_TOKENS):
            fed = np.array([tokens])
            expected, actual = reference(fed)[0, -1], ours(fed)[0, -1]
            second, best = np.partition(expected, -2)[-2:]
            # The two best may both move by the tolerance, towards each other.
            if best - second < 2 * tolerance:
                break
            assert actual.argmax() == expected.argmax()
            tokens = [int(expected.argmax())]
