"""Opens untrusted files safely, and writes files completely or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from ort_aie_ep import platforms
from ort_aie_ep.errors import AieError
from ort_aie_ep.progress import Count

# Bytes to read from a file at a time; hashing is no faster with larger blocks.
_HASH_BLOCK = 1 << 20

blake2b = partial(hashlib.blake2b, digest_size=20)


def open_regular(path: Path) -> BufferedReader:
    """Opens a file to read. Refuses FIFOs, devices and folders; opening one might never return.

    Raises:
        OSError: there is no such file, it is not a regular file, or it cannot be read.
    """
    try:
        descriptor = os.open(path, platforms.TO_READ)
    except ValueError as error:  # a zero byte or half a character in the name
        raise OSError(0, f"no file can have this name ({error})", str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes:
    """All bytes of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """The text in a file.

    Raises:
        AieError: it cannot be read, or is not UTF-8.
    """
    try:
        return read_regular(path).decode("utf-8")
    except OSError as error:
        raise AieError(f"text {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AieError(f"text {path} is not UTF-8: {error}") from error


def file_hash(path: Path, count: Count | None = None) -> str:
    """The hash of a file's content, as `b2sum -l 160` prints it; `count` gets a step for each
    block.

    Raises OSError as `open_regular` does.
    """
    count = count or Count(None, 0)
    count.begin(f"hashing {path.name}")
    digest = blake2b()
    with open_regular(path) as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
            count.step(len(block))
    return digest.hexdigest()


def model_digest(model: Path) -> str:
    """A hash of the names and contents of a model folder's files.

    Raises:
        AieError: the folder is missing, or a file cannot be read.
    """
    if not model.is_dir():
        raise AieError(f"the model {model} is missing")
    found = hashlib.sha256()
    try:
        for path in sorted(path for path in model.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            found.update(f"{path.relative_to(model)} {content}\n".encode())
    except OSError as error:
        raise AieError(f"{error.filename} cannot be read: {error.strerror}") from error
    return found.hexdigest()


def is_regular(path: Path) -> bool:
    """Whether a regular file, or a link to one, is there. False if no file can have the name."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_missing(path: Path) -> bool:
    """Whether there is nothing to open, or no file can have that name."""
    try:
        return not path.exists()
    except (OSError, ValueError):
        return True


def inside(folder: Path, file: Path) -> bool:
    """Whether a file, going by its name, is in a folder."""
    # Links inside hub caches lead out of the folder on purpose. So the text of the path decides: a
    # link may point wherever a user put it, but `..` and absolute paths may not lead out.
    try:
        relative = file.absolute().relative_to(folder.absolute())
    except ValueError:
        return False
    return ".." not in relative.parts


@contextmanager
def written_beside(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file that becomes `path` when the block ends, and disappears if it fails.

    It has a unique name, so that if there are several writers, one leaves its complete file.
    """
    beside = path.with_name(f".{path.name[:100]}-{os.urandom(8).hex()}")
    descriptor = os.open(beside, platforms.TO_CREATE, 0o666)
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file under another name and renames it. Raises OSError if that fails."""
    with written_beside(path) as file:
        file.write(json.dumps(content, indent=2) + "\n")
