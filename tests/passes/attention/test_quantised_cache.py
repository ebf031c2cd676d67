"""`compile --kv`: past and present in 16 bits, or as codes, with scales from a text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from builder_nodes import projection_model
from op_models import ORT_VERSION

import ort_aie_ep
from ort_aie_ep import AieError
from ort_aie_ep.compiler.compile import REPORT
from ort_aie_ep.graph_passes.attention.cache_type import Scales, cached_attentions, quantise_cache
from ort_aie_ep.graph_passes.attention.node import INPUTS, is_flow_attention
from ort_aie_ep.graph_passes.planning import expand_plans
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.synth import synth

DATA = Path(__file__).parents[2] / "data"
LLAMA = DATA / "llama"
TYPES = {"int8": ir.DataType.INT8, "int4": ir.DataType.UINT8}
FLOATS = {"f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
BITS = {"int8": 8, "int4": 4}
KV_HEADS, SIZE = 2, 32  # of the test models
TOKENS = np.random.default_rng(5).integers(3, 500, 60)
# ONNX Runtime's own GroupQueryAttention.
NEEDS_CODES = pytest.mark.skipif(
    ORT_VERSION < (1, 28), reason="earlier ones have no GroupQueryAttention with a cache of codes"
)


def compiled(source: Path, target: Path, kv: str | None, **options: Any) -> Path:
    ort_aie_ep.compile(source, target, kv=kv, **options)
    return target


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(LLAMA, tmp_path_factory.mktemp("kv") / "int8", "int8")


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(LLAMA, tmp_path_factory.mktemp("kv") / "int4", "int4")


@pytest.fixture(params=TYPES)
def kv(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kv: str, request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(kv)
    return path


def steps(folder: Path) -> ir.Model:
    """A compiled model with a node for each step of the plans."""
    model = ir.load(folder / "model.onnx")
    expand_plans(model)
    return model


def attentions(folder: Path) -> list[ir.Node]:
    return [n for n in steps(folder).graph if is_flow_attention(n)]


def scales_of(folder: Path) -> list[Scales]:
    found = []
    for node in attentions(folder):
        arrays = []
        for name in ("k_scale", "v_scale"):
            value = node.inputs[INPUTS.index(name)]
            assert value is not None
            assert value.const_value is not None
            arrays.append(value.const_value.numpy())
        found.append(Scales(*arrays))
    return found


def decoder(folder: Path, *, library: bool = True) -> Decoder:
    found = find_model(folder)
    session = open_session(found.model, Options("host", threads=1), library=library)
    return Decoder(session, found, 128)


def logits(folder: Path, *, library: bool = True) -> npt.NDArray[np.float32]:
    """The logits of TOKENS: most in one pass, the last ones one by one."""
    one = decoder(folder, library=library)
    parts = [one.forward(TOKENS[:50]), *(one.forward(TOKENS[i : i + 1]) for i in range(50, 60))]
    return np.concatenate(parts)


def float_source(folder: Path) -> Path:
    """A model whose projections stay on the CPU EP, so that only attention differs."""
    synth("tiny-llama", folder, int4=False)
    shutil.copy(LLAMA / "tokenizer.json", folder)
    return folder


def quantised_source(source: Path, target: Path, kv: str, scales: list[Scales]) -> Path:
    """The model with GroupQueryAttention's own quantised cache."""
    shutil.copytree(source, target)
    model = ir.load(target / "model.onnx")
    nodes = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    for node, pair in zip(nodes, scales, strict=True):
        node.resize_inputs(14)
        for index, array in zip((12, 13), pair, strict=True):
            name = f"{node.name}.scale_{index}"
            value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            model.graph.register_initializer(value)
            node.replace_input_with(index, value)
        for cache in (*node.inputs[3:5], *node.outputs[1:3]):
            assert cache is not None
            assert cache.shape is not None
            cache.type = ir.TensorType(TYPES[kv])
            cache.shape = ir.Shape([*cache.shape[:3], SIZE * BITS[kv] // 8])
        for name in ("k_quant_type", "v_quant_type"):
            node.attributes.add(ir.AttrString(name, "PER_CHANNEL"))
        node.attributes.add(ir.AttrInt64("kv_cache_bit_width", BITS[kv]))
    ir.save(model, target / "model.onnx")
    return target


def codes(packed: npt.NDArray[Any], kv: str) -> npt.NDArray[np.int64]:
    if kv == "int8":
        return packed.astype(np.int64)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1) - np.int64(
        8
    )


# --- what is written ---


def check_interface(folder: Path, kv: str) -> None:
    """Past and present change, and nothing else."""
    before, after = (ir.load(path / "model.onnx").graph for path in (LLAMA, folder))
    for old, new in zip(
        (*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True
    ):
        shape = list(old.shape or ())
        if (old.name or "").startswith(("past", "present")):
            assert new.dtype == (TYPES | FLOATS)[kv]
            if kv == "int4":  # two channels in a byte
                shape[3] = SIZE // 2
        else:
            assert new.dtype == old.dtype
        assert (new.name, list(new.shape or ())) == (old.name, shape)


@pytest.mark.parametrize("form", FLOATS)
def test_floats_of_16_bits_change_past_and_present_alone(form: str, tmp_path: Path) -> None:
    check_interface(compiled(LLAMA, tmp_path / "out", form), form)
    assert json.loads((tmp_path / "out" / REPORT).read_text())["kv_cache"] is None


def test_codes_change_past_and_present_alone(folder: Path, kv: str) -> None:
    check_interface(folder, kv)
    for node in attentions(folder):
        assert node.attributes.get_int("kv_cache_bit_width") == BITS[kv]
        for name in ("k_quant_type", "v_quant_type"):
            assert node.attributes.get_string(name) == "PER_CHANNEL"
    for pair in scales_of(folder):
        for array in pair:
            assert array.shape == (1, KV_HEADS, 1, SIZE)
            assert (array > 0).all()


def test_the_report_has_the_error_of_each_layer(folder: Path, kv: str) -> None:
    report = json.loads((folder / REPORT).read_text())["kv_cache"]
    assert report["kv"] == kv
    assert [layer["node"] for layer in report["layers"]] == [n.name for n in attentions(folder)]
    # A uniform rounding to steps of s has the error s / sqrt(12). The largest of a channel's 2,000
    # normal numbers is at 3.3 deviations: 8 bits divide 1.25 of it by 127, 4 bits at most 1 of it
    # by 7. The bounds are half and twice that, for channels that are not normal and for clipping.
    steps = {"int8": 3.3 * 1.25 / 127, "int4": 3.3 / 7}
    expected = steps[kv] / 12**0.5
    for layer in report["layers"]:
        for what in ("keys", "values"):
            assert expected / 2 < layer[what] < 2 * expected


def test_weights_are_those_without_codes(int8: Path, tmp_path: Path) -> None:
    plain = compiled(LLAMA, tmp_path / "plain", None)
    data = [(path / "model.onnx.data").read_bytes() for path in (int8, plain)]
    assert data[0] == data[1]


# --- what it computes ---


def test_a_smaller_cache_moves_logits_by_its_rounding(int8: Path, tmp_path: Path) -> None:
    expected = logits(compiled(LLAMA, tmp_path / "plain", None))
    # Keys and values have relative errors of 1 % in two layers, and later projections round some
    # numbers differently: on average well below a tenth of the logits' spread.
    assert 0 < np.sqrt(np.mean((logits(int8) - expected) ** 2)) < expected.std() / 10
    # float16 has 11 bits: what is left are those other roundings.
    halves = logits(compiled(LLAMA, tmp_path / "f16", "f16"))
    assert 0 < np.abs(halves - expected).max() < expected.std() / 4


@NEEDS_CODES
def test_the_cache_is_that_of_onnx_runtimes_own_attention(kv: str, tmp_path: Path) -> None:
    source = float_source(tmp_path / "source")
    ours = compiled(source, tmp_path / "ours", kv)
    theirs = quantised_source(source, tmp_path / "theirs", kv, scales_of(ours))
    feeds = {"input_ids": TOKENS[None], "attention_mask": np.ones((1, len(TOKENS)), np.int64)}
    found = []
    for folder, library in ((ours, True), (theirs, False)):
        session = open_session(folder / "model.onnx", Options("host", threads=1), library=library)
        for value in session.get_inputs():
            if value.name.startswith("past"):
                width = SIZE * BITS[kv] // 8
                empty = np.zeros((1, KV_HEADS, 0, width), TYPES[kv].numpy())
                feeds[value.name] = empty
        names = [value.name for value in session.get_outputs()]
        found.append(dict(zip(names, session.run(names, feeds), strict=True)))
    for name in found[0]:
        if name.startswith("present"):
            apart = np.abs(codes(found[0][name], kv) - codes(found[1][name], kv))
            # A number between two codes may go to either, depending on the order of an earlier sum.
            # After the first layer a prompt's bfloat16 products decide too: numbers of some 31
            # codes (127 / 1.25 / 3.3) with errors of 2^-8 go elsewhere once in eight.
            assert apart.max() <= 1
            assert apart.mean() < (0.001 if name.startswith("present.0") else 31 / 256)


@NEEDS_CODES
def test_a_source_with_a_quantised_cache_compiles_as_it_is(
    folder: Path, kv: str, tmp_path: Path
) -> None:
    source = quantised_source(LLAMA, tmp_path / "source", kv, scales_of(folder))
    result = ort_aie_ep.compile(source, tmp_path / "compiled")
    kinds = {o.becomes for o in result.outcomes if o.op_type == "GroupQueryAttention"}
    assert kinds == {"aie.FlowAttention"}
    # The result is the same graph, so the numbers are the same.
    np.testing.assert_array_equal(logits(tmp_path / "compiled"), logits(folder))


@pytest.mark.parametrize("name", ["gemma3", "qwen3"])
def test_windows_and_norms_of_heads_take_codes(name: str, tmp_path: Path) -> None:
    expected = logits(compiled(DATA / name, tmp_path / "plain", None))
    actual = logits(compiled(DATA / name, tmp_path / "int8", "int8"))
    assert 0 < np.sqrt(np.mean((actual - expected) ** 2)) < expected.std() / 10


def test_onnxruntime_genai_runs_codes(folder: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=70, do_sample=False)
    generator = genai.Generator(model, search)
    generator.append_tokens(TOKENS[:50].astype(np.int32))
    for _ in range(10):
        generator.generate_next_token()
    actual = list(generator.get_sequence(0)[50:60])
    one = decoder(folder)
    row, expected = one.forward(TOKENS[:50])[-1], []
    for _ in range(10):
        expected.append(int(np.argmax(row)))
        row = one.forward(np.array(expected[-1:]))[-1]
    assert actual == expected


# --- the text ---


def test_scales_follow_the_text(int8: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a princess who lived by the sea. " * 200)
    other = compiled(LLAMA, tmp_path / "other", "int8", calibration=text)
    assert json.loads((other / REPORT).read_text())["kv_cache"]["text"] == str(text)
    first, second = scales_of(int8)[0], scales_of(other)[0]
    assert not np.array_equal(first.keys, second.keys)
    # The same text gives the same scales.
    again = compiled(LLAMA, tmp_path / "again", "int8", calibration=text)
    np.testing.assert_array_equal(scales_of(again)[0].keys, second.keys)


def without_tokenizer(folder: Path) -> Path:
    shutil.copytree(LLAMA, folder)
    (folder / "tokenizer.json").unlink()
    return folder


def test_without_a_tokenizer_token_ids_serve(tmp_path: Path) -> None:
    source = without_tokenizer(tmp_path / "source")
    message = r"no tokenizer\.json.*numpy\.save.*Random ids give wrong results"
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(source, tmp_path / "out", kv="int8")
    assert not (tmp_path / "out").exists()
    ids = tmp_path / "ids.npy"
    np.save(ids, np.random.default_rng(0).integers(0, 500, (3, 40)))
    compiled(source, tmp_path / "out", "int8", calibration=ids)
    report = json.loads((tmp_path / "out" / REPORT).read_text())["kv_cache"]
    assert (report["text"], report["tokens"]) == (str(ids), 80)


def array_file(shape: str) -> bytes:
    """A file of numpy.save whose shape is this text."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "cannot be read"),
        ("latin", b"caf\xe9" * 1000, "is not UTF-8"),
        (
            "short",
            b"a few words",
            "one of 5 parts of it has .* tokens; calibration .* uses up to 256",
        ),
        ("none.npy", None, "token ids .* cannot be read"),
        ("archive.npy", {"ids": np.zeros((3, 9), int)}, "are an archive; expected one array"),
        ("text.npy", b"no numbers", "are not an array saved by numpy.save"),
        ("zip.npy", b"PK\x03\x04", "are not an array saved by numpy.save"),
        ("cut.npy", array_file("(2, "), "are not an array saved by numpy.save"),
        ("huge.npy", array_file(f"({10**20}, 2)"), "are not an array saved by numpy.save"),
        ("flat.npy", np.zeros(9, np.int64), r"integers \(windows, tokens\).* got int64 \(9,\)"),
        ("float.npy", np.zeros((3, 9)), r"integers \(windows, tokens\).* got float64"),
        ("long.npy", np.zeros((2, 257), int), "have 257 in a window; expected at most 256"),
        ("large.npy", np.full((2, 9), 500), "from 500 to 500, and the model has 500 tokens"),
    ],
)
def test_a_text_that_cannot_serve_is_refused(
    tmp_path: Path,
    name: str,
    content: bytes | dict[str, npt.NDArray[Any]] | npt.NDArray[Any] | None,
    message: str,
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        with path.open("wb") as file:
            np.savez(file, **content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(LLAMA, tmp_path / "out", kv="int8", calibration=path)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_text_without_codes_is_refused(tmp_path: Path) -> None:
    for kv in (None, "f16"):
        with pytest.raises(AieError, match="calibration"):
            ort_aie_ep.compile(LLAMA, tmp_path / "out", kv=kv, calibration=tmp_path / "text")


# --- models that cannot ---


@pytest.mark.parametrize(
    ("form", "message"),
    [("f8", "'f8'.*f16"), ("f16", "kv type f16"), ("int8", "kv type int8")],
)
def test_kv_is_refused_where_nothing_is_cached(form: str, message: str, tmp_path: Path) -> None:
    onnx.save(projection_model(), tmp_path / "model.onnx")
    with pytest.raises(AieError, match=message):
        ort_aie_ep.compile(tmp_path / "model.onnx", tmp_path / "out", kv=form)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", ["f16", "int8"])
def test_a_cache_of_codes_stays_what_it_is(int8: Path, asked: str) -> None:
    model = steps(int8)
    with pytest.raises(AieError, match=f"(?s)kv type {asked}: 2 of 2"):
        cached_attentions(model, asked)


def test_one_shared_cache_leaves_all_as_they_are(tmp_path: Path) -> None:
    plain = compiled(LLAMA, tmp_path / "plain", None)
    model = steps(plain)
    first, second = (node for node in model.graph if is_flow_attention(node))
    past = INPUTS.index("past_key")
    second.replace_input_with(past, first.inputs[past])
    types = [value.type for value in (*model.graph.inputs, *model.graph.outputs)]
    with pytest.raises(AieError) as error:
        quantise_cache(model, "int8", [])
    for node in (first, second):
        assert re.search(
            rf"node '{node.name}': its past_key .* is read by other nodes too", str(error.value)
        )
    assert [value.type for value in (*model.graph.inputs, *model.graph.outputs)] == types


def test_a_model_that_reads_no_tokens_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(LLAMA, source)
    model = ir.load(source / "model.onnx")
    extra = ir.Value(name="speaker", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.inputs.append(extra)
    ir.save(model, source / "model.onnx")
    with pytest.raises(AieError, match=r"speaker"):
        ort_aie_ep.compile(source, tmp_path / "out", kv="int8")
    assert not (tmp_path / "out").exists()


# --- sessions ---


def test_a_session_keeps_a_compilation_for_each_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    text = tmp_path / "text"

    def open_model(**options: Any) -> onnxruntime.InferenceSession:
        return ort_aie_ep.session(LLAMA / "model.onnx", cache_dir=cache, **options)

    def entries() -> int:
        return len([path for path in cache.iterdir() if (path / "model.onnx").exists()])

    text.write_text("for line in lines:\n    print(line)\n" * 300)
    session = open_model(kv="int8", calibration=text)
    assert {v.type for v in session.get_inputs() if "past" in v.name} == {"tensor(int8)"}
    open_model(kv="int8", calibration=str(text))
    assert entries() == 1
    text.write_text("while True:\n    pass\n" * 300)
    open_model(kv="int8", calibration=text)
    assert entries() == 2
