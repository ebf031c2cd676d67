"""`bench --peers`: the same weights in every engine, starts, rounds, the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import onnx
import pytest
from expert_models import needs_qmoe
from model_folders import SINCE
from onnx import helper, numpy_helper
from op_models import ORT_VERSION
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.runtime.sessions import Options
from ort_aie_ep.tools.bench import conditions, demo, memory
from ort_aie_ep.tools.bench.peers import engines, process, rounds, runner, workload
from ort_aie_ep.tools.bench.peers.course import Cost, Course
from ort_aie_ep.tools.bench.peers.engines import (
    CPU_EP,
    KINDS,
    OURS,
    OURS_FLOAT,
    OURS_INT8,
    Engine,
    Model,
    Settings,
    Source,
    different_tokens,
    kind,
)
from ort_aie_ep.tools.bench.peers.gguf import gguf_model, interleaved, q4_0
from ort_aie_ep.tools.bench.peers.llama_cpp import GgufEngine
from ort_aie_ep.tools.bench.peers.process import EngineError, Setup, Worker
from ort_aie_ep.tools.bench.peers.report import report
from ort_aie_ep.tools.bench.peers.results import (
    PHASES,
    SEQUENCES,
    STATES,
    TOKENS,
    Results,
    Speeds,
)
from ort_aie_ep.tools.bench.peers.results import (
    SHAPES as ROWS,
)
from ort_aie_ep.tools.bench.peers.sheets import markdown
from ort_aie_ep.tools.bench.peers.weights import BLOCK, DecoderWeights, Int4Matrix
from ort_aie_ep.tools.bench.peers.workload import Workload
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parent / "data"
OUR_ENGINES = (OURS, OURS_INT8, OURS_FLOAT, CPU_EP)
RUN = (OURS, CPU_EP)  # really, in processes of their own
PEERS = tuple(name for name in KINDS if name not in OUR_ENGINES)
GPT_OSS_BIASES = (
    "attn_q", "attn_k", "attn_v", "attn_output",
    "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
)  # fmt: skip
NEEDS_GPT_OSS = pytest.mark.skipif(
    SINCE["gpt_oss"] > ORT_VERSION, reason="ONNX Runtime's CPU EP cannot run gpt-oss"
)
TINY = SHAPES["tiny-llama"]
WIDE = replace(TINY, hidden=256, ffn=384, heads=8)  # all multiples of 128
EXPERTS = replace(SHAPES["tiny-qwen3"], ffn=64, experts=8, experts_per_token=2)
CONDITIONS = conditions.Conditions(
    conditions.Machine(
        "CPU", "AuthenticAMD, family 26", ("avx2",), 2, "L2 1024K", 0, True, "Linux"
    ),
    date="2026-11-22",
    command="ort-aie bench MODEL --peers",
    model="tiny",
    versions={"onnxruntime": "1.32.0"},
    plan="2 threads",
)


@pytest.fixture(scope="module", autouse=True)
def small_probes() -> Iterator[None]:
    """The numbers do not have to be good ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_PROBE_BYTES", 16 << 20)
        patch.setattr(process, "_SETTLE_SECONDS", 0)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "model"
    synth("tiny-llama", folder)
    return folder


@pytest.fixture(scope="module")
def weights(model: Path) -> DecoderWeights:
    return DecoderWeights(find_model(model))


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "model"
    synth(EXPERTS, folder)
    return folder


@pytest.fixture
def expert_source(experts: Path, tmp_path: Path) -> Source:
    found = find_model(experts)
    return Source(found, DecoderWeights(found), tmp_path)


