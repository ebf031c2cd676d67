"""Folders with several .onnx files: each is compiled, or named with the reason it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builder_nodes import projection_model
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor, open_session, run

import ort_aie_ep
from ort_aie_ep.compiler.compile import CompileResult
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.onnx_file import is_compiled, load_model

OPTIMUM = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")


def write(path: Path, model: onnx.ModelProto, data: str = "") -> None:
    """Writes a model with its weights in `data`, by default its own file; appends to an existing
    one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model, path, save_as_external_data=True, location=data or f"{path.name}.data",
        size_threshold=100,
    )  # fmt: skip


def plain_model(n: int = 8, k: int = 48, seed: int = 5, name: str = "/vision/MatMul") -> Any:
    """x -> MatMul with float weights -> y."""
    weights = np.random.default_rng(seed).normal(size=(k, n)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name=name)],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", n])],
        [onnx_tensor("w", weights)],
    )
    return model_of(graph)


def outputs(folder: Path, file: str, k: int = 320) -> Any:
    x = np.random.default_rng(1).normal(size=(1, 3, k)).astype(np.float32)
    return run(open_session(str(folder / file)), {"x": x})["y"]


def assert_computes_the_same(source: Path, compiled: Path, file: str) -> None:
    expected, actual = outputs(source, file), outputs(compiled, file)
    # bfloat16 or int8 activations: errors of 2^-8 of a term at most, and independent.
    assert np.linalg.norm(actual - expected) <= 0.02 * np.linalg.norm(expected)


def config_of(**sections: Any) -> dict[str, Any]:
    decoder = {"filename": "model.onnx", "session_options": {}}
    return {"model": {"type": "llama", "decoder": decoder, **sections}, "search": {}}


def genai_folder(folder: Path, config: dict[str, Any], **files: onnx.ModelProto) -> Path:
    folder.mkdir()
    (folder / "genai_config.json").write_text(json.dumps(config))
    for name, model in {"model": projection_model(), **files}.items():
        write(folder / f"{name}.onnx", model)
    return folder


def parts(result: CompileResult) -> dict[str, str]:
    """file -> why it is not compiled. Checks that the report agrees."""
    report = json.loads((result.path / "ort_aie_report.json").read_text())["parts"]
    assert {p["file"]: (p["compiled"], p["reason"]) for p in report} == {
        p.file: (p.compiled, p.reason) for p in result.parts
    }
    assert all(p.compiled != bool(p.reason) for p in result.parts)
    return {p.file: p.reason for p in result.parts}


def test_an_encoder_and_decoders_of_optimum_are_all_compiled(tmp_path: Path) -> None:
    for seed, name in enumerate(OPTIMUM):
        write(tmp_path / "source" / name, projection_model(40 + 8 * seed))
    result = ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")
    assert parts(result) == {"decoder_model.onnx": "", "encoder_model.onnx": ""}
    for name in OPTIMUM:
        assert is_compiled(load_model(tmp_path / "compiled" / name))
        assert (tmp_path / "compiled" / f"{name}.data").is_file()
        assert_computes_the_same(tmp_path / "source", tmp_path / "compiled", name)
    assert result.weight_bytes == sum(
        (tmp_path / "compiled" / f"{name}.data").stat().st_size for name in OPTIMUM
    )


