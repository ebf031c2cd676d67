"""What of a repository is a model, and which of its files are needed: from their names, and from
the index of a checkpoint.

What opens without onnxruntime-genai's builder goes first, so the order is: a builder's ONNX folder,
an ONNX export of optimum, a GGUF file, a .q4nx file, a checkpoint of safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath

from ort_aie_ep.disk import size_text
from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.names import Name
from ort_aie_ep.models.checkpoint import CONFIG, INDEX, WEIGHTS, weight_names
from ort_aie_ep.models.folder import GENAI_CONFIG, MORE_TEMPLATES, OPTIMUM_ENCODER
from ort_aie_ep.models.ryzen_ai import INSTEAD, ryzen_ai_file


class Kind(StrEnum):
    """What a model is stored as, in the words of messages."""

    onnx = "ONNX"
    gguf = "GGUF"
    q4nx = ".q4nx"
    checkpoint = "checkpoint of safetensors"


@dataclass(frozen=True)
class File:
    """A file of a repository.

    Attributes:
        path: in the repository, with "/".
        size: in bytes.
        sha256: of the content, for files in large-file storage; empty for others.
        blob_id: git's hash of the content, for the others; empty if unknown.
    """

    path: str
    size: int
    sha256: str = ""
    blob_id: str = ""

    @property
    def name(self) -> str:
        """Its name without folders."""
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> str:
        """The folder that it is in; empty at the top."""
        parent = str(PurePosixPath(self.path).parent)
        return "" if parent == "." else parent

    @property
    def place(self) -> str:
        """Where it is in the folder of a model: by its name, or in the folder of templates."""
        above = PurePosixPath(self.folder).name
        return f"{above}/{self.name}" if above == MORE_TEMPLATES else self.name


@dataclass(frozen=True)
class Choice:
    """A model of a repository.

    Attributes:
        kind: what it is stored as.
        main: the file to open in the folder of `files`; empty if the folder is what is opened.
        files: the files that are needed. Their places differ: they become one folder.
    """

    kind: Kind
    main: str
    files: tuple[File, ...]

    @property
    def graphs(self) -> list[File]:
        """Its .onnx files, if their weights are elsewhere. They are the first of its files."""
        graphs = [file for file in self.files if _is_graph(file)]
        return graphs if 2 * sum(file.size for file in graphs) < self.size else []

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


Read = Callable[[File], Path]
"""Downloads a small file of a repository, and says where it is."""

# Beside a model: configurations, tokenizers, templates. Never code, and no pickles.
_BESIDE = re.compile(r".*\.(json|jinja|tiktoken)|tokenizer\.model|merges\.txt|vocab\.txt")
_INDEXES = re.compile(r".*\.index\.json|trainer_state\.json|training_args.*")
# External data: model.onnx.data, model.onnx_data, and their further parts.
_ONNX_DATA = re.compile(r"\.onnx[._]data([._]?\d+)?")
# optimum's exports by the words after "model", the first that is there. Of the others, the compiler
# has no form: their weights are quantised in ways that are not MatMulNBits.
_EXPORTS = ("_q4", "_q4f16", "", "_fp16")
_GGUF = re.compile(r"(?i)(?P<stem>.*?)(?:-(?P<part>\d{5})-of-(?P<parts>\d{5}))?\.gguf")
_GGUF_TYPE = re.compile(
    r"(?i)(?:^|[-._])((?:UD-)?(?:(?:I?Q|TQ)\d(?:_\w+)?|BF16|F16|F32|FP16|MXFP4\w*))$"
)
# Files that belong to a model in GGUF and are none: what reads pictures, importances.
_NO_GGUF_MODEL = re.compile(r"(?i)mmproj|imatrix")
# Which type is taken of several, the first that is there: 4 bits, then more, less, and floats.
GGUF_ORDER = (
    "Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "MXFP4", "IQ4_NL", "IQ4_XS", "Q5_K_M", "Q5_K_S", "Q5_0",
    "Q5_1", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16",
)  # fmt: skip
_PICKLES = re.compile(r".*\.(bin|pt|pth|pkl|ckpt)")
_SHOWN = 12  # models in an error


def choose(files: Iterable[File], name: Name, read: Read) -> Choice:
    """The model that a name means, of the files of its repository.

    Raises:
        AieError: there is none, or there are several with nothing to prefer, and the error names
            them; it is for AMD's own runtime; what `read` raises.
    """
    usable = [file for file in files if _is_plain(file.path)]
    if not name.inside:
        found = _first(usable, name, read)
        if found is None:
            raise AieError(f"{name} has no model that can be opened{_what_else(usable)}")
        return found
    exact = [file for file in usable if file.path == name.inside]
    if exact:
        return _of_file(exact[0], usable, name)
    below = [file for file in usable if file.path.startswith(f"{name.inside}/")]
    if below:
        found = _first(below, name, read, name.inside)
        if found is None:
            raise AieError(f"{name} has no model that can be opened{_what_else(below)}")
        return found
    groups = _gguf_groups(usable)
    of_type = [group for group in groups if group.type.lower() == name.inside.lower()]
    if of_type:
        return _only(of_type, name, "GGUF files").choice()
    models = ", ".join(_models(usable))
    raise AieError(
        f"{name.repository} has no file, folder or GGUF type {name.inside}"
        + (f"; its models: {models}" if models else "")
    )


def _is_plain(path: str) -> bool:
    """Whether a path stays in the folder where it is put, on each system."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\\" in part or ":" in part for part in parts)


