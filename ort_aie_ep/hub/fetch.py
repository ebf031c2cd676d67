"""Downloads from a hub by huggingface_hub, into its cache: looked up, resumed and verified here.

huggingface_hub begins a file anew in each call and checks no hash. So files in large-file storage
are downloaded beside their place in its cache, by its own function, under a name that the next call
finds; and each file is compared with the hash that the hub has for it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep import platforms
from ort_aie_ep.disk import require_room
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.contents import File
from ort_aie_ep.hub.names import Name
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.requirements import require

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASHES = (_SHA256, _COMMIT)
_BLOCK = 1 << 20
# How long the hub may take to say what a repository holds, seconds.
_LOOK_UP = 20.0
# What a file is called until it is whole: `hf cache prune` removes those that nobody continues.
_PARTIAL = ".ort-aie.incomplete"
_REFS_SHOWN = 8
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Repository:
    """A repository at a commit.

    Attributes:
        name: the name that it was asked for by.
        commit: the commit.
        files: its files; offline, those that were downloaded.
        note: what a user should know, such as that the hub was not reached; empty if nothing.
    """

    name: Name
    commit: str
    files: tuple[File, ...]
    note: str = ""

    @property
    def folder(self) -> Path:
        """Its folder in huggingface_hub's cache."""
        return cached(self.name)

    def path(self, file: File) -> Path:
        """Where huggingface_hub keeps a file: a link to its content, or the content."""
        return self.folder / "snapshots" / self.commit / file.path

    def content(self, file: File) -> Path:
        """Where huggingface_hub keeps a file's content, or will."""
        path = self.path(file)
        if path.exists():
            return path.resolve()
        return self.folder / "blobs" / (file.sha256 or file.blob_id)

    def left(self, file: File) -> int:
        """Bytes of a file that are not there yet."""
        content = self.content(file)
        if content.exists():
            return 0
        with suppress(OSError):
            return max(0, file.size - _partial(content).stat().st_size)
        return file.size


