"""What the runtime does with a package: reads it, refuses it by name, or ignores it for another
model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from decode_folder import DecodeFolder
from op_models import session_options

import ort_aie_ep
from ort_aie_ep import _npu, npu_counters
from ort_aie_ep.models.shapes import SHAPES
from ort_aie_ep.npu.fused_decode.package import package_overlay
from ort_aie_ep.tools.synth import synth


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No test writes to it."""
    folder = tmp_path_factory.mktemp("package")
    built = DecodeFolder(folder / "built", windows=(64, 128)).write()
    return package_overlay(built, folder / "overlays" / "llama").folder


def copy_of(package: Path, to: Path) -> Path:
    to.mkdir()
    for file in package.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_what_was_packaged_is_read(package: Path) -> None:
    assert _npu.fused_decode_read_package(str(package)) == ("llama-3.2-1b", 2, [64, 128])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m.update(format=2), "has format 2, and this library reads 1; package"),
        (lambda m: m.update(kind="design"), "is not for a fused decode"),
        (lambda m: m.update(model="llama-7b"), "is for llama-7b, which this version does not know"),
        (lambda m: m.update(channels=3), "channels must be an integer from 1 to 2, got 3"),
        (lambda m: m.update(extra=1), "extra"),
        (lambda m: m.pop("flags"), 'has no "flags"'),
        (lambda m: m["elements"].update(rms=67_649), "rms is 67649, and the model's is 67648"),
        (lambda m: m["elements"].update(w=[1]), r"elements\.w must be \[386662400\], got \[1\]"),
        (lambda m: m.update(windows=[]), "has no windows"),
        (lambda m: m["windows"].reverse(), "not in ascending order"),
        (lambda m: m["windows"][0].update(kvc=1), r"windows\[0\]\.kvc is 1, and the model's is"),
        (lambda m: m["windows"][1].update(words="../x"), "must be the name of a file in the pack"),
        (lambda m: m["windows"][1].update(words="none"), "none does not have"),
        (lambda m: m["windows"][0].update(crc32=1), "its words are not those that were packaged"),
        (lambda m: m["windows"][0].update(base_length=65), "base_length must be an integer from 1"),
        (lambda m: m["windows"][0]["slopes"].reverse(), r"slopes\[1\] must be an integer from"),
        (lambda m: m["windows"][0]["slopes"][0].append(1), r"slopes\[0\] must be a word and its"),
    ],
)
def test_what_is_not_as_it_was_packaged_is_refused(
    package: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    folder = copy_of(package, tmp_path / "changed")
    manifest = json.loads((folder / "fused_decode.json").read_text())
    edit(manifest)
    (folder / "fused_decode.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=words):
        _npu.fused_decode_read_package(str(folder))


def test_a_manifest_that_is_cut_or_not_there_is_refused(package: Path, tmp_path: Path) -> None:
    folder = copy_of(package, tmp_path / "changed")
    text = (folder / "fused_decode.json").read_text()
    (folder / "fused_decode.json").write_text(text[:-10])
    with pytest.raises(ValueError, match=r"fused_decode.json"):
        _npu.fused_decode_read_package(str(folder))
    (folder / "fused_decode.json").unlink()
    with pytest.raises(ValueError, match=r"fused_decode.json"):
        _npu.fused_decode_read_package(str(folder))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled llama-3.2-1b, but small."""
    if not Path(ort_aie_ep.library_path()).with_name("libort_aie_sim.so").is_file():
        pytest.skip("built without XRT's headers")
    folder = tmp_path_factory.mktemp("model")
    small = replace(
        SHAPES["llama-3.2-1b"], hidden=256, ffn=512, layers=2, heads=4, kv_heads=2, vocab=512
    )
    ort_aie_ep.compile(synth(small, folder / "source"), folder / "compiled")
    return folder / "compiled" / "model.onnx"


def token(model: Path, overlays: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The logits of a token on the modelled NPU, with packages in `overlays`."""
    # ONNX Runtime 1.23 passes no session entries to operators.
    monkeypatch.setenv("ORT_AIE_TARGET", "sim")
    monkeypatch.setenv("ORT_AIE_OVERLAYS", overlays)
    options = session_options()
    options.register_custom_ops_library(str(ort_aie_ep.library_path()))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    cache = np.zeros((1, 2, 8, 64), np.float32)
    feeds = {
        "input_ids": np.array([[7]]),
        "attention_mask": np.ones((1, 1), np.int64),
        **{f"past_key_values.{i}.{kv}": cache for i in range(2) for kv in ("key", "value")},
    }
    return session.run(["logits"], feeds)[0]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def for_npu1(package: Path, to: Path) -> Path:
    copy_of(package, to)
    manifest = json.loads((to / "fused_decode.json").read_text())
    (to / "fused_decode.json").write_text(json.dumps({**manifest, "device": "npu1"}))
    return to


@pytest.mark.in_turn
def test_a_model_that_is_not_the_overlays_runs_as_before(
    package: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    damaged = copy_of(package, tmp_path / "damaged")
    (damaged / "window_64.words").write_bytes(b"")
    before = npu_counters().fused_refused
    logits = [
        token(model, overlays, monkeypatch) for overlays in ("", f"{package.parent}:{damaged}")
    ]
    np.testing.assert_array_equal(*logits)
    counters = npu_counters()
    reason = (
        "llama-3.2-1b: the weights of queries, keys and values are 512 x 256, but the overlay's "
        "are 512 x 2048"
    )
    assert counters.fused_refused == {reason: before.get(reason, 0) + 1}
    assert counters.fused_tokens == 0
    said = capfd.readouterr().err
    assert f"{reason}\n" in said
    assert f"{damaged}: {damaged}/window_64.words " in said


@pytest.mark.in_turn
def test_a_package_of_another_device_is_refused(
    package: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    other = for_npu1(package, tmp_path / "other")
    before = npu_counters().fused_refused
    token(model, str(other), monkeypatch)
    assert npu_counters().fused_refused == before
    said = capfd.readouterr().err
    assert f"{other}: it was built for npu1, and the device is npu2" in said


def test_packages_alone_say_what_is_missing(
    package: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    token(model, "", monkeypatch)
    # A process writes the packages of the modelled NPU only once.
    shutil.rmtree(tmp_path / "cache" / "ort_aie_ep" / "simulated_overlays")
    token(model, str(package), monkeypatch)
    said = capfd.readouterr().err
    assert "fused decode" in said
    assert "ort-aie kernels build all --device npu2" in said
    # No package for this device: the same as without any.
    token(model, str(for_npu1(package, tmp_path / "other")), monkeypatch)
    said = capfd.readouterr().err
    assert f"{tmp_path / 'other'}: it was built for npu1, and the device is npu2" in said
    assert "decode for npu2" in said
