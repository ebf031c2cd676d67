"""Compiled models that `ort_aie_ep.session` keeps: made once for each content and set of options.

    <cache>/sources/<hash of a path>.json   what is at that path: file stats and content hashes
    <cache>/<key>/                          model, weights, compilation's report, manifest.json

Each file and each entry is written beside its place and then renamed, so that processes see all of
it or nothing. If several processes compile the same model, the first one's entry stays.
`cache_entries` tracks what is in use, and decides what is removed.
"""

from __future__ import annotations

import errno
import json
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache as memoised
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import ort_aie_ep
from ort_aie_ep import _native, platforms
from ort_aie_ep.compiler.cache_entries import (
    MANIFEST,
    SOURCES,
    keep_below,
    remove_leftovers,
    use,
    work_folder,
)
from ort_aie_ep.compiler.gguf import for_npu
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.compiler.sources import Source, find_source, is_onnx
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.kv_codes import BITS
from ort_aie_ep.models.checked_json import Field, read_json
from ort_aie_ep.models.files import blake2b, file_hash, write_json
from ort_aie_ep.models.folder import is_gguf
from ort_aie_ep.models.integrity import is_as_compiled
from ort_aie_ep.models.tokenizer import TOKENIZER
from ort_aie_ep.progress import Count, Progress

VARIABLE = "ORT_AIE_CACHE"
# A file written in the same tick of the file system's clock in which it was hashed looks like the
# hashed one. Ticks are at most 10 ms on Linux, 2 s on FAT and some network file systems.
SETTLED_NS = 3_000_000_000
# A separate folder, because the build keeps ONNX Runtime's headers beside it.
_OWN = "ort_aie_ep/models"
_ROUNDS = 10
# Parts of the package whose modules affect the result of a compilation.
ROOMS = ("formats", "models", "runtime", "compiler", "graph_passes")
_COMPILED_WITH = ("onnx", "onnx_ir", "onnxscript", "numpy")

# File, by its name in the model → (bytes, modified ns, changed ns, inode).
_Stats = dict[str, list[int]]


