"""The models that a server can load: what there is, and what each says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ort_aie_ep.compiler.cache import cache_folder
from ort_aie_ep.compiler.cache_entries import entries
from ort_aie_ep.compiler.gguf import parts_of
from ort_aie_ep.compiler.sources import Q4NX
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.contents import Kind
from ort_aie_ep.hub.fits import Fit, room
from ort_aie_ep.hub.names import find_name
from ort_aie_ep.models.checkpoint import is_checkpoint
from ort_aie_ep.models.folder import ModelFolder, find_model, section
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.running.loop import sampling_of
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.templates import find_template


@dataclass(frozen=True)
class Offer:
    """A model that a request may name.

    Attributes:
        name: what a request calls it.
        path: what is opened: a folder, or a file that is a model by itself.
        compiled: the folder that says what it is: `path`, or for what is compiled when it is
            opened, what was made of it before, if anything.
        size: bytes of its files.
        modified: when these were written, in seconds since 1970.
    """

    name: str
    path: Path
    compiled: Path | None
    size: int
    modified: float

    def fit(self) -> Fit:
        """Whether there is room for it now."""
        return room(self.size, Kind.checkpoint if is_checkpoint(self.path) else Kind.onnx)

    @property
    def digest(self) -> str:
        """What changes when the model does."""
        parts = (self.name, self.path, self.compiled, self.size, self.modified)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @cached_property
    def _folder(self) -> ModelFolder | None:
        try:
            return find_model(self.compiled) if self.compiled else None
        except AieError:  # it is damaged, or gone
            return None

    @property
    def family(self) -> str:
        """Its architecture; empty if that is not known."""
        return str(section(self._folder, "model").get("type", "")) if self._folder else ""

    def about(self) -> dict[str, Any]:
        """Its context, and whether it has a chat template, if that is known."""
        if (folder := self._folder) is None:
            return {}
        try:
            chat = find_template(folder) is not None
        except AieError:
            chat = False
        return {"context_length": context_length(folder), "chat": chat}

    def details(self) -> dict[str, Any]:
        """What ollama's clients ask of one model; little if it has not been compiled yet.

        Raises:
            AieError: its files cannot be read.
        """
        if (folder := self._folder) is None:
            return {"capabilities": ["completion"], "parameters": "", "model_info": {}}
        prompts, chosen = Prompts(folder), sampling_of(folder)
        form, family = prompts.format, self.family or "unknown"
        can = {"tools": form.tools, "thinking": form.thought}
        values = {
            "temperature": chosen.temperature, "top_p": chosen.top_p, "top_k": chosen.top_k,
            "min_p": chosen.min_p, "repeat_penalty": chosen.repetition_penalty,
        }  # fmt: skip
        length = {f"{family}.context_length": context_length(folder)}
        return {
            "capabilities": ["completion", *(name for name, there in can.items() if there)],
            "parameters": "\n".join(f"{name} {value:g}" for name, value in values.items()),
            "model_info": {"general.architecture": family, **length},
        }


def offer_of(name: str, path: Path, compiled: Path | None) -> Offer:
    """The offer of what is at a path."""
    files = path.iterdir() if path.is_dir() else parts_of(path)
    size = sum(file.stat().st_size for file in files if file.is_file())
    return Offer(name, path, compiled, size, path.stat().st_mtime)


def offered(more: Path | None) -> list[Offer]:
    """What the folder `more` holds, and what was compiled from names, the last used first, as
    `ort-aie list` has it."""
    kept = {entry.source: entry for entry in reversed(entries(cache_folder())) if entry.source}
    found = {}
    for name, path in _inside(more) if more else ():
        made = kept.get(str(path.absolute()))
        compiled = made.folder if made else path if path.is_dir() else None
        with suppress(OSError):  # it is being removed
            found[name] = offer_of(name, path, compiled)
    for name, entry in reversed(kept.items()):
        if find_name(name) and name not in found:
            with suppress(OSError):
                found[name] = offer_of(name, entry.folder, entry.folder)
    return [*found.values()]


def _inside(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of the models in a folder: files that are one, and folders with one."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # it was there when the server started
        return
    for path in inside:
        if path.is_dir() and not path.name.startswith("."):
            files = [file for file in path.iterdir() if _is_model(file)]
            if is_checkpoint(path) or any(path.glob("*.onnx")):
                yield path.name, path
            elif len(files) == 1:
                yield path.name, files[0]
        elif _is_model(path):
            yield path.name, path


def _is_model(path: Path) -> bool:
    """Whether a file is a model by itself; of the parts of one, only the first."""
    if path.suffix.lower() != ".gguf":
        return path.suffix == Q4NX
    try:
        return path == parts_of(path)[0] and not path.name.startswith("mmproj")
    except AieError:
        return False
