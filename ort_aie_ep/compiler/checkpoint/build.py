"""Runs the model builder on a checkpoint, after merging an adapter into its weights."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ort_aie_ep.compiler.checkpoint.interpreter import (
    find_python,
    make_environment,
    require_python,
)
from ort_aie_ep.compiler.checkpoint.options import BuildOptions
from ort_aie_ep.compiler.checkpoint.process import run_logged
from ort_aie_ep.compiler.compiled_folder import check_destination
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.adapter import Adapter, read_adapter
from ort_aie_ep.models.checkpoint import WEIGHTS, Checkpoint, read_checkpoint
from ort_aie_ep.models.folder import GENAI_CONFIG, MORE_TEMPLATES
from ort_aie_ep.progress import Progress

BUILDER, MERGE = (Path(__file__).with_name(name) for name in ("run_builder.py", "merge_adapter.py"))
CONFIG = "config.json"
# The environment that the error proposes.
_PROPOSED = "ort-aie-builder"
# Nothing is downloaded, and a log has no bars.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "PYTHONSAFEPATH": "1",
}
_READ = re.compile(r"Reading layer (\d+)")
_QUANTISED = re.compile(r"complete quantization of /model/layers\.(\d+)/")


@contextmanager
def built_model(
    source: Path,
    destination: Path,
    options: BuildOptions,
    *,
    python: Path | None = None,
    environment: Path | None = None,
    keep: Path | None = None,
    shown: str = "",
    progress: Progress | None = None,
) -> Iterator[Path]:
    """A model folder that the builder wrote from a checkpoint, in a temporary folder.

    Args:
        source: the checkpoint.
        destination: the folder to compile into. The temporary folder is beside it, and so is the
            log of the builder, NAME.build.log, which stays only if the builder fails.
        options: what the builder is told.
        python: the interpreter that has the builder; by default $ORT_AIE_BUILDER_PYTHON, else the
            one that runs this.
        environment: in place of `python`, a virtual environment, which is made if needed.
        keep: a folder that does not exist yet, which the builder's model becomes; None: the model
            is removed at the end.
        shown: what the user calls the checkpoint where the destination is not one of the user's;
            for the command that an error proposes.
        progress: counts tensors that are merged, and layers that are read and quantised.

    Raises:
        AieError: the checkpoint or the adapter is damaged, or does not fit the other; the builder
            is not installed or fails; a folder exists or cannot be written.
    """
    options.check()
    check_destination(destination)
    if keep is not None:
        check_destination(keep)
    for option, folder in (("--keep-source", keep), ("--builder-env", environment)):
        if folder is not None and folder.absolute() == destination.absolute():
            raise AieError(f"{option} {folder} is the folder to compile into: name another one")
    checkpoint = read_checkpoint(source)
    adapter = read_adapter(options.adapter, checkpoint) if options.adapter else None
    log = destination.absolute().with_name(f"{destination.name}.build.log")
    interpreter, named_by = find_python(python, environment)
    beside = (keep or destination).absolute()
    with ExitStack() as temporary:
        try:
            log.unlink(missing_ok=True)
            if environment is not None:
                interpreter = make_environment(environment, log, progress)
            words = (shown, "COMPILED") if shown else (str(source), str(destination))
            require_python(interpreter, named_by, words[0], _command(*words, options))
            scratch = temporary.enter_context(
                tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent)
            )
            build = _Build(checkpoint, interpreter, Path(scratch), log)
            folder = build.run(options, adapter, progress)
            log.unlink(missing_ok=True)
            if keep is not None:
                check_destination(keep)
                folder = folder.rename(keep)
        except OSError as error:
            raise AieError(f"{beside.parent} cannot be written: {error.strerror}") from error
        except KeyboardInterrupt:
            log.unlink(missing_ok=True)
            raise
        yield folder


def _command(source: str, destination: str, options: BuildOptions) -> str:
    """The command that makes an environment and goes on."""
    words = ["ort-aie", "compile", source, destination]
    if options.adapter is not None:
        words += ["--adapter", str(options.adapter)]
    if options.precision != BuildOptions.precision:
        words += ["--precision", options.precision]
    for option in options.extra:
        words += ["--builder-option", option]
    return shlex.join([*words, "--builder-env", _PROPOSED])


@dataclass
class _Build:
    """One run of the builder: where it reads and writes."""

    checkpoint: Checkpoint
    python: Path
    scratch: Path
    log: Path

    def run(
        self, options: BuildOptions, adapter: Adapter | None, progress: Progress | None
    ) -> Path:
        """The folder that the builder wrote."""
        source = self.checkpoint.path.absolute()
        merges = len(adapter.merges) + len(adapter.replaced) if adapter is not None else 0
        counted = _Counted(progress, merges, merges + 2 * self._layers(options))
        if adapter is not None:
            counted.begin("merging the adapter")
            source = self._merge(adapter, counted)
        elif self.checkpoint.misnamed is not None:
            source = self._linked(())
        counted.begin("starting the model builder")
        to = self.scratch / "model"
        extra = [*options.extra, "hf_token=false"]
        self._python(
            "onnxruntime-genai's model builder",
            counted,
            *(BUILDER, "-i", str(source), "-o", str(to), "-p", options.precision),
            *("-e", "cpu", "-c", str(self.scratch / "cache"), "--extra_options", *extra),
        )
        if not (to / GENAI_CONFIG).is_file():
            raise AieError(f"onnxruntime-genai's model builder wrote no {GENAI_CONFIG}: {self.log}")
        if not (to / CONFIG).exists():  # for `export-q4nx`
            shutil.copyfile(source / CONFIG, to / CONFIG)
        counted.end()
        return to

    def _layers(self, options: BuildOptions) -> int:
        return int(options.value("num_hidden_layers") or self.checkpoint.layers)

    def _python(self, what: str, counted: _Counted, *arguments: str | Path) -> None:
        run_logged(
            [self.python, *arguments],
            self.log,
            what,
            folder=self.scratch,
            environment=_ENVIRONMENT,
            line=counted.line,
        )

    def _merge(self, adapter: Adapter, counted: _Counted) -> Path:
        """The checkpoint with an adapter in its weights; what stays the same are links."""
        folder = self.scratch / "checkpoint"
        changed: dict[Path, dict[str, Any]] = {}
        tensors = self.checkpoint.tensors
        for tensor in (*(merge.tensor for merge in adapter.merges), *adapter.replaced):
            file = tensors[tensor].file
            to = folder / self._name(file)
            paths = {"source": str(file.absolute()), "destination": str(to)}
            changed.setdefault(file, {**paths, "merges": [], "replaced": {}})
        for merge in adapter.merges:
            changed[tensors[merge.tensor].file]["merges"].append(asdict(merge))
        for tensor, new in adapter.replaced.items():
            changed[tensors[tensor].file]["replaced"][tensor] = new
        self._linked(changed)
        plan = self.scratch / "merge.json"
        content = {"adapter": str(adapter.file.absolute()), "shards": list(changed.values())}
        plan.write_text(json.dumps(content), encoding="utf-8")
        self._python("merging the adapter", counted, MERGE, plan)
        return folder

    def _linked(self, left_out: Collection[Path]) -> Path:
        """A folder with links to the checkpoint's files, by the names that transformers expects."""
        folder = self.scratch / "checkpoint"
        folder.mkdir()
        for file in sorted(self.checkpoint.path.iterdir()):
            if file not in left_out and (file.is_file() or file.name == MORE_TEMPLATES):
                (folder / self._name(file)).symlink_to(file.absolute())
        return folder

    def _name(self, file: Path) -> str:
        return WEIGHTS if file == self.checkpoint.misnamed else file.name


@dataclass
class _Counted:
    """Reads from a child's output how far it is."""

    progress: Progress | None
    merges: int
    total: int
    done: int = 0

    def line(self, text: str) -> None:
        """A line of the output."""
        what = ""
        if text.startswith(("Merged ", "Replaced ")):
            self.done += 1
            what = text
        elif found := _READ.search(text):
            self._reach(self.merges + int(found[1]) + 1)
            what = text
        elif found := _QUANTISED.search(text):
            self._reach(self.merges + (self.total - self.merges) // 2 + int(found[1]) + 1)
            what = f"quantised layer {found[1]}"
        elif text.startswith(("Loading", "Saving")):
            what = text
        if what:
            self.begin(what)

    def begin(self, what: str) -> None:
        """Reports what is being done."""
        if self.progress is not None:
            self.progress(self.done, self.total, what)

    def end(self) -> None:
        """The child is done."""
        if self.progress is not None:
            self.progress(self.total, self.total, "")

    def _reach(self, done: int) -> None:
        self.done = max(self.done, min(done, self.total))