def test_decoders_of_optimum_without_an_encoder_are_refused(tmp_path: Path) -> None:
    for name in OPTIMUM[1:]:
        write(tmp_path / "source" / name, projection_model())
    with pytest.raises(ort_aie_ep.AieError, match=r"decoder_model\.onnx"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled")


def test_one_file_of_several_is_a_model_of_its_own(tmp_path: Path) -> None:
    for name in OPTIMUM:
        write(tmp_path / "source" / name, projection_model())
    one = tmp_path / "source" / OPTIMUM[1]
    result = ort_aie_ep.compile(one, tmp_path / "compiled")
    assert parts(result) == {}
    assert find_model(tmp_path / "compiled").model == tmp_path / "compiled" / one.name
    with pytest.raises(ort_aie_ep.AieError, match="kv type f16"):
        ort_aie_ep.compile(one, tmp_path / "other", kv="f16")
    session = ort_aie_ep.session(one, cache_dir=tmp_path / "cache")
    assert [value.name for value in session.get_inputs()] == ["x"]
    with pytest.raises(ort_aie_ep.AieError, match="a session runs one"):
        ort_aie_ep.session(tmp_path / "source", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("asked", [{"kv": "f16"}, {"last_logits": True}])
def test_an_encoder_and_decoders_keep_their_interfaces(asked: Any, tmp_path: Path) -> None:
    for name in OPTIMUM:
        write(tmp_path / "source" / name, projection_model())
    with pytest.raises(ort_aie_ep.AieError, match="encoder and decoders"):
        ort_aie_ep.compile(tmp_path / "source", tmp_path / "compiled", **asked)


def test_parts_that_genai_names_are_compiled_and_get_the_library(tmp_path: Path) -> None:
    config = config_of(
        encoder={"filename": "./encoder.onnx", "session_options": {"log_id": "e"}},
        embedding={"filename": "embedding.onnx"},
        vision={"pipeline": [{"attention": {"filename": "vision.onnx"}}]},
    )
    names = ("encoder", "embedding", "vision")
    source = genai_folder(tmp_path / "source", config, **{n: projection_model() for n in names})
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    assert parts(result) == dict.fromkeys((f"{n}.onnx" for n in sorted(names)), "")
    for name in ("model", *names):
        assert_computes_the_same(source, tmp_path / "compiled", f"{name}.onnx")
    model = json.loads((tmp_path / "compiled" / "genai_config.json").read_text())["model"]
    library = "libort_aie_ep_stub.so"
    assert model["decoder"]["session_options"] == {
        "custom_ops_library": library, "ort_aie.prompt_logits": "last",
    }  # fmt: skip
    # genai gives a section only its own options, or the decoder's if it has none.
    assert model["encoder"]["session_options"] == {"log_id": "e", "custom_ops_library": library}
    assert "session_options" not in model["embedding"]


def test_what_is_not_compiled_is_copied_and_named_with_its_reason(tmp_path: Path) -> None:
    config = config_of(
        vision={"filename": "vision.onnx", "session_options": {}},
        speech={"filename": "speech.onnx"},
    )
    source = genai_folder(
        tmp_path / "source", config, vision=plain_model(), adapter=projection_model()
    )
    (source / "speech.onnx").write_bytes(b"no model")
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    reasons = parts(result)
    assert reasons["vision.onnx"].startswith("has nothing to compile: no MatMulNBits")
    assert reasons["adapter.onnx"].startswith("is copied unchanged")
    assert "speech.onnx" in reasons["speech.onnx"]
    for name in ("vision.onnx", "vision.onnx.data", "adapter.onnx", "adapter.onnx.data",
                 "speech.onnx"):  # fmt: skip
        assert (tmp_path / "compiled" / name).read_bytes() == (source / name).read_bytes()
    model = json.loads((tmp_path / "compiled" / "genai_config.json").read_text())["model"]
    assert model["vision"]["session_options"] == {}


def test_a_part_that_reads_the_main_models_data_keeps_its_weights(tmp_path: Path) -> None:
    """The builder shares tensors of Qwen3.5's model.onnx with mtp.onnx like this."""
    shared = {"shared_initializers": [{"name": "w", "data_file": "model.onnx.data"}]}
    config = config_of(mtp={"filename": "mtp.onnx"} | shared)
    config["model"]["decoder"] |= shared
    source = genai_folder(tmp_path / "source", config)
    write(source / "mtp.onnx", plain_model(), data="model.onnx.data")
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    assert "nothing" in parts(result)["mtp.onnx"]
    expected = outputs(source, "mtp.onnx", 48)
    np.testing.assert_array_equal(outputs(tmp_path / "compiled", "mtp.onnx", 48), expected)
    assert_computes_the_same(source, tmp_path / "compiled", "model.onnx")
    model = json.loads((tmp_path / "compiled" / "genai_config.json").read_text())["model"]
    # genai would look in the compiled file for weights of the source's file.
    assert not any("shared_initializers" in section for section in model.values())


def test_logits_of_several_positions_are_what_a_drafter_needs(tmp_path: Path) -> None:
    source = genai_folder(tmp_path / "source", config_of(mtp={"filename": "mtp.onnx"}))
    with pytest.raises(ort_aie_ep.AieError, match=r"last_logits: .*model\.mtp"):
        ort_aie_ep.compile(source, tmp_path / "compiled", last_logits=True)


def test_a_folder_with_nothing_to_compile_anywhere_is_refused(tmp_path: Path) -> None:
    config = config_of(vision={"filename": "vision.onnx"})
    source = genai_folder(tmp_path / "source", config, vision=plain_model(), model=plain_model())
    with pytest.raises(ort_aie_ep.AieError, match=r"model\.onnx"):
        ort_aie_ep.compile(source, tmp_path / "compiled")
    assert not (tmp_path / "compiled").exists()


def test_a_part_is_compiled_though_the_main_model_has_nothing(tmp_path: Path) -> None:
    config = config_of(encoder={"filename": "encoder.onnx"})
    source = genai_folder(
        tmp_path / "source", config, encoder=projection_model(), model=plain_model()
    )
    ort_aie_ep.compile(source, tmp_path / "compiled")
    assert_computes_the_same(source, tmp_path / "compiled", "encoder.onnx")
    assert (tmp_path / "compiled" / "model.onnx").read_bytes() == (
        source / "model.onnx"
    ).read_bytes()


def test_quantize_is_for_the_language_model_and_keep_for_any_of_its_files(tmp_path: Path) -> None:
    config = config_of(
        encoder={"filename": "encoder.onnx"},
        vision={"pipeline": [{"attention": {"filename": "vision.onnx"}}]},
    )
    source = genai_folder(
        tmp_path / "source", config, model=plain_model(64, 64), vision=plain_model(64, 64),
        encoder=plain_model(64, 64, name="/encoder/MatMul"),
    )  # fmt: skip
    result = ort_aie_ep.compile(source, tmp_path / "compiled", quantize="q4nx", keep=["/encoder/*"])
    assert result.outcomes[0].becomes == "aie.Q4NXMatMul"
    nodes = {part.file: part.nodes[0].reason for part in result.parts}
    assert nodes["encoder.onnx"] == "kept by --keep '/encoder/*'"
    assert nodes["vision.onnx"].startswith("its weights are FLOAT")
    with pytest.raises(ort_aie_ep.AieError, match=r"--keep '/other/\*'"):
        ort_aie_ep.compile(source, tmp_path / "o", quantize="q4nx", keep=["/other/*"])


def test_explain_gives_the_reasons_of_the_file_that_is_asked_for(tmp_path: Path) -> None:
    config = config_of(encoder={"filename": "encoder.onnx"})
    encoder = projection_model()
    encoder.graph.node.add(op_type="MatMul", input=["x", "w"], output=["z"], name="/float/MatMul")
    encoder.graph.initializer.append(onnx_tensor("w", np.ones((320, 64), np.float32)))
    encoder.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    source = genai_folder(tmp_path / "source", config, encoder=encoder)
    ort_aie_ep.compile(source, tmp_path / "compiled")
    fates = {n.node: n.not_npu for n in explain(tmp_path / "compiled" / "encoder.onnx").nodes}
    assert fates["/float/MatMul"].startswith("its weights are FLOAT")
