"""Whether a compiled folder's models and weights are still what `compile` wrote.

The report has a hash of each of them. Sessions map weights and read no more of them than they need,
so they do not notice one that was changed in place; `ort-aie doctor COMPILED` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, read_json
from ort_aie_ep.models.files import file_hash, is_missing
from ort_aie_ep.progress import Count, Progress

REPORT = "ort_aie_report.json"
_FILES = "files"
_AGAIN = "compile the model again, or copy the file again"


@dataclass(frozen=True)
class CheckedFile:
    """A file that `compile` wrote.

    Attributes:
        name: its path in the folder.
        size: its size in bytes when it was written.
        problem: what differs, what was expected, and what to do; empty if nothing does.
    """

    name: str
    size: int
    problem: str


def hashes(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """What the report says about the files: sizes, and hashes of their contents.

    Raises OSError if a file cannot be read.
    """
    return {
        _FILES: {
            name: {"bytes": (folder / name).stat().st_size, "blake2b": file_hash(folder / name)}
            for name in names
        }
    }


def is_as_compiled(model: Path) -> bool:
    """Whether an .onnx file and what lies beside it have the sizes that `compile` wrote: then the
    file is a compiled one, which takes longest to find out from its graph."""
    try:
        files = dict(read_json(model.parent / REPORT).field(_FILES).members())
        return model.name in files and all(
            (model.parent / name).stat().st_size == file.field("bytes").integer(0)
            for name, file in files.items()
        )
    except (AieError, OSError):
        return False


def check_files(path: Path, progress: Progress | None = None) -> tuple[CheckedFile, ...]:
    """Compares the files of a compiled folder, or of a compiled .onnx file's, with its report.

    `progress` counts the bytes of all files.

    Raises:
        AieError: there is no such path, or the folder has no report, or one without hashes.
    """
    if is_missing(path):
        raise AieError(f"{path} does not exist")
    folder = path if path.is_dir() else path.parent
    if not (folder / REPORT).is_file():
        raise AieError(f"{folder} has no {REPORT}: pass a folder that ort-aie compile wrote")
    files = read_json(folder / REPORT).find(_FILES)
    if files is None:
        raise AieError(
            f"{folder / REPORT} has no hashes of the files: an earlier version compiled this "
            "folder; compile the model again"
        )
    written = [(name, file.field("bytes").integer(0), file) for name, file in files.members()]
    count = Count(progress, sum(size for _, size, _ in written))
    return tuple(
        CheckedFile(name, size, _problem(folder / name, size, file, count))
        for name, size, file in written
    )


def _problem(path: Path, size: int, written: Field, count: Count) -> str:
    expected = written.field("blake2b").text()
    try:
        found = path.stat().st_size
        if found != size:
            return f"has {found} bytes, expected {size}: {_AGAIN}"
        content = file_hash(path, count)
    except OSError as error:
        return f"cannot be read ({error.strerror}): {_AGAIN}"
    if content == expected:
        return ""
    return f"has other content than was compiled (BLAKE2b {content}, expected {expected}): {_AGAIN}"