@dataclass(frozen=True)
class Opened:
    """A model to open.

    Attributes:
        file: its .onnx file. The folder around it is a whole model, with its tokenizer, unless
            the source was one in ONNX that the user has.
        lock: while it is open, the file's entry is not removed; None for the user's own file.
        made: whether it was compiled now.
        notes: what a reader should know of its compilation, if that was now.
    """

    file: Path
    lock: BinaryIO | None = None
    made: bool = False
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Allows the entry to be removed."""
        if self.lock is not None:
            self.lock.close()

    def close_with(self, session: object) -> None:
        """Allows the entry to be removed once `session` is gone."""
        if self.lock is not None:
            weakref.finalize(session, self.lock.close)


@dataclass(frozen=True)
class _Source:
    """What is at a path.

    Attributes:
        compiled: whether it is a compiled model; nothing is hashed then.
        stats: stats of the .onnx file and its external data files.
        digests: BLAKE2b hashes of the same files.
    """

    compiled: bool
    stats: _Stats
    digests: dict[str, str]


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """`given`, or $ORT_AIE_CACHE, or ort_aie_ep/models in the user's cache folder.

    That is $XDG_CACHE_HOME or ~/.cache; on Windows %LOCALAPPDATA%.

    Raises:
        AieError: none of them is set and there is no home folder.
    """
    if given is not None:
        return Path(given)
    if own := os.environ.get(VARIABLE):
        return Path(own)
    try:
        return platforms.cache_home() / _OWN
    except RuntimeError as error:
        raise AieError(f"there is no home folder: {_remedy()}") from error


def compiled_file(
    source: Path,
    cache: Path,
    options: CompileOptions,
    progress: Progress | None = None,
    limit: int | None = None,
    name: str = "",
    *,
    whole: bool = False,
) -> Opened:
    """The .onnx file of `source`'s compilation, made now if the cache has no complete one.

    The key is a hash of the model's files, the compiler's code, this package's version and the
    options. Hashing reads all weights, about 1 s for 1 GB. It is done once: afterwards a file with
    the same path, size, modification time, change time and inode counts as unchanged. For a cached
    entry, the .onnx file's hash and the sizes of all other files are checked; weights are not read.
    After a compilation, entries beyond `limit` bytes are removed, the least recently used first.
    `progress` counts the bytes that are hashed, then the bytes of weights that are written; for a
    checkpoint, before, the builder's steps.

    `name` is what `source` was downloaded by, if it was, and `whole` asks for a folder with its
    tokenizer: see `sources.find_source`.

    Returns:
        The file in the cache, or `source`'s own if it is already compiled.

    Raises:
        AieError: `source` is not a model, is damaged or has nothing to compile; it is already
            compiled but options are given; it changes in the meantime; the cache cannot be written.
    """
    given = find_source(source, name, whole=whole)
    model = given.model
    index = cache / SOURCES / f"{_hash(os.fsencode(given.path.absolute()))}.json"
    found = _indexed(index, given) or _read_source(index, given, progress)
    if found.compiled:
        if options.given:
            raise AieError(
                f"{model} is already compiled, so {', '.join(options.given)} would have no effect: "
                "omit these options, or pass the source model"
            )
        return Opened(model)
    key = {
        "digests": found.digests,
        "model": model.name,
        "version": ort_aie_ep.__version__,
        "code": code_digest(),
        "choices": options.given,
        "npu": is_gguf(model) and for_npu()[0],
        "calibration": _calibration_digests(model.parent, options),
    }
    entry = cache / _hash(json.dumps(key, sort_keys=True).encode())
    notes: tuple[str, ...] = ()
    for attempt in range(_ROUNDS):
        lock = use(entry)
        if lock is not None:
            if _whole(entry, given.name):
                if attempt:
                    keep_below(cache, limit)
                return Opened(entry / given.name, lock, attempt > 0, notes)
            lock.close()
        notes = _build(given, found.stats, entry, options, progress)
    raise AieError(f"{entry} keeps disappearing: is another process clearing {cache}?")


def _calibration_digests(folder: Path, options: CompileOptions) -> list[str]:
    """Hashes of the other files that the scales of a quantised KV cache, or the importance of
    weights, come from."""
    if options.kv not in BITS and options.importance is None:
        return []
    given = [text for text in (options.calibration, options.importance) if text is not None]
    return [file_hash(p) for p in (*given, folder / TOKENIZER) if p.is_file()]


@memoised
def code_digest() -> str:
    """A hash of everything that affects the result of a compilation: the compiler's modules, the
    passes, the native module, which packs weights, and the versions of the packages they use."""
    digest = blake2b()
    package = Path(ort_aie_ep.__file__).parent
    paths = sorted(package.glob("*.py"))
    for room in ROOMS:
        spec = find_spec(f"ort_aie_ep.{room}")
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            paths += sorted(Path(folder).rglob("*.py"))
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name} {len(content)}\n".encode() + content)
    digest.update(Path(_native.__file__).read_bytes())
    digest.update("\n".join(_versions()).encode())
    return digest.hexdigest()


def _versions() -> list[str]:
    """Names and versions of _COMPILED_WITH, from their folders: importlib.metadata takes 10 ms."""
    specs = (find_spec(name) for name in _COMPILED_WITH)
    sites = {Path(spec.origin).parent.parent for spec in specs if spec and spec.origin}
    found = [path.name for site in sites for path in site.glob("*.dist-info")]
    return sorted(name for name in found if name.partition("-")[0] in _COMPILED_WITH)


# --- sources ---


def _indexed(index: Path, given: Source) -> _Source | None:
    """The index's entry for a path, unless its files have changed since, or there are more."""
    model = given.model
    try:
        content = read_json(index)
        stats = {
            name: [number.integer() for number in numbers.elements()]
            for name, numbers in content.field("stats").members()
        }
        digests = {name: digest.text() for name, digest in content.field("digests").members()}
        compiled = content.field("compiled").boolean()
        if not compiled and any(_beside(model, path) not in stats for path in given.files()):
            return None
        return _Source(compiled, stats, digests) if _stats(model, stats) == stats else None
    except (AieError, OSError):
        return None


