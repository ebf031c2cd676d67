"""The folder that a downloaded model is opened in.

It is beside huggingface_hub's snapshots (or, where these are in a cache that cannot be written,
in the cache of what was compiled) and holds the files of one choice: hard links to what was
downloaded, where a snapshot has symbolic links, which ONNX Runtime 1.24 does not follow to external
data. It is made once all files are verified, with nothing in it that opening it would execute, so
that a folder that is there needs no further look.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ort_aie_ep.compiler.cache import cache_folder
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.contents import Choice
from ort_aie_ep.hub.fetch import READ_ONLY, Repository, cached
from ort_aie_ep.hub.names import Name
from ort_aie_ep.models.checked_json import read_json
from ort_aie_ep.models.files import inside, write_json
from ort_aie_ep.models.folder import GENAI_CONFIG

_FOLDERS = "ort_aie_ep"
# Sections of genai_config.json that ONNX Runtime gets, wherever they are.
_OPTIONS = ("session_options", "run_options", "provider_options", "custom_ops_library")
_FOREIGN = "EPContext"


def laid(repository: Repository, choice: Choice) -> Path | None:
    """The folder of a choice; None if it has not been made yet."""
    return next(filter(_is_whole, _places(repository, choice)), None)


def _places(repository: Repository, choice: Choice) -> list[Path]:
    """Where the folder of a choice may be."""
    files = "\n".join(sorted(file.path for file in choice.files))
    part = hashlib.sha256(files.encode()).hexdigest()[:8]
    return [at / f"{repository.commit[:12]}-{part}" for at in _tops(repository.name)]


def _tops(name: Name) -> tuple[Path, Path]:
    """Where the folders of a repository may be."""
    beside = cached(name)
    return beside / _FOLDERS, cache_folder() / "hub" / beside.name


def lay(repository: Repository, choice: Choice) -> Path:
    """Makes the folder of a choice whose files are downloaded and verified.

    Raises:
        AieError: a model in it would make something be executed or read that is not the
            repository's own data; the folder cannot be written.
    """
    places = _places(repository, choice)
    for folder in places:
        try:
            _lay(repository, choice, folder)
        except OSError as error:
            if _is_whole(folder):  # another process was faster
                return folder
            if error.errno in READ_ONLY and folder != places[-1]:
                continue
            reason = error.strerror or error
            raise AieError(f"{folder.parent} cannot be written: {reason}") from error
        return folder
    raise AssertionError


def _lay(repository: Repository, choice: Choice, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
        work = Path(scratch) / "model"
        work.mkdir()
        for file in choice.files:
            (work / file.place).parent.mkdir(exist_ok=True)
            _link(repository.content(file), work / file.place)
        _disarm(work / GENAI_CONFIG, repository.name)
        for model in sorted(work.glob("*.onnx")):
            _require_harmless(model, repository.name)
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)


def _is_whole(folder: Path) -> bool:
    """Whether a folder is there, and what its links lead to."""
    return folder.is_dir() and all(path.exists() for path in folder.rglob("*"))


def forget(name: Name) -> None:
    """Removes the folders of a repository; what huggingface_hub downloaded stays."""
    for top in _tops(name):
        shutil.rmtree(top, ignore_errors=True)


def _link(content: Path, path: Path) -> None:
    try:
        os.link(content, path)
    except OSError:  # no hard links there, or not to files of others
        path.symlink_to(content)


def _disarm(config: Path, name: Name) -> None:
    """Takes out of genai_config.json what makes onnxruntime-genai load libraries.

    Options of sessions name custom-op libraries, and those of providers their backends, caches and
    configurations; none of them is needed on this CPU.
    """
    if not config.exists():
        return
    content = _without_options(read_json(config).object())
    for key, file in _files(content):
        if "\\" in file or not inside(config.parent, config.parent / file):
            raise AieError(
                f"{name}: {GENAI_CONFIG}: {key} is {file!r}, which is not in the model's folder: "
                "tell the owner"
            )
    config.unlink()  # before it is written: it is a link
    write_json(config, content)


def _files(part: Any) -> Iterator[tuple[str, str]]:
    """Keys for files, wherever they are, such as config_filename, and what they name."""
    for key, of in part.items() if isinstance(part, dict) else ():
        if "file" in key and isinstance(of, str):
            yield key, of
    for of in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _files(of)


def _without_options(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_options(of) for key, of in part.items() if key not in _OPTIONS}
    if isinstance(part, list):
        return [_without_options(item) for item in part]
    return part


def require_known(graph: Path, name: Name) -> None:
    """Refuses an .onnx file by its nodes, without its external data: see `lay`."""
    from ort_aie_ep.models.onnx_file import read_graph

    with _named(graph, name):
        read_graph(graph)


def _require_harmless(model: Path, name: Name) -> None:
    """Refuses a model with data outside of its folder, or compiled by an execution provider."""
    from ort_aie_ep.models.onnx_file import load_model

    with _named(model, name):
        graph = load_model(model).graph
    if any(node.op_type == _FOREIGN for node in graph.all_nodes()):
        raise AieError(
            f"{name}: {model.name} has {_FOREIGN} nodes, which an execution provider would "
            "load unseen: choose the source model"
        )


@contextmanager
def _named(model: Path, name: Name) -> Iterator[None]:
    """Errors name the repository in place of a folder of the cache."""
    try:
        yield
    except AieError as error:
        raise AieError(f"{name}: {str(error).replace(str(model), model.name)}") from error
