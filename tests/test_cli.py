"""The command line: what it prints, its exit codes, and the modules behind it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import background
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from commands import mistake, ort_aie, succeeded

import ort_aie_ep
from ort_aie_ep import machine
from ort_aie_ep.compiler import cache
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer, prefix_tokens
from ort_aie_ep.running import generate
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.running.text import TextStream
from ort_aie_ep.runtime.sessions import Options, open_edited, open_session
from ort_aie_ep.tools.bench import demo
from ort_aie_ep.tools.bench.accuracy import with_accuracy_level
from ort_aie_ep.tools.bench.agreement import compare

DATA = Path(__file__).parent / "data"
LLAMA = DATA / "llama"
COMMANDS = (
    "demo", "compile", "import-q4nx", "export-q4nx", "run", "chat", "batch", "explain", "bench",
    "accuracy", "doctor", "tune", "synth", "predict", "kernels", "pull", "list", "show", "rm",
)  # fmt: skip


def report(*words: object) -> Any:
    return json.loads(succeeded(*words, "--json").stdout)


@pytest.fixture(scope="session", params=["llama", "gemma3"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(source, compiled): of a model without sliding windows, and of one with them."""
    compiled = tmp_path_factory.mktemp("cli") / request.param
    ort_aie_ep.compile(DATA / request.param, compiled)
    return DATA / request.param, compiled


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "compiled llama"
    result = succeeded("compile", LLAMA, folder)
    assert "aie.Q4NXMatMul" in result.stdout
    assert "aie.FlowAttention" in result.stdout
    assert f"ort-aie run '{folder}'" in result.stderr
    return folder


# --- all commands ---


def test_help_lists_every_command_and_each_explains_itself() -> None:
    overview = succeeded("--help").stdout
    assert all(command in overview for command in COMMANDS)
    for command in COMMANDS:
        assert "Usage" in succeeded(command, "--help").stdout


def test_an_earlier_name_of_a_command_still_works() -> None:
    earlier, now = (succeeded(name, "--help").stdout for name in ("simulate", "predict"))
    assert earlier.split("\n")[3:] == now.split("\n")[3:]  # after the line of usage


def test_no_help_shows_a_flag_with_a_value() -> None:
    for words in ((), ("tune",), ("kernels",), ("kernels", "build")):
        assert "<bool>" not in succeeded(*words, "--help").stdout


def test_version() -> None:
    assert succeeded("--version").stdout.strip() == ort_aie_ep.__version__