def _first(files: Sequence[File], name: Name, read: Read, top: str = "") -> Choice | None:
    """The first kind that is there; `top` is the folder to look in."""
    kinds: tuple[Callable[[Sequence[File], Name, str], Choice | None], ...] = (
        _built, _exported, _gguf, _q4nx, partial(_checkpoint, read=read),
    )  # fmt: skip
    foreign = _of_ryzen_ai(files)
    files = [file for file in files if not (_is_graph(file) and file.folder in foreign)]
    return next((found for kind in kinds if (found := kind(files, name, top))), None)


def _is_graph(file: File) -> bool:
    return file.name.endswith(".onnx")


def _of_ryzen_ai(files: Sequence[File]) -> dict[str, str]:
    """Folders with a model that only AMD's own runtime opens, and the file that shows it."""
    folders = {file.folder for file in files if file.name == GENAI_CONFIG}
    shown = {at: ryzen_ai_file(file.name for file in _in(files, at)) for at in folders}
    return {folder: name for folder, name in shown.items() if name}


def _of_file(file: File, files: Sequence[File], name: Name) -> Choice:
    if file.folder in _of_ryzen_ai(files) and (_is_graph(file) or file.name == GENAI_CONFIG):
        raise AieError(f"{name} cannot be opened{_what_else(_in(files, file.folder))}")
    if _is_graph(file):
        return _onnx(file, files)
    if _GGUF.fullmatch(file.name):
        return next(group for group in _gguf_groups(files) if file in group.files).choice()
    if file.name.endswith(".q4nx"):
        return Choice(Kind.q4nx, file.name, (file, *_beside(files, file.folder)))
    if file.name == GENAI_CONFIG and (found := _built(_in(files, file.folder), name, "")):
        return found
    raise AieError(
        f"{name} is not a model: name an .onnx, .gguf or .q4nx file, or the folder of a checkpoint"
    )


# --- ONNX ---