@pytest.fixture(scope="module")
def gpt_oss_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The biases of experts are zeros in tests/data; here they are not."""
    folder = shutil.copytree(DATA / "gpt_oss", tmp_path_factory.mktemp("gpt_oss") / "model")
    file = onnx.load(folder / "model.onnx")
    generator = np.random.default_rng(0)
    for tensor in file.graph.initializer:
        if tensor.name.endswith("_proj.bias"):
            bias = 0.3 * generator.standard_normal(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(bias.astype(np.float32), tensor.name))
    (folder / "model.onnx.data").unlink()
    onnx.save(file, folder / "model.onnx")
    return folder


@pytest.fixture
def gpt_oss(gpt_oss_folder: Path, tmp_path: Path) -> Source:
    found = find_model(gpt_oss_folder)
    return Source(found, DecoderWeights(found), tmp_path)


@pytest.fixture
def source(model: Path, weights: DecoderWeights, tmp_path: Path) -> Source:
    return Source(find_model(model), weights, tmp_path)


@pytest.fixture(scope="module")
def blocks_of_128(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth(WIDE, tmp_path_factory.mktemp("blocks") / "model", block_size=128)


def random_matrix(n: int, k: int, block: int = BLOCK) -> Int4Matrix:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 256, (n, k // block, block // 2), np.uint8)
    return Int4Matrix(codes, generator.standard_normal((n, k // block)).astype(np.float32))


# --- weights ---


def test_weights_are_those_of_the_onnx_file(model: Path, weights: DecoderWeights) -> None:
    file = onnx.load(model / "model.onnx")
    tensors = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    codes = tensors["model.layers.1.mlp.down_proj.MatMul.weight_Q4"]
    scales = tensors["model.layers.1.mlp.down_proj.MatMul.weight_scales"]
    down = weights.layer(1).down
    assert down.shape == (TINY.hidden, TINY.ffn)
    values = down.dequantised()
    for n, k in np.random.default_rng(0).integers(0, down.shape, (100, 2)):
        byte = codes[n, k // BLOCK, k % BLOCK // 2]
        code = int(byte >> 4 if k % 2 else byte & 15)
        assert values[n, k] == np.float32(code - 8) * scales[n, k // BLOCK]
    packed = weights.layer(0)
    assert (packed.q.shape[0], packed.k.shape[0]) == (TINY.queries, TINY.keys)
    together = np.concatenate([packed.q.codes, packed.k.codes, packed.v.codes])
    assert np.array_equal(together, tensors["model.layers.0.attn.qkv_proj.MatMul.weight_Q4"])
    norm = tensors["model.layers.1.post_attention_layernorm.weight"]
    assert np.array_equal(weights.layer(1).ffn_norm, norm)
    final = tensors["model.layers.2.final_norm_layernorm.weight"]
    assert np.array_equal(weights.final_norm(), final)


def test_a_block_of_128_is_four_blocks_of_q4_0_with_its_scale() -> None:
    matrix = random_matrix(3, 256, block=128)
    blocks = q4_0(matrix).reshape(3, 8, 18)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)
    codes = np.concatenate([blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4], axis=-1)
    rounded = replace(matrix, scales=matrix.scales.astype(np.float16).astype(np.float32))
    values = (codes.astype(np.float32) - 8) * scales
    assert np.array_equal(values.reshape(3, 256), rounded.dequantised())


def test_sizes_are_those_of_the_graph(weights: DecoderWeights) -> None:
    shape = weights.shape
    # Computed from cos and sin in float32, whose relative error is about 2⁻²⁴.
    assert shape.rope_theta == pytest.approx(TINY.rope_theta, rel=1e-5)
    same = {"rope_theta": TINY.rope_theta, "global_every": TINY.global_every}
    assert replace(shape, epsilon=pytest.approx(TINY.epsilon), **same) == TINY
    expected = TINY.rope_theta ** (-np.arange(16) / 16)
    np.testing.assert_allclose(weights.frequencies, expected, rtol=1e-6)
    a_layer = TINY.hidden * (2 * TINY.queries + 2 * TINY.keys + 3 * TINY.ffn)
    assert weights.product_elements() == TINY.layers * a_layer + TINY.vocab * TINY.hidden


def test_an_embedding_of_its_own_is_found(tmp_path: Path) -> None:
    synth(replace(TINY, tied=False), tmp_path / "untied")
    embedding = DecoderWeights(find_model(tmp_path / "untied")).embedding()
    assert embedding is not None
    assert embedding.shape == (TINY.vocab, TINY.hidden)


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "phi"])
def test_other_models_are_refused_with_a_reason(family: str) -> None:
    with pytest.raises(AieError, match="llama, qwen3 or gptoss"):
        DecoderWeights(find_model(DATA / family))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("gptoss", "llama", "activation_alpha of .*QMoE is not 1"),
        ("swiglu_limit", 5.0, "swiglu_limit of .*QMoE is not 7"),
        ("local_window_size", 8, r"a gptoss has no such windows: \[8, 8\]"),
    ],
)
def test_a_gpt_oss_that_differs_is_refused_with_a_reason(
    old: str, new: Any, reason: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(DATA / "gpt_oss", tmp_path / "model")
    config = folder / "genai_config.json"
    config.write_text(config.read_text().replace(old, str(new)))
    file = onnx.load(folder / "model.onnx", load_external_data=False)
    for node in file.graph.node:
        for attribute in node.attribute:
            if attribute.name == old:
                attribute.CopyFrom(helper.make_attribute(old, new))
    onnx.save(file, folder / "model.onnx")
    with pytest.raises(AieError, match=reason):
        DecoderWeights(find_model(folder))


def test_biases_sinks_and_windows_of_gpt_oss_are_found(gpt_oss: Source) -> None:
    file = onnx.load(gpt_oss.folder.model)
    tensors = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    prefix, layer = "model.layers.1", gpt_oss.weights.layer(1)
    biases = [matrix.bias for matrix in (layer.q, layer.k, layer.v)]
    together = np.concatenate([bias for bias in biases if bias is not None])
    assert np.array_equal(together, tensors[f"{prefix}.attn.qkv_proj.Add.bias"])
    assert np.array_equal(layer.o.bias, tensors[f"{prefix}.attn.o_proj.Add.bias"])
    assert np.array_equal(layer.sinks, tensors[f"{prefix}.attn.sinks"])
    assert layer.router is not None
    assert np.array_equal(layer.router.bias, tensors[f"{prefix}.moe.router.Add.bias"])
    gate_up = tensors[f"{prefix}.moe.experts.gate_up_proj.bias"]
    assert np.array_equal(layer.gate.bias, gate_up[:, ::2].ravel())
    assert np.array_equal(layer.up.bias, gate_up[:, 1::2].ravel())
    down = tensors[f"{prefix}.moe.experts.down_proj.bias"]
    assert np.array_equal(layer.down.bias, down.ravel())
    assert gpt_oss.weights.lm_head().bias is None
    shape = gpt_oss.weights.shape
    assert shape.window == 24
    assert gpt_oss.weights.describe() == (
        "gptoss with 2 layers of 128, 2 of 4 experts of 96, 4 heads of 32 on 2, "
        "windows of 24 in every other layer, vocabulary 288"
    )
    assert shape.yarn == SHAPES["gpt-oss-20b"].yarn
    assert shape.rope_theta == pytest.approx(150000, rel=1e-5)
    # A layer keeps 24 tokens, the other one 100: keys and values of 2 heads of 32 in float16.
    assert gpt_oss.weights.cache_bytes(100) == (24 + 100) * 2 * 2 * 32 * 2


def test_rows_of_experts_are_those_of_the_fused_matrix(expert_source: Source) -> None:
    file = onnx.load(expert_source.folder.model)
    tensors = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    name = "model.layers.1.moe.experts.gate_up_proj"
    codes, scales = tensors[f"{name}.qweight"], tensors[f"{name}.scales"]
    layer = expert_source.weights.layer(1)
    for part, matrix in enumerate((layer.gate, layer.up)):
        expert, row = 3, 5
        place = expert * EXPERTS.ffn + row
        assert np.array_equal(matrix.codes[place].ravel(), codes[expert, 2 * row + part])
        assert np.array_equal(matrix.scales[place], scales[expert, 2 * row + part])
    shape = expert_source.weights.shape
    assert (shape.ffn, shape.experts, shape.experts_per_token) == (64, 8, 2)
    assert "2 of 8 experts of 64" in expert_source.weights.describe()
    a_token = EXPERTS.hidden * (2 * EXPERTS.queries + 2 * EXPERTS.keys + 8 + 2 * 3 * 64)
    elements = EXPERTS.layers * a_token + EXPERTS.vocab * EXPERTS.hidden
    assert expert_source.weights.product_elements() == elements


def test_only_the_experts_of_a_token_count_as_read(expert_source: Source) -> None:
    made = kind(OURS).model(expert_source)
    # In blocks of 32 x 256, without minima: of 2 experts, 2 · 1 · 2 + 1 · 5 blocks of 4,608 bytes.
    experts = 2 * (2 * 2 * 1 + 5 * 1) * 4608
    router = 1 * 1 * 4608
    attention = (16 + 5) * 1 * 4608
    head = 16 * 1 * 4608
    assert made.weight_bytes == EXPERTS.layers * (experts + router + attention) + head


def test_openvino_refuses_experts_with_a_reason(expert_source: Source, gpt_oss: Source) -> None:
    if kind("OpenVINO").missing():
        pytest.skip("there is no OpenVINO")
    for source, family in ((expert_source, "qwen3"), (gpt_oss, "gptoss")):
        with pytest.raises(AieError, match=f"{family}"):
            kind("OpenVINO").model(source)


def test_zero_points_are_refused_with_a_reason(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / "model.onnx"
    file = onnx.load(path, load_external_data=False)
    node = next(n for n in file.graph.node if "down_proj" in n.name)
    zeros = np.full((TINY.hidden, TINY.ffn // BLOCK // 2 + 1), 0x77, np.uint8)
    file.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    node.input.append("zeros")
    onnx.save(file, path)
    with pytest.raises(AieError, match=r"down_proj"):
        DecoderWeights(find_model(tmp_path / "model")).layer(0)


def test_gguf_holds_the_codes_of_the_source(source: Source) -> None:
    gguf = pytest.importorskip("gguf")
    made, weights = gguf_model(source), source.weights
    tensors = {t.name: t for t in gguf.GGUFReader(made.path).tensors}

    def codes_and_scales(name: str) -> tuple[Any, Any]:
        assert tensors[name].tensor_type == gguf.GGMLQuantizationType.Q4_0
        blocks = tensors[name].data.reshape(tensors[name].data.shape[0], -1, 18)
        halves = [blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4]
        scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
        return np.concatenate(halves, axis=-1), scales

    layer = weights.layer(1)
    for name, matrix in (
        ("blk.1.ffn_up.weight", layer.up),
        ("blk.1.attn_v.weight", layer.v),
        ("blk.1.attn_q.weight", interleaved(layer.q, TINY.heads)),
        ("blk.1.attn_k.weight", interleaved(layer.k, TINY.kv_heads)),
        ("token_embd.weight", weights.lm_head()),
    ):
        codes, scales = codes_and_scales(name)
        assert np.array_equal(codes, matrix.unpacked())
        assert np.array_equal(scales, matrix.scales.astype(np.float16))
    assert "output.weight" not in tensors
    matrices = sum(t.n_bytes for t in tensors.values() if t.tensor_type.name == "Q4_0")
    assert made.weight_bytes == matrices


def test_gguf_of_gpt_oss_has_what_llama_cpp_names(gpt_oss: Source) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(gguf_model(gpt_oss).path)
    architecture = gguf.MODEL_ARCH.GPT_OSS
    name = gguf.MODEL_ARCH_NAMES[architecture]
    keys = {key: field.contents() for key, field in reader.fields.items()}
    assert keys["general.architecture"] == name
    rope = gguf.Keys.Rope
    expected = {
        gguf.Keys.Attention.SLIDING_WINDOW: 24,
        gguf.Keys.LLM.EXPERT_COUNT: 4,
        gguf.Keys.LLM.EXPERT_USED_COUNT: 2,
        gguf.Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: 96,
        rope.SCALING_TYPE: "yarn",
        rope.SCALING_FACTOR: 32,
        rope.SCALING_ORIG_CTX_LEN: 4096,
        rope.FREQ_BASE: pytest.approx(150000, rel=1e-5),
    }
    for key, value in expected.items():
        assert keys[key.format(arch=name)] == value
    tensors = {t.name: t for t in reader.tensors}
    named = {
        gguf.TENSOR_NAMES[tensor].format(bid=layer)
        for tensor in gguf.MODEL_TENSORS[architecture]
        for layer in range(2)
    }
    assert {name.rsplit(".", 1)[0] for name in tensors} == named
    biased = {name.removesuffix(".bias") for name in tensors if name.endswith(".bias")}
    assert biased == {f"blk.{layer}.{part}" for layer in range(2) for part in GPT_OSS_BIASES}
    # Shapes are those of ggml, with the fastest dimension first.
    assert list(tensors["blk.1.ffn_gate_exps.weight"].shape) == [128, 96, 4]
    assert list(tensors["blk.1.ffn_gate_exps.bias"].shape) == [96, 4]
    layer = gpt_oss.weights.layer(1)
    assert np.array_equal(tensors["blk.1.attn_sinks.weight"].data, layer.sinks)
    up = layer.up.bias
    assert up is not None
    assert np.array_equal(tensors["blk.1.ffn_up_exps.bias"].data, up.reshape(4, 96))


def test_interleaved_rows_pair_what_rotates_together() -> None:
    matrix = random_matrix(12, 32)
    rows = interleaved(matrix, heads=2).dequantised()
    plain = matrix.dequantised()
    # Heads of 6 rows: row i rotates with row i + 3, and they become neighbours.
    order = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert np.array_equal(rows, plain[order])


# --- engines ---


def skip_without(name: str) -> None:
    missing = kind(name).missing()
    if missing:
        pytest.skip(f"{name}: {missing}")


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("name", [name for name in KINDS if name != CPU_EP])
def test_engine_computes_what_the_cpu_ep_does(
    name: str, block: int, source: Source, blocks_of_128: Path
) -> None:
    skip_without(name)
    if block == 128:
        found = find_model(blocks_of_128)
        source = Source(found, DecoderWeights(found), source.scratch)
        assert source.weights.describe().endswith("vocabulary 500, blocks of 128")
        assert source.weights.source_bits() == 4 + 32 / 128
    # Random weights have near-ties. Rounding to 8 bits may decide one differently, and so change
    # all later tokens; but with a wrong layout, rotation or cache, one of 500 tokens agrees only by
    # chance.
    assert agreement(name, source, TINY.vocab) > 0.6


@needs_qmoe
@pytest.mark.parametrize("name", [OURS, "llama.cpp", "ik_llama.cpp"])
def test_engine_computes_experts_as_the_cpu_ep_does(name: str, expert_source: Source) -> None:
    skip_without(name)
    # Near-ties of the router as well.
    assert agreement(name, expert_source, EXPERTS.vocab) > 0.5


@NEEDS_GPT_OSS
@pytest.mark.parametrize("name", [OURS, OURS_INT8, "llama.cpp", "ik_llama.cpp"])
def test_engine_computes_gpt_oss_as_the_cpu_ep_does(name: str, gpt_oss: Source) -> None:
    skip_without(name)
    assert agreement(name, gpt_oss, gpt_oss.weights.shape.vocab) > 0.5


@NEEDS_GPT_OSS
@pytest.mark.parametrize("name", [OURS, "llama.cpp", "llama.cpp, no FA", "ik_llama.cpp"])
def test_logits_of_gpt_oss_are_those_of_the_cpu_ep(name: str, gpt_oss: Source) -> None:
    skip_without(name)
    opened = [kind(n).open(kind(n).model(gpt_oss), Settings(1, 128)) for n in (CPU_EP, name)]
    errors = []
    for length in (4, 8, 16, 24, 32, 48, 64, 80):
        prompt = np.random.default_rng(length).integers(0, gpt_oss.weights.shape.vocab, length)
        expected, got = (last_logits(engine, prompt) for engine in opened)
        errors.append(np.sqrt(np.mean((got - expected) ** 2)) / np.std(expected))
    # Both round activations to 8 bits: about 0.02. A near-tie of a router gives more, so the median
    # counts. Without the sinks it is 0.1, without any bias, the window or the scaled rotation more.
    assert np.median(errors) < 0.05


def last_logits(engine: Any, prompt: Any) -> Any:
    engine.reset()
    if isinstance(engine, GgufEngine):
        return engine._decode(prompt.tolist(), 0).copy()
    return engine._decoder.prefill(prompt)


def agreement(name: str, source: Source, vocabulary: int) -> float:
    """The share of greedy tokens that are those of the CPU EP."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, vocabulary, n).tolist() for n in range(1, 81, 5)]

    def likeliest(engine_name: str) -> Any:
        engine = kind(engine_name).open(kind(engine_name).model(source), Settings(1, 128))
        return np.array([engine.run(prompt, 3).tokens for prompt in prompts])

    tokens = likeliest(name)
    assert tokens.shape == (len(prompts), 4)
    return float(np.mean(tokens == likeliest(CPU_EP)))