def cached(name: Name) -> Path:
    """The folder of a repository in huggingface_hub's cache, which may not exist.

    Raises:
        MissingPackageError: huggingface_hub is not installed.
    """
    _require_hub(name)
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder: str = repo_folder_name(repo_id=name.repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / folder


def look_up(name: Name) -> Repository:
    """The repository of a name, as the hub has it; without a network, as it was downloaded.

    Raises:
        AieError: there is no such repository or revision, it needs a token or an agreement, or the
            hub cannot be reached and nothing of it was downloaded.
        MissingPackageError: huggingface_hub is not installed.
    """
    _require_hub(name)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        with _errors(name):
            info = HfApi().model_info(
                name.repository, revision=name.revision, files_metadata=True, timeout=_LOOK_UP
            )
    except _Unreached as error:
        found, offline = _downloaded(name), isinstance(error.cause, OfflineModeIsEnabled)
        if found is None:
            remedy = "unset HF_HUB_OFFLINE" if offline else "try again when there is a network"
            raise AieError(
                f"{name} does not exist here. As a name on a hub, it was not downloaded before, "
                f"and {error}: {remedy}"
            ) from error.cause
        note = f"{name}: {error}; using the earlier download"
        return Repository(name, found[0], found[1], "" if offline else note)
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise AieError(f"{name}: {_endpoint()} does not say which commit it has")
    files = tuple(_file(sibling) for sibling in info.siblings or ())
    renamed = f"{name.repository} is called {info.id} now"
    note = renamed if info.id.lower() != name.repository.lower() else ""
    return Repository(name, info.sha, files, note)


def _file(sibling: Any) -> File:
    stored = sibling.lfs
    # They become names of files.
    given = ("" if stored is None else str(stored.sha256)), str(sibling.blob_id or "")
    return File(sibling.rfilename, int(sibling.size or 0), *map(_checked, given, _HASHES))


def _checked(text: str, kind: re.Pattern[str]) -> str:
    return text if kind.fullmatch(text) else ""


def _downloaded(name: Name) -> tuple[str, tuple[File, ...]] | None:
    """The commit of a name, and its files, in huggingface_hub's cache."""
    folder, revision = cached(name), name.revision
    commit = revision if _COMMIT.fullmatch(revision) else _commit(folder / "refs" / revision)
    if commit is None:
        return None
    snapshot = folder / "snapshots" / commit
    files = []
    for path in sorted(snapshot.rglob("*")):
        if path.is_file():
            blob = path.readlink().name if path.is_symlink() else ""
            name_inside, size = path.relative_to(snapshot).as_posix(), path.stat().st_size
            files.append(File(name_inside, size, *(_checked(blob, kind) for kind in _HASHES)))
    return (commit, tuple(files)) if files else None


def fetch(
    repository: Repository,
    files: Iterable[File],
    progress: Progress | None,
    check: Callable[[File], None] | None = None,
) -> None:
    """Downloads files that are not in huggingface_hub's cache yet, and verifies all of them.

    Nothing is written if all are there: the cache may be one that cannot be.

    `progress` counts bytes: those that are downloaded, then from 0 those that are verified.
    `check` is called with each file before the next one is downloaded; what it raises ends the
    download.

    Raises:
        AieError: there is no room, the hub cannot be reached or refuses, or the content of a file
            does not have the hash that the hub has for it; it is then removed. What was downloaded
            is kept for the next call.
    """
    files = list(files)
    if not all(repository.path(file).exists() for file in files):
        _download(repository, files, progress, check)
    verify(repository, files, progress)


def _download(
    repository: Repository,
    files: Sequence[File],
    progress: Progress | None,
    check: Callable[[File], None] | None,
) -> None:
    from huggingface_hub import hf_hub_download

    name, folder = repository.name, repository.folder
    snapshot = folder / "snapshots" / repository.commit
    left = sum(repository.left(file) for file in files)
    try:
        for at in (folder / "blobs", snapshot):
            at.mkdir(parents=True, exist_ok=True)
        if left:
            remedy = "make room, or set HF_HUB_CACHE to a folder on another disk"
            require_room(folder, left, f"the files of {name}", remedy=remedy)
        count = Count(progress, left)
        for file in files:
            count.begin(file.name)
            before, size = count.done, repository.left(file)
            if file.sha256 and size:
                with _errors(name):
                    _continue(repository, file, count)
            if not repository.path(file).exists():
                with _errors(name):  # downloads what is small, and links what is there
                    hf_hub_download(
                        name.repository,
                        file.path,
                        revision=repository.commit,
                        tqdm_class=_bars(count),
                    )
            count.done = before
            count.step(size)
            if check is not None:
                check(file)
    except _Unreached as error:
        raise AieError(f"{name}: {error}; the same command continues the download") from error.cause
    except OSError as error:
        if error.strerror is None:  # huggingface_hub's own, for what ended early
            raise AieError(
                f"{name}: the download ended early; the same command continues it"
            ) from error
        remedy = ""
        if error.errno in READ_ONLY and _downloaded(repository.name) is not None:
            remedy = ": HF_HUB_OFFLINE=1 uses the earlier download"
        raise AieError(f"{folder} cannot be written: {error.strerror}{remedy}") from error
    finally:
        for at in (folder / "blobs", snapshot, snapshot.parent, folder):
            with suppress(OSError):  # not empty: something was downloaded
                at.rmdir()


def _continue(repository: Repository, file: File, count: Count) -> None:
    """Downloads what is left of a file in large-file storage."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repository.name.repository, file.path, revision=repository.commit)
    content = repository.content(file)
    partial = _partial(content)
    try:
        with partial.open("ab") as part:
            with suppress(OSError):  # no locks there: two processes download twice as much
                platforms.lock(part.fileno(), wait=True)
            done = part.seek(0, os.SEEK_END)
            if done > file.size:
                part.truncate(done := 0)
            if not content.exists():  # another process may have been here first
                http_get(
                    url,
                    part,
                    resume_size=done,
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    tqdm_class=_bars(count),
                )
        if not content.exists():
            partial.replace(content)
    finally:
        with suppress(OSError):
            if content.exists() or not partial.stat().st_size:
                partial.unlink()


def _partial(content: Path) -> Path:
    return content.with_name(content.name + _PARTIAL)


def _bars(count: Count) -> type:
    """A class in place of tqdm's bars, which counts in `count`."""

    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, size: float | None = 1) -> None:
            count.step(int(size or 0))

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    return Bar


