"""Prefixes: keys and values of the beginnings of texts, which outlive the slots they were made in.

A block is `BLOCK` tokens. Its key is a hash of the key before it and of its tokens, so a key says
everything that its rows depend on: the first one is of the model, of how it is computed, and of who
asks. Blocks are kept when they are complete, so that texts that begin alike also share while they
run. A block that many texts begin with is there once. With a folder, blocks are in files too, where
a later process finds them.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import re
import shutil
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.disk import size_text
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import (
    blake2b,
    file_hash,
    model_digest,
    open_regular,
    read_regular,
    written_beside,
)
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.platforms import free_memory, own_pages
from ort_aie_ep.running.slots import Pool, Slots
from ort_aie_ep.runtime.sessions import Options

# As many tokens as are read of a prompt at least: smaller ones would save nothing. Larger ones
# would leave more of a text's end to be read again, and a file has megabytes with these.
BLOCK = 64
# Blocks that a slot is filled with at once: other texts wait for them.
AT_ONCE = 32
# Of other programs, or of another form of these files, none begins so.
_MAGIC = b"aie-kv1\n"
_NAME = re.compile(r"\.?[0-9a-f]{40}\.(kv|model)(-[0-9a-f]+)?")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_HEADER = len(_MAGIC) + 20 + 4  # key and checksum
# Files that are read at once, and blocks that may wait to be written.
_READERS, _WAITING = 4, 64
# A file that is younger may change without a trace in its times.
_SETTLED_SECONDS = 3
# After a fault, how long nothing is written; and when an unfinished file is nobody's.
_PAUSE_SECONDS, _LEFT_SECONDS = 60, 3600

Rows = npt.NDArray[np.uint8]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keeping:
    """What is to be kept.

    Attributes:
        memory: bytes in memory; None for a quarter of what is free when the model is open.
        folder: where files are, or None for none.
        files: bytes of all files in it.
        key: whose texts these are: who has another one finds nothing.
    """

    memory: int | None = None
    folder: Path | None = None
    files: int = 16 * 10**9
    key: str = ""


COUNTED = {
    "limit_bytes": "memory for beginnings of texts, at most",
    "bytes": "memory that beginnings of texts have",
    "blocks": "blocks of beginnings of texts in memory",
    "hit_tokens": "tokens of prompts that were found there or in files",
    "miss_tokens": "tokens of prompts that the model read",
    "evictions": "blocks that left memory for others",
    "written_bytes": "bytes of blocks that were written to files",
    "read_bytes": "bytes of blocks that were read from files",
}


class Counts(ctypes.Structure):
    """What `COUNTED` has, in a form that processes can share."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in COUNTED)