def test_missing_packages_are_named_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    ready, left_out = runner.available(tuple(KINDS))
    assert ready == list(OUR_ENGINES)
    assert tuple(left_out) == PEERS
    assert left_out["llama.cpp"] == "is not installed: pip install llama-cpp-python gguf"
    assert left_out["ik_llama.cpp"].endswith("pip install ik-llama-cpp-python==0.1.5 gguf")
    assert "openvino" in left_out["OpenVINO"]


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(AieError, match=r"'x'.*ort_aie_ep"):
        kind("x")


# --- runner ---


def test_a_failing_engine_says_what_failed(tmp_path: Path) -> None:
    models = {CPU_EP: Model(tmp_path / "none", 4.5, 0, 0)}
    with Worker(CPU_EP) as worker:
        with pytest.raises(EngineError, match=r"ORT CPU EP.*none"):
            worker.open(Setup(models, Settings(1, 8), vocabulary=8))
        # The worker frees its memory now, not at the end of the run.
        assert worker._process.returncode == -signal.SIGKILL


def test_a_worker_that_dies_says_how_and_its_last_words() -> None:
    with Worker("engine") as worker:
        # What a terminal sends to all of its processes is for the command, which ends this one.
        for ending in (None, signal.SIGINT, signal.SIGTERM):
            if ending is not None:
                worker._process.send_signal(ending)
            with pytest.raises(EngineError, match="TypeError"):
                worker.run(2, 0)
        worker._log.write("loading\n\n  GGML_ASSERT(ok)  failed\n")
        worker._log.flush()
        worker._process.send_signal(signal.SIGSEGV)
        with pytest.raises(EngineError) as raised:
            worker.run(2, 0)
        # Python's own start may have added a line after them.
        assert re.match(r"engine ended with signal 11 \(SIGSEGV\): \w+", str(raised.value))
        assert "\n" not in raised.value.reason


