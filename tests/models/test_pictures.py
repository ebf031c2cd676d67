"""A tiny Gemma 3 with pictures in onnxruntime-genai: from a PNG and a prompt to logits.

lab/make_picture_model.py wrote the folder, and what transformers computes of it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from expanded import expanded
from model_folders import DATA
from op_models import ORT_VERSION, open_session, run
from tokenizers import Tokenizer

import ort_aie_ep
from ort_aie_ep import AieError
from ort_aie_ep.compiler.compile import CompileResult

Array = npt.NDArray[Any]
SOURCE = DATA / "pictures"
PAGE = DATA.parents[1] / "docs" / "pictures.md"
STEP, STEP_OF_TWO = 16, 48  # of the rows that the reference holds
# Layers of the tower and of the text model, with six and seven products each, a projection and the
# lm_head.
PRODUCTS = 2 * 6 + 2 * 7 + 2

pytestmark = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="earlier ones have another Attention than opset 23's"
)


@pytest.fixture(scope="module")
def reference() -> Mapping[str, Array]:
    return dict(np.load(SOURCE / "reference.npz"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    folder = tmp_path_factory.mktemp("pictures") / "compiled"
    return ort_aie_ep.compile(SOURCE, folder, quantize="bf16", vision="bf16")


def described(
    folder: Path, prompt: str, count: int, pictures: tuple[str, ...] = ("picture",)
) -> tuple[Array, Array, Array]:
    """Token ids, the logits of every token of the prompt, and those of the last before each of
    `count` new ones."""
    og = pytest.importorskip("onnxruntime_genai")
    config = og.Config(str(folder))
    options = {"ort_aie.prompt_logits": "all"}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = og.Model(config)
    processor = model.create_multimodal_processor()
    images = og.Images.open(*(str(SOURCE / f"{name}.png") for name in pictures))
    inputs = processor(prompt, images=images)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=600, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.set_inputs(inputs)
    logits = []
    for _ in range(count):
        generator.generate_next_token()
        logits.append(np.array(generator.get_output("logits"))[0])
    return np.array(generator.get_sequence(0)), logits[0], np.stack([x[-1] for x in logits])


def apart(actual: Array, expected: Array) -> float:
    """The distance, as a part of the norm."""
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def check_in_genai(folder: Path, reference: Mapping[str, Array], bound: float) -> None:
    prompt, tokens = str(reference["prompt"]), reference["tokens"]
    ids, of_prompt, of_tokens = described(folder, prompt, len(tokens))
    np.testing.assert_array_equal(ids[: -len(tokens)], reference["input_ids"][0])
    np.testing.assert_array_equal(ids[-len(tokens) :], tokens)
    assert apart(of_prompt[::STEP], reference["prompt_logits"]) <= bound
    assert apart(of_tokens, reference["logits"]) <= bound


def test_the_source_gives_the_logits_of_transformers(reference: Mapping[str, Array]) -> None:
    # The longest sums, over the keys of the tower, have 1,024 terms.
    check_in_genai(SOURCE, reference, 1024 * 2.0**-24)


def test_the_compiled_model_gives_the_logits_of_transformers(
    compiled: CompileResult, reference: Mapping[str, Array]
) -> None:
    # bfloat16 has all weights; each product rounds its activations. Independent errors add up in
    # squares. With causal image tokens the logits would be 0.32 of their norm off.
    check_in_genai(compiled.path, reference, np.sqrt(PRODUCTS) * 2.0**-8)


def test_two_pictures_in_a_prompt(compiled: CompileResult, reference: Mapping[str, Array]) -> None:
    """A picture's tokens see each other, but none of the later picture."""
    prompt, pictures = str(reference["two_pictures"]), ("picture", "turned")
    _, of_source, _ = described(SOURCE, prompt, 1, pictures)
    _, of_compiled, _ = described(compiled.path, prompt, 1, pictures)
    assert apart(of_source[::STEP_OF_TWO], reference["two_logits"]) <= 1024 * 2.0**-24
    bound = np.sqrt(PRODUCTS) * 2.0**-8
    assert apart(of_compiled[::STEP_OF_TWO], reference["two_logits"]) <= bound


def test_every_product_and_attention_is_compiled(compiled: CompileResult) -> None:
    assert not [o for o in compiled.outcomes if o.becomes is None]
    assert [len(plan.steps) for plan in compiled.plans] == [26]
    (vision,) = (part for part in compiled.parts if part.file == "vision.onnx")
    became = [(o.op_type, o.becomes) for o in vision.nodes]
    assert became.count(("MatMul", "aie.GEMM")) == 2 * 6 + 1
    assert became.count(("Attention", "aie.FlowAttention")) == 2
    left = {(o.op_type, o.reason) for o in vision.nodes if o.becomes is None}
    assert left == {
        ("Conv", "no aie operator"), ("Gather", "its rows are FLOAT and stay so"),
    }  # fmt: skip


def test_attention_both_ways_keeps_its_mask(compiled: CompileResult) -> None:
    """Image tokens see later ones, so no attention of the text model may be causal."""
    model = expanded(compiled.path, "text.onnx")
    found = [node for node in model.graph if node.op_type == "FlowAttention"]
    for node in found:
        assert node.attributes["causal"].as_int() == 0
        assert "Where" in str(node.inputs[10])  # attention_bias
    assert len(found) == 2


def test_image_features(compiled: CompileResult, reference: Mapping[str, Array]) -> None:
    og = pytest.importorskip("onnxruntime_genai")
    processor = og.Model(str(SOURCE)).create_multimodal_processor()
    picture = og.Images.open(str(SOURCE / "picture.png"))
    inputs = processor(str(reference["prompt"]), images=picture)
    pixels = np.array(inputs["pixel_values"].as_numpy())
    session = open_session(str(compiled.path / "vision.onnx"))
    features = run(session, {"pixel_values": pixels})["image_features"]
    assert features.shape == (1, 256, 64)
    bound = np.sqrt(2 * 6 + 1) * 2.0**-8  # as above
    assert apart(features[0, ::STEP], reference["image_features"]) <= bound


@pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")
def test_the_program_on_the_page_describes_a_picture(
    compiled: CompileResult, reference: Mapping[str, Array], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime_genai")
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "describe.py").write_text(program)
    picture, prompt = str(SOURCE / "picture.png"), str(reference["prompt"])
    command = [sys.executable, str(tmp_path / "describe.py"), str(compiled.path), picture, prompt]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    tokenizer = Tokenizer.from_file(str(SOURCE / "tokenizer.json"))
    assert found.stdout.startswith(tokenizer.decode(reference["tokens"].tolist()))


def test_vision_needs_a_vision_model(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"genai_config\.json"):
        ort_aie_ep.compile(DATA / "llama", tmp_path / "out", vision="bf16")
    with pytest.raises(AieError, match=r"'q4nx'.*bf16"):
        ort_aie_ep.compile(SOURCE, tmp_path / "out", vision="q4nx")
    assert not (tmp_path / "out").exists()
