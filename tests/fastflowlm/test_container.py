"""Damaged `.q4nx` files: each error names the file and the tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from q4nx_files import write_container

from ort_aie_ep.compiler.fastflowlm.container import read_container
from ort_aie_ep.errors import AieError

ONE = {"one": ("BF16", np.arange(12, dtype=np.uint16).reshape(3, 4))}
TWO = ONE | {"two": ("I8", np.arange(10, dtype=np.uint8))}


def test_tensors_are_where_the_header_says(tmp_path: Path) -> None:
    write_container(tmp_path / "m.q4nx", TWO, header={"__metadata__": {"format": "pt"}})
    tensors = read_container(tmp_path / "m.q4nx")
    assert tensors.keys() == {"one", "two"}
    assert (tensors["one"].dtype, tensors["one"].shape) == ("BF16", (3, 4))
    for name, (_, content) in TWO.items():
        pieces = [piece.tobytes() for piece in tensors[name].chunks(7)]
        assert max(map(len, pieces)) == 7
        assert b"".join(pieces) == content.tobytes()


def test_a_file_that_git_lfs_did_not_fetch_is_named(tmp_path: Path) -> None:
    file = tmp_path / "m.q4nx"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(AieError, match=r"m\.q4nx .*Git LFS"):
        read_container(file)


def entry(**changes: object) -> dict[str, object]:
    return {"one": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]} | changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (entry(dtype="F32"), "tensor 'one' is F32; a .q4nx file has only I8 and BF16 and Q4NX"),
        (entry(dtype=["BF16"]), "tensor 'one' has no valid dtype"),
        (entry(shape=[3, 5]), "tensor 'one' has bytes 0 to 24, but BF16 (3, 5) needs 30"),
        (entry(shape=[3, -4]), "tensor 'one' has no valid dtype, shape and data_offsets"),
        (entry(shape=[3, 4.0]), "tensor 'one' has no valid dtype, shape and data_offsets"),
        (entry(shape=""), "tensor 'one' has no valid dtype, shape and data_offsets"),
        (entry(shape=None), "tensor 'one' has no valid dtype, shape and data_offsets"),
        (entry(data_offsets=[0]), "tensor 'one' has no valid dtype, shape and data_offsets"),
        (entry(data_offsets=[24, 0]), "tensor 'one' has bytes 24 to 0, but BF16 (3, 4) needs 24"),
        (entry(data_offsets=[24, 48]), "tensor 'one' ends at byte"),
        ({"one": 3}, "tensor 'one' has no valid dtype, shape and data_offsets in the header: 3"),
        (entry(shape=[2**62] * 200_000), "needs more than the file has"),
        (entry() | {"two": {"dtype": "I8", "shape": [10], "data_offsets": [20, 30]}},
         "tensors 'one' and 'two' overlap"),
    ],
)  # fmt: skip
def test_a_header_that_is_wrong_names_the_tensor(
    tmp_path: Path, header: dict[str, object], message: str
) -> None:
    path = tmp_path / "m.q4nx"
    write_container(path, TWO if "two" in header else ONE, header=header)
    with pytest.raises(AieError) as error:
        read_container(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.q4nx"
    write_container(path, TWO)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(AieError, match=r"truncated|JSON"):
            read_container(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((1 << 40).to_bytes(8, "little") + b"{}", "claims a header of 1099511627776"),
        ((100_000_001).to_bytes(8, "little") + bytes(100), "claims a header of 100000001"),
        ((2).to_bytes(8, "little") + b"[]", "its header: the content must be an object"),
        ((4).to_bytes(8, "little") + b"\xff\xfe{}", "its header cannot be read as JSON"),
        (
            (4000).to_bytes(8, "little") + b"[" * 4000,
            "its header: lists and objects are nested more than 256 deep",
        ),
        (b"GGUF" + bytes(100), "its header cannot be read as JSON|claims a header"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.q4nx").write_bytes(content)
    with pytest.raises(AieError, match=message):
        read_container(tmp_path / "m.q4nx")


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(entry()["one"])
    header = f'{{"one": {text}, "one": {text}}}'.encode()
    (tmp_path / "m.q4nx").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    with pytest.raises(AieError, match="'one'"):
        read_container(tmp_path / "m.q4nx")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"m\.q4nx .*No such file"):
        read_container(tmp_path / "m.q4nx")
    with pytest.raises(AieError, match=r"/model\.q4nx$"):
        read_container(tmp_path)


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.q4nx"
    write_container(path, ONE)
    stored = read_container(path)["one"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AieError, match="'one'"):
        list(stored.chunks(1000))