def test_a_worker_that_hangs_is_ended_at_its_limit() -> None:
    with Worker("engine", limit=0.2) as worker:
        worker._process.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"engine .* 0 s"):
            worker.run(2, 0)
        assert worker._process.wait(10) == -signal.SIGKILL


class Log(Course):
    """A course that records its messages."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.steps: list[str] = []
        self.notes: list[str] = []
        self.times_left: list[float] = []
        super().__init__(self.told, self.notes.append, self.times_left.append)

    def told(self, _: int, total: int, what: str) -> None:
        self.totals.append(total)
        self.steps.append(what)


def test_a_plan_beyond_the_context_is_refused(source: Source) -> None:
    plan = Workload((250,), (), 10, rounds=1, starts=1, threads=1, options={})
    with pytest.raises(AieError, match="256"):
        runner.measure(source, plan, Log())
    plan = Workload((8,), (), 4, rounds=1, starts=1, threads=1, options={}, batches=(1, 193))
    with pytest.raises(AieError, match=r"193 .* 64 .* 256"):
        runner.measure(source, plan, Log())


@pytest.fixture(scope="module")
def run(
    model: Path, weights: DecoderWeights, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workload, Log, Results]:
    source = Source(find_model(model), weights, tmp_path_factory.mktemp("scratch"))
    plan = Workload(
        decode=(8, 24),
        prefill=(24,),
        new_tokens=4,
        rounds=2,
        starts=1,
        threads=1,
        options={},
        growth=(32, 256, 512),
        batches=(1, 2),
    )
    log = Log()
    return plan, log, runner.measure(source, plan, log, RUN)


def test_rounds_give_every_engine_the_same_columns(
    run: tuple[Workload, Log, Results], weights: DecoderWeights
) -> None:
    plan, log, results = run
    assert log.totals[-1] == len(log.steps)
    assert log.notes == []
    # How long the rest takes is known from the first run of a model on.
    before = sum("its model" in step for step in log.steps)
    assert len(log.times_left) == len(log.steps) - before
    assert log.times_left[-1] == 0
    assert [m.engine for m in results.measured] == list(RUN)
    for m in results.measured:
        decode, prefill = m.speeds["decode"], m.speeds["prefill"]
        assert {length: len(rounds) for length, rounds in decode.items()} == {8: 2, 24: 2}
        assert {length: len(rounds) for length, rounds in prefill.items()} == {24: 2}
        assert min(map(min, [*decode.values(), *prefill.values()])) > 0
        assert m.memory["peak"] > m.file_bytes >= m.weight_bytes
        assert m.memory["peak"] >= m.memory["anonymous"] > 0
    assert [m.settings["KV"] for m in results.measured] == ["float16", "float"]
    cpu_ep = results.measured[-1]
    assert cpu_ep.weight_bytes == weights.product_elements() * 5 / 8
    assert len(results.probes) == plan.rounds
    # Keys and values of 64 + 4 tokens in 2 layers, 2 heads of 32 float16 each.
    assert results.cache_bytes == 68 * 2 * 2 * 2 * 32 * 2
    # Interleaved: the engines of one context, then those of the next.
    turns = [step.split(": ")[1] for step in log.steps if re.match("context .*, round 1", step)]
    assert turns == list(RUN) * 2


def test_starts_are_fresh_processes_in_turns(run: tuple[Workload, Log, Results]) -> None:
    _, log, results = run
    for m in results.measured:
        for state in STATES:
            loads, firsts = m.starts.load_seconds[state], m.starts.first_token_seconds[state]
            assert (len(loads), len(firsts)) == (1, 1)
            assert all(0 < load < first for load, first in zip(loads, firsts, strict=True))
    for state in STATES:
        began = f"{state} start, round 1"
        turns = [step.split(": ")[1] for step in log.steps if step.startswith(began)]
        assert turns == list(RUN)
    assert sum(step.startswith("cold start, round 0") for step in log.steps) == 0


def test_several_rows_are_measured_in_both_shapes(run: tuple[Workload, Log, Results]) -> None:
    _, _, results = run
    assert results.batches is not None
    assert list(results.batches.seconds) == [OURS, CPU_EP]
    for shapes in results.batches.seconds.values():
        for shape in ROWS:
            assert {n: len(rounds) for n, rounds in shapes[shape].items()} == {1: 2, 2: 2}
    cost = results.batches.cost(OURS, SEQUENCES, 2)
    assert cost is not None
    assert cost.value > 0
    assert results.batches.cost(OURS, SEQUENCES, 4) is None


@pytest.mark.parametrize("name", ["llama.cpp", "ik_llama.cpp"])
def test_each_sequence_of_a_call_gets_its_tokens(source: Source, name: str) -> None:
    skip_without(name)
    engine: Any = kind(name).open(kind(name).model(source), Settings(1, 128))
    rows = different_tokens(2, 3)
    assert np.unique(rows).size == rows.size
    # Three tokens of the second of two sequences, after the same eight.
    context, _ = engine._open(2)
    engine._calls.clear(context)
    engine._decode([1] * 8, 0, context_of=2)
    engine._calls.copy(context, 1)
    together = engine._decode(rows.ravel(), 8, context_of=2, sequences=2).copy()
    alone = last_logits(engine, np.concatenate([np.ones(8, np.int64), rows[1]]))
    # Sums of products in another order; another sequence's tokens differ as much as they vary.
    assert np.sqrt(np.mean((together - alone) ** 2)) < 0.05 * np.std(alone)


def test_growth_is_measured_where_the_model_has_room(run: tuple[Workload, Log, Results]) -> None:
    _, _, results = run
    assert results.growth is not None
    assert {n: len(r) for n, r in results.growth.seconds.items()} == {32: 2, 256: 2}
    assert min(map(min, results.growth.seconds.values())) > 0
    assert results.growth.cache_bytes == 2 * 2 * 2 * 32 * 2
    plan = Workload((8,), (), 4, rounds=1, starts=1, threads=1, options={}, growth=(64, 512))
    assert plan.growth_within(256) == ()  # one point does not make a line


@pytest.mark.parametrize(
    ("name", "cache"), [(OURS, "float16"), (OURS_INT8, "int8"), (OURS_FLOAT, "float")]
)
def test_decoding_without_a_prompt_uses_the_whole_cache(
    source: Source, name: str, cache: str
) -> None:
    engine = kind(name).open(kind(name).model(source), Settings(1, 64))
    assert engine.description["KV"] == cache
    tokens = engine.run([1, 2, 3], 3).tokens
    assert engine.decode_at(64, 2) > 0
    with pytest.raises(AieError, match="64"):
        engine.decode_at(65, 1)
    # The next sequence does not see what was written there.
    assert engine.run([1, 2, 3], 3).tokens == tokens


def test_what_cannot_skip_a_prompt_says_so() -> None:
    class Plain(Engine):
        def run(self, prompt: object, new_tokens: int) -> Any: ...

    with pytest.raises(AieError, match="Plain"):
        Plain().decode_at(8, 1)


def test_of_a_library_the_faster_ways_go_on() -> None:
    def pilot(decode: float, prefill: float) -> Speeds:
        return {"decode": {64: [decode / 2, decode]}, "prefill": {64: [prefill, prefill / 2]}}

    pilots = {
        OURS: pilot(50, 500),
        OURS_FLOAT: pilot(10, 100),
        CPU_EP: pilot(1, 10),
        "llama.cpp": pilot(40, 150),  # faster at one, slower at the other
        "llama.cpp, no FA": pilot(30, 200),
        "OpenVINO": pilot(30, 300),
        "OpenVINO GenAI": pilot(40, 400),
    }
    expected = [OURS, OURS_FLOAT, CPU_EP, "llama.cpp", "llama.cpp, no FA", "OpenVINO GenAI"]
    assert rounds.fastest(pilots, 64) == expected
    pilots["OpenVINO"] = pilot(30, 400 * (1 - workload.PILOT_MARGIN))
    assert "OpenVINO" in rounds.fastest(pilots, 64)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds that a course sees, which the test moves."""
    now = [0.0]
    monkeypatch.setattr("ort_aie_ep.tools.bench.peers.course.time.perf_counter", lambda: now[0])
    return now