def test_importing_the_command_line_imports_nothing_slow() -> None:
    slow = "{'onnxruntime', 'onnx_ir', 'numpy', 'tokenizers'}"
    code = f"import ort_aie_ep.cli, sys; print(*{slow} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    "words",
    [
        ("compile", "nowhere", "there"),
        ("run", "nowhere", "text"),
        ("chat", "nowhere"),
        ("explain", "nowhere"),
        ("bench", "nowhere"),
        ("accuracy", "nowhere"),
        ("demo", "--model", "nowhere"),
    ],
    ids=lambda words: words[0],
)
def test_a_missing_model_is_a_mistake(words: tuple[str, ...]) -> None:
    assert "nowhere" in mistake(*words)


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("compile", LLAMA),
        ("run", LLAMA, "text", "--numerics", "fp4"),
        ("run", LLAMA, "text", "--target", "gpu"),
        ("run", LLAMA, "text", "--max-tokens", "0"),
        ("run", LLAMA, "text", "--threads", "0"),
        ("bench", LLAMA, "--prompt-lengths", "8,many"),
        ("bench", LLAMA, "--prompt-lengths", "0"),
        ("accuracy", LLAMA, "--window", "1"),
        ("synth",),
    ],
)
def test_wrong_usage_ends_with_code_2(words: tuple[object, ...]) -> None:
    result = ort_aie(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_interrupting_ends_with_code_130_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ort_aie_ep", "accuracy", str(LLAMA), "--threads", "1"]
    with background.ignored(signal.SIGINT):
        process = subprocess.Popen(
            background.with_default_signals(*command),
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        while not list(tmp_path.glob("*/model")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    # importing onnxruntime writes .ses into TMPDIR
    assert [path.name for path in tmp_path.iterdir() if path.name != ".ses"] == []


# --- compile ---


def test_compile_refuses_a_destination_that_exists(tmp_path: Path) -> None:
    assert str(tmp_path) in mistake("compile", LLAMA, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_compile_refuses_what_is_compiled(compiled: Path, tmp_path: Path) -> None:
    assert str(compiled) in mistake("compile", compiled, tmp_path / "again")


def test_compile_quantises_float_weights_and_says_what_they_lost(tmp_path: Path) -> None:
    source, compiled = tmp_path / "float", tmp_path / "compiled"
    succeeded("synth", "tiny-llama", source, "--float")
    asked = ("compile", source, compiled, "--quantize")
    assert "/nothing" in mistake(*asked, "q4nx", "--keep", "/nothing")
    alone = ort_aie("compile", source, compiled, "--keep", "/lm_head/*")
    assert alone.exit_code == 2
    assert "--quantize" in alone.stderr
    alone = ort_aie("compile", source, compiled, "--importance", source / "model.onnx")
    assert "--quantize" in alone.stderr
    result = succeeded(*asked, "q4nx", "--keep", "/lm_head/*", "--keep", "*layers.1*")
    assert "'/lm_head/*'" in result.stdout
    errors = re.findall(
        r"^ (/\S+) +q4nx +192 +(\d+) +(\d\.\d+)% +0\.\d+ *$", result.stdout, re.MULTILINE
    )
    assert [name for name, _, _ in errors] == [
        f"/model/layers.0/{part}/MatMul"
        for part in ("attn/qkv_proj", "attn/o_proj", "mlp/gate_proj", "mlp/up_proj")
    ]  # down_proj has another K
    assert all(5 < float(error) < 9 for _, _, error in errors)
    reasons = {node["not_npu"] for node in report("explain", compiled)["nodes"]}
    assert any("'*layers.1*'" in reason for reason in reasons)
    other = tmp_path / "bf16"
    assert "aie.GEMM" in succeeded("compile", source, other, "--quantize", "bf16").stdout
    succeeded("explain", other)
    explained = succeeded("explain", source)
    assert "--quantize" in explained.stdout
    assert f"ort-aie compile {source} COMPILED --quantize q4nx" in explained.stderr


# --- run ---


def test_run_gives_the_same_text_in_both_hosts(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    # Not a model with random weights: genai's decoder drops bytes that are not UTF-8.
    compiled = tmp_path / "demo"
    succeeded("compile", demo.MODEL, compiled)
    words = ("run", compiled, demo.PROMPT, "--max-tokens", "60", "--threads", "1")
    session = succeeded(*words, "--host", "session")
    genai = succeeded(*words, "--host", "genai")
    assert session.stdout == genai.stdout
    prompt = len(load_tokenizer(find_model(compiled)).encode(demo.PROMPT).ids)
    for result in (session, genai):
        assert f"prefill: {prompt} tokens" in result.stderr
        assert "decode: 60 tokens" in result.stderr


def test_run_in_genai_takes_fewer_tokens_than_a_sliding_window_has(both: Any) -> None:
    pytest.importorskip("onnxruntime_genai")
    _, compiled = both
    result = succeeded("run", compiled, "a b", "--max-tokens", "3", "--host", "genai")
    assert "decode: 3 tokens" in result.stderr


def test_run_says_what_became_of_its_guesses(tmp_path: Path) -> None:
    compiled, last = tmp_path / "demo", tmp_path / "last"
    succeeded("compile", demo.MODEL, compiled)
    succeeded("compile", demo.MODEL, last, "--last-logits")
    words = (demo.PROMPT, "--max-tokens", "60", "--threads", "1")
    alone = succeeded("run", compiled, *words)
    drafted = succeeded("run", compiled, *words, "--draft", "4", "--draft-model", last)
    assert drafted.stdout == alone.stdout
    found = re.search(r"drafts: (\d+) of (\d+) guessed tokens were right", drafted.stderr)
    assert found is not None
    assert 0 < int(found[1]) <= int(found[2])
    assert "drafts" not in alone.stderr
    other = mistake("run", compiled, *words, "--draft", "4", "--draft-model", LLAMA)
    assert "a drafting model needs the same" in other
    assert "needs --draft" in mistake("run", compiled, *words, "--draft-model", last)
    assert "--host" in mistake("run", compiled, *words, "--host", "genai", "--draft", "4")
    assert "--last-logits" in mistake("run", last, *words, "--draft", "4")


def test_run_writes_the_new_text_alone_to_stdout(both: tuple[Path, Path]) -> None:
    _, compiled = both
    # Longer than gemma3's window of 32, so that its caches slide.
    result = succeeded("run", compiled, "def main(argv):", "--max-tokens", "80")
    assert "def main(argv):" in result.stderr
    assert not result.stdout.startswith("def")
    assert len(result.stdout) > 80


def test_run_compiles_a_source_once_and_says_so(
    both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compiled = both
    note = "was compiled into the cache"
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path))
    assert note in succeeded("run", source, "import", "--max-tokens", "2").stderr
    for again in (source, compiled):
        assert note not in succeeded("run", again, "import", "--max-tokens", "2").stderr


def copy_with(folder: Path, copied: Path, name: str, more: dict[str, Any]) -> Path:
    """A copy of a model's folder, with more entries in a JSON file."""
    shutil.copytree(folder, copied)
    (copied / name).write_text(json.dumps(json.loads((copied / name).read_text()) | more))
    return copied


def test_run_grows_caches_where_buffers_are_not_shared(compiled: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    shutil.copytree(compiled, growing)
    config = json.loads((growing / "genai_config.json").read_text())
    config["search"]["past_present_share_buffer"] = False
    (growing / "genai_config.json").write_text(json.dumps(config))
    words = ("import os", "--max-tokens", "30")
    assert succeeded("run", growing, *words).stdout == succeeded("run", compiled, *words).stdout


def test_run_stops_at_the_end_of_the_context(compiled: Path) -> None:
    result = succeeded("run", compiled, "import os", "--max-tokens", "1000")
    prompt = len(load_tokenizer(find_model(compiled)).encode("import os").ids)
    assert f"decode: {256 - prompt} tokens" in result.stderr


def test_run_refuses_a_prompt_longer_than_the_context(compiled: Path) -> None:
    assert "256" in mistake("run", compiled, "x = 1\n" * 200)


def test_run_refuses_an_empty_prompt(compiled: Path) -> None:
    assert "prompt" in mistake("run", compiled, "")


def test_run_wants_a_tokenizer_in_the_folder_that_it_was_given(
    both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 0)
    for number, folder in enumerate(both):
        model = tmp_path / str(number)
        shutil.copytree(folder, model)
        tokenizer = (model / "tokenizer.json").read_bytes()
        (model / "tokenizer.json").unlink()
        assert f"{model} has no tokenizer.json" in mistake("run", model, "text")
        (model / "tokenizer.json").write_bytes(tokenizer)
        succeeded("run", model, "text", "--max-tokens", "2")


# What a tool that fine-tunes leaves in tokenizer.json. Room for 2^40 tokens would end the process.
CUT = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PAD = {
    "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    "pad_to_multiple_of": None,
}  # fmt: skip
TRAINED = {
    "cut": {"truncation": CUT},
    "cut on the left": {"truncation": CUT | {"direction": "Left", "strategy": "OnlyFirst"}},
    "padded": {"padding": PAD | {"strategy": {"Fixed": 64}}},
    "padded to a multiple": {
        "padding": PAD | {"strategy": "BatchLongest", "pad_to_multiple_of": 64}
    },
    "padded beyond memory": {"padding": PAD | {"strategy": {"Fixed": 2**40}}},
}


@pytest.mark.parametrize("trained", TRAINED)
def test_a_tokenizer_does_as_much_as_before_its_training(trained: str, tmp_path: Path) -> None:
    """Transformers' AutoTokenizer gives the same tokens for each of these files."""
    copied = copy_with(LLAMA, tmp_path / "model", "tokenizer.json", TRAINED[trained])
    text = "def main(argv):\n    for line in sys.stdin: print(line)\n"
    was, now = (load_tokenizer(find_model(folder)) for folder in (LLAMA, copied))
    assert len(was.encode(text).ids) > 5
    assert now.encode(text).ids == was.encode(text).ids
    assert list(prefix_tokens(now)) == list(prefix_tokens(was))


def test_run_reads_the_whole_prompt_with_a_tokenizer_that_was_trained(
    compiled: Path, tmp_path: Path
) -> None:
    both = TRAINED["cut"] | TRAINED["padded"]
    copied = copy_with(compiled, tmp_path / "model", "tokenizer.json", both)
    words = ("for line in sys.stdin: print(line)", "--max-tokens", "4")
    assert succeeded("run", copied, *words).stdout == succeeded("run", compiled, *words).stdout


def test_run_in_genai_refuses_a_lone_file(compiled: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    message = mistake("run", compiled / "model.onnx", "text", "--host", "genai")
    assert "ort-aie run --host session" in message


def test_run_hands_options_to_the_library(compiled: Path) -> None:
    before = dict(os.environ)
    message = mistake("run", compiled, "text", "--target", "xrt", "--on-device-error", "raise")
    assert "ort_aie.target=xrt" in message
    assert dict(os.environ) == {"ORT_AIE_SIM_PYTHON": sys.executable} | before
    texts = {
        succeeded("run", compiled, "import os", "--numerics", numerics).stdout
        for numerics in ("bf16", "int8")
    }
    assert len(texts) == 2  # random weights: near-ties everywhere


def test_streamed_text_never_shows_half_a_character() -> None:
    tokenizer = load_tokenizer(find_model(LLAMA))
    text = "naïve → 日本語 🙂 done"
    ids = tokenizer.encode(text).ids
    assert len(ids) > len(text)  # this tokenizer has no such characters, only their bytes
    stream = TextStream(tokenizer, np.array(tokenizer.encode("x = ").ids))
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) == text
    assert stream.finish() == ""
    assert not any("\ufffd" in piece for piece in pieces)
    broken = TextStream(tokenizer, np.array(ids[:1]))
    assert broken.push(tokenizer.encode("日").ids[0]) == ""
    assert "\ufffd" in broken.finish()


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_decoder_gives_the_same_logits_in_one_pass_and_in_steps(model: str) -> None:
    folder = find_model(DATA / model)
    exact = open_edited(with_accuracy_level(folder, 0), folder.path, Options())
    decoder = Decoder(exact, folder, capacity=100)
    tokens = np.random.default_rng(0).integers(0, decoder.vocabulary, 100)
    whole = decoder.forward(tokens)
    decoder.reset()
    steps = [decoder.forward(part) for part in np.split(tokens, [1, 2, 40, 41, 97])]
    # Float sums of some hundred terms in another order, layer after layer; logits are below 10.
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=1e-4)


def test_a_long_prompt_runs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_model(LLAMA)
    exact = open_edited(with_accuracy_level(folder, 0), folder.path, Options())
    decoder = Decoder(exact, folder, capacity=100)
    tokens = np.random.default_rng(1).integers(0, decoder.vocabulary, 99)
    whole = decoder.prefill(tokens)
    for chunk in (1, 32, 33, 98, 99):
        monkeypatch.setattr(generate, "CHUNK_ALONE", chunk)
        decoder.reset()
        np.testing.assert_allclose(decoder.prefill(tokens), whole, atol=1e-4)
        assert decoder.length == 99
    decoder.reset()
    with pytest.raises(AieError, match=r"101\b.*\b100\b"):
        decoder.prefill(np.zeros(101, np.int64))
    assert decoder.length == 0


def test_decoder_refuses_tokens_beyond_its_cache() -> None:
    folder = find_model(LLAMA)
    decoder = Decoder(open_session(folder.model), folder, capacity=8)
    decoder.forward(np.arange(8))
    with pytest.raises(AieError, match=r"9\b.*\b8\b"):
        decoder.forward(np.array([0]))


# --- explain ---


def test_explain_agrees_on_a_source_and_its_compilation(both: tuple[Path, Path]) -> None:
    source, compiled = both
    before, after = report("explain", source), report("explain", compiled)
    assert (before["compiled"], after["compiled"]) == (False, True)
    would = {node["node"]: node["becomes"] for node in before["nodes"] if node["becomes"]}
    does = {node["node"]: node["op"] for node in after["nodes"] if node["op"].startswith("aie.")}
    # Several nodes may become one, which keeps one of their names.
    assert does.items() <= would.items()
    assert set(does.values()) == set(would.values())
    assert "aie.Q4NXGather" in would.values()
    gone = {node["node"] for node in before["nodes"]} - {node["node"] for node in after["nodes"]}
    assert gone - set(would) == {n["node"] for n in before["nodes"] if n["runs"] == "folded away"}
    assert all(node["not_npu"] for node in before["nodes"] + after["nodes"])
    assert before["plans"] == after["plans"]
    assert len(after["plans"]) == 1


def test_explain_gives_the_reason_of_a_node_that_stays(tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "model")
    path = tmp_path / "model" / "model.onnx"
    model = ir.load(path)
    node = next(node for node in model.graph if node.op_type == "MatMulNBits")
    node.attributes["weight_prepacked"] = ir.AttrInt64("weight_prepacked", 1)
    ir.save(model, path)
    succeeded("compile", tmp_path / "model", tmp_path / "compiled")
    for folder in ("model", "compiled"):
        nodes = report("explain", tmp_path / folder)["nodes"]
        (reason,) = [n["not_npu"] for n in nodes if n["node"] == node.name]
        assert "weight_prepacked" in reason
        result = succeeded("explain", tmp_path / folder, "--nodes")
        assert "weight_prepacked" in result.stdout


def test_each_node_of_several_plans_names_its_plan() -> None:
    result = succeeded("explain", DATA / "phi", "--nodes")
    (row,) = [row for row in result.stdout.splitlines() if "/lm_head/MatMul_Q4" in row]
    assert row.split()[2] == "2"
    assert [len(p["steps"]) for p in report("explain", DATA / "phi")["plans"]] == [7, 7, 1]
    (heading,) = [row for row in result.stdout.splitlines() if row.split()[:2] == ["node", "op"]]
    assert heading.split()[:3] == ["node", "op", "plan"]
    for options in ((DATA / "phi",), (LLAMA, "--nodes")):
        (heading,) = [r for r in succeeded("explain", *options).stdout.splitlines() if " op " in r]
        assert "plan" not in heading


def test_explain_tells_of_plans_or_that_there_are_none(tmp_path: Path) -> None:
    for name, options, steps in (("plan", (), [12]), ("steps", ("--no-plan",), [])):
        succeeded("compile", LLAMA, tmp_path / name, *options)
        assert [len(p["steps"]) for p in report("explain", tmp_path / name)["plans"]] == steps


def test_explain_proposes_no_compilation_that_would_replace_nothing(tmp_path: Path) -> None:
    assert f"ort-aie compile {LLAMA} COMPILED\n" in succeeded("explain", LLAMA).stderr
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.node("Relu", [value])
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 21})
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx")
    assert "next:" not in succeeded("explain", tmp_path / "model.onnx").stderr


ASSIGNMENTS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")


@pytest.mark.skipif(not ASSIGNMENTS, reason="ONNX Runtime tells assignments from 1.24 on")
def test_explain_ep_prints_both_doors() -> None:
    told = report("explain", LLAMA, "--ep")
    nodes = told["nodes"]
    claimed = [node for node in nodes if node["provider"] == "claims"]
    assert len(claimed) == 25
    assert {node["op"] for node in nodes if node["becomes"]} <= {node["op"] for node in claimed}
    assert {n["provider"] for n in nodes if n["op"] in ("ReduceSum", "Cast")} == {"leaves"}
    assert {n["provider"] for n in nodes if n["op"] in ("Constant", "Reshape")} == {""}
    result = succeeded("explain", LLAMA, "--ep")
    attention = next(row for row in result.stdout.splitlines() if "GroupQuery" in row)
    assert "aie.FlowAttention" in attention
    assert "claims" in attention
    assert told["provider_plans"] == [25]


@pytest.mark.skipif(not ASSIGNMENTS, reason="ONNX Runtime tells assignments from 1.24 on")
def test_explain_ep_tells_why_the_session_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_AIE_NUMERICS", "fp8")
    assert "numerics=fp8" in mistake("explain", LLAMA, "--ep")


@pytest.mark.skipif(not ASSIGNMENTS, reason="ONNX Runtime tells assignments from 1.24 on")
def test_explain_ep_beside_a_folder_of_the_packages_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a source checkout, where the package has no native module."""
    (tmp_path / "ort_aie_ep").mkdir()
    (tmp_path / "ort_aie_ep" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert report("explain", LLAMA, "--ep")["provider"]


def test_explain_ep_needs_a_newer_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    if ASSIGNMENTS:
        name = "get_provider_graph_assignment_info"
        monkeypatch.delattr(onnxruntime.InferenceSession.__mro__[1], name, raising=False)
        monkeypatch.delattr(onnxruntime.InferenceSession, name, raising=False)
    assert "1.24" in mistake("explain", LLAMA, "--ep")


def test_explain_ep_is_for_models_that_are_not_compiled(compiled: Path) -> None:
    assert str(compiled) in mistake("explain", compiled, "--ep")


# --- doctor ---


def test_doctor_runs_an_operator() -> None:
    succeeded("doctor")
    extras = ("fastapi", "ray", "simpy")
    assert {*extras} <= {found["name"] for found in report("doctor")["software"]}
    assert ort_aie_ep.library_path() in report("doctor")["software"][-1]["found"]


def test_doctor_fails_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise AieError("libort_aie_ep.so is missing")

    monkeypatch.setattr(ort_aie_ep, "library_path", missing)
    result = ort_aie("doctor")
    assert result.exit_code == 1
    assert "libort_aie_ep.so" in result.stdout


def test_doctor_checks_the_files_of_a_compiled_folder(compiled: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compiled, tmp_path / "compiled"))
    (folder / "tokenizer_config.json").write_text("{}")  # a user may change what is not compiled
    succeeded("doctor", folder)
    data = folder / "model.onnx.data"
    whole = bytearray(data.read_bytes())
    checked = report("doctor", folder / "model.onnx")["files"]
    assert [(file["name"], file["size"], file["problem"]) for file in checked] == [
        ("model.onnx", (folder / "model.onnx").stat().st_size, ""),
        ("model.onnx.data", len(whole), ""),
    ]
    changed = whole.copy()
    changed[len(whole) // 2] ^= 1
    data.write_bytes(changed)
    open_session(folder / "model.onnx")  # a session does not read them
    expected, found = (
        hashlib.blake2b(content, digest_size=20).hexdigest() for content in (whole, changed)
    )
    for content, problem in (
        (changed, (found, expected)),
        (whole[:-1], (len(whole) - 1, len(whole))),
        (None, ("No such file",)),
    ):
        data.unlink()
        if content is not None:
            data.write_bytes(content)
        result = ort_aie("doctor", folder)
        assert result.exit_code == 1
        for named in (folder, "model.onnx.data", *problem):
            assert str(named) in result.stderr


def test_doctor_says_what_it_can_check(compiled: Path, tmp_path: Path) -> None:
    assert str(tmp_path / "none") in mistake("doctor", tmp_path / "none")
    assert "ort_aie_report.json" in mistake("doctor", LLAMA)
    folder = Path(shutil.copytree(compiled, tmp_path / "compiled"))
    path = folder / "ort_aie_report.json"
    content = json.loads(path.read_text())
    del content["files"]
    path.write_text(json.dumps(content))
    assert str(folder) in mistake("doctor", folder)


def test_doctor_names_the_first_thing_that_an_npu_lacks(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:c4:00.1"
    device.mkdir(parents=True)
    for name, value in (("vendor", "0x1022"), ("device", "0x17f0"), ("revision", "0x11")):
        (device / name).write_text(value + "\n")
    sys_root, dev = tmp_path / "sys", tmp_path / "dev"
    found = machine.find_npu(sys_root, dev)
    assert found[0].found == "NPU2 (Strix Halo), 8 columns at 0000:c4:00.1"
    assert machine.why_no_npu(found) == "no amdxdna driver found"
    assert "6.14" in found[1].remedy
    (sys_root / "module/amdxdna").mkdir(parents=True)
    assert machine.why_no_npu(machine.find_npu(sys_root, dev)) == "no device node found"
    (dev / "accel").mkdir(parents=True)
    (dev / "accel/accel0").touch()
    assert machine.find_npu(sys_root, dev)[2].found.endswith("accel0")
    without = machine.find_npu(tmp_path / "empty", dev)
    assert machine.why_no_npu(without) == "no NPU found"
    assert not any(finding.remedy for finding in without[1:])


# --- bench ---


@pytest.mark.parametrize("both", ["llama"], indirect=True)
def test_bench_compiles_a_source_for_the_occasion(both: tuple[Path, Path]) -> None:
    source, _ = both
    plan = ("--prompt-lengths", "8,40", "--new-tokens", "12", "--runs", "2", "--threads", "1")
    result = report("bench", source, *plan)
    phases = [(c["phase"], c["length"]) for c in result["comparisons"]]
    assert phases == [("prefill", 8), ("decode", 8), ("prefill", 40), ("decode", 40)]
    for c in result["comparisons"]:
        assert 0 < c["ratio"]["least"] <= c["ratio"]["median"] <= c["ratio"]["most"]
    agreement = result["agreement"]
    assert agreement["positions"] == 8 + 12 - 1
    assert len(agreement["continuation"]) == 12
    assert 0 < agreement["largest_difference"] < agreement["largest_logit"]


def test_bench_measures_a_compiled_model_alone_or_beside_its_source(compiled: Path) -> None:
    assert str(compiled) in mistake("bench", compiled, "--baseline", compiled)
    assert "--baseline" in mistake("bench", LLAMA, "--baseline", LLAMA)
    plan = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "2")
    result = succeeded("bench", compiled, "--baseline", LLAMA, *plan)
    assert "CPU EP" in result.stdout
    alone = report("bench", compiled, *plan)
    assert alone["against"] == ""
    assert [(c["phase"], c["reference"]) for c in alone["comparisons"]] == [
        ("prefill", None), ("decode", None),
    ]  # fmt: skip
    for c in alone["comparisons"]:
        assert 0 < c["ours"]["least"] <= c["ours"]["median"] <= c["ours"]["most"]
    assert "CPU EP, tok/s" not in succeeded("bench", compiled, *plan).stdout


def test_bench_refuses_a_plan_beyond_the_context() -> None:
    assert "256" in mistake("bench", LLAMA, "--prompt-lengths", "250")


class _Scripted:
    """A decoder whose logits are given: rows[i] follows the i-th token."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows, self.length = np.array(rows, np.float32), 0

    def reset(self) -> None:
        self.length = 0

    def forward(self, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        start, self.length = self.length, self.length + len(tokens)
        return self.rows[start : self.length]


def test_agreement_tells_a_near_tie_from_a_mistake() -> None:
    reference: list[list[float]] = [[0, 0, 3], [0, 2, 1.9], [5, 0, 0], [0, 0, 4]]
    text, count = np.array([0, 1]), 3

    def against(ours: list[list[float]]) -> Any:
        return compare(_Scripted(ours), _Scripted(reference), text, count)  # type: ignore[arg-type]

    same = against(reference)
    assert (same.same_tokens, same.gap, same.near_tie, same.top1) == (3, None, False, 1.0)
    assert same.continuation == (1, 0, 2)
    # Elsewhere, logits differ by 0.2, so two that are 0.1 apart may swap.
    tie = against([[0, 0, 3.2], [0, 1.9, 2], [5, 0, 0], [0, 0, 4]])
    assert (tie.same_tokens, tie.near_tie, tie.top1) == (0, True, 0.75)
    assert tie.gap == pytest.approx(0.1, abs=1e-6)
    assert tie.tolerance == pytest.approx(0.4, abs=1e-6)
    wrong = against([[0, 0, 3.2], [0, 2, 1.9], [0, 5, 0], [0, 0, 4]])
    assert (wrong.same_tokens, wrong.near_tie) == (1, False)


def test_compile_tells_what_a_quantised_kv_cache_loses(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("def main(argv):\n    return 0\n" * 200)
    words = ("--kv", "int8", "--calibration", text)
    told = succeeded("compile", LLAMA, tmp_path / "compiled", *words).stderr
    assert str(text) in told
    for what in ("keys", "values"):
        assert re.search(rf"{what} [0-9.]+%", told)
    run = succeeded("run", tmp_path / "compiled", "import os", "--max-tokens", "4")
    assert "decode: 4 tokens" in run.stderr
    assert "kv" in mistake("compile", LLAMA, tmp_path / "other", *words[2:])


def test_compile_names_caches_that_stay_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(LLAMA, source)
    model = ir.load(source / "model.onnx")
    last = [node for node in model.graph if node.op_type == "GroupQueryAttention"][-1]
    last.resize_outputs(4)
    last.outputs[3].name = "scores"
    last.attributes.add(ir.AttrInt64("qk_output", 1))
    ir.save(model, source / "model.onnx")
    told = succeeded("compile", source, tmp_path / "compiled", "--kv", "int8").stderr
    names = "past_key_values.1.key, past_key_values.1.value"
    assert names in " ".join(told.split())
    types = {
        value.name: value.dtype
        for value in ir.load(tmp_path / "compiled" / "model.onnx").graph.inputs
        if "past" in (value.name or "")
    }
    int8, float32 = ir.DataType.INT8, ir.DataType.FLOAT
    assert list(types.values()) == [int8, float32, int8, float32]
    succeeded("run", tmp_path / "compiled", "import os", "--max-tokens", "4")


# --- accuracy ---


def test_accuracy_scores_all_variants_and_both_ways_of_running(compiled: Path) -> None:
    # 3 windows of 64 tokens, 63 of each scored, in passes and one by one.
    plan = ("--tokens", "189", "--decode-tokens", "189", "--window", "64", "--threads", "1")
    result = report("accuracy", compiled, "--baseline", LLAMA, *plan)
    scores = {(s["mode"], s["variant"]): s for s in result["scores"]}
    variants = ["CPU EP, level 0", "CPU EP, level 4", "ort_aie_ep, bf16", "ort_aie_ep, int8"]
    assert list(scores) == [(mode, v) for mode in ("prefill", "decode") for v in variants]
    assert all(score["tokens"] == 189 for score in scores.values())
    # The same tokens and float arithmetic: only the order of additions differs.
    pass_, steps = (scores[mode, variants[0]]["perplexity"] for mode in ("prefill", "decode"))
    assert pass_["value"] == pytest.approx(steps["value"], rel=1e-4)
    for (_, variant), score in scores.items():
        # Random weights spread probability evenly over some 500 tokens.
        assert 100 < score["perplexity"]["value"] < 5000
        assert score["perplexity"]["low"] <= score["perplexity"]["value"]
        assert score["ratio"]["low"] <= score["ratio"]["value"] <= score["ratio"]["high"]
        # Rounding of activations moves no probability by a tenth on average.
        assert abs(math.log(score["ratio"]["value"])) < 0.1
        same = variant == variants[0]
        assert (score["ratio"]["value"] == 1) is (score["largest_difference"] == 0) is same


def test_accuracy_prints_a_row_for_each_variant() -> None:
    result = succeeded("accuracy", LLAMA, "--tokens", "100", "--decode-tokens", "0")
    assert result.stdout.count("ort_aie_ep, ") == 2


def test_accuracy_compares_kv_caches() -> None:
    plan = ("--tokens", "100", "--decode-tokens", "20", "--window", "64", "--threads", "1")
    result = report("accuracy", LLAMA, "--kv", "int8", "--kv", "int4", *plan)
    for mode in ("prefill", "decode"):
        differences = {
            s["variant"]: s["largest_difference"] for s in result["scores"] if s["mode"] == mode
        }
        plain, int8, int4 = (f"ort_aie_ep, bf16{kv}" for kv in ("", ", KV int8", ", KV int4"))
        # Sixteen times fewer codes cost more; bfloat16 activations affect all variants.
        assert differences[plain] < differences[int8] < differences[int4]
        assert len(differences) == 2 + 3 * 2


def test_accuracy_scores_a_text_of_the_users(tmp_path: Path) -> None:
    text = tmp_path / "text"
    words = ("accuracy", LLAMA, "--text", text, "--window", "64", "--decode-tokens", "0")
    text.write_text("Once upon a time, in a far away land. " * 10, encoding="utf-8")
    read = len(load_tokenizer(find_model(LLAMA)).encode(text.read_text()).ids)
    result = report(*words)
    assert {score["tokens"] for score in result["scores"]} == {read // 64 * 63}
    assert result["settings"]["plan"]["text"] == str(text)
    repeated = {score["variant"]: score["perplexity"]["value"] for score in result["scores"]}
    usual = report("accuracy", LLAMA, "--tokens", "63", "--decode-tokens", "0", "--window", "64")
    assert repeated != {s["variant"]: s["perplexity"]["value"] for s in usual["scores"]}
    text.write_text("short")
    assert "64" in mistake(*words)
    text.write_bytes(b"\xff")
    assert str(text) in mistake(*words)
    text.unlink()
    assert str(text) in mistake(*words)


def test_accuracy_refuses_what_the_text_or_context_cannot_give() -> None:
    assert "256" in mistake("accuracy", LLAMA, "--window", "300")
    assert "123287" in mistake("accuracy", LLAMA, "--tokens", "100000000")


# --- demo and synth ---


@pytest.mark.parametrize("both", ["llama"], indirect=True)
def test_demo_shows_both_texts(both: tuple[Path, Path]) -> None:
    source, _ = both
    words = ("--prompt", "class Alphabet", "--new-tokens", "20", "--threads", "1")
    result = succeeded("demo", "--model", source, *words)
    assert result.stdout.count("class Alphabet") == 2
    assert "decode" in result.stdout


def test_synth_writes_a_model_to_measure(tmp_path: Path) -> None:
    assert "llama-3.2-1b" in succeeded("synth", "--list").stdout
    folder = tmp_path / "random"
    assert f"ort-aie bench {folder}" in succeeded("synth", "tiny-llama", folder).stderr
    assert str(folder) in mistake("synth", "tiny-llama", folder)
    assert "tiny-llama" in mistake("synth", "llama", tmp_path / "other")
    # Without a tokenizer the tokens are random ones.
    plan = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "1")
    assert report("bench", folder, *plan)["agreement"]["positions"] == 11


@pytest.mark.parametrize(
    ("reads", "optimum_class"),
    [("input_ids", "ORTModelForSeq2SeqLM"), ("input_features", "ORTModelForSpeechSeq2Seq")],
)
def test_compile_says_how_optimum_opens_an_encoder_and_decoders(
    reads: str, optimum_class: str, tmp_path: Path
) -> None:
    """It also names each file that it looked at."""
    source = tmp_path / "source"
    shutil.copytree(LLAMA, source)
    (source / "genai_config.json").unlink()
    model = ir.load(source / "model.onnx")
    (source / "model.onnx").unlink()
    for name in ("decoder_model", "decoder_with_past_model", "encoder_model"):
        if name == "encoder_model":
            model.graph.inputs[0].name = reads
        ir.save(model, source / f"{name}.onnx")
    result = succeeded("compile", source, tmp_path / "compiled")
    assert "decoder_with_past_model.onnx:\n" in result.stdout
    assert "decoder_model.onnx:\n" in result.stdout
    assert "encoder_model.onnx:\n" in result.stdout
    folder = str(tmp_path / "compiled")
    assert f"{optimum_class}.from_pretrained({folder!r}" in result.stderr
    explained = succeeded("explain", tmp_path / "compiled").stderr
    assert "decoder_model.onnx, encoder_model.onnx" in explained
