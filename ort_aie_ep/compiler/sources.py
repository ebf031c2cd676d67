"""What the cache compiles: which files make a model what it is, and how it is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.compiler.gguf import MODEL, parts_of
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checkpoint import CONFIG, is_checkpoint
from ort_aie_ep.models.files import is_regular
from ort_aie_ep.models.folder import MORE_TEMPLATES, find_model, is_gguf
from ort_aie_ep.progress import Progress

Q4NX = ".q4nx"
# What the builder may read in the folder of a checkpoint.
_IN_CHECKPOINT = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")


@dataclass(frozen=True)
class Source:
    """A model to compile.

    Attributes:
        path: what is compiled: an .onnx, .gguf or .q4nx file, or a folder.
        model: the file that its other files are found from.
        name: the compiled .onnx file, in the folder that it is compiled into.
        shown: what it was downloaded by, or its path.
    """

    path: Path
    model: Path
    name: str
    shown: str

    def files(self) -> Iterator[Path]:
        """Files that the compiled folder depends on, besides `model` and its external data."""
        if is_gguf(self.model):
            yield from parts_of(self.model)
        elif self.model.suffix == Q4NX:
            # Imported here, as its package imports onnx_ir: reopening does not need it.
            from ort_aie_ep.compiler.fastflowlm.names import CARRIED_OVER

            beside = (self.model.parent / name for name in CARRIED_OVER)
            yield from (file for file in beside if is_regular(file))
        elif self.path.is_dir():
            inside = sorted([*self.path.iterdir(), *(self.path / MORE_TEMPLATES).glob("*")])
            names = _IN_CHECKPOINT if is_checkpoint(self.path) else None
            yield from (
                file
                for file in inside
                if is_regular(file) and (names is None or file.suffix in names)
            )

    def compile(
        self, new: Path, beside: Path, options: CompileOptions, progress: Progress | None
    ) -> tuple[str, ...]:
        """Compiles it into the folder `new`: notes. A log of the builder stays beside `beside`."""
        from ort_aie_ep.compiler.compile import compile_model

        if not is_checkpoint(self.path):
            return tuple(compile_model(self.path, new, options, progress=progress).notes)
        from ort_aie_ep.compiler.checkpoint.build import built_model
        from ort_aie_ep.compiler.checkpoint.options import BuildOptions

        with built_model(
            self.path, beside, BuildOptions(), shown=self.shown, progress=progress
        ) as built:
            return tuple(compile_model(built, new, options, progress=progress).notes)


def is_onnx(path: Path) -> bool:
    """Whether a path is not of those that become ONNX when they are compiled."""
    return not (path.suffix == Q4NX or is_gguf(path) or is_checkpoint(path))


def find_source(path: Path, name: str = "", *, whole: bool = False) -> Source:
    """The model at a path, which was downloaded by `name` if that is not empty.

    What was downloaded, and what is not ONNX yet, becomes a whole model folder, and so does a
    folder that is wanted `whole`. Else a user's model in ONNX is compiled alone.

    Raises:
        AieError: there is none, or it is several that run together.
    """
    shown = name or str(path.absolute())
    if is_gguf(path) or (path.suffix == Q4NX and is_regular(path)):
        return Source(path, path, MODEL, shown)
    if is_checkpoint(path):
        return Source(path, path / CONFIG, MODEL, shown)
    folder = find_model(path)
    if path.is_dir() and folder.is_optimum_encoder_decoder:
        raise AieError(
            f"{path} has an encoder and decoders, and a session runs one: pass its .onnx file"
        )
    model = folder.model
    if (name or whole) and path.is_dir():
        return Source(path, model, model.name, shown)
    # The file, not its folder: tokenizers and configurations stay where they are.
    return Source(model, model, model.name, name or str(model.absolute()))
