"""`ort-aie compile` of a checkpoint: the builder's process, what is left behind, and errors.

The builder is a stand-in; lab/check_checkpoints.py runs the real one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import background
import pytest
from checkpoints import HERE, LLAMA, STANDIN, adapter, checkpoint, python_with_builder
from commands import mistake, ort_aie, succeeded

import ort_aie_ep
from ort_aie_ep.compiler.checkpoint import interpreter
from ort_aie_ep.compiler.checkpoint.build import built_model
from ort_aie_ep.compiler.checkpoint.interpreter import MODULES, REQUIREMENTS, VARIABLE
from ort_aie_ep.compiler.checkpoint.options import BuildOptions
from ort_aie_ep.errors import AieError

PAGE = HERE.parents[1] / "docs" / "checkpoints.md"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "SRC")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The folder of the compiled model; nothing else may stay there."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Path]:
    def make(**environment: object) -> Path:
        seen = tmp_path / "seen.json"
        return python_with_builder(tmp_path / "bin" / "py", STANDIN_SEEN=seen, **environment)

    return make


compiled, refused = partial(succeeded, "compile"), partial(mistake, "compile")


def test_one_command_compiles_what_the_builder_writes(
    source: Path, work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    compiled(source, work / "out", "--builder-python", python())
    assert [path.name for path in work.iterdir()] == ["out"]
    ort_aie_ep.compile(LLAMA, tmp_path / "expected")
    for name in ("model.onnx", "model.onnx.data", "genai_config.json", "tokenizer.json"):
        assert (work / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    # The builder does not write it, and `export-q4nx` needs it.
    assert (work / "out" / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_the_builder_gets_the_checkpoint_and_the_options(
    source: Path, work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    options = ("--builder-option", "block_size=64", "--builder-option", "algo_config=k_quant")
    compiled(source, work / "out", "--builder-python", python(), *options)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["source"] == str(source)
    assert (seen["precision"], seen["provider"]) == ("int4", "cpu")
    assert seen["options"] == ["block_size=64", "algo_config=k_quant", "hf_token=false"]
    assert seen["offline"] == "1"
    assert Path(seen["cwd"]).parent == work  # so that a crash leaves nothing elsewhere
    compiled(source, work / "two", "--builder-python", python(), "--precision", "int8")
    assert json.loads((tmp_path / "seen.json").read_text())["precision"] == "int8"


def test_what_can_be_told_before_is_told_before_the_builder_runs(
    source: Path, work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    words = (source, work / "out", "--builder-python", python())
    assert "--precision fp32" in refused(*words, "--quantize", "mixed")
    floats = (*words, "--precision", "fp32", "--quantize")
    assert "importance" in refused(*floats, "bf16", "--importance", PAGE)
    assert str(tmp_path / "text") in refused(*floats, "mixed", "--importance", tmp_path / "text")
    assert "nowhere" in refused(*words, "--kv", "int8", "--calibration", "nowhere")
    assert str(work / "out") in refused(*words, "--keep-source", work / "out")
    environment = ("--builder-env", work / "out")
    assert str(work / "out") in refused(source, work / "out", *environment)
    assert not (tmp_path / "seen.json").exists()
    assert not [*work.iterdir()]


def test_a_fault_while_compiling_is_not_taken_for_one_of_the_builders(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    with (
        pytest.raises(BrokenPipeError),
        built_model(source, work / "out", BuildOptions(), python=python()),
    ):
        raise BrokenPipeError
    assert not [*work.iterdir()]


def test_the_builder_of_gemma_3_reads_the_rotary_fields_that_it_expects(
    work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    source = checkpoint(tmp_path / "gemma", model_type="gemma3_text", rope_parameters=rope)
    compiled(source, work / "out", "--builder-python", python())
    config = json.loads((tmp_path / "seen.json").read_text())["config"]
    assert config["rope_local_base_freq"] == 1e4
    assert config["rope_parameters"] == rope["full_attention"]


def test_the_variable_names_the_python(
    source: Path, work: Path, python: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(python()))
    compiled(source, work / "out")


def test_the_builders_model_is_kept_where_the_user_says(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    words = ("--builder-python", python(), "--keep-source", work / "int4")
    compiled(source, work / "out", *words)
    assert sorted(path.name for path in work.iterdir()) == ["int4", "out"]
    assert (work / "int4" / "model.onnx").read_bytes() == (LLAMA / "model.onnx").read_bytes()
    assert str(work / "int4") in refused(source, work / "two", *words)


def test_progress_ends_at_the_tensors_and_layers(
    source: Path,
    work: Path,
    python: Callable[..., Path],
    tmp_path: Path,
    ends: Callable[[str], dict[str, str]],
) -> None:
    lora = adapter(tmp_path / "lora")
    result = compiled(source, work / "out", "--builder-python", python(), "--adapter", lora)
    # One matrix is merged; two layers are read and quantised.
    assert ends(result.stderr)["build"] == "5 steps"
    assert "compile" in ends(result.stderr)


@pytest.mark.skipif(not PAGE.is_file(), reason="no docs beside the tests")
@pytest.mark.in_turn
def test_the_commands_on_the_page_compile_and_run(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S))
    said = [shlex.split(line) for line in blocks.splitlines()]
    monkeypatch.chdir(work)
    python = work / "ort-aie-builder" / "bin" / "python"
    python_with_builder(python, STANDIN_SEEN=tmp_path / "seen.json")
    # Folders are where the commands name models, so nothing is downloaded.
    named = [words for words in said if words[1] == "compile" and "/" in words[2]]
    assert len(named) == 3
    for words in named:
        (work / words[2]).parent.mkdir(exist_ok=True)
        compiled(checkpoint(work / words[2]), *words[3:])
    ran = [words for words in said if words[1] == "run" and words[2] != "COMPILED"]
    for words in ran:
        result = ort_aie(*words[1:])
        assert result.exit_code == 0, result.output
    assert ran
    read = {words[2] for words in said if words[1] != "compile"} - {"COMPILED"}
    assert read <= {path.name for path in work.iterdir()}


# --- what fails ---


def test_a_builder_that_fails_gives_its_last_lines_and_its_log(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    said = refused(source, work / "out", "--builder-python", python(STANDIN_ACT="fail"))
    log = work / "out.build.log"
    assert "exit code 3" in said
    assert "NotImplementedError" in said
    assert str(log) in said
    assert list(work.iterdir()) == [log]
    command, *output = log.read_text().splitlines()
    assert command.startswith("$ ")
    assert "Reading layer 0" in output
    compiled(source, work / "out", "--builder-python", python())
    assert [path.name for path in work.iterdir()] == ["out"]


def test_a_builder_that_the_system_kills_may_lack_memory(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    said = refused(source, work / "out", "--builder-python", python(STANDIN_ACT="killed"))
    assert "SIGKILL" in said


def test_a_builder_that_writes_nothing_is_named(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    said = refused(source, work / "out", "--builder-python", python(STANDIN_ACT="nothing"))
    assert f"genai_config.json: {work / 'out.build.log'}" in said


def test_an_interrupt_ends_the_builder_and_leaves_nothing(
    source: Path, work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    words = ["compile", source, work / "out", "--builder-python", python(STANDIN_ACT="wait")]
    command = [sys.executable, "-P", "-m", "ort_aie_ep", *words]
    with background.ignored(signal.SIGINT):
        process = subprocess.Popen(
            background.with_default_signals(*command), stderr=subprocess.PIPE, text=True
        )
    try:
        pid = tmp_path / "seen.pid"
        while not pid.exists() or not pid.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert list(work.iterdir()) == []
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_without_torch_the_error_gives_the_command_that_installs_it(
    source: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(interpreter.MODULES, "no_such_module", "no-such-package")
    monkeypatch.delitem(interpreter.MODULES, "torch")
    said = refused(source, work / "my out", "--builder-option", "block_size=64")
    assert re.search(r"The builder needs .*no-such-package, which (is|are) not installed in", said)
    assert sys.executable in said
    given = ["ort-aie", "compile", str(source), str(work / "my out")]
    options = ["--builder-option", "block_size=64", "--builder-env", "ort-aie-builder"]
    assert f"\n  {shlex.join([*given, *options])}\n" in said
    assert list(work.iterdir()) == []


def test_a_path_that_is_not_a_python_is_named(source: Path, work: Path) -> None:
    said = refused(source, work / "out", "--builder-python", "/bin/false")
    assert "/bin/false" in said
    said = refused(source, work / "out", "--builder-python", work / "nowhere")
    assert str(work / "nowhere") in said


# --- an environment of the builder's own ---


def test_an_environment_that_has_the_builder_is_used_as_it_is(
    source: Path, work: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    seen = tmp_path / "seen.json"
    python_with_builder(environment / "bin" / "python", STANDIN_SEEN=seen)
    compiled(source, work / "out", "--builder-env", environment)
    assert [path.name for path in work.iterdir()] == ["out"]


def pip_standin(environment: Path, act: str) -> None:
    """An environment whose Python has nothing until `-m pip` does something."""
    python = environment / "bin" / "python"
    full = python_with_builder(environment / "bin" / "full", STANDIN_SEEN=environment / "seen.json")
    empty = f'{sys.executable} -S -E "$@"'
    python.write_text(f'#!/bin/sh\nif [ "$2" = pip ]; then\n{act}\nfi\nexec {empty}\n')
    python.chmod(0o755)
    full.rename(environment / "full")


def test_an_environment_without_the_builder_gets_it_from_pip(
    source: Path, work: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    act = f'echo "$@" > {tmp_path}/asked; cp {environment}/full {environment}/bin/python; exit'
    pip_standin(environment, act)
    compiled(source, work / "out", "--builder-env", environment)
    assert (tmp_path / "asked").read_text() == f"-m pip install -r {REQUIREMENTS}\n"


def test_pip_that_fails_is_shown_with_its_log(source: Path, work: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    pip_standin(environment, "echo 'ERROR: No matching distribution found for torch'; exit 1")
    said = refused(source, work / "out", "--builder-env", environment)
    assert str(environment) in said
    assert "No matching distribution found for torch" in said
    assert environment.exists()  # it was there before


def test_a_new_environment_disappears_if_pip_fails(
    source: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "env"

    def create(folder: Path, with_pip: bool) -> None:
        assert with_pip
        pip_standin(folder, "exit 1")

    monkeypatch.setattr(interpreter.venv, "create", create)
    refused(source, work / "out", "--builder-env", environment)
    assert not environment.exists()


def test_a_folder_that_is_not_an_environment_is_left_alone(source: Path, work: Path) -> None:
    (work / "mine").mkdir()
    (work / "mine" / "notes").write_text("mine")
    said = refused(source, work / "out", "--builder-env", work / "mine")
    assert "bin/python" in said
    assert (work / "mine" / "notes").exists()


def test_an_older_builder_is_named_with_its_version(
    source: Path, work: Path, python: Callable[..., Path], tmp_path: Path
) -> None:
    older = tmp_path / "older" / "onnxruntime_genai-0.9.2.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-genai\nVersion: 0.9.2"
    )
    (older / "top_level.txt").write_text("onnxruntime_genai")
    with_older = python(PYTHONPATH=f"{STANDIN}:{older.parent}")
    said = refused(source, work / "out", "--builder-python", with_older)
    assert "0.9.2" in said


def test_a_python_is_named_once(source: Path, work: Path) -> None:
    words = ("--builder-python", sys.executable, "--builder-env", work / "env")
    assert "--builder-env" in refused(source, work / "out", *words)


def test_the_requirements_bring_each_module_that_is_looked_for() -> None:
    pinned = {line.split("==")[0] for line in REQUIREMENTS.read_text().splitlines()}
    assert set(MODULES.values()) <= pinned


# --- options ---


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("block_size", "--builder-option is 'block_size'; expected KEY=VALUE"),
        ("block_size=33", "block_size is '33'; expected one of 16, 32, 64, 128, 256"),
        ("use_qdq=maybe", "use_qdq is 'maybe'; expected true or false"),
        ("num_hidden_layers=two", "num_hidden_layers is 'two'; expected a whole number"),
        ("blok_size=32", "did you mean block_size?"),
        ("enable_cuda_graph=true", "is not an option of the builder for this CPU; expected one of"),
        ("adapter_path=x", "use --adapter"),
        ("config_only=true", "a model without weights cannot be compiled"),
    ],
)
def test_an_option_that_the_builder_does_not_take_is_refused(
    source: Path, work: Path, option: str, message: str
) -> None:
    assert message in refused(source, work / "out", "--builder-option", option)
    assert list(work.iterdir()) == []


def test_an_option_is_given_once_and_may_have_its_old_name(
    source: Path, work: Path, python: Callable[..., Path]
) -> None:
    twice = ("--builder-option", "block_size=32") * 2
    assert "block_size" in refused(source, work / "out", *twice)
    both = ("--builder-option", "block_size=32", "--builder-option", "int4_block_size=64")
    assert "block_size" in refused(source, work / "out", *both)
    old = ("--builder-option", "int4_block_size=32", "--builder-python", python())
    compiled(source, work / "out", *old)


def test_options_of_checkpoints_are_refused_for_other_models(work: Path, tmp_path: Path) -> None:
    said = refused(LLAMA, work / "out", "--adapter", tmp_path)
    assert "--adapter" in said
    assert str(LLAMA) in said


# --- where else a checkpoint turns up ---


def test_what_opens_models_says_how_to_compile_a_checkpoint(
    source: Path, work: Path, tmp_path: Path
) -> None:
    message = re.escape(f"ort-aie compile {source} COMPILED builds a model and compiles it")
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(source, work / "out")
    # A session builds it, where this Python can.
    with pytest.raises(AieError, match=f"ort-aie compile {source} COMPILED --builder-env"):
        ort_aie_ep.session(source, cache_dir=work)
    lora = adapter(tmp_path / "lora")
    with pytest.raises(AieError, match=re.escape(str(lora))):
        ort_aie_ep.compile(lora, work / "out")


def test_a_model_in_onnx_may_lie_beside_the_files_of_its_adapter(
    work: Path, tmp_path: Path
) -> None:
    lora = adapter(tmp_path / "lora")
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copy(LLAMA / name, lora)
    ort_aie_ep.compile(lora, work / "out")
    assert (work / "out" / "adapter_config.json").is_file()