def _built(files: Sequence[File], name: Name, top: str) -> Choice | None:
    """A folder that onnxruntime-genai's builder wrote: of several the one for CPUs at int4, and of
    these the one whose activations are int8."""
    having = {file.folder for file in files if file.name.endswith(".onnx")}
    folders = sorted(
        file.folder for file in files if file.name == GENAI_CONFIG and file.folder in having
    )
    if not folders:
        return None
    best = folders
    for wanted in ({"cpu", "int4"}, {"acc", "level", "4"}):
        best = [at for at in best if wanted <= set(re.split(r"[\W_]+", at.lower()))] or best
    if len(best) > 1:
        sizes = [_shown(name.at(at), sum(file.size for file in _in(files, at))) for at in best]
        raise _several(name, "ONNX models", sizes)
    (folder,) = best
    inside = _in(files, folder)
    models = [file for file in inside if file.name.endswith(".onnx")]
    data = [file for file in inside if _is_data(file, "") or _may_be_data(file)]
    every = dict.fromkeys([*models, *data, *_beside(files, folder)])
    return Choice(Kind.onnx, "", tuple(every))


def _exported(files: Sequence[File], name: Name, top: str) -> Choice | None:
    """An .onnx file as optimum writes it, whose configuration may be in the folder above."""
    for folder in (top, f"{top}/onnx".strip("/")):
        models = [file for file in _in(files, folder) if file.name.endswith(".onnx")]
        names = {file.name: file for file in models}
        for ending in _EXPORTS:
            # Beside an encoder, a decoder is not a model by itself.
            stems = ("model",) if OPTIMUM_ENCODER in names else ("model", "decoder_model_merged")
            for stem in stems:
                if file := names.get(f"{stem}{ending}.onnx"):
                    return _onnx(file, files)
        if len(models) == 1 and not _is_encoder(models[0]):
            return _onnx(models[0], files)
        if models and not any(_is_encoder(file) for file in models):
            sizes = [_shown(name.at(file.path), file.size) for file in models]
            raise _several(name, "ONNX models", sizes)
    return None


def _is_encoder(file: File) -> bool:
    return file.name.startswith("encoder_model")


def _onnx(file: File, files: Sequence[File]) -> Choice:
    stem = file.name.removesuffix(".onnx")
    around = _in(files, file.folder)
    alone = sum(each.name.endswith(".onnx") for each in around) == 1
    data = [each for each in around if _is_data(each, stem) or (alone and _may_be_data(each))]
    above = str(PurePosixPath(file.path).parent.parent)
    beside = {each.place: each for at in (above, file.folder) for each in _beside(files, at)}
    beside.pop(GENAI_CONFIG, None)  # it may name another file
    return Choice(Kind.onnx, "", (file, *data, *beside.values()))


def _is_data(file: File, stem: str) -> bool:
    """Whether a file is external data: of the model `stem`, or of any if that is empty."""
    at = file.name.find(".onnx")
    return at >= 0 and bool(_ONNX_DATA.fullmatch(file.name[at:])) and stem in ("", file.name[:at])


def _may_be_data(file: File) -> bool:
    """Whether a file is external data by a name of the exporter's own."""
    return file.name.endswith((".data", "_data"))


# --- other kinds ---


@dataclass(frozen=True)
class _Group:
    """A model in GGUF, in one file or in numbered parts."""

    name: Name
    type: str
    files: tuple[File, ...]
    parts: int

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def choice(self) -> Choice:
        if len(self.files) != self.parts:
            raise AieError(
                f"{self.name}: only {len(self.files)} of {self.parts} parts exist: ask the owner"
            )
        return Choice(Kind.gguf, self.files[0].name, self.files)


def _gguf_groups(files: Iterable[File], name: Name = Name("", "")) -> list[_Group]:
    found: dict[tuple[str, str, str], list[File]] = {}
    for file in sorted(files, key=lambda file: file.path):
        match = _GGUF.fullmatch(file.name)
        if match is not None and not _NO_GGUF_MODEL.search(file.name):
            key = file.folder, match["stem"], match["parts"] or ""
            found.setdefault(key, []).append(file)
    groups = []
    for (_, stem, parts), members in found.items():
        match = _GGUF_TYPE.search(stem)
        kind = match[1].upper().replace("FP16", "F16") if match else ""
        groups.append(_Group(name.at(members[0].path), kind, tuple(members), int(parts or 1)))
    return groups


