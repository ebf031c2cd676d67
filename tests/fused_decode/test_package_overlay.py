"""`ort-aie package-overlay` on folders of made-up overlays: packaged, or refused by name."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode_folder import DecodeFolder, xclbin
from sizes import SIZES
from typer.testing import CliRunner

from ort_aie_ep import _npu
from ort_aie_ep.cli import app
from ort_aie_ep.npu.fused_decode.package import package_overlay
from ort_aie_ep.npu.packages.package import xclbin_uuid
from ort_aie_ep.npu.terms.errors import PackageError


def manifest_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "fused_decode.json").read_text())
    return content


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair for the 1B model; no test writes to it."""
    return DecodeFolder(tmp_path_factory.mktemp("built") / "pair").write()


def copy_of(built: Path, path: Path) -> Path:
    path.mkdir()
    for file in built.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def refused(folder: Path, out: Path, words: str) -> None:
    with pytest.raises(PackageError, match=words):
        package_overlay(folder, out)
    assert not out.exists()


def test_a_pair_becomes_a_package(
    built: Path, tmp_path: Path, ends: Callable[[str], dict[str, str]]
) -> None:
    out = tmp_path / "package"
    done = CliRunner().invoke(app, ["package-overlay", str(built), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "llama-3.2-1b" in done.output
    assert ends(done.stderr) == {"package-overlay": "1 window"}
    manifest = manifest_of(out)
    weights, rms, kvc, before_logits, logits = SIZES["llama-3.2-1b"]
    assert manifest["elements"] == {"w": weights, "rms": rms, "y": before_logits + logits}
    assert (manifest["format"], manifest["kind"], manifest["device"]) == (1, "fused_decode", "npu2")
    assert (manifest["flags"], manifest["channels"]) == ({"W_DUAL_CHAN": 1}, 2)
    (window,) = manifest["windows"]
    base = (built / "decode_L2047.insts.bin").read_bytes()
    assert window["kvc"] == kvc
    assert window["uuid"] == xclbin_uuid(built / "decode_L2047.xclbin")
    assert window["kernel"] == "MLIR_AIE"
    assert (out / window["overlay"]).read_bytes() == xclbin("MLIR_AIE")
    assert (out / window["words"]).read_bytes() == base
    assert window["word_count"] == len(base) // 4
    assert window["crc32"] == zlib.crc32(base)
    assert manifest["any_epsilon"] is False
    # A length for each of 8 cores and 4 rows, in each of 16 layers.
    slopes = [slope for _, slope in window["slopes"]]
    assert (slopes.count(1), slopes.count(512)) == (8 * 16, 4 * 16)
    assert len(slopes) == 12 * 16


def test_words_of_any_length_are_those_that_were_built_for_it(built: Path, tmp_path: Path) -> None:
    (window,) = package_overlay(built, tmp_path / "package").manifest["windows"]
    for length in (1, 17, 2048):
        words = _npu.fused_decode_words(
            base=np.fromfile(built / "decode_L2047.insts.bin", np.uint32),
            slopes=window["slopes"],
            base_length=window["base_length"],
            positions=window["positions"],
            length=length,
        )
        # A build for the same cache of 2,048 as the template's, of which `length` are filled.
        template = DecodeFolder(tmp_path)
        expected = np.array(template.words(2048))
        steps = np.zeros_like(expected)
        for index, slope in window["slopes"]:
            steps[index] = slope
        np.testing.assert_array_equal(words, expected - steps * np.uint32(2048 - length))


@pytest.mark.parametrize("model", ["gemma3-4b", "qwen3-8b"])
def test_other_models_are_known_by_what_they_read(model: str, tmp_path: Path) -> None:
    folder = DecodeFolder(tmp_path / "built", model=model).write()
    manifest = package_overlay(folder, tmp_path / "package").manifest
    assert manifest["model"] == model
    assert manifest["elements"]["w"] == SIZES[model][0]
    assert manifest["windows"][0]["kvc"] == SIZES[model][2]


def test_a_staircase_has_a_window_for_each_pair(tmp_path: Path) -> None:
    folder = DecodeFolder(tmp_path / "built", windows=(64, 128), channels=1).write()
    manifest = package_overlay(folder, tmp_path / "package").manifest
    assert [window["positions"] for window in manifest["windows"]] == [64, 128]
    assert manifest["channels"] == 1
    assert len(list((tmp_path / "package").iterdir())) == 5


def test_a_package_takes_the_place_of_one_and_of_nothing_else(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    package_overlay(built, out)
    (out / "left over").touch()
    package_overlay(built, out)
    assert not (out / "left over").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    with pytest.raises(PackageError, match=str(tmp_path)):
        package_overlay(built, other)
    assert (other / "mine").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "package"]


def test_the_model_and_the_commit_that_one_names(built: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"llama-3\.2-1b.*qwen3-8b"):
        package_overlay(built, tmp_path / "package", model="qwen3-8b")
    manifest = package_overlay(
        built, tmp_path / "package", model="llama-3.2-1b", commit="e972f294"
    ).manifest
    assert manifest["commit"] == "e972f294"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decode_L2047.insts.bin": None}, r"lacks decode_L2047\.insts\.bin"),
        ({"decode_L2048.xclbin": None}, r"lacks decode_L2048\.xclbin"),
        ({"decode_L1999.xclbin": b""}, r"has decode_L1999\.xclbin, which are not a pair"),
        ({".decode_flags": None}, r"has no \.decode_flags, so the order of its weights"),
        ({".decode_flags": b"W_DUAL_CHAN=2"}, "must say W_DUAL_CHAN=0 or W_DUAL_CHAN=1"),
        ({".decode_flags": b"W_DUAL_CHAN=1 PAIRED=1"}, "PAIRED=1; the known flags are W_DUAL"),
        (
            {".decode_flags": b"W_DUAL_CHAN=1 DECODE_WGROUP=9"},
            r"DECODE_WGROUP=9, but llama-3\.2-1b has no layers",
        ),
        (
            {".decode_flags": b"W_DUAL_CHAN=0"},
            r"not the order of weights of llama-3\.2-1b with W_DUAL_CHAN=0",
        ),
        ({".decode_windows": b"64 2048"}, r"lists 64 2048, but the folder has windows of 2048"),
        ({"decode_L2047.insts.bin": b"abc"}, "has 3 bytes, expected words of 4"),
        ({"decode_L2047.insts.bin": b"\0" * 64}, r"insts\.bin: header, word 0: expected version"),
        ({"decode_L2047.xclbin": b"xclbin"}, "is not an xclbin"),
        ({"decode_L2047.xclbin": xclbin("other")}, "must have one kernel with MLIR_AIE"),
        ({"decode_L2047.xclbin": xclbin("MLIR_AIE_2")}, "has the kernel MLIR_AIE_2, but"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    built: Path, tmp_path: Path, change: dict[str, bytes | None], words: str
) -> None:
    folder = copy_of(built, tmp_path / "folder")
    for name, content in change.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
    refused(folder, tmp_path / "package", words)


def test_windows_without_a_stamp_are_refused(tmp_path: Path) -> None:
    folder = DecodeFolder(tmp_path / "built", windows=(64, 128)).write()
    (folder / ".decode_windows").unlink()
    refused(folder, tmp_path / "package", r"windows of 64, 128 tokens but no \.decode_windows")


def test_a_geometry_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = DecodeFolder(tmp_path / "built", layers=15).write()
    found = r"for no model that this version knows. .* w 735313920, .*\n  llama-3\.2-1b: x 4096"
    refused(folder, tmp_path / "package", f"(?s){found}")


def test_other_chunks_of_the_lm_head_are_refused(tmp_path: Path) -> None:
    # The sizes are the same: mlir-air's VOCAB_CHUNK_I2 may be 9 for 14 chunks.
    folder = DecodeFolder(tmp_path / "built", head_rows=9216).write()
    refused(folder, tmp_path / "package", "not the order .* or with another VOCAB_CHUNK_I2")


def test_one_channel_that_the_folder_calls_two_is_refused(tmp_path: Path) -> None:
    folder = DecodeFolder(tmp_path / "built", channels=1, flags="W_DUAL_CHAN=1").write()
    refused(folder, tmp_path / "package", "reads weights through 4 channels of shims, expected 8")


def test_words_of_two_builds_are_refused(built: Path, tmp_path: Path) -> None:
    folder = copy_of(built, tmp_path / "folder")
    words = np.fromfile(folder / "decode_L2048.insts.bin", np.uint32)
    changed = words.copy()
    changed[8 + np.flatnonzero(words[8:] == 4096 // 4)[0]] += 1  # the length of x's task
    changed.tofile(folder / "decode_L2048.insts.bin")
    refused(folder, tmp_path / "package", r"differ at word \d+ \(0x400 and 0x401\), which is")
    DecodeFolder(tmp_path / "short", layers=15).words(2048).tofile(
        folder / "decode_L2048.insts.bin"
    )
    refused(folder, tmp_path / "package", "have different operations")
    (folder / "decode_L2048.insts.bin").write_bytes(
        (folder / "decode_L2047.insts.bin").read_bytes()
    )
    refused(folder, tmp_path / "package", "does not change the length for attention")


def test_a_folder_without_a_pair_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "decode_dyn_L2048.xclbin").touch()
    done = CliRunner().invoke(
        app, ["package-overlay", str(tmp_path), "--out", str(tmp_path / "package")]
    )
    assert done.exit_code == 1
    assert re.search(r"make\s+compile-decode", done.output)
