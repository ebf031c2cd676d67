"""What names mean, and which files of which repository are chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.contents import File, choose
from ort_aie_ep.hub.names import Name, find_name

TOKENIZER = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja"
BESIDE = f"config.json generation_config.json {TOKENIZER}"
# What is in many repositories, and never needed.
CHAFF = "README.md .gitattributes modeling_x.py configuration_x.py LICENSE pytorch_model.bin x.pkl"


def built(folder: str) -> str:
    names = f"genai_config.json model.onnx model.onnx.data {TOKENIZER}"
    return " ".join(f"{folder}/{name}" for name in names.split())


PHI = " ".join(
    built(folder)
    for folder in (
        "cpu_and_mobile/cpu-int4-rtn-block-32",
        "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4",
        "cuda/cuda-fp16",
        "cuda/cuda-int4-rtn-block-32",
        "directml/directml-int4-awq-block-128",
    )
)
SHARDS = "model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
ODD = "model.safetensors-00001-of-00001.safetensors"
TEMPLATES = "additional_chat_templates/tool_use.jinja additional_chat_templates/rag.jinja"
# What AMD's converter writes, as amd/Llama-3.1-8B-onnx-ryzenai-hybrid and the NPU's models have it.
HYBRID = (
    "genai_config.json model_jit.onnx model_jit.onnx.data model_jit.bin model_jit.pb.bin "
    f"{TOKENIZER}"
)
FUSED = f"genai_config.json fusion.onnx fusion.onnx.data prefill.bin prefill.pb.bin {TOKENIZER}"
INDEX = "model.safetensors.index.json"
WEB = (
    "onnx/model.onnx onnx/model.onnx_data onnx/model_fp16.onnx onnx/model_q4.onnx "
    "onnx/model_q4.onnx_data onnx/model_q4.onnx_data_1 onnx/model_q4f16.onnx onnx/model_int8.onnx "
    "onnx/model_quantized.onnx"
)
GGUFS = "m-Q2_K.gguf m-Q4_K_S.gguf m-Q4_K_M.gguf m-Q8_0.gguf m-F16.gguf mmproj-m-F16.gguf"
SPLIT = "m-Q8_0/m-Q8_0-00001-of-00002.gguf m-Q8_0/m-Q8_0-00002-of-00002.gguf"

# What the repository has, what of it is asked for → kind, files.
CHOSEN = {
    "a builder's folder at the top": (
        f"genai_config.json model.onnx model.onnx.data {BESIDE} {CHAFF}", "",
        "ONNX", f"genai_config.json model.onnx model.onnx.data {BESIDE}",
    ),
    "of the builder's folders, int4 for CPUs": (
        f"{PHI} config.json {CHAFF}", "", "ONNX",
        built("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"),
    ),
    "a folder that is named": (PHI, "cuda/cuda-fp16", "ONNX", built("cuda/cuda-fp16")),
    "an export, with weights of four bits": (
        f"{WEB} {BESIDE} model.safetensors {CHAFF}", "", "ONNX",
        f"onnx/model_q4.onnx onnx/model_q4.onnx_data onnx/model_q4.onnx_data_1 {BESIDE}",
    ),
    "a file that is named": (
        f"{WEB} {BESIDE}", "onnx/model.onnx", "ONNX",
        f"onnx/model.onnx onnx/model.onnx_data {BESIDE}",
    ),
    "optimum's export at the top": (
        f"model.onnx model.onnx_data {BESIDE}", "", "ONNX",
        f"model.onnx model.onnx_data {BESIDE}",
    ),
    "a checkpoint in one file": (
        f"model.safetensors pytorch_model.bin {BESIDE} {CHAFF}", "",
        "checkpoint of safetensors", f"model.safetensors {BESIDE}",
    ),
    "a checkpoint in parts, without its duplicate": (
        f"{SHARDS} {INDEX} consolidated.safetensors original/consolidated.00.pth {BESIDE}", "",
        "checkpoint of safetensors", f"{SHARDS} {INDEX} {BESIDE}",
    ),
    "a checkpoint whose one part has a name of its own": (
        f"{ODD} {INDEX} consolidated.safetensors {BESIDE}", "", "checkpoint of safetensors",
        f"{ODD} {INDEX} {BESIDE}",
    ),
    "a checkpoint in one file, whose parts are gone": (
        f"model.safetensors {INDEX} {BESIDE}", "", "checkpoint of safetensors",
        f"model.safetensors {BESIDE}",
    ),
    "a checkpoint whose one file has no index": (
        f"model.fp16.safetensors consolidated.safetensors {BESIDE}", "",
        "checkpoint of safetensors", f"model.fp16.safetensors {BESIDE}",
    ),
    "chat templates in their folder": (
        f"model.onnx {BESIDE} {TEMPLATES} additional_chat_templates/x.py x/tool_use.jinja", "",
        "ONNX", f"model.onnx {BESIDE} {TEMPLATES}",
    ),
    "chat templates above an export": (
        f"{WEB} {BESIDE} {TEMPLATES}", "onnx/model_fp16.onnx", "ONNX",
        f"onnx/model_fp16.onnx {BESIDE} {TEMPLATES}",
    ),
    "what AMD's runtime need not open": (
        f"{HYBRID} m-Q4_0.gguf {PHI}", "", "ONNX",
        built("cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4"),
    ),
    "GGUF beside a model of AMD's runtime": (f"{FUSED} m-Q4_0.gguf", "", "GGUF", "m-Q4_0.gguf"),
    "GGUF before a checkpoint": (f"{GGUFS} model.safetensors config.json", "", "GGUF",
                                 "m-Q4_K_M.gguf"),
    "GGUF of less than 4 bits": ("m-F16.gguf m-Q2_K.gguf m-Q3_K_M.gguf", "", "GGUF",
                                 "m-Q3_K_M.gguf"),
    "the only GGUF, of any type": ("m-IQ2_XS.gguf README.md", "", "GGUF", "m-IQ2_XS.gguf"),
    "a GGUF's type that is named": (GGUFS, "q8_0", "GGUF", "m-Q8_0.gguf"),
    "a GGUF file that is named": (GGUFS, "m-Q2_K.gguf", "GGUF", "m-Q2_K.gguf"),
    "all parts of a GGUF": (f"{SPLIT} x.py", "", "GGUF", SPLIT),
    "all parts of a GGUF whose second is named": (
        SPLIT, "m-Q8_0/m-Q8_0-00002-of-00002.gguf", "GGUF", SPLIT,
    ),
    "a .q4nx": (f"model.q4nx vision_weight.q4nx attn.xclbin {BESIDE}", "", ".q4nx",
                f"model.q4nx {BESIDE}"),
}  # fmt: skip
REFUSED = {
    "pickles": (f"pytorch_model.bin {BESIDE}", "", "pickles"),
    "an adapter": ("adapter_config.json adapter_model.safetensors", "", "--adapter"),
    "a hybrid model of AMD's runtime": (HYBRID, "", r"model_jit\.onnx\).*as GGUF"),
    "an NPU model of AMD's runtime": (f"{FUSED} config.json", "", r"prefill\.pb\.bin\).*as GGUF"),
    "a file of AMD's runtime": (HYBRID, "model_jit.onnx", "only AMD's Ryzen AI Software"),
    "a folder of AMD's runtime": (
        " ".join(f"npu/{name}" for name in FUSED.split()), "npu", "only AMD's Ryzen AI Software",
    ),
    "a checkpoint with a part that is missing": (f"{SHARDS.split()[0]} {INDEX} {BESIDE}", "",
                                                 r"names 'model-00002.*', which is not in"),
    "an index that names a pickle": (f"model.bin {INDEX} {BESIDE}", "",
                                     r"names 'model\.bin': weights must be in \.safetensors"),
    "a checkpoint with several files and no index": (f"{SHARDS} {BESIDE}", "", "no model"),
    "nothing": ("README.md", "", "no .gguf"),
    "a picture model": ("unet/config.json unet/x.safetensors", "", "no model that can be opened"),
    "an encoder and decoders": ("onnx/encoder_model.onnx onnx/decoder_model_merged.onnx", "",
                                "encoder and decoders"),
    "several folders": (f"{built('a')} {built('b')}", "", "o/r:a (.*), o/r:b"),
    "several GGUF of unknown types": ("a-IQ1_S.gguf b-IQ2_M.gguf", "", "o/r:a-IQ1_S.gguf"),
    "several GGUF of a type": ("a-Q4_0.gguf b-Q4_0.gguf", "", "several GGUF files"),
    "exports in other forms alone": ("onnx/model_int8.onnx onnx/model_bnb4.onnx", "",
                                     "o/r:onnx/model_int8.onnx"),
    "a part that is missing": (SPLIT.split()[0], "", "1 of 2 parts"),
    "a file that is not there": (GGUFS, "m-Q5_0.gguf", "m-Q4_K_M.gguf"),
    "a file that is no model": (BESIDE, "config.json", "is not a model"),
    "paths that lead elsewhere": ("../model.q4nx /x/model.q4nx C:\\model.q4nx", "", "no model"),
}  # fmt: skip


def listed(names: str) -> list[File]:
    return [File(path, 10) for path in names.split()]


def indexed(there: str, folder: Path) -> Callable[[File], Path]:
    """What downloads the index: of one odd part if it is there, else of two."""

    def read(file: File) -> Path:
        assert file.path == INDEX
        odd = {ODD, "model.bin"}.intersection(there.split())
        shards = sorted(odd) or SHARDS.split()
        weights = {f"layers.{i}.weight": shard for i, shard in enumerate(shards)}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weights}))
        return folder / INDEX

    return read


@pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN)
def test_the_files_that_are_needed_are_chosen(
    case: tuple[str, str, str, str], tmp_path: Path
) -> None:
    there, inside, kind, needed = case
    choice = choose(listed(there), Name("o", "r", inside=inside), indexed(there, tmp_path))
    assert choice.kind == kind
    assert {file.path for file in choice.files} == set(needed.split())
    assert choice.main in ("", *(file.name for file in choice.files))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_chosen_says_what_there_is(
    case: tuple[str, str, str], tmp_path: Path
) -> None:
    there, inside, message = case
    with pytest.raises(AieError, match=message) as error:
        choose(listed(there), Name("o", "r", inside=inside), indexed(there, tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("me/model", Name("me", "model")),
        ("me/a.b-c_1@v1.0", Name("me", "a.b-c_1", "v1.0")),
        ("me/model@refs/pr/1:onnx/model.onnx", Name("me", "model", "refs/pr/1", "onnx/model.onnx")),
        ("me/model:Q8_0", Name("me", "model", inside="Q8_0")),
        ("me/model:folder/", Name("me", "model", inside="folder")),
        ("hf.co/me/model:Q8_0", Name("me", "model", inside="Q8_0")),
        *((f"https:{slashes}huggingface.co/me/model{end}", Name("me", "model"))
          for slashes in ("/", "//") for end in ("", "/")),
        *((path, None) for path in ("model", "./me/model", "../me", "~/me", "/me/model", "a/b/c",
                                    "C:/model", "C:\\me\\model", "me/..", "me/a b", "me/m\0",
                                    "hf.co/a/b/c")),
    ],
)  # fmt: skip
def test_a_name_has_an_owner_and_a_repository(given: str, name: Name | None) -> None:
    assert find_name(given) == name
    assert name is None or find_name(str(name)) == name


def test_a_path_that_exists_is_not_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_name("me/model") == find_name(Path("me/model")) == Name("me", "model")
    (tmp_path / "me").mkdir()
    (tmp_path / "me" / "model").symlink_to("nowhere")
    assert find_name("me/model") is find_name(Path("me/model")) is None