def test_time_left_is_what_equal_steps_took(clock: list[float]) -> None:
    log = Log()
    opening = Cost("a", "opening its model")
    short, long, start = (
        Cost("a", "context 64", 64),
        Cost("a", "context 640", 640),
        Cost("a", "x", 32),
    )
    log.expect([opening, *[short, long] * 3, start])
    for cost, seconds in ((opening, 100), (short, 2), (long, 30), (short, 4), (long, 30)):
        clock[0] += seconds
        log.step(cost)
    # Nothing is said before the first run. Then a token takes 2/64 s, and later (3 + 30)/704 s.
    later = 32 * 33 / 704
    first = 2 * 2 + 3 * 20 + 1
    assert log.times_left == pytest.approx(
        [first, 2 * 2 + 2 * 30 + 32 * 32 / 704, 3 + 2 * 30 + later, 3 + 30 + later]
    )
    assert log.seconds([]) == 0


# --- engines that fail ---


class FakeWorker:
    """A worker without a process: a script says what fails when, and what would avoid the failure.

    Attributes:
        failing: by engine's name, why a run fails ("" if it does not), as a function of its
            context, the number of earlier runs there, and what it does without.
        closed: names of engines that were stopped before their turn was over.
        left: names of engines whose turn is over.
        slow: names of engines that take twice as long.
    """

    failing: ClassVar[dict[str, Callable[[int, int, str], str]]] = {}
    closed: ClassVar[list[str]] = []
    left: ClassVar[list[str]] = []
    slow: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs: dict[int, int] = {}
        self.without = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.left.append(self.name)

    def close(self) -> None:
        self.closed.append(self.name)

    def seconds(self) -> float:
        return 1.0

    def open(self, setup: Setup) -> dict[str, Any]:
        self.without = setup.without.get(self.name, "")
        return {"load_seconds": 0.5, "settings": {"threads": "1"}}

    def run(self, length: int, new_tokens: int) -> dict[str, Any]:
        before = self.runs.get(length, 0)
        self.runs[length] = before + 1
        reason = self.failing.get(self.name, lambda *_: "")(length, before, self.without)
        if reason:
            raise EngineError(self.name, reason)
        factor = 2 if self.name in self.slow else 1
        seconds = {
            "prefill_seconds": factor * length / 100,
            "decode_seconds": factor * new_tokens / 10,
        }
        return {**seconds, "memory": {"peak": 1, "anonymous": 1, "files": 0}}

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        self.run(-sequences * tokens, 0)
        return sequences * tokens + 1

    def decode_at(self, total: int, count: int) -> float:
        return total * count / 1000


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeWorker]]:
    """Engines without processes or models: every peer is installed."""
    for module in (rounds, runner):
        monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(memory, "_PROBE_BYTES", 8 << 20)
    monkeypatch.setattr(memory.ReadProbe, "measure", lambda _: 30e9)
    monkeypatch.setattr(process, "_SETTLE_SECONDS", 0)
    made = {name: replace(k, packages={}, model=fake_model) for name, k in KINDS.items()}
    for name, k in made.items():
        if k.batch_model is not None:
            made[name] = replace(k, batch_model=fake_model)
    monkeypatch.setattr(engines, "KINDS", made)
    yield FakeWorker
    FakeWorker.failing, FakeWorker.closed, FakeWorker.left, FakeWorker.slow = {}, [], [], ()