def _gguf(files: Sequence[File], name: Name, top: str) -> Choice | None:
    groups = _gguf_groups(files, name)
    if len(groups) < 2:
        return groups[0].choice() if groups else None
    for kind in GGUF_ORDER:
        if of_type := [group for group in groups if group.type == kind]:
            return _only(of_type, name, "GGUF files").choice()
    raise _several(name, "GGUF files", [_shown(group.name, group.size) for group in groups])


def _only(groups: Sequence[_Group], name: Name, what: str) -> _Group:
    if len(groups) > 1:
        sizes = [_shown(name.at(group.files[0].path), group.size) for group in groups]
        raise _several(name, what, sizes)
    return groups[0]


def _q4nx(files: Sequence[File], name: Name, top: str) -> Choice | None:
    found = [file for file in _in(files, top) if file.name.endswith(".q4nx")]
    main = [file for file in found if file.name == "model.q4nx"] or found
    if len(main) > 1:
        raise _several(name, ".q4nx files", [_shown(name.at(f.path), f.size) for f in main])
    if not main:
        return None
    return Choice(Kind.q4nx, main[0].name, (main[0], *_beside(files, top)))


def _checkpoint(files: Sequence[File], name: Name, top: str, read: Read) -> Choice | None:
    names = {file.name: file for file in _in(files, top)}
    if CONFIG not in names:
        return None
    weights = weight_names(names, lambda: read(names[INDEX]))
    if not weights:
        return None
    index = () if WEIGHTS in weights or INDEX not in names else (INDEX,)
    chosen = [names[each] for each in (*weights, *index)]
    return Choice(Kind.checkpoint, "", (*chosen, *_beside(files, top)))


# --- words ---


def _in(files: Iterable[File], folder: str) -> list[File]:
    return [file for file in files if file.folder == ("" if folder == "." else folder)]


def _beside(files: Iterable[File], folder: str) -> list[File]:
    """Configurations, tokenizers and templates of a model in a folder."""
    templates = _in(files, str(PurePosixPath(folder) / MORE_TEMPLATES))
    return [
        file
        for file in _in(files, folder)
        if _BESIDE.fullmatch(file.name) and not _INDEXES.fullmatch(file.name)
    ] + [file for file in templates if file.name.endswith(".jinja")]


def _shown(name: Name, size: int) -> str:
    return f"{name} ({size_text(size)})"


def _several(name: Name, what: str, shown: Sequence[str]) -> AieError:
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return AieError(f"{name} has several {what}; name one: {', '.join(shown[:_SHOWN])}{more}")


def _models(files: Sequence[File]) -> list[str]:
    endings = (".onnx", ".gguf", ".q4nx")
    return [file.path for file in files if file.name.endswith(endings)][:_SHOWN]


def _what_else(files: Sequence[File]) -> str:
    names = {file.name for file in files}
    if foreign := _of_ryzen_ai(files):
        (shows, *_) = foreign.values()
        return f": only AMD's Ryzen AI Software runs it ({shows}); {INSTEAD}"
    if "adapter_config.json" in names:
        return (
            ": it is an adapter; download it, and compile the checkpoint that it belongs to with "
            "--adapter FOLDER"
        )
    if any(_is_encoder(file) for file in files):
        return (
            ": it is an encoder and decoders, which onnxruntime-genai or optimum runs; download "
            "it, and compile the folder"
        )
    if any(_PICKLES.fullmatch(file) for file in names):
        return (
            ": its weights are pickles, which can run code and are not opened; look for a "
            "repository with safetensors, GGUF or ONNX"
        )
    return (
        ": no folder of onnxruntime-genai's builder, no onnx/model.onnx, no .gguf or .q4nx file, "
        f"no {CONFIG} with *.safetensors"
    )
