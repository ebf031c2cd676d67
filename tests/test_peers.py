"""`bench --peers`: the same weights in every engine, rounds, statistics and reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console
from typer.testing import CliRunner

import ort_aie_ep
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.model_folder import find_model
from ort_aie_ep.peers import engines, runner
from ort_aie_ep.peers import report as reports
from ort_aie_ep.peers.engine import Settings
from ort_aie_ep.peers.engines import KINDS, OURS, OURS_FLOAT, Source, kind
from ort_aie_ep.peers.llama_cpp import interleaved, write_gguf
from ort_aie_ep.peers.runner import Measured, Plan, Results, Worker
from ort_aie_ep.peers.statistics import median, ratio
from ort_aie_ep.peers.weights import BLOCK, Int4Matrix, LlamaWeights
from ort_aie_ep.synth import SHAPES, synth

DATA = Path(__file__).parent / "data"
CPU_EP = "ORT CPU EP"
OUR_ENGINES = (OURS, OURS_FLOAT, CPU_EP)
PEERS = tuple(name for name in KINDS if name not in OUR_ENGINES)
TINY = SHAPES["tiny-llama"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "model"
    synth("tiny-llama", folder)
    return folder


@pytest.fixture(scope="module")
def weights(model: Path) -> LlamaWeights:
    return LlamaWeights(find_model(model))


@pytest.fixture
def source(model: Path, weights: LlamaWeights, tmp_path: Path) -> Source:
    return Source(find_model(model), weights, tmp_path)


def random_matrix(n: int, k: int) -> Int4Matrix:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
    return Int4Matrix(codes, generator.standard_normal((n, k // BLOCK)).astype(np.float32))


# --- weights ---


def test_weights_are_those_of_the_onnx_file(model: Path, weights: LlamaWeights) -> None:
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


def test_sizes_are_those_of_the_graph(weights: LlamaWeights) -> None:
    sizes = weights.sizes
    assert (sizes.hidden, sizes.ffn, sizes.layers) == (TINY.hidden, TINY.ffn, TINY.layers)
    assert (sizes.heads, sizes.kv_heads, sizes.head_size) == (6, 2, 32)
    assert (sizes.vocabulary, sizes.context) == (TINY.vocab, TINY.context)
    # Out of cos and sin in float32, whose relative error is some 2⁻²⁴.
    expected = TINY.rope_theta ** (-np.arange(16) / 16)
    np.testing.assert_allclose(sizes.inverse_frequencies, expected, rtol=1e-6)
    a_layer = TINY.hidden * (2 * TINY.queries + 2 * TINY.keys + 3 * TINY.ffn)
    assert weights.product_elements() == TINY.layers * a_layer + TINY.vocab * TINY.hidden


def test_an_embedding_of_its_own_is_found(tmp_path: Path) -> None:
    synth(replace(TINY, tied=False), tmp_path / "untied")
    embedding = LlamaWeights(find_model(tmp_path / "untied")).embedding()
    assert embedding is not None
    assert embedding.shape == (TINY.vocab, TINY.hidden)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "phi"])
def test_other_models_are_refused_with_a_reason(family: str) -> None:
    with pytest.raises(AieError, match="does not say llama"):
        LlamaWeights(find_model(DATA / family))


def test_zero_points_are_refused_with_a_reason(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    path = tmp_path / "model" / "model.onnx"
    file = onnx.load(path, load_external_data=False)
    node = next(n for n in file.graph.node if "down_proj" in n.name)
    zeros = np.full((TINY.hidden, TINY.ffn // BLOCK // 2 + 1), 0x77, np.uint8)
    file.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    node.input.append("zeros")
    onnx.save(file, path)
    with pytest.raises(AieError, match=r"down_proj.* has zero points"):
        LlamaWeights(find_model(tmp_path / "model")).layer(0)


def test_gguf_holds_the_codes_of_the_source(weights: LlamaWeights, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    made = write_gguf(weights, tmp_path / "model.gguf")
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


@pytest.mark.parametrize("name", [name for name in KINDS if name != CPU_EP])
def test_engine_computes_what_the_cpu_ep_does(name: str, source: Source) -> None:
    skip_without(name)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, TINY.vocab, n).tolist() for n in range(1, 81, 5)]

    def likeliest(engine_name: str) -> Any:
        engine = kind(engine_name).open(kind(engine_name).model(source), Settings(1, 128))
        return np.array([engine.run(prompt, 3).tokens for prompt in prompts])

    tokens = likeliest(name)
    assert tokens.shape == (len(prompts), 4)
    # Random weights have near-ties, which rounding to 8 bits decides anew, and then what follows;
    # but of 500 tokens a wrong layout, rotation or cache hits the same by chance alone.
    assert np.mean(tokens == likeliest(CPU_EP)) > 0.6


def test_missing_packages_are_named_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    ready, left_out = runner.available(tuple(KINDS))
    assert ready == list(OUR_ENGINES)
    assert tuple(left_out) == PEERS
    assert "pip install llama-cpp-python gguf" in left_out["llama.cpp"]
    assert "pip install openvino" in left_out["OpenVINO"]


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(AieError, match="no engine is called 'x'; there are ort_aie_ep"):
        kind("x")


# --- runner ---


def test_a_failing_engine_says_what_failed(tmp_path: Path) -> None:
    request = {
        "model": {"path": str(tmp_path / "none"), "bits": 4.5, "weight_bytes": 0},
        "settings": {"threads": 1, "capacity": 8, "options": {}},
        "vocabulary": 8,
    }
    with Worker(CPU_EP) as worker, pytest.raises(AieError, match=r"ORT CPU EP: .* does not exist"):
        worker.ask(engine=CPU_EP, **request)


def test_a_worker_that_dies_is_reported() -> None:
    with Worker("engine") as worker:
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(AieError, match="engine: its process ended"):
            worker.ask(length=2)


def test_a_plan_beyond_the_context_is_refused(source: Source) -> None:
    plan = Plan((250,), (), 10, 1, 1, {})
    with pytest.raises(AieError, match="exceed the model's context of 256"):
        runner.measure(source, plan, lambda _: None)


def test_rounds_give_every_engine_the_same_columns(source: Source) -> None:
    plan = Plan(decode=(8, 24), prefill=(24,), new_tokens=4, rounds=2, threads=1, options={})
    steps: list[str] = []
    results = runner.measure(source, plan, steps.append, OUR_ENGINES)
    assert len(steps) == plan.steps(len(OUR_ENGINES))
    assert [m.engine for m in results.measured] == list(OUR_ENGINES)
    for m in results.measured:
        assert {length: len(rounds) for length, rounds in m.decode.items()} == {8: 2, 24: 2}
        assert {length: len(rounds) for length, rounds in m.prefill.items()} == {24: 2}
        assert min(map(min, [*m.decode.values(), *m.prefill.values()])) > 0
        assert 0 < m.load_seconds < m.first_token_seconds
        assert m.peak_bytes > m.weight_bytes
    ours, _, cpu_ep = results.measured
    assert (ours.settings["KV"], cpu_ep.settings["KV"]) == ("float16", "float")
    assert cpu_ep.weight_bytes == source.weights.product_elements() * 5 / 8
    # In turns: the engines of one context, then those of the next.
    turns = [step.split(": ")[1] for step in steps if step.startswith("round 1")]
    assert turns == list(OUR_ENGINES) * 2


# --- statistics and reports ---


def test_bounds_hold_the_median_and_shrink_with_the_spread() -> None:
    generator = np.random.default_rng(1)
    wide, narrow = (median(100 + s * generator.standard_normal(15)) for s in (10, 1))
    for interval in (wide, narrow):
        assert interval.low < interval.value < interval.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    same = median([5.0] * 7)
    assert (same.value, same.low, same.high) == (5, 5, 5)


def test_ratios_are_taken_within_rounds() -> None:
    # A machine half as fast every other round slows both alike.
    slow = np.array([1, 0.5, 1, 0.5, 1, 0.5, 1])
    interval = ratio(list(30 * slow), list(20 * slow))
    assert (interval.low, interval.high) == (1.5, 1.5)


def measured(engine: str, decode: float, prefill: float) -> Measured:
    return Measured(
        engine,
        settings={"threads": "2", "KV": "float16"},
        bits=4.5,
        weight_bytes=500_000_000,
        load_seconds=0.5,
        first_token_seconds=1.5,
        peak_bytes=900_000_000,
        decode={64: [decode] * 7, 512: [decode / 2] * 7},
        prefill={512: [prefill] * 7},
    )


@pytest.fixture
def results() -> Results:
    engines = (
        measured(OURS, 60, 600),
        measured(OURS_FLOAT, 55, 700),
        measured("llama.cpp", 50, 200),
        measured("OpenVINO", 40, 400),
    )
    return Results(engines, {"other": "not installed: pip install other"}, 40e9)


def test_ours_is_compared_with_the_best_peer_of_each_column(results: Results) -> None:
    ratios = {(r.phase, r.length): r for r in reports.report(results).ratios}
    assert ratios["decode", 64].peer == "llama.cpp"
    assert ratios["decode", 64].ratio.value == pytest.approx(1.2)
    assert ratios["prefill", 512].peer == "OpenVINO"
    assert ratios["prefill", 512].ratio.value == pytest.approx(1.5)


def test_tables_show_speeds_bandwidth_settings_and_what_is_left_out(results: Results) -> None:
    console = Console(width=160, record=True)
    console.print(reports.tables(reports.report(results)))
    text = console.export_text()
    for words in ("decode 512", "60.0", "(60.0–60.0)", "1.50", "KV: float16", "pip install other"):
        assert words in text
    # 60 tokens a second of 500 MB each are 30 GB/s, 75 % of 40.
    assert "30.0 (30.0–30.0)" in text
    assert "75 (75–75) %" in text


def test_files_hold_every_round_and_a_plot(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = reports.report(results)
    reports.write_json(report, tmp_path / "bench.json", {"environment": {"cpu": "x"}})
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["results"]["measured"][0]["decode"]["64"] == [60] * 7
    assert content["environment"] == {"cpu": "x"}
    reports.plot(report, tmp_path / "bench.png", "title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


# --- command line ---


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_command_measures_what_is_installed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    plan = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "2", "--threads", "1")
    result = bench("--peers", model, *plan, "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert [m["engine"] for m in content["results"]["measured"]] == list(OUR_ENGINES)
    assert list(content["results"]["left_out"]) == list(PEERS)
    assert content["settings"]["plan"]["rounds"] == 2
    assert [(r["phase"], r["peer"]) for r in content["ratios"]] == [
        ("decode", CPU_EP),
        ("prefill", CPU_EP),
    ]


def test_command_refuses_what_does_not_fit(model: Path, tmp_path: Path) -> None:
    assert "--out belongs to --peers" in bench(model, "--out", tmp_path).stderr
    assert "leave out --baseline" in bench("--peers", model, "--baseline", model).stderr
    ort_aie_ep.compile(model, tmp_path / "compiled")
    assert "is compiled; the peers need" in bench("--peers", tmp_path / "compiled").stderr