def _read_source(index: Path, given: Source, progress: Progress | None) -> _Source:
    """Reads and hashes the model's files, and records the result in the index."""
    model = given.model
    before = _stats(model, [model.name])
    compiled, data = _onnx_data(model) if is_onnx(given.path) else (False, set())
    try:
        if compiled:
            source = _Source(True, before, {})
        else:
            data.update(_beside(model, path) for path in given.files())
            stats = before | _stats(model, sorted(data))
            count = Count(progress, sum(size for size, *_ in stats.values()))
            digests = {name: file_hash(model.parent / name, count) for name in stats}
            source = _Source(False, stats, digests)
    except OSError as error:
        raise AieError(f"{model}: {error.filename} cannot be read: {error.strerror}") from error
    _require_unchanged(model, source.stats)
    newest = max(max(times) for _, *times, _ in source.stats.values())
    if time.time_ns() - newest > SETTLED_NS:
        with suppress(OSError):  # a filled, read-only cache works too
            index.parent.mkdir(parents=True, exist_ok=True)
            write_json(index, asdict(source))
    return source


def _onnx_data(model: Path) -> tuple[bool, set[str]]:
    """Whether an .onnx file is compiled, and, if not, the names of its external data files."""
    if is_as_compiled(model):
        return True, set()
    # Imported here: reopening does not need onnx_ir, whose import takes longer than all the rest.
    from ort_aie_ep.models.onnx_file import external_files, is_compiled, load_model

    loaded = load_model(model)
    return is_compiled(loaded), {_beside(model, path) for path in external_files(loaded)}


def _beside(model: Path, path: Path) -> str:
    """A file's name in the index."""
    return os.path.relpath(path, model.parent)


def _stats(model: Path, names: list[str] | _Stats) -> _Stats:
    stats = {}
    for name in names:
        s = (model.parent / name).stat()
        stats[name] = [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]
    return stats


def _require_unchanged(model: Path, before: _Stats) -> None:
    try:
        same = _stats(model, before) == before
    except OSError:
        same = False
    if not same:
        raise AieError(f"{model} changed while it was being read: try again when it is complete")


# --- entries ---


def _whole(entry: Path, name: str) -> bool:
    """Whether an entry is there, as it was written; the contents of weights are not checked."""
    try:
        manifest: Field = read_json(entry / MANIFEST)
        sizes = {file: size.integer() for file, size in manifest.field("bytes").members()}
        return (
            name in sizes
            and all((entry / file).stat().st_size == size for file, size in sizes.items())
            and file_hash(entry / name) == manifest.field("digest").text()
        )
    except (AieError, OSError, ValueError):
        return False


def _build(
    given: Source, stats: _Stats, entry: Path, options: CompileOptions, progress: Progress | None
) -> tuple[str, ...]:
    """Compiles into a folder beside the entry and moves it there: the compilation's notes."""
    cache = entry.parent
    with ExitStack() as stack:
        with _writing(cache):
            cache.mkdir(parents=True, exist_ok=True)
            remove_leftovers(cache)
            new = stack.enter_context(work_folder(cache)) / "entry"
        notes = given.compile(new, entry, options, progress)
        _require_unchanged(given.model, stats)
        with _writing(cache):
            files = (path for path in new.rglob("*") if path.is_file())
            manifest = {
                "source": given.shown,
                "choices": options.given,
                "code": code_digest(),
                "bytes": {path.relative_to(new).as_posix(): path.stat().st_size for path in files},
                "digest": file_hash(new / given.name),
            }
            write_json(new / MANIFEST, manifest)
            _install(new, entry, given.name)
        return notes


def _install(new: Path, entry: Path, name: str) -> None:
    """Renames `new` to `entry`, unless a complete one is there by now; removes a broken one."""
    for attempt in range(_ROUNDS):
        try:
            new.rename(entry)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        if _whole(entry, name):
            return
        with suppress(FileNotFoundError):  # another process is doing the same
            entry.rename(new.with_name(f"broken-{attempt}"))
    raise AieError(f"other processes keep replacing {entry}: remove it")


@contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise AieError(f"the cache {cache} cannot be written ({reason}): {_remedy()}") from error


def _remedy() -> str:
    return f"choose a folder with cache_dir=… or with the environment variable {VARIABLE}"


def _hash(content: bytes) -> str:
    return blake2b(content).hexdigest()
