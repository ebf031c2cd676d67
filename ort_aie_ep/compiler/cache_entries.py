"""The entries of a cache: which exist, which are in use, and which to remove when it is too large.

An entry is in use while a process has a shared lock on its manifest. A session keeps that lock as
long as it lives; the system drops it with the process. The manifest's time is when the entry was
last used. On a file system without locks, only `clear` removes anything.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ort_aie_ep import platforms
from ort_aie_ep.disk import size_of
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, read_json
from ort_aie_ep.models.files import open_regular
from ort_aie_ep.progress import Count, Progress

MANIFEST = "manifest.json"
SOURCES = "sources"
WORK = ".work-"
LIMIT_VARIABLE = "ORT_AIE_CACHE_LIMIT"
# Six models of 8 billion weights at five bits.
DEFAULT_LIMIT = 32_000_000_000
# When another process works in the cache, it removes what a killed process left.
LEFTOVER_SECONDS = 24 * 3600
_KEY, _INDEX = re.compile(r"[0-9a-f]{40}"), re.compile(r"\.?[0-9a-f]{40}\.json.*")
_JUST_MADE = 60  # seconds in which a work folder may not be locked yet


@dataclass(frozen=True)
class Entry:
    """A compiled model in a cache.

    Attributes:
        folder: its folder.
        source: the file or folder that it was made from, or what that was downloaded by; empty for
            a broken entry.
        choices: the options that were given for its compilation.
        bytes: size of all its files.
        used: when it was last opened, seconds since 1970.
        code: hash of the passes and native module that made it; see `code_digest`.
        in_use: whether a session of any process has it open.
    """

    folder: Path
    source: str
    choices: dict[str, object]
    bytes: int
    used: float
    code: str
    in_use: bool


@dataclass(frozen=True)
class Cleared:
    """What `clear` removed, and what it left because it was in use."""

    removed: int
    bytes: int
    in_use: int


def cache_limit(given: str | None = None) -> int | None:
    """Maximum bytes of a cache: `given`, or $ORT_AIE_CACHE_LIMIT, or 32 GB; None: no limit.

    Raises:
        AieError: it is neither a size, such as 20GB, nor "none".
    """
    text = os.environ.get(LIMIT_VARIABLE, "") if given is None else given
    if not text:
        return DEFAULT_LIMIT
    if text.strip().lower() == "none":
        return None
    return size_of(text, LIMIT_VARIABLE, ", or none")


def entries(cache: Path) -> list[Entry]:
    """All entries, the most recently used first, including broken ones."""
    found = []
    for folder in _folders(cache):
        with suppress(OSError):  # it is being removed at this moment
            found.append(_entry(folder))
    return sorted(found, key=lambda entry: -entry.used)


def use(folder: Path) -> BinaryIO | None:
    """Marks an entry as used now, and as in use until the returned file is closed.

    Returns None if the entry is not there, or is being removed at this moment.
    """
    path = folder / MANIFEST
    try:
        manifest = open_regular(path)
    except OSError:
        return None
    with suppress(OSError):  # it can be opened without locks too
        platforms.lock(manifest.fileno(), shared=True, wait=True)
    try:
        same = os.path.samestat(os.fstat(manifest.fileno()), path.stat())
    except OSError:
        same = False
    if not same:
        manifest.close()
        return None
    with suppress(OSError):  # a filled, read-only cache works too
        os.utime(path)
    return manifest


def keep_below(cache: Path, limit: int | None) -> None:
    """Removes the least recently used entries until the rest take at most `limit` bytes.

    Entries in use stay, so the cache may remain larger.
    """
    if limit is None:
        return
    found = entries(cache)
    excess = sum(entry.bytes for entry in found) - limit
    for entry in reversed(found):
        if excess > 0 and _remove(cache, entry.folder):
            excess -= entry.bytes


def clear(cache: Path, progress: Progress | None = None, source: str | None = None) -> Cleared:
    """Removes all entries except those in use, the index of sources, and leftover work; with
    `source`, only the entries that have it.

    `progress` counts bytes of entries, including those that stay.

    Raises:
        AieError: something cannot be removed; no entry has `source`.
    """
    removed = freed = in_use = 0
    found = [entry for entry in entries(cache) if source in (None, entry.source)]
    if source is not None and not found:
        raise AieError(f"{cache} has no entry of {source}: ort-aie list shows them")
    count = Count(progress, sum(entry.bytes for entry in found))
    for entry in found:
        count.begin(f"removing {entry.folder.name}")
        if _remove(cache, entry.folder):
            removed, freed = removed + 1, freed + entry.bytes
        elif _locked(entry.folder):
            in_use += 1
        else:
            raise AieError(f"{entry.folder} cannot be removed: check that it belongs to you")
        count.step(entry.bytes)
    if source is not None:
        return Cleared(removed, freed, in_use)
    for index in (cache / SOURCES).glob("*"):
        if _INDEX.fullmatch(index.name):  # the folder may also hold other things
            index.unlink(missing_ok=True)
    with suppress(OSError):
        (cache / SOURCES).rmdir()
    remove_leftovers(cache, older_than=_JUST_MADE)
    return Cleared(removed, freed, in_use)


@contextmanager
def work_folder(cache: Path) -> Iterator[Path]:
    """A work folder that no other process removes, deleted at the end. Raises OSError."""
    with (
        tempfile.TemporaryDirectory(prefix=WORK, dir=cache, ignore_cleanup_errors=True) as name,
        platforms.locked_folder(Path(name)),
    ):
        yield Path(name)


def remove_leftovers(cache: Path, older_than: float = LEFTOVER_SECONDS) -> None:
    """Removes work that ended processes have left behind."""
    for path in cache.glob(f"{WORK}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime <= older_than or _locked(path, manifest=""):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def _folders(cache: Path) -> Iterator[Path]:
    try:
        inside = sorted(cache.iterdir())
    except OSError:
        return
    yield from (path for path in inside if _KEY.fullmatch(path.name))


def _entry(folder: Path) -> Entry:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files)
    used = folder.stat().st_mtime
    try:
        manifest: Field = read_json(folder / MANIFEST)
        source, choices = manifest.field("source").text(), manifest.find("choices")
        given = {} if choices is None else choices.object()
        code = manifest.find("code")
        used = (folder / MANIFEST).stat().st_mtime
    except (AieError, OSError):
        return Entry(folder, "", {}, size, used, "", _locked(folder))
    made_by = "" if code is None else code.text()
    return Entry(folder, source, given, size, used, made_by, _locked(folder))


def _locked(folder: Path, manifest: str = MANIFEST) -> bool:
    """Whether another process, or another session of this process, has a lock."""
    try:
        descriptor = os.open(folder / manifest, platforms.TO_READ)
    except OSError:
        return False
    try:
        platforms.lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove(cache: Path, folder: Path) -> bool:
    """Removes an entry unless it is in use; returns whether it is gone."""
    manifest: int | None = None
    try:
        with suppress(FileNotFoundError, NotADirectoryError):  # a broken entry, which nobody opens
            manifest = os.open(folder / MANIFEST, platforms.TO_READ)
            platforms.lock(manifest)
        if (
            manifest is not None and platforms.is_windows()
        ):  # which renames no folder with open files
            os.close(manifest)
            manifest = None
        # Renamed out of sight at once: a process that opens it now finds it gone, and remakes it.
        with work_folder(cache) as scratch:
            folder.rename(scratch / "removed")
            if manifest is not None:
                os.close(manifest)
                manifest = None
    except OSError:
        return False
    finally:
        if manifest is not None:
            os.close(manifest)
    return True
