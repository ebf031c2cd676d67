"""EPContext models without weights: they refer to the data file of their source."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from model_folders import DATA, MODELS
from op_models import FLOAT32, ORT_VERSION, one_op_model, run
from projection_calls import activations, make_weights
from provider_calls import devices, needs_provider, provider_session

import ort_aie_ep
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.generate import Decoder

pytestmark = [needs_provider, pytest.mark.usefixtures("provider")]

MODE = "ep.enable_weightless_mode"
FOLDER = "session.model_external_initializers_file_folder_path"
N, K = 96, 512


def projection(folder: Path, threshold: int = 0) -> Path:
    """A model whose initializers of `threshold` bytes and more are in a data file."""
    w = make_weights(N, K, zero_points=True)
    inputs = {"A": np.zeros((1, K), FLOAT32), "B": w.b, "scales": w.scales,
              "zero_points": w.zero_points}  # fmt: skip
    given = {"K": K, "N": N, "bits": 4, "block_size": 32}
    model = one_op_model("MatMulNBits", inputs, {"Y": FLOAT32}, given, domain="com.microsoft",
                         constants=("B", "scales", "zero_points"))  # fmt: skip
    path = folder / "model.onnx"
    onnx.save(onnx.load_from_string(model), path, save_as_external_data=True,
              location="the data", size_threshold=threshold)  # fmt: skip
    return path


def product(session: onnxruntime.InferenceSession) -> np.ndarray:
    return run(session, {"A": activations(3, K)})["Y"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A context model beside the data file of its source."""
    provider_session(projection(tmp_path), context=tmp_path / "ctx.onnx", entries={MODE: "1"})
    return tmp_path / "ctx.onnx"


@pytest.mark.parametrize(
    "name", [name for name in ("llama", "phi3", "gpt_oss", "qwen3_5") if name in MODELS]
)
def test_a_model_without_weights_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    """Projections, a tied embedding, tables and experts."""
    source = find_model(DATA / name)
    data = shutil.copy(source.model.with_name("model.onnx.data"), tmp_path)
    context = tmp_path / "ctx.onnx"
    first = Decoder(
        provider_session(source.model, context=context, entries={MODE: "1"}), source, 64
    )
    again = Decoder(provider_session(context), source, 64)
    plain = Decoder(provider_session(source.model), source, 64)
    tokens = np.random.default_rng(0).integers(3, first.vocabulary, 40)
    for part in np.split(tokens, [20, 21, 39]):
        expected = plain.forward(part)
        np.testing.assert_array_equal(first.forward(part), expected)
        np.testing.assert_array_equal(again.forward(part), expected)
    assert {path.name for path in tmp_path.iterdir()} == {
        "ctx.onnx", "ctx.onnx.aie", "model.onnx.data"
    }  # fmt: skip
    assert (tmp_path / "ctx.onnx.aie").stat().st_size < Path(data).stat().st_size / 20
    if ORT_VERSION >= (1, 32):
        model = onnx.load(context, load_external_data=False)
        assert {p.key: p.value for p in model.metadata_props}["weightless_mode"] == "1"


@pytest.mark.parametrize(("threshold", "held"), [(0, 0), (4096, 6144), (1 << 20, 0)])
def test_what_is_in_no_data_file_is_held(threshold: int, held: int, tmp_path: Path) -> None:
    """Nothing; the scales; all: then the weights are packed, as without the mode."""
    source = projection(tmp_path, threshold)
    mode1, mode0 = tmp_path / "ctx.onnx", tmp_path / "packed.onnx"
    expected = product(provider_session(source, context=mode0))
    provider_session(source, context=mode1, entries={MODE: "1"})
    source.unlink()
    np.testing.assert_array_equal(product(provider_session(mode1)), expected)
    sizes = [path.with_name(path.name + ".aie").stat().st_size for path in (mode1, mode0)]
    if threshold == 1 << 20:
        assert sizes[0] == sizes[1]
    else:
        assert held < sizes[0] < 3 * 4096 + held < sizes[1]


