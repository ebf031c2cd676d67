"""Synthetic models equal the model builder's, node for node, and run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from model_folders import SINCE
from op_models import ORT_VERSION

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.builder.decoder import build
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.shapes import SHAPES, Shape
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.tools.synth import SynthError, synth

DATA = Path(__file__).parent / "data"
FAMILIES = ["llama", "qwen2", "qwen3", "gemma3", "phi", "gpt_oss", "lfm2", "lfm2_moe", "qwen3_5"]
RUN = [family for family in FAMILIES if SINCE.get(family, (0, 0)) <= ORT_VERSION]

# As published with the models; rotary tables and scales do not count as parameters.
PARAMETERS = {
    "llama-3.2-1b": 1.236e9,
    "llama-3.2-3b": 3.213e9,
    "llama-3.1-8b": 8.030e9,
    "mistral-7b": 7.248e9,
    "smollm2-135m": 134.5e6,
    "smollm2-360m": 361.8e6,
    "qwen2.5-0.5b": 494e6,
    "qwen2.5-3b": 3.086e9,
    "qwen3-0.6b": 596e6,
    "qwen3-1.7b": 1.721e9,
    "qwen3-4b": 4.022e9,
    "qwen3-8b": 8.191e9,
    "qwen3-30b-a3b": 30.532e9,
    "gemma3-1b": 999.9e6,
    "gemma3-4b": 3.880e9,
    "phi-2": 2.780e9,
    "gpt-oss-20b": 20.915e9,
    "lfm2-1.2b": 1.170e9,
    "qwen3.5-0.8b": 752.4e6,  # without the vision encoder
}


def tiny(family: str) -> str:
    return f"tiny-{family.replace('_', '-')}"


def load(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "model.onnx", load_external_data=False)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("synth")
    return {family: synth(tiny(family), root / family) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_equals_the_builders_down_to_the_places_of_its_data(
    family: str, synthetic: dict[str, Path]
) -> None:
    """Without the data itself, an initializer is name, type, dimensions, file, offset and length.
    The order of attributes and of facts on values says nothing."""
    ours, theirs = load(synthetic[family]), load(DATA / family)
    assert [node.name for node in ours.graph.node] == [node.name for node in theirs.graph.node]
    for model in (ours, theirs):
        for field in ("producer_name", "producer_version", "metadata_props"):
            model.ClearField(field)
        model.graph.value_info.sort(key=lambda value: value.name)
        for node in model.graph.node:
            node.attribute.sort(key=lambda attribute: attribute.name)
            node.ClearField("metadata_props")
    assert ours == theirs
    sizes = {(folder / "model.onnx.data").stat().st_size for folder in
             (synthetic[family], DATA / family)}  # fmt: skip
    assert len(sizes) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_config_equals_the_builders(family: str, synthetic: dict[str, Path]) -> None:
    ours, theirs = (
        json.loads((folder / "genai_config.json").read_text())
        for folder in (synthetic[family], DATA / family)
    )
    assert ours == theirs


@pytest.mark.parametrize("family", FAMILIES)
def test_rotary_tables_equal_the_builders(family: str, synthetic: dict[str, Path]) -> None:
    def tables(folder: Path) -> dict[str, np.ndarray]:
        return {
            tensor.name: onnx.numpy_helper.to_array(tensor, base_dir=str(folder))
            for tensor in load(folder).graph.initializer
            if tensor.name.startswith(("cos", "sin"))
        }

    ours, theirs = tables(synthetic[family]), tables(DATA / family)
    assert ours.keys() == theirs.keys()
    for name, table in theirs.items():
        # The angle of position 255 has a float32 spacing of 1.5e-5; frequencies may differ by one
        # step.
        np.testing.assert_allclose(ours[name], table, atol=4e-5)


@pytest.mark.parametrize("family", RUN)
def test_activations_stay_near_one(family: str, synthetic: dict[str, Path]) -> None:
    shape = SHAPES[tiny(family)]
    session = onnxruntime.InferenceSession(synthetic[family] / "model.onnx")
    length = 48
    decoder = Decoder(session, find_model(synthetic[family]), length)
    logits = decoder.forward(np.random.default_rng(1).integers(0, shape.vocab, length))
    assert logits.shape == (length, shape.vocab)
    assert np.isfinite(logits).all()
    # lm_head turns a normed vector into values with a deviation of 1.5.
    assert 0.75 < logits.std() < 3.0
    # Predictions follow from context, not from a bias towards a few tokens.
    assert len(np.unique(logits.argmax(-1))) > length // 4


@pytest.mark.parametrize("family", RUN)
def test_float_models_are_those_that_the_builder_quantises(
    family: str, synthetic: dict[str, Path], tmp_path: Path
) -> None:
    folder = synth(tiny(family), tmp_path / "float", int4=False)
    ours, int4 = load(folder).graph, load(synthetic[family]).graph
    assert not {node.op_type for node in ours.node} & {"MatMulNBits", "GatherBlockQuantized"}

    def without_matrices(graph: onnx.GraphProto) -> list[str]:
        own = {"MatMul", "MatMulNBits", "Gather", "GatherBlockQuantized", "Reshape", "Transpose"}
        return [node.name for node in graph.node if node.op_type not in own | {"Constant"}]

    assert without_matrices(ours) == without_matrices(int4)
    products, kept = (
        {node.name for node in graph.node if node.op_type == "MatMul"} for graph in (ours, int4)
    )
    assert {f"{name}_Q4" for name in products - kept} == {
        node.name for node in int4.node if node.op_type == "MatMulNBits"
    }
    shape = SHAPES[tiny(family)]
    decoder = Decoder(onnxruntime.InferenceSession(folder / "model.onnx"), find_model(folder), 64)
    logits = decoder.forward(np.random.default_rng(1).integers(0, shape.vocab, 48))
    assert 0.75 < np.std(logits) < 3.0


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    first, again, other = (
        synth("tiny-llama", tmp_path / name, seed=seed)
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    content = (first / "model.onnx.data").read_bytes()
    assert (again / "model.onnx.data").read_bytes() == content
    assert (again / "model.onnx").read_bytes() == (first / "model.onnx").read_bytes()
    assert (other / "model.onnx.data").read_bytes() != content


def test_layers_and_vocab_override_the_shape(tmp_path: Path) -> None:
    folder = synth("tiny-gemma3", tmp_path / "model", layers=1, vocab=77)
    graph = load(folder).graph
    assert sum(node.op_type == "GroupQueryAttention" for node in graph.node) == 1
    assert graph.output[0].type.tensor_type.shape.dim[2].dim_value == 77
    config = json.loads((folder / "genai_config.json").read_text())["model"]
    assert config["vocab_size"] == 77
    assert config["decoder"]["sliding_window"]["layers"] == [0]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    folder = synth("tiny-qwen3", tmp_path / "m", progress=lambda *call: calls.append(call))
    size = (folder / "model.onnx.data").stat().st_size
    assert calls[-1] == (size, size, "lm_head.MatMul.weight_scales")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


@pytest.mark.parametrize("name", [name for name in SHAPES if not name.startswith("tiny")])
def test_shape_has_the_published_number_of_parameters(name: str) -> None:
    _, weights = build(SHAPES[name])
    not_published: tuple[str, ...] = ("_scales", ".scales")
    if SHAPES[name].family != "gptoss":
        not_published += ("experts.gate_up_proj.bias", "experts.down_proj.bias")
    count = 0
    for weight in weights:
        values = int(np.prod(weight.shape))
        if weight.name.endswith(("_Q4", ".qweight")):
            count += 2 * values
        elif not weight.name.startswith(("cos", "sin")) and not weight.name.endswith(not_published):
            count += values
    assert count == pytest.approx(PARAMETERS[name], rel=1e-3)


def test_large_weights_are_made_in_small_pieces() -> None:
    _, weights = build(SHAPES["llama-3.1-8b"])
    for weight in sorted(weights, key=lambda weight: weight.bytes)[-3:]:
        assert weight.bytes > 50 << 20
        assert next(weight.chunks(0)).nbytes <= 16 << 20


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ("llama-9", {}, "no shape is called 'llama-9'; expected one of llama-3.2-1b"),
        ("tiny-llama", {"layers": 0}, "layers must be at least 1, not 0"),
        ("tiny-llama", {"vocab": -5}, "vocab must be at least 1, not -5"),
        (
            "tiny-llama",
            {"block_size": 48},
            "block_size must be one of 16, 32, 64, 128, 256, not 48",
        ),
        ("tiny-llama", {"block_size": 128}, "hidden must be a multiple of 128, not 192"),
        ("tiny-llama", {"seed": -1}, "seed must be at least 0, not -1"),
        (
            Shape("llama", 100, 64, 1, 2, 1, 32, 64, 64, tied=True),
            {},
            "hidden must be a multiple of 32, not 100",
        ),
    ],
)
def test_impossible_models_are_refused(
    shape: str | Shape, options: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SynthError, match=message):
        synth(shape, tmp_path / "model", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_existing_destination_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(AieError, match=re.escape(str(tmp_path))):
        synth("tiny-llama", tmp_path / "model")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "mine.txt"]


def test_destination_inside_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SynthError, match="model"):
        synth("tiny-llama", tmp_path / "file" / "model")


def test_model_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    # 10¹² rows of 192 values do not fit on any disk that the tests run on.
    with pytest.raises(SynthError, match=r"\d+\.\d TB"):
        synth("tiny-llama", tmp_path / "model", vocab=10**12)
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
import resource
from ort_aie_ep.tools.synth import SynthError, synth
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    synth("tiny-llama", {str(tmp_path / "model")!r})
except SynthError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "File too large" in result.stdout
    assert not list(tmp_path.iterdir())
