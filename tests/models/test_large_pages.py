"""Weights in pages of 2 MB, where this kernel and this file system have them for files."""

from __future__ import annotations

import mmap
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.explain.pages import weight_pages
from ort_aie_ep.runtime.sessions import open_compiled
from ort_aie_ep.tools.synth import synth

LARGE = 2 << 20
DATA = "model.onnx.data"
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"


def of_smaps(file: Path, key: str) -> int:
    """Bytes of this process's mappings of a file, by a line of /proc/self/smaps."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            inside = words[-1] == str(file)
        elif inside and words[0] == f"{key}:":
            total += int(words[1]) * 1024
    return total


def in_large_pages(file: Path) -> int:
    """The same by touching each 2 MB of a mapping."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, len(mapped) - LARGE + 1, LARGE):
            mapped[offset]
        return of_smaps(file, "FilePmdMapped")


def write(file: Path, content: bytes, at_once: int) -> None:
    """Writes so much at a time: the system's pages of a new file are no larger."""
    with file.open("wb", buffering=0) as opened:
        for first in range(0, len(content), at_once):
            opened.write(content[first : first + at_once])


def whole_parts(file: Path) -> int:
    return file.stat().st_size // LARGE * LARGE


@pytest.fixture(autouse=True)
def _can(tmp_path: Path) -> None:
    file = tmp_path / "probe"
    write(file, bytes(2 * LARGE), 4096)
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if in_large_pages(file) == 0 or _native.cached_bytes(str(file)) is None:
        pytest.skip("this kernel or file system has no large pages for files")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 MB of weights."""
    folder = tmp_path_factory.mktemp("large_pages")
    synth("llama-3.2-1b", folder / "source", layers=1, vocab=512)
    return ort_aie_ep.compile(folder / "source", folder / "compiled").path


@pytest.fixture
def in_small_pages(compiled: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(compiled, tmp_path / "copy", ignore=shutil.ignore_patterns(DATA))
    write(folder / DATA, (compiled / DATA).read_bytes(), 1 << 16)
    assert _native.cached_bytes(str(folder / DATA)) == (whole_parts(folder / DATA), 0)
    return folder


def logits(
    folder: Path, options: onnxruntime.SessionOptions | None = None
) -> tuple[npt.NDArray[np.float32], onnxruntime.InferenceSession]:
    """Of one token, and the session."""
    session = open_compiled(folder / "model.onnx", options)
    past = [entry for entry in session.get_inputs() if "past" in entry.name]
    empty = {entry.name: np.zeros((1, 8, 0, 64), np.float32) for entry in past}
    one = np.ones((1, 1), np.int64)
    (y,) = session.run(["logits"], {"input_ids": one, "attention_mask": one, **empty})
    return np.asarray(y), session


def test_what_is_reported_is_what_smaps_says(tmp_path: Path) -> None:
    file = tmp_path / "half"
    write(file, bytes(4 * LARGE), LARGE)
    with file.open("ab", buffering=0) as opened:
        for _ in range(4 * LARGE >> 12):
            opened.write(bytes(4096))
    cached = _native.cached_bytes(str(file))
    assert cached == (8 * LARGE, in_large_pages(file)) == (8 * LARGE, 4 * LARGE)


def test_compiling_leaves_weights_in_large_pages(compiled: Path) -> None:
    cached = _native.cached_bytes(str(compiled / DATA))
    assert cached is not None
    assert cached[1] >= 0.9 * cached[0]


def test_a_session_takes_weights_into_large_pages_wherever_they_are_in_the_file(
    in_small_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = in_small_pages / DATA
    monkeypatch.setenv("ORT_AIE_WEIGHTS", "mapped")
    expected, session = logits(in_small_pages)
    del session  # or its pages would stay as they are
    found = weight_pages([file])
    assert found is not None
    assert not found.found
    assert "ort_aie.weights=copied" in found.remedy
    monkeypatch.delenv("ORT_AIE_WEIGHTS")
    got, session = logits(in_small_pages)
    np.testing.assert_array_equal(got, expected)
    found = weight_pages([file])
    assert found is not None
    assert found.found
    tables = 2 << 24  # of the rotary embedding, of which a token reads a row
    assert of_smaps(file, "FilePmdMapped") >= 0.9 * (file.stat().st_size - tables)
    del session
    assert of_smaps(file, "Rss") == 0


@pytest.mark.parametrize("why", ["open for writing", "mapped", "small"])
def test_a_file_is_left_alone(
    why: str, in_small_pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = in_small_pages
    if why == "small":
        folder = shutil.copytree(ort_aie_ep.compile(DEMO, tmp_path / "c").path, tmp_path / "d")
    file = folder / DATA
    if why == "small":
        write(file, (tmp_path / "c" / DATA).read_bytes(), 1 << 16)
    if why == "mapped":
        monkeypatch.setenv("ORT_AIE_WEIGHTS", "mapped")
    with file.open("r+b" if why == "open for writing" else "rb"):
        session = open_compiled(folder / "model.onnx", None)
    assert _native.cached_bytes(str(file)) == (whole_parts(file), 0)
    del session


def test_copied_weights_are_read_in_memory(
    in_small_pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, session = logits(in_small_pages)
    del session
    monkeypatch.setenv("ORT_AIE_WEIGHTS", "copied")
    got, session = logits(in_small_pages)
    np.testing.assert_array_equal(got, expected)
    file = in_small_pages / DATA
    assert of_smaps(file, "Rss") <= 0.1 * file.stat().st_size
    del session


def test_weights_that_an_application_changed_in_its_mapping_count(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (weights,) = (
        tensor
        for tensor in onnx.load(compiled / "model.onnx", load_external_data=False).graph.initializer
        if "o_proj" in tensor.name
    )
    entries = {entry.key: entry.value for entry in weights.external_data}
    blocks = np.memmap(compiled / DATA, np.uint8, "c", int(entries["offset"]), tuple(weights.dims))
    blocks[0, 0] = blocks[1, 1]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(blocks)
    got = []
    for memory in ("auto", "mapped"):
        monkeypatch.setenv("ORT_AIE_WEIGHTS", memory)
        options = onnxruntime.SessionOptions()
        options.add_initializer(weights.name, value)
        got.append(logits(compiled, options)[0])
    np.testing.assert_array_equal(got[0], got[1])
    assert (got[0] != logits(compiled)[0]).any()