def test_the_compiler_and_the_older_entry_do_the_same(written: Path, tmp_path: Path) -> None:
    expected = product(provider_session(written))
    small = written.with_name("ctx.onnx.aie").stat().st_size
    source = str(tmp_path / "model.onnx")
    for name, entry in ("compiled.onnx", MODE), ("older.onnx", "ep.enable_weightless"):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(entry, "1")
        options.add_provider_for_devices(devices()[:1], {})
        onnxruntime.ModelCompiler(options, source).compile_to_file(str(tmp_path / name))
        assert (tmp_path / f"{name}.aie").stat().st_size == small
        np.testing.assert_array_equal(product(provider_session(tmp_path / name)), expected)


def test_the_data_file_is_beside_the_model_or_where_the_session_says(
    written: Path, tmp_path: Path
) -> None:
    expected = product(provider_session(written))
    away = tmp_path / "away"
    away.mkdir()
    shutil.move(tmp_path / "the data", away)
    with pytest.raises(Exception, match=rf"the data .* is not at {tmp_path}/the data; .*{FOLDER}"):
        provider_session(written)
    places = {FOLDER: str(away), "ep.context_file_path": str(written)}
    for model in written, written.read_bytes():
        np.testing.assert_array_equal(product(provider_session(model, entries=places)), expected)


@pytest.mark.parametrize("change", ["first byte", "last byte", "short", "empty"])
def test_another_data_file_is_refused(written: Path, change: str) -> None:
    file = written.with_name("the data")
    data = bytearray(file.read_bytes())
    if change == "first byte":
        data[0] ^= 1
    elif change == "last byte":
        data[-1] ^= 1
    file.write_bytes(data[: {"short": len(data) // 2, "empty": 0}.get(change, len(data))])
    with pytest.raises(Exception, match=r"the data(, the weights.* cannot be mapped| has other w)"):
        provider_session(written)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"file the data", b"file ../a.dat", "names the data file '../a.dat', which is not in"),
        (b"file the data", b"file /etc/abc", "names the data file '/etc/abc', which is not in"),
        (b"weights 0 1 2 96", b"weights 0 1 2 97", "do not fit them; generate"),
        (b" 512 4 32 ", b" 512 2 32 ", "do not fit them; generate"),
        (b" 512 4 32 32 1", b" 512 4 32 00 1", "do not fit them; generate"),
        (b"weights 0 1 2 96", b"weights 0 1 9 96", "initializer '9' is not in"),
        (b"weights 0 1 2 96", b"experts 0 1 2 96", "does not say how its weights are made"),
        (b"weights 0 1 2 96", b"weighty 0 1 2 96", "does not say how its weights are made"),
        (b"tensor 0 ", b"tensor 1 ", "does not say how its weights are made"),
        (b"tensor 0 ", b"tensor x ", "does not say how its weights are made"),
        (b"referred 4096 ", b"referred 8192 ", "has no tensor of .* bytes at 8192"),
        (b"constant 30720", b"constant 30721", "do not fit them; generate"),
    ],
)
def test_a_damaged_text_is_refused(
    written: Path, before: bytes, after: bytes, message: str
) -> None:
    file = written.with_name("ctx.onnx.aie")
    data = file.read_bytes()
    assert data.count(before) >= 1, data[4096:]
    file.write_bytes(data.replace(before, after, 1))
    with pytest.raises(Exception, match=message):
        provider_session(written)


@pytest.mark.parametrize("mode", ["2", "3", "all"])
def test_other_modes_are_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=rf"{MODE}={mode}|'{mode}' for {MODE}"):
        provider_session(projection(tmp_path), context=tmp_path / "ctx.onnx", entries={MODE: mode})
    assert not list(tmp_path.glob("ctx*"))


def test_the_device_names_the_mode_and_a_session_without_a_context_takes_it(tmp_path: Path) -> None:
    for device in devices():
        assert device.ep_metadata["weightless_supported_modes"] == "external_only"
        assert device.ep_metadata["weightless_support"] == "external_only"
    source = projection(tmp_path)
    np.testing.assert_array_equal(
        product(provider_session(source, entries={MODE: "1"})), product(provider_session(source))
    )


def test_a_session_of_the_cache_refuses_the_mode(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(MODE, "1")
    with pytest.raises(ort_aie_ep.AieError, match=rf"{MODE}=1: .*ModelCompiler"):
        ort_aie_ep.session(projection(tmp_path), session_options=options, cache_dir=tmp_path / "c")
    assert not (tmp_path / "c").exists()
