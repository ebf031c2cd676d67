"""What commands and functions call with what a user gave as a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.compiler.cache import Opened, cache_folder, compiled_file
from ort_aie_ep.compiler.cache_entries import cache_limit
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.disk import size_text
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.contents import Choice, File, choose
from ort_aie_ep.hub.fetch import Repository, fetch, look_up, remember, verify
from ort_aie_ep.hub.fits import fit
from ort_aie_ep.hub.folder import laid, lay, require_known
from ort_aie_ep.hub.names import find_name
from ort_aie_ep.progress import Progress

Say = Callable[[str], None]
"""Called with a line that a user should read before the work goes on."""


@dataclass(frozen=True)
class Found:
    """A model of a hub that was looked up, and not downloaded yet.

    Attributes:
        repository: where it is.
        choice: what of the repository it is.
    """

    repository: Repository
    choice: Choice

    @property
    def left(self) -> int:
        """Bytes to download."""
        return sum(self.repository.left(file) for file in self.choice.files)

    def line(self) -> str:
        """What it is, what there is to download, and whether it fits."""
        choice = self.choice
        first = choice.files[0].path
        what = f"{first} and {len(choice.files) - 1} more files" if choice.files[1:] else first
        left = f"{size_text(self.left)} to download" if self.left else "downloaded already"
        size = left if self.left == choice.size else f"{size_text(choice.size)}, {left}"
        return f"{self.repository.name}: {choice.kind}, {what}, {size}; {fit(choice).line()}"


@dataclass(frozen=True)
class Local:
    """A model on this machine.

    Attributes:
        path: a folder, or a file that is a model by itself.
        name: what it was downloaded by; empty for a path of the user's.
    """

    path: Path
    name: str = ""


def find(given: str | os.PathLike[str]) -> Found | None:
    """What a name means; None if `given` is not a name, but a path.

    Raises:
        AieError: see `fetch.look_up` and `contents.choose`.
    """
    name = find_name(given)
    if name is None:
        return None
    repository = look_up(name)

    def read(file: File) -> Path:
        fetch(repository, [file], None)
        return repository.path(file)

    return Found(repository, choose(repository.files, name, read))


def local(
    given: str | os.PathLike[str], progress: Progress | None = None, say: Say | None = None
) -> Local:
    """The model on this machine: `given` itself, or what it names on a hub, downloaded if needed.

    `progress` counts bytes: of files as they are downloaded, then of all as they are verified.
    `say` is told, before a download, what it is, its size, and whether this machine has room.

    Raises:
        AieError: see `find`, `fetch.fetch` and `folder.lay`. A path is not looked at.
    """
    found = find(given)
    if found is None:
        return Local(Path(given))
    repository, choice = found.repository, found.choice
    if repository.note and say is not None:
        say(repository.note)
    folder = laid(repository, choice)
    if folder is None:
        if found.left and say is not None:
            say(found.line())
        graphs = {file.path for file in choice.graphs}

        def check(file: File) -> None:
            if file.path in graphs:
                verify(repository, [file])
                require_known(repository.path(file), repository.name)

        fetch(repository, choice.files, progress, check)
        remember(repository)
        folder = lay(repository, choice)
    return Local(folder / choice.main, str(repository.name))


def compiled(
    model: Local,
    options: CompileOptions = CompileOptions(),
    progress: Progress | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    limit: str | None = None,
    whole: bool = False,
) -> Opened:
    """A model's compilation in the cache, made if needed: see `compiler.cache.compiled_file`.

    Raises:
        AieError: as `compiled_file`.
    """
    cache, most = cache_folder(cache_dir), cache_limit(limit)
    return compiled_file(model.path, cache, options, progress, most, model.name, whole=whole)


def require_no_code(given: str, options: tuple[str, ...]) -> None:
    """Refuses builder's options that run what a repository brings."""
    if given and any(option.split("=")[0].endswith("hf_remote") for option in options):
        raise AieError(
            f"{given}: --builder-option hf_remote runs code from the repository, which is refused "
            "for a name: download the checkpoint and read the code first"
        )
