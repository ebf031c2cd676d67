"""What a command was given as a model: a path, or a name on a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ort_aie_ep.cli import console
from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.hub.models import Local
    from ort_aie_ep.models.folder import ModelFolder
    from ort_aie_ep.runtime.sessions import Model

METAVAR = "MODEL"
HELP = "A name on a hub, OWNER/REPO[@REVISION][:FILE], a GGUF file, or a folder, compiled or not."


def local(given: Path) -> Local:
    """The model on this machine, downloaded if `given` is a name."""
    from ort_aie_ep.hub.models import Local, local
    from ort_aie_ep.hub.names import find_name

    if find_name(given) is None:
        return Local(given)
    with console.bar(f"download and check {given}", "bytes", "asking the hub") as progress:
        return local(given, progress, progress.note)


@contextmanager
def ready(given: Path, *, compiles: bool = True, target: str | None = None) -> Iterator[Path]:
    """The folder or file to open; while the block runs, it is not removed from the cache.

    What is not compiled is compiled into the cache, unless `compiles` is False and it is ONNX. A
    user's .onnx file is opened as it is, without the tokenizer beside it, and so is a folder that
    cannot be compiled. `target` is where operators are to run, if that is known: a GGUF file
    becomes what it reads.
    """
    from ort_aie_ep.compiler.gguf import TARGETS
    from ort_aie_ep.compiler.options import CompileOptions
    from ort_aie_ep.compiler.sources import is_onnx
    from ort_aie_ep.models.folder import is_gguf
    from ort_aie_ep.runtime.sessions import inspect

    model = local(given)
    if is_onnx(model.path) and not (compiles and (model.name or model.path.is_dir())):
        yield model.path
        return
    from ort_aie_ep.hub.models import compiled

    npu = TARGETS.get(target or "") if is_gguf(model.path) else None
    options = CompileOptions(q4nx_compatible=npu)
    opened = None
    try:
        with console.bar(f"compile {given}", "bytes", "reading the model") as progress:
            opened = compiled(model, options, progress, whole=True)
    except AieError as error:
        if model.name or not is_onnx(model.path):
            raise
        inspect(model.path)  # what is wrong with it is told alone
        console.note(f"{given} cannot be compiled: {error}")
    if opened is None:
        yield model.path
        return
    for note in opened.notes:
        console.note(note)
    try:
        if opened.made and not model.name:
            console.note(f"{given} was compiled into the cache, which ort-aie list shows")
        yield opened.file.parent
    finally:
        opened.close()


@contextmanager
def opened(
    given: Path, draft: int, draft_model: Path | None, target: str | None = None
) -> Iterator[tuple[Model, ModelFolder | None]]:
    """A model that is to write text, and what --draft-model names, as `ready` opens them.

    Raises:
        AieError: there is no model, it has no tokenizer, or --draft is missing.
    """
    from ort_aie_ep.models.tokenizer import has_tokenizer, require_tokenizer
    from ort_aie_ep.running.next_step import why_not_text
    from ort_aie_ep.runtime.sessions import inspect

    with ExitStack() as models:
        model = inspect(models.enter_context(ready(given, target=target)))
        if not has_tokenizer(model.folder) and not why_not_text(model.folder):
            require_tokenizer(model.folder, given)
        if not model.compiled:
            console.note(f"{given} is not compiled, so it runs on ONNX Runtime's CPU EP alone")
        guessing = None
        if draft_model is not None:
            if not draft:
                raise AieError("--draft-model needs --draft: how many tokens to guess at a time")
            guessing = inspect(models.enter_context(ready(draft_model, target=target))).folder
        yield model, guessing