def fake_model(source: Source) -> Model:
    path = source.scratch / "model.fake"
    path.write_bytes(b"x")
    return Model(path, 4.5, 10, 10)


def measure_fakes(source: Source, **others: Any) -> tuple[Log, Results]:
    plan = Workload(
        (8, 24), (24,), 4, rounds=3, starts=1, threads=1, options={}, growth=(), batches=(1, 4)
    )
    log = Log()
    return log, runner.measure(source, plan, log, **others)


def test_a_peer_that_dies_is_one_line_and_the_others_go_on(
    fakes: type[FakeWorker], source: Source
) -> None:
    died = "ended with signal 9 (SIGKILL): it printed nothing"
    fakes.failing["OpenVINO"] = lambda length, before, _: died if before == 2 else ""
    log, results = measure_fakes(source)
    assert results.left_out == {"OpenVINO": f"{died} (context 8)"}
    assert fakes.closed == ["OpenVINO"]
    assert [m.engine for m in results.measured] == [name for name in KINDS if name != "OpenVINO"]
    assert all(len(m.speeds["decode"][8]) == 3 for m in results.measured)
    assert any(f"OpenVINO {died} (context 8)" in note for note in log.notes)
    text = markdown(report(results), CONDITIONS)
    assert sum(died in line for line in text.splitlines()) == 1


