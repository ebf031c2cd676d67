"""Compiled folders in onnxruntime-genai, through the stub library that they carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from model_folders import DATA, SINCE, edited, few
from op_models import ORT_VERSION

import ort_aie_ep

og = pytest.importorskip("onnxruntime_genai")

MODELS = [
    name
    for name in (
        "llama", "llama_asym", "qwen2", "qwen3", "gemma3", "phi", "phi3", "mistral", "smollm",
        "qwen3_5", "lfm2", "lfm2_moe", "granite4",
    )
    if SINCE.get(name, (0, 0)) <= ORT_VERSION
]  # fmt: skip


# tests/doors has every family.
@pytest.fixture(scope="session", params=few(MODELS, also=("lfm2", "qwen3_5")))
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("genai") / request.param
    ort_aie_ep.compile(DATA / request.param, folder)
    return folder


one_model = pytest.mark.parametrize("compiled", ["llama"], indirect=True)


def test_a_prompt_in_pieces_gives_the_same_text(compiled: Path) -> None:
    # Pieces have more rows than are multiplied one by one, because single rows are rounded in
    # another order, and with random weights that changes the text.
    model, texts = og.Model(str(compiled)), []
    for pieces in ({}, {"chunk_size": 52}):
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=128, do_sample=False, **pieces)
        generator = og.Generator(model, params)
        generator.append_tokens(list(range(5, 109)))
        for _ in range(24):
            generator.generate_next_token()
        texts.append([int(t) for t in generator.get_sequence(0)])
    assert texts[0] == texts[1]


def test_later_turns_run_on_the_filled_cache(compiled: Path) -> None:
    model = og.Model(str(compiled))

    def generate(turns: list[list[int]]) -> list[int]:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=100, do_sample=False)
        generator = og.Generator(model, params)
        for turn in turns:
            generator.append_tokens(turn)
        for _ in range(8):
            generator.generate_next_token()
        return [int(t) for t in generator.get_sequence(0)]

    first, second = list(range(5, 25)), list(range(40, 53))
    assert generate([first, second])[:33] == [*first, *second]
    # One more token alone, then a turn of several: FlowKV and FlowQKV on one cache.
    assert len(generate([first, [7], second])) == 42


PROMPTS = [
    "def main(argv):",
    "import os",
    "class Value(object):\n    def __init__(self, value):\n        self.value = value\n",
    "for",
]


def ragged_text(folder: Path, prompts: list[str], new_tokens: int) -> list[list[int]]:
    """Greedy continuations of a batch, which encode_batch pads on the right."""
    model = og.Model(str(folder))
    tokens = og.Tokenizer(model).encode_batch(prompts)
    length = tokens.as_numpy().shape[1]
    params = og.GeneratorParams(model)
    params.set_search_options(
        batch_size=len(prompts), max_length=length + new_tokens, do_sample=False
    )
    generator = og.Generator(model, params)
    generator.append_tokens(tokens)
    while not generator.is_done():
        generator.generate_next_token()
    rows = (generator.get_sequence(i) for i in range(len(prompts)))
    return [[int(t) for t in row][length:] for row in rows]


def test_ragged_prompts_give_the_texts_that_each_gives_alone(tmp_path: Path) -> None:
    """The demonstration model with only the last tokens' logits: by an option here, or by the model
    builder's prune_lm_head in the source."""
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    ort_aie_ep.compile(demo, tmp_path / "all")
    ort_aie_ep.compile(demo, tmp_path / "last", last_logits=True)
    prune(demo, tmp_path / "pruned")
    ort_aie_ep.compile(tmp_path / "pruned", tmp_path / "mended")
    # Alone, a prompt's last position is its last token.
    alone = [ragged_text(tmp_path / "all", [prompt], 16)[0] for prompt in PROMPTS]
    for folder in ("all", "last", "mended"):
        assert ragged_text(tmp_path / folder, PROMPTS, 16) == alone


def prune(source: Path, folder: Path) -> None:
    """What the builder's make_lm_head writes with prune_lm_head: Gather at -1, then Unsqueeze."""
    shutil.copytree(source, folder)
    model = ir.load(folder / "model.onnx")
    logits = next(output for output in model.graph.outputs if output.name == "logits")
    head = logits.producer()
    constants = [
        ir.Value(name=name, const_value=ir.tensor(np.array(number, np.int64), name=name))
        for name, number in (("-1", -1), ("[1]", [1]))
    ]
    for constant in constants:
        model.graph.register_initializer(constant)
    gather = ir.node("Gather", [head.inputs[0], constants[0]], {"axis": 1}, name="/prune/Gather")
    row = ir.node("Unsqueeze", [gather.outputs[0], constants[1]], name="/prune/Unsqueeze")
    model.graph.insert_before(head, [gather, row])
    head.replace_input_with(0, row.outputs[0])
    logits.shape = ir.Shape([logits.shape[0], 1, logits.shape[2]])
    ir.save(model, folder / "model.onnx")