def remember(repository: Repository) -> None:
    """Writes which commit a branch or tag is, as huggingface_hub does: it is asked for offline."""
    revision = repository.name.revision
    ref = repository.folder / "refs" / revision
    if _COMMIT.fullmatch(revision) or _commit(ref) == repository.commit:
        return
    with suppress(OSError):  # in a cache that cannot be written, all files are there
        ref.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(ref) as file:
            file.write(repository.commit)


def _commit(ref: Path) -> str | None:
    """The commit that is remembered for a branch or tag."""
    try:
        return ref.read_text().strip()
    except OSError:
        return None


def verify(repository: Repository, files: Iterable[File], progress: Progress | None = None) -> None:
    """Compares files that are there with the hashes that the hub has for them: see `fetch`."""
    files = [file for file in files if file.sha256 or file.blob_id]
    count = Count(progress, sum(file.size for file in files))
    for file in files:
        count.begin(f"verifying {file.name}")
        path = repository.path(file)
        content = path.resolve()
        if file.sha256:
            digest, wanted = hashlib.sha256(), file.sha256
        else:  # git's hash of a blob
            digest, wanted = hashlib.sha1(f"blob {content.stat().st_size}\0".encode()), file.blob_id
        with content.open("rb") as stored:
            while block := stored.read(_BLOCK):
                digest.update(block)
                count.step(len(block))
        if digest.hexdigest() != wanted:
            wrong = f"{repository.name}: {file.path} does not match the hash of {_endpoint()}, and"
            try:
                path.unlink()
                content.unlink(missing_ok=True)
            except OSError as error:
                raise AieError(f"{wrong} {path} cannot be removed: {error.strerror}") from error
            raise AieError(
                f"{wrong} was removed: try again, and if it is wrong again, tell its owner"
            )


# --- errors ---


class _Unreached(Exception):
    """The hub cannot be reached; `cause` is what huggingface_hub raised."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


@contextmanager
def _errors(name: Name) -> Iterator[None]:
    """Raises what huggingface_hub raises as AieError, or as _Unreached."""
    from huggingface_hub import errors

    at = _endpoint()
    try:
        yield
    except errors.GatedRepoError as error:
        raise AieError(
            f"{name} is gated: accept its terms at {at}/{name.repository}, then log in with "
            "'hf auth login', or set HF_TOKEN"
        ) from error
    except errors.DisabledRepoError as error:
        raise AieError(f"{name} was disabled by {at}: choose another repository") from error
    except errors.RepositoryNotFoundError as error:
        raise AieError(
            f"{name} is neither a path that exists nor a repository that {at} shows you: check the "
            "spelling; if it is private, log in with 'hf auth login', or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise AieError(
            f"{name.repository} has no revision {name.revision}{_revisions(name)}"
        ) from error
    except errors.HFValidationError as error:
        raise AieError(f"{name} is neither a path that exists nor a name: {error}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise AieError(
                f"{name}: {at} does not accept the token: log in with 'hf auth login', or unset "
                "HF_TOKEN"
            ) from error
        if status == 403:
            raise AieError(
                f"{name}: the token has no right to read it: change that at {at}/settings/tokens"
            ) from error
        if status == 404:
            raise AieError(f"{name}: {at} does not find a file of it: try again") from error
        raise _Unreached(f"{at} answered with {status}", error) from error
    except errors.LocalEntryNotFoundError as error:
        raise _Unreached(f"{at} cannot be reached", error) from error
    except errors.OfflineModeIsEnabled as error:
        raise _Unreached(f"{at} is not asked (HF_HUB_OFFLINE)", error) from error
    except (errors.HTTPError, ConnectionError) as error:
        raise _Unreached(f"{at} cannot be reached", error) from error
    except (errors.FileMetadataError, ValueError) as error:
        raise AieError(f"{name}: {at} does not answer like a hub: {error}") from error


def _revisions(name: Name) -> str:
    """Which revisions there are, if the hub says so."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(name.repository)
    except Exception:  # the error is told without them
        return ""
    found = [ref.name for ref in (*refs.branches, *refs.tags)]
    more = ", …" if len(found) > _REFS_SHOWN else ""
    return f"; it has {', '.join(found[:_REFS_SHOWN])}{more}" if found else ""


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _require_hub(name: Name) -> None:
    require(f"{name} does not exist here; as a name on a hub it", ("huggingface_hub",))