@pytest.mark.parametrize("at", [8, 24])
def test_a_crashed_llama_cpp_is_tried_once_more_without_amx(
    fakes: type[FakeWorker], source: Source, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    # The trial stops before 24, so the engine crashes in the first round that counts.
    monkeypatch.setattr(workload, "TRIAL_TOKENS", 8)
    died = "ended with signal 11 (SIGSEGV): GGML_ASSERT"

    def crash(length: int, _: int, without: str) -> str:
        return died if length == at and without != "AMX" else ""

    fakes.failing["llama.cpp"] = crash
    log, results = measure_fakes(source)
    assert not results.left_out
    llama = next(m for m in results.measured if m.engine == "llama.cpp")
    assert llama.settings["without"] == f"AMX, after it {died}"
    assert {n: len(rounds) for n, rounds in llama.speeds["decode"].items()} == {8: 3, 24: 3}
    assert any(f"llama.cpp {died}" in note and "AMX" in note for note in log.notes)
    others = (m.settings for m in results.measured if m.engine != "llama.cpp")
    assert all("without" not in settings for settings in others)


def test_what_crashes_a_second_time_is_left_out(fakes: type[FakeWorker], source: Source) -> None:
    fakes.failing["ik_llama.cpp"] = lambda length, *_: "ended with signal 6" if length == 8 else ""
    _, results = measure_fakes(source)
    assert results.left_out == {"ik_llama.cpp": "ended with signal 6 (context 8)"}


def test_what_fails_with_several_rows_keeps_its_speeds(
    fakes: type[FakeWorker], source: Source
) -> None:
    fakes.failing["ik_llama.cpp"] = lambda length, *_: "ended with signal 6" if length == -4 else ""
    _, results = measure_fakes(source)
    assert not results.left_out
    assert results.batches is not None
    assert "ik_llama.cpp" not in results.batches.seconds
    assert fakes.closed == ["ik_llama.cpp"]
    ik = next(m for m in results.measured if m.engine == "ik_llama.cpp")
    assert ik.settings["not all measured"] == "it ended with signal 6 (4 sequences in a call)"
    # The fake takes n + 1 seconds for n rows.
    cost = results.batches.cost(OURS, TOKENS, 4)
    assert cost is not None
    assert cost.value == 2.5


def test_without_ort_aie_ep_there_is_nothing_to_compare(
    fakes: type[FakeWorker], source: Source
) -> None:
    fakes.failing[OURS] = lambda *_: "failed: out of memory"
    with pytest.raises(EngineError, match=r"ort_aie_ep.*out of memory"):
        measure_fakes(source)


def test_results_so_far_are_reported_after_each_round(
    fakes: type[FakeWorker], source: Source
) -> None:
    told: list[Results] = []
    _, results = measure_fakes(source, partial=told.append)
    # Three rounds of speeds, three of several rows, one of starts.
    assert [r.rounds for r in told] == [1, 2, 3, 3, 3, 3, 3]
    assert [len(r.batches.seconds[OURS][TOKENS][4]) for r in told if r.batches] == [1, 2, 3, 3]
    assert [r.unfinished.split(",")[0] for r in (*told, results)] == [
        *(f"round {n} of 3" for n in (1, 2, 3)), *["several rows in a call"] * 3, "starts", ""
    ]  # fmt: skip
    pages = [markdown(report(r), CONDITIONS) for r in (told[0], results)]
    assert ["**Unfinished: round 1 of 3" in page for page in pages] == [True, False]
    assert "| ort_aie_ep / best peer | 1.00 (1.00–1.00) |" in pages[0]


def test_a_demonstration_that_fails_costs_nothing_else(
    fakes: type[FakeWorker], source: Source
) -> None:
    del fakes

    def demonstrate() -> Any:
        raise AieError("no room")

    told: list[Results] = []
    plan = Workload((8,), (), 4, rounds=1, starts=1, threads=1, options={}, growth=(32, 64))
    with pytest.raises(AieError, match="no room"):
        runner.measure(source, plan, Log(), partial=told.append, demonstrate=demonstrate)
    assert told[-1].growth is not None
    assert told[-1].unfinished == "the cost of context, round 1 of 1, and none of the later parts"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_what_was_measured(
    number: int, code: int, fakes: type[FakeWorker], model: Path, tmp_path: Path
) -> None:
    def interrupt(length: int, before: int, _: str) -> str:
        if (length, before) == (8, 3):  # the trial and two rounds are over
            os.kill(os.getpid(), number)
        return ""

    fakes.failing["llama.cpp"] = interrupt
    before = signal.getsignal(number)
    plan = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "4", "--threads", "1")
    out = ("--out", tmp_path) if find_spec("matplotlib") else ()
    result = bench("--peers", model, *plan, "--json", *out)
    assert result.exit_code == code, result.output
    assert signal.getsignal(number) is before
    assert set(fakes.left) == set(KINDS)
    content = json.loads(result.stdout)["results"]
    assert content["unfinished"] == "round 2 of 4, and none of the later parts"
    assert len(content["probes"]) == 2
    assert {len(m["speeds"]["decode"]["8"]) for m in content["measured"]} == {2}
    if out:
        assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md", "bench.png"}