class Prefixes:
    """Blocks of the texts of some slots, the least recently used of which go first.

    Attributes:
        limit: bytes that they have in memory, at most.
        counts: what was kept and found since `count_in`.
    """

    def __init__(
        self, slots: Pool, limit: int, root: bytes = b"", files: Files | None = None
    ) -> None:
        """Keeps up to `limit` bytes in memory. The `root` is the key before all texts."""
        self.limit, self._slots, self._root, self._files = limit, slots, root, files
        self._most = limit // (BLOCK * slots.token_bytes)
        self._rows: OrderedDict[bytes, Rows] = OrderedDict()
        self.count_in(Counts())

    def count_in(self, counts: Counts) -> None:
        """Counts there from now on."""
        self.counts, counts.limit_bytes = counts, self.limit
        if self._files is not None:
            self._files.counts = counts

    def fill(
        self, slot: int, tokens: Sequence[int], chain: list[bytes], held: int, most: int
    ) -> int:
        """Makes a slot that holds the first `held` of `tokens` hold more, up to `most`, of up to
        `AT_ONCE` blocks: how many.

        `chain` has the keys of a text's blocks, as far as they were needed.
        """
        self._extend(chain, tokens)
        first = held // BLOCK
        own = chain[: min(-(-most // BLOCK), first + AT_ONCE)]
        self._touch(own)
        for number, rows in enumerate(self._found(own, first), first):
            stop = min((number + 1) * BLOCK, most)
            self._slots.put(slot, number * BLOCK, rows, stop - number * BLOCK)
            self.counts.hit_tokens += stop - held
            held = stop
        return held

    def keep(self, slot: int, tokens: Sequence[int], chain: list[bytes], first: int) -> int:
        """Keeps the blocks of a slot that holds `tokens`, from the block `first` on: how many there
        are."""
        count = len(tokens) // BLOCK
        if first >= count:
            return first
        self._extend(chain, tokens)
        own = chain[:count]
        self._touch(own)
        for number in range(first, count):
            key, fits = own[number], number < self._most
            rows, stored = self._rows.get(key), self._files is None or self._files.touch(key)
            if rows is None and (fits or not stored):
                rows = self._slots.rows(slot, number * BLOCK, BLOCK)
                self._add(number, key, rows)
            if self._files is not None and rows is not None and not stored:
                self._files.write(key, rows)
        self._touch(own)
        return count

    def forget(self, keys: Sequence[bytes]) -> None:
        """Removes blocks, of a text that failed: its rows may be no numbers."""
        for key in keys:
            self._rows.pop(key, None)
            if self._files is not None:
                self._files.remove(key)
        self._measure()

    def close(self) -> None:
        """Finishes what is being written, unless that takes long."""
        if self._files is not None:
            self._files.close()

    def _extend(self, chain: list[bytes], tokens: Sequence[int]) -> None:
        for start in range(len(chain) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
            content = np.array(tokens[start : start + BLOCK], "<i8").tobytes()
            chain.append(blake2b((chain[-1] if chain else self._root) + content).digest())

    def _touch(self, chain: Sequence[bytes]) -> None:
        # No block is of use without those before it: the last ones go first.
        for key in reversed(chain):
            if key in self._rows:
                self._rows.move_to_end(key)

    def _add(self, number: int, key: bytes, rows: Rows) -> None:
        if number < self._most:  # or else it would take the place of the ones before it
            self._rows[key] = rows
            while len(self._rows) > self._most:
                self._rows.popitem(last=False)
                self.counts.evictions += 1
            self._measure()

    def _measure(self) -> None:
        self.counts.blocks = len(self._rows)
        self.counts.bytes = len(self._rows) * BLOCK * self._slots.token_bytes

    def _there(self, key: bytes) -> bool:
        return key in self._rows or (self._files is not None and self._files.touch(key))

    def _found(self, chain: Sequence[bytes], first: int) -> Iterator[Rows]:
        """The blocks from `first` on, up to one that is missing."""
        there = [*takewhile(self._there, chain[first:])]
        missing = [key for key in there if key not in self._rows]
        size = BLOCK * self._slots.token_bytes
        read = self._files.read(missing, size) if self._files and missing else iter(())
        for number, key in enumerate(there, first):
            rows = next(read) if key in missing else self._rows.get(key)
            if rows is None:  # it was damaged, or went for another one
                return
            if key in missing:
                self.counts.read_bytes += rows.nbytes
                self._add(number, key, rows)
            yield rows


class Files:
    """Blocks in a folder, which other processes use too: a file for each, named by its key.

    Attributes:
        counts: where bytes that are written are counted.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Makes the folder, for this user alone, if it is missing.

        Raises:
            AieError: it cannot be made, or read.
        """
        self._folder, self._limit = folder, limit
        self._said: set[str] = set()
        self._not_before = 0.0
        self.counts = Counts()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._bytes = self._trim()
            # Nor more than half of what the disk has.
            self._limit = min(limit, self._bytes + shutil.disk_usage(folder).free // 2)
        except OSError as error:
            raise AieError(f"{folder} cannot have files: {error.strerror}") from error
        self._readers = ThreadPoolExecutor(_READERS, "prefixes")
        self._waiting: queue.Queue[tuple[bytes, Rows | None] | None] = queue.Queue(_WAITING)
        self._writer = threading.Thread(target=self._work, daemon=True)
        self._writer.start()

    def touch(self, key: bytes) -> bool:
        """Marks a block as used now: whether it is there."""
        with suppress(OSError):
            os.utime(self._path(key))
            return True
        return False

    def read(self, keys: Sequence[bytes], size: int) -> Iterator[Rows | None]:
        """Blocks of `size` bytes, while others are still being read; None for one that is not
        there."""
        return self._readers.map(lambda key: self._read(key, size), keys)

    def write(self, key: bytes, rows: Rows) -> None:
        """Writes a block, some time; a disk that is much too slow has none of it."""
        with suppress(queue.Full):
            self._waiting.put_nowait((key, rows))

    def remove(self, key: bytes) -> None:
        """Removes a block, also one that is still to be written."""
        self._waiting.put((key, None))

    def close(self) -> None:
        """Waits for what is being written, for a second."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=1)
        self._writer.join(1)

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"

    def _read(self, key: bytes, size: int) -> Rows | None:
        path = self._path(key)
        try:
            with open_regular(path) as file:
                header, rows = file.read(_HEADER), np.frombuffer(own_pages(size), np.uint8)
                whole = file.readinto(rows.data) == size and not file.read(1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say(f"{path} cannot be read: {error.strerror}")
            return None
        if whole and header == _header(key, rows):
            return rows
        self._say(f"{path} is damaged, or not a file of this program: its tokens are read again")
        with suppress(OSError):
            path.unlink()
        return None

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            key, rows = waiting
            if rows is None:
                with suppress(OSError):
                    self._path(key).unlink()
                continue
            if time.monotonic() < self._not_before or rows.nbytes > self._limit:
                continue
            try:
                if self.touch(key):
                    continue
                with written_beside(self._path(key), "wb") as file:
                    file.write(_header(key, rows))
                    file.write(rows.data)
                self._bytes += _HEADER + rows.nbytes
                self.counts.written_bytes += rows.nbytes
                if self._bytes > self._limit:
                    self._bytes = self._trim()
            except OSError as error:
                self._not_before = time.monotonic() + _PAUSE_SECONDS
                self._say(f"{self._folder}: prefixes cannot be written: {error.strerror}")

    def _trim(self) -> int:
        """Removes the files that were used longest ago, if there are too many, and what processes
        that were killed have left: the bytes of all others."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    with suppress(OSError):  # another process has removed it
                        stat = entry.stat(follow_symlinks=False)
                        found.append((stat.st_mtime, stat.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        least = self._limit * 9 // 10 if total > self._limit else total
        for used, size, path in sorted(found):
            left = "-" in Path(path).name and time.time() - used > _LEFT_SECONDS
            if total > least or left:
                with suppress(OSError):
                    Path(path).unlink()
                    total -= size
        return total

    def _say(self, what: str) -> None:
        """Once of each kind: a line for each file would be thousands."""
        kind = what.partition(": ")[2]
        if kind not in self._said:
            self._said.add(kind)
            _log.warning("%s", what)


def _header(key: bytes, rows: Rows) -> bytes:
    return _MAGIC + key + zlib.crc32(rows.data, zlib.crc32(key)).to_bytes(4, "little")


def open_prefixes(
    slots: Slots,
    folder: ModelFolder,
    options: Options,
    keeping: Keeping | None,
    drafts: tuple[int, ModelFolder | None] = (0, None),
) -> Prefixes | None:
    """What a model that is open in `slots` keeps; without `keeping`, as much as a slot has, if
    there are several.

    Raises:
        AieError: memory or a folder is given for a model whose slots share nothing; or the folder
            cannot be used, or the model not be read.
    """
    if not isinstance(slots, Pool) or slots.unshared:
        if keeping is not None and (keeping.memory or keeping.folder):
            why = f"{folder.model} can share no prefixes: {slots.unshared}"
            raise AieError(f"{why}; omit --cache-memory and --cache-dir")
        return None
    one = slots.context * slots.token_bytes
    if keeping is None:
        return Prefixes(slots, one) if slots.count > 1 else None
    limit = keeping.memory
    if limit is None:
        limit = max((free_memory() or 0) // 4, one)
    if 0 < limit < (block := BLOCK * slots.token_bytes):
        raise AieError(
            f"--cache-memory {size_text(limit)} has no room for {BLOCK} tokens, which are "
            f"{size_text(block)}; 0 keeps nothing in memory"
        )
    if keeping.folder is None:
        return Prefixes(slots, limit) if limit else None
    files = Files(keeping.folder, keeping.files)
    root = _root(slots, folder, options, keeping.folder, keeping.key, drafts)
    return Prefixes(slots, limit, root, files)


def _root(
    slots: Pool,
    folder: ModelFolder,
    options: Options,
    kept: Path,
    key: str,
    drafts: tuple[int, ModelFolder | None],
) -> bytes:
    """A hash of everything but its tokens that the rows of a text depend on."""
    import onnxruntime

    most, drafter = drafts
    chosen = options.entries()
    content = {
        "model": _digest(folder.path, kept),
        "library": file_hash(Path(ort_aie_ep.library_path())),
        "versions": [ort_aie_ep.__version__, onnxruntime.__version__],
        "isa": _native.selected_isa(),
        "options": [
            chosen.get(f"ort_aie.{name}", os.environ.get(f"ORT_AIE_{name.upper()}", ""))
            for name in ("numerics", "target")
        ],
        "cache": slots.layout,
        "drafts": [most, _digest(drafter.path, kept) if drafter else ""],
        "key": key,
    }
    return blake2b(json.dumps(content).encode()).digest()


def _digest(model: Path, kept: Path) -> str:
    """`model_digest`, which reads all of a model, once for files that do not change."""
    paths = sorted(path for path in model.rglob("*") if path.is_file())
    stats = [(str(path.relative_to(model)), path.stat()) for path in paths]
    facts = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in stats]
    content = json.dumps([str(model.absolute()), facts])
    file = kept / f"{blake2b(content.encode()).hexdigest()}.model"
    with suppress(OSError):
        if _DIGEST.fullmatch(known := read_regular(file)):
            return known.decode()
    digest = model_digest(model)
    if time.time() - max(max(s.st_mtime, s.st_ctime) for _, s in stats) > _SETTLED_SECONDS:
        with suppress(OSError), written_beside(file) as beside:
            beside.write(digest)
    return digest
