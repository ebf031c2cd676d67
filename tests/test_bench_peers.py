"""lab/bench_peers: the same weights in every engine, engines that fail, the page, the command."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.tools.synth import synth

LAB = Path(__file__).parents[1] / "lab"
if not LAB.is_dir():
    pytest.skip("no lab beside the tests", allow_module_level=True)
sys.path.insert(0, str(LAB))
from bench_peers import engines, machine, rounds  # noqa: E402
from bench_peers.engines import CPU_EP, KINDS, OURS, OURS_INT8, Model, Settings, Source  # noqa: E402
from bench_peers.gguf_file import gguf_model, interleaved, q4_0  # noqa: E402
from bench_peers.page import Conditions, page, plot  # noqa: E402
from bench_peers.process import EngineError, Worker  # noqa: E402
from bench_peers.rounds import Plan, Results, measure  # noqa: E402
from bench_peers.weights import BLOCK, DecoderWeights, Int4Matrix  # noqa: E402

sys.path.remove(str(LAB))

DATA = Path(__file__).parent / "data"
TINY = SHAPES["tiny-llama"]
PLAN = Plan((8, 24), (24,), new_tokens=4, rounds=3, threads=1)
CONDITIONS = Conditions(
    "2026-11-28", "python lab/bench_peers MODEL", "tiny", "1 thread", {"CPU": "x"}
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth("tiny-llama", tmp_path_factory.mktemp("peers") / "model")


@pytest.fixture
def source(model: Path, tmp_path: Path) -> Source:
    found = find_model(model)
    return Source(found, DecoderWeights(found), tmp_path)


# --- weights ---


def dequantised(matrix: Int4Matrix) -> Any:
    values = (matrix.unpacked().astype(np.float32) - 8) * matrix.scales[:, :, None]
    return values.reshape(matrix.shape)


def test_weights_are_those_of_the_onnx_file(model: Path, source: Source) -> None:
    file = onnx.load(model / "model.onnx")
    tensors = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    codes = tensors["model.layers.1.mlp.down_proj.MatMul.weight_Q4"]
    scales = tensors["model.layers.1.mlp.down_proj.MatMul.weight_scales"]
    down = source.weights.layer(1).down
    assert down.shape == (TINY.hidden, TINY.ffn)
    values = dequantised(down)
    for n, k in np.random.default_rng(0).integers(0, down.shape, (100, 2)):
        byte = codes[n, k // BLOCK, k % BLOCK // 2]
        code = int(byte >> 4 if k % 2 else byte & 15)
        assert values[n, k] == np.float32(code - 8) * scales[n, k // BLOCK]
    layer = source.weights.layer(0)
    together = np.concatenate([layer.q.codes, layer.k.codes, layer.v.codes])
    assert np.array_equal(together, tensors["model.layers.0.attn.qkv_proj.MatMul.weight_Q4"])


def test_gguf_holds_the_codes_of_the_source(source: Source) -> None:
    gguf = pytest.importorskip("gguf")
    made, layer = gguf_model(source), source.weights.layer(1)
    tensors = {t.name: t for t in gguf.GGUFReader(made.path).tensors}
    for name, matrix in (
        ("blk.1.ffn_up", layer.up),
        ("blk.1.attn_q", interleaved(layer.q, TINY.heads)),
        ("token_embd", source.weights.lm_head()),
    ):
        tensor = tensors[f"{name}.weight"]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.Q4_0
        assert np.array_equal(tensor.data.reshape(-1), q4_0(matrix).reshape(-1))
    matrices = sum(t.n_bytes for t in tensors.values() if t.tensor_type.name == "Q4_0")
    assert made.weight_bytes == matrices


def test_a_block_of_128_is_four_blocks_of_q4_0_with_its_scale() -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 256, (3, 2, 64), np.uint8)
    scales = generator.standard_normal((3, 2)).astype(np.float16).astype(np.float32)
    blocks = q4_0(Int4Matrix(codes, scales)).reshape(3, 8, 18)
    factors = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)
    stored = np.concatenate([blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4], axis=-1)
    values = (stored.astype(np.float32) - 8) * factors
    assert np.array_equal(values.reshape(3, 256), dequantised(Int4Matrix(codes, scales)))


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "gpt_oss"])
def test_other_models_are_refused_with_a_reason(family: str) -> None:
    with pytest.raises(AieError, match="llama or qwen3"):
        DecoderWeights(find_model(DATA / family))


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
        DecoderWeights(find_model(tmp_path / "model"))


@pytest.mark.parametrize("shape", ["tiny-llama", "tiny-qwen3", "blocks of 128"])
@pytest.mark.parametrize("name", [name for name in KINDS if name != CPU_EP])
def test_engine_computes_what_the_cpu_ep_does(name: str, shape: str, tmp_path: Path) -> None:
    if missing := KINDS[name].missing():
        pytest.skip(f"{name} {missing}")
    if shape == "blocks of 128":
        wide = replace(TINY, hidden=256, ffn=384, heads=8)  # all multiples of 128
        synth(wide, tmp_path / "model", block_size=128)
    else:
        synth(shape, tmp_path / "model")
    found = find_model(tmp_path / "model")
    source = Source(found, DecoderWeights(found), tmp_path)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 500, n).tolist() for n in range(1, 81, 5)]

    def tokens(engine_name: str) -> Any:
        kind = KINDS[engine_name]
        engine = kind.open(kind.model(source), Settings(1, 128))
        return np.array([engine.run(prompt, 3).tokens for prompt in prompts])

    # Random weights have near-ties. Rounding to 8 bits may decide one differently, and so change
    # all later tokens; but with a wrong layout, rotation or cache, one of 500 tokens agrees only by
    # chance.
    assert np.mean(tokens(name) == tokens(CPU_EP)) > 0.6


# --- engines that fail ---


def test_a_failing_engine_says_what_failed(tmp_path: Path) -> None:
    worker = Worker(CPU_EP)
    with pytest.raises(EngineError, match=r"ORT CPU EP failed.*none"):
        worker.open(Model(tmp_path / "none", 4.5, 0, 0), Settings(1, 8))
    worker.close()


def test_a_worker_that_dies_says_how_and_its_last_words() -> None:
    worker = Worker("engine")
    # What a terminal sends to all of its processes is for the command, which ends this one.
    for ending in (None, signal.SIGINT, signal.SIGTERM):
        if ending is not None:
            worker.process.send_signal(ending)
        with pytest.raises(EngineError, match="engine failed: AssertionError"):
            worker.run([1], 0)
    worker.log.write("loading\n\n  GGML_ASSERT(ok)  failed\n")
    worker.log.flush()
    worker.process.send_signal(signal.SIGSEGV)
    with pytest.raises(EngineError) as raised:
        worker.run([1], 0)
    assert re.match(r"engine ended with signal 11 \(SIGSEGV\): \w+", str(raised.value))
    worker.close()


def test_a_worker_that_hangs_is_ended_at_its_limit() -> None:
    worker = Worker("engine", limit=0.2)
    worker.process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"engine did not answer within 0 s"):
        worker.run([1], 0)
    assert worker.process.wait(10) == -signal.SIGKILL
    worker.close()


DIED = "ended with signal 9 (SIGKILL): it printed nothing"


class FakeWorker:
    """A worker without a process: in its run number `dies[name]`, it raises what `with_` says."""

    dies: ClassVar[dict[str, int]] = {}
    with_: BaseException = EngineError("", DIED)
    closed: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name, self.runs = name, 0

    def close(self) -> None:
        self.closed.append(self.name)

    def open(self, *_: object) -> dict[str, Any]:
        return {"load_seconds": 0.5, "settings": {"threads": "1"}}

    def run(self, prompt: list[int], new_tokens: int) -> dict[str, Any]:
        self.runs += 1
        if self.runs == self.dies.get(self.name):
            raise self.with_
        slow = 1 if self.name in (OURS, OURS_INT8) else 2
        seconds = {"prefill_seconds": slow, "decode_seconds": slow}
        return {**seconds, "peak_bytes": 10**6}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeWorker]]:
    """Engines without processes or models: every peer is installed."""
    monkeypatch.setattr(rounds, "Worker", FakeWorker)
    monkeypatch.setattr(rounds, "_SETTLE_SECONDS", 0)
    monkeypatch.setattr(machine, "_PROBE_BYTES", 8 << 20)
    monkeypatch.setattr(machine.ReadProbe, "measure", lambda _: 30e9)
    made = {
        name: replace(k, packages={}, model=lambda _: Model(Path("x"), 4.5, 10, 10))
        for name, k in KINDS.items()
    }
    monkeypatch.setattr(rounds, "KINDS", made)
    yield FakeWorker
    FakeWorker.dies, FakeWorker.closed = {}, []


def test_a_peer_that_dies_is_one_line_and_the_others_go_on(
    fakes: type[FakeWorker], source: Source
) -> None:
    fakes.dies = {"OpenVINO GenAI": 4}  # after two runs that do not count, at 24 tokens
    notes: list[str] = []
    results = measure(source, PLAN, note=notes.append)
    died = f"{DIED} (context 24)"
    assert results.left_out == {"OpenVINO GenAI": died}
    assert f"OpenVINO GenAI {died}; the others go on" in notes
    assert [m.engine for m in results.measured] == [n for n in KINDS if n != "OpenVINO GenAI"]
    assert all(len(m.speeds["decode"][8]) == 3 for m in results.measured)
    text = page(results, CONDITIONS)
    assert f"| OpenVINO GenAI | {died} |" in text
    assert text.count(died) == 1
    assert "| ort_aie_ep / best peer | 2.00 (2.00–2.00) |" in text


def test_without_ort_aie_ep_there_is_nothing_to_compare(
    fakes: type[FakeWorker], source: Source
) -> None:
    fakes.dies = {OURS: 1}
    with pytest.raises(EngineError, match=r"ort_aie_ep ended with signal 9"):
        measure(source, PLAN, note=lambda _: None)


def test_an_interrupted_run_has_the_rounds_that_are_over(
    fakes: type[FakeWorker], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes, "with_", KeyboardInterrupt())
    fakes.dies = {"llama.cpp": 8}  # in the third round, after others have been measured
    kept: list[Results] = []
    with pytest.raises(KeyboardInterrupt):
        measure(source, PLAN, note=lambda _: None, round_done=kept.append)
    assert set(fakes.closed) == set(KINDS)
    assert {len(m.speeds["decode"][8]) for m in kept[0].measured} == {2}
    assert "**Unfinished: 2 of 3 rounds.**" in page(kept[0], CONDITIONS)


def test_missing_packages_are_named_with_how_to_get_them(
    source: Source, fakes: type[FakeWorker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del fakes
    monkeypatch.setattr(engines, "find_spec", lambda _: None)
    kinds = {name: replace(k, packages=KINDS[name].packages) for name, k in rounds.KINDS.items()}
    monkeypatch.setattr(rounds, "KINDS", kinds)
    results = measure(source, PLAN, note=lambda _: None)
    assert [m.engine for m in results.measured] == [OURS, OURS_INT8, CPU_EP]
    get = "is not installed: pip install llama-cpp-python gguf"
    assert results.left_out["llama.cpp"] == get
    assert f"| llama.cpp | {get} |" in page(results, CONDITIONS)
    pytest.importorskip("matplotlib")
    plot(results, tmp_path / "bench.png", "title")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_beyond_the_context_is_refused(source: Source) -> None:
    with pytest.raises(AieError, match="256"):
        measure(source, replace(PLAN, decode=(250,), new_tokens=10))


# --- the command ---


def test_command_writes_a_page_of_what_is_installed(model: Path, tmp_path: Path) -> None:
    plan = ["--decode", "8", "--prefill", "24", "--new-tokens", "4", "--rounds", "2",
            "--threads", "1", "--out"]  # fmt: skip
    command = [sys.executable, LAB / "bench_peers", model, *plan, tmp_path, "--engines", CPU_EP]
    printed = subprocess.check_output(command, text=True)
    text = (tmp_path / "bench.md").read_text()
    assert printed.split("## Speed")[1].strip() == text.split("## Speed")[1].strip()
    assert "python lab/bench_peers MODEL --decode 8 --prefill 24" in text
    assert str(tmp_path) not in text
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [m["engine"] for m in content["measured"]] == [OURS, CPU_EP]
    assert len(content["measured"][0]["speeds"]["decode"]["8"]) == 2
    assert {(r["phase"], r["peer"]) for r in content["ratios"]} == {
        ("decode", CPU_EP), ("prefill", CPU_EP)
    }  # fmt: skip


def test_a_machine_is_described_by_what_its_kernel_says(tmp_path: Path) -> None:
    proc, cache = tmp_path / "proc", tmp_path / "sys/devices/system/cpu/cpu0/cache"
    proc.mkdir()
    (proc / "cpuinfo").write_text(
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel(R) Xeon(R)\nstepping\t: 8\n"
        "flags\t\t: fpu avx2 hypervisor avx512vbmi amx_bf16\n\nprocessor\t: 1\nmodel name\t: x\n"
    )
    (proc / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    for index, level, kind, size in ((0, 1, "Data", "48K"), (1, 1, "Instruction", "32K"),
                                     (2, 2, "Unified", "2048K")):  # fmt: skip
        (cache / f"index{index}").mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (cache / f"index{index}" / name).write_text(f"{value}\n")
    found = machine.described(proc, tmp_path / "sys")
    assert found["CPU"] == "Intel(R) Xeon(R), family 6, model 143, stepping 8"
    assert found["instructions"] == "avx2 avx512vbmi amx_bf16"
    assert (found["caches"], found["memory"]) == ("L1d 48K, L2 2048K", "16 GB")
    assert found["cores"].endswith("virtual")