def test_a_quick_run_is_the_speeds_of_the_fastest_in_the_rounds_that_fit(
    fakes: type[FakeWorker], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.slow = ("llama.cpp", "OpenVINO GenAI")
    monkeypatch.setattr(workload, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(workload, "TRIAL_TOKENS", 8)
    plan = ("--prompt-lengths", "8,24", "--new-tokens", "4", "--threads", "1")
    result = bench("--peers", model, "--quick", *plan, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)["results"]
    engines = [OURS, CPU_EP, "llama.cpp, no FA", "ik_llama.cpp", "OpenVINO"]
    assert [m["engine"] for m in content["measured"]] == engines
    assert content["left_out"] == {
        "llama.cpp": "was slower than llama.cpp, no FA in the trial",
        "OpenVINO GenAI": "was slower than OpenVINO in the trial",
    }
    # One round, and no time for the long context but with the fastest peer.
    rounds_of = {
        m["engine"]: [{n: len(r) for n, r in m["speeds"][p].items()} for p in PHASES]
        for m in content["measured"]
    }
    assert rounds_of[OURS] == [{"8": 1, "24": 1}] * 2
    assert sorted(len(phases[0]) for phases in rounds_of.values()) == [1, 1, 1, 2, 2]
    assert {length for phases in rounds_of.values() for length in phases[1]} == {"8", "24"}
    parts = ("batches", "growth", "demonstration", "unfinished")
    assert not any(content[part] for part in parts)
    assert {m["starts"] for m in content["measured"]} == {None}


def test_a_stalled_plain_read_is_not_the_limit_of_a_round(
    fakes: type[FakeWorker], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fakes
    reads = iter([1e9, 30e9, 2e9] * 99)
    monkeypatch.setattr(memory.ReadProbe, "measure", lambda _: next(reads))
    _, results = measure_fakes(source)
    assert results.probes == [30e9] * 3


# --- page cache ---


def test_files_of_a_model_are_those_of_its_folder_or_name(tmp_path: Path) -> None:
    for name in ("model.xml", "model.bin", "other.bin", "folder/a", "folder/b/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    def names(path: Path) -> list[str]:
        return [str(p.relative_to(tmp_path)) for p in memory.files_of(path)]

    assert names(tmp_path / "model.xml") == ["model.bin", "model.xml"]
    assert names(tmp_path / "folder") == ["folder/a", "folder/b/c"]
    with pytest.raises(AieError, match="none has no files"):
        memory.files_of(tmp_path / "none")


def test_dropped_files_are_out_of_memory_unless_they_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    if memory.drop([path]) == 1:
        pytest.skip(f"{tmp_path} is on a file system in memory")
    assert memory._resident_pages(path) == 0
    memory.warm([path])
    assert memory._resident_pages(path) == memory._pages(path)
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.sum() > 0
    assert memory.drop([path]) > 0.5
    del mapped
    assert memory.drop([path, tmp_path / "data"]) == 0


def test_weights_map_nothing_once_released(model: Path, source: Source) -> None:
    source.weights.layer(0).down.dequantised()
    assert "model.onnx.data" in Path("/proc/self/maps").read_text(errors="replace")
    source.weights.release()
    assert str(model) not in Path("/proc/self/maps").read_text(errors="replace")
    assert source.weights.layer(0).down.shape == (TINY.hidden, TINY.ffn)
    source.weights.release()


# --- command line ---


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_command_measures_what_is_installed(
    model: Path,
    tmp_path: Path,
    fakes: type[FakeWorker],
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[str], dict[str, str]],
) -> None:
    del fakes
    kinds = {name: replace(k, packages=KINDS[name].packages) for name, k in engines.KINDS.items()}
    monkeypatch.setattr(engines, "KINDS", kinds)
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    monkeypatch.setattr(demo, "MODEL", tmp_path / "none")
    plan = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "2", "--threads", "1")
    plan = (*plan, "--batch", "1,2")
    out = ("--out", tmp_path) if find_spec("matplotlib") else ()
    result = bench("--peers", model, *plan, "--starts", "1", "--json", *out)
    assert result.exit_code == 0, result.output
    written = {"bench.json", "bench.md", "bench.png"} if out else set()
    assert {path.name for path in tmp_path.iterdir()} == written
    if out:
        page = (tmp_path / "bench.md").read_text()
        typed = page.split("```sh\n")[1].split("\n")[0]
        assert typed.startswith("ort-aie bench MODEL --prompt-lengths 8 --new-tokens 4 --runs 2 ")
        assert typed.endswith(" --peers --starts 1 --out DIR --batch 1,2")
        assert str(tmp_path) not in page
    content = json.loads(result.stdout)
    assert re.fullmatch(r"\d+ steps", ends(result.stderr)["bench"])
    assert [m["engine"] for m in content["results"]["measured"]] == list(OUR_ENGINES)
    assert list(content["results"]["left_out"]) == list(PEERS)
    assert content["settings"]["plan"]["rounds"] == 2
    assert content["settings"]["plan"]["starts"] == 1
    assert [(r["engine"], r["phase"], r["peer"]) for r in content["ratios"]] == [
        (engine, phase, CPU_EP) for engine in (OURS, OURS_INT8) for phase in ("decode", "prefill")
    ]


@pytest.mark.in_turn  # tests/test_cli.py runs the demonstration with each change
def test_the_demonstration_model_is_timed_beside_onnx_runtime() -> None:
    speed = demo.decode_speed(Options(threads=1))
    assert (speed.phase, speed.length) == ("decode", 256)
    assert 0 < speed.ratio.least <= speed.ratio.median <= speed.ratio.most


def test_command_measures_several_rows_of_any_model(model: Path) -> None:
    result = bench(model, "--batch", "1,3", "--runs", "2", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    seconds = json.loads(result.stdout)["seconds"]
    assert list(seconds) == [OURS, CPU_EP]
    for shapes in seconds.values():
        for shape in ROWS:
            assert {n: len(runs) for n, runs in shapes[shape].items()} == {"1": 2, "3": 2}


def test_a_batch_is_compared_with_one_row_whatever_was_asked_for(model: Path) -> None:
    result = bench(model, "--batch", "3", "--runs", "1", "--threads", "1")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if ", n " in line]
    # The ms of one row and the cost of three, each with its bounds.
    assert [sum("." in word for word in row if word[0].isdigit()) for row in rows] == [2] * 4


def test_command_refuses_what_does_not_fit(model: Path, tmp_path: Path) -> None:
    assert "259" in bench(model, "--batch", "39").stderr
    for option in ("--prompt-lengths", "--new-tokens"):
        assert option in bench(model, "--batch", 2, option, 8).stderr
    assert "--peers" in bench(model, "--out", tmp_path).stderr
    assert "--peers" in bench(model, "--quick").stderr
    assert "--quick" in bench("--peers", model, "--quick", "--starts", 1).stderr
    assert "--peers" in bench(model, "--starts", "1").stderr
    assert "--baseline" in bench("--peers", model, "--baseline", model).stderr
    ort_aie_ep.compile(model, tmp_path / "compiled", last_logits=True)
    pruned = bench(tmp_path / "compiled", "--baseline", model, "--batch", 2).stderr
    assert "--last-logits" in pruned
    assert str(tmp_path / "compiled") in bench("--peers", tmp_path / "compiled").stderr