def test_every_compiled_file_of_a_folder_opens(tmp_path: Path) -> None:
    """Whisper's encoder and decoder are sessions with their own options."""
    source = tmp_path / "source"
    shutil.copytree(DATA / "llama", source)
    shutil.copy(source / "model.onnx", source / "encoder.onnx")
    (source / "model.onnx").rename(source / "decoder.onnx")
    with edited(source / "genai_config.json") as config:
        config["model"]["decoder"]["filename"] = "decoder.onnx"
        own = {"filename": "encoder.onnx", "session_options": {"log_id": "encoder"}}
        config["model"] |= {"type": "whisper", "encoder": own}
    ort_aie_ep.compile(source, tmp_path / "compiled")
    og.Model(str(tmp_path / "compiled"))


def run_elsewhere(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@one_model
def test_stub_says_how_to_install_a_missing_library(compiled: Path) -> None:
    code = f"import onnxruntime_genai as og\nog.Model({str(compiled)!r})"
    result = run_elsewhere(code, ORT_AIE_LIBRARY="/nowhere/libort_aie_ep.so")
    assert result.returncode == 1
    assert "/nowhere/libort_aie_ep.so" in result.stderr


def loaded_libraries(model: Path, *folders: Path) -> str:
    """Opens a model with the packages of these folders only. Prints each copy of libort_aie_ep.so
    that was loaded, one per line, or the error."""
    code = f"""
import onnxruntime_genai as og
try:
    og.Model({str(model)!r})
except Exception as error:
    print(error)
with open("/proc/self/maps") as maps:
    print(*sorted({{line.split()[-1] for line in maps if "/libort_aie_ep.so" in line}}), sep="\\n")
"""
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(map(str, folders))},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


def packages(folder: Path, *names: str) -> Path:
    """A folder with copies of this environment's packages of these names. Not links, because
    runtimes follow links."""
    installed = Path(onnxruntime.__file__).parent.parent
    for name in names:
        for package in installed.glob(name):
            shutil.copytree(
                package,
                folder / package.name,
                copy_function=link_or_copy,
                ignore=shutil.ignore_patterns("__pycache__", "transformers", "tests"),
            )
    return folder


def test_the_stub_loads_nothing_from_folders_above_a_model(tmp_path: Path) -> None:
    """Nor from folders above other libraries; packages' folders count only by their exact names."""
    model = tmp_path / "models" / "user" / "onnxruntime_genai"
    model.parent.mkdir(parents=True)
    ort_aie_ep.compile(DATA / "llama", model)
    for folder in (model, model.parent, model.parent.parent, tmp_path, tmp_path / "env" / "other"):
        (folder / "ort_aie_ep").mkdir(parents=True)
        shutil.copy(ort_aie_ep.library_path(), folder / "ort_aie_ep" / "libort_aie_ep.so")
    site = packages(tmp_path / "env" / "site", "onnxruntime", "onnxruntime_genai")
    other = packages(tmp_path / "env" / "other" / "numpy's", "numpy*")
    found = loaded_libraries(model, site, other)
    assert "libort_aie_ep.so was not found" in found
    assert str(tmp_path) + "/" not in found


@pytest.mark.parametrize("beside", ["onnxruntime", "onnxruntime_genai"])
def test_the_stub_finds_the_package_beside_either_runtime(beside: str, tmp_path: Path) -> None:
    ort_aie_ep.compile(DATA / "llama", tmp_path / "model")
    names = {"onnxruntime", "onnxruntime_genai"} - {beside}
    site = packages(tmp_path / "site", beside, "ort_aie_ep")
    rest = packages(tmp_path / "rest", *names, "numpy*")
    assert loaded_libraries(tmp_path / "model", site, rest) == str(
        site / "ort_aie_ep" / "libort_aie_ep.so"
    )


@one_model
def test_bare_name_is_found_after_registering_the_library(compiled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in compiled.iterdir():
        if file.suffix != ".so":
            os.link(file, folder / file.name)
    with edited(folder / "genai_config.json") as config:
        config["model"]["decoder"]["session_options"]["custom_ops_library"] = "libort_aie_ep.so"
    code = f"""
import onnxruntime_genai as og, ort_aie_ep
og.register_execution_provider_library("aie", ort_aie_ep.library_path())
og.Model({str(folder)!r})
print("loaded")
"""
    result = run_elsewhere(code)
    assert "loaded" in result.stdout, result.stderr


@one_model
def test_both_runtimes_in_one_process(compiled: Path) -> None:
    code = f"""
import onnxruntime, onnxruntime_genai as og, ort_aie_ep
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(ort_aie_ep.library_path())
session = onnxruntime.InferenceSession({str(compiled / "model.onnx")!r}, options)
model = og.Model({str(compiled)!r})
del session
params = og.GeneratorParams(model)
params.set_search_options(max_length=40)
generator = og.Generator(model, params)
generator.append_tokens(list(range(5, 37)))
generator.generate_next_token()
print("generated")
"""
    result = run_elsewhere(code)
    assert "generated" in result.stdout, result.stderr
