"""A compiled model and its source, for commands that compare them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.compiler.compile import CompileResult, compile_model
from ort_aie_ep.compiler.options import CompileOptions, KvType
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.progress import Progress
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, inspect, open_session


@dataclass(frozen=True)
class Pair:
    """Both models as sessions with their caches.

    Attributes:
        ours: the compiled model with ort_aie_ep.
        reference: the source on ONNX Runtime's CPU EP alone.
        load_seconds: seconds to create each session, in this order; this is when the CPU EP repacks
            its weights.
    """

    ours: Decoder
    reference: Decoder
    load_seconds: tuple[float, float]


def open_alone(folder: ModelFolder, options: Options, capacity: int) -> tuple[Decoder, float]:
    """Opens a compiled model with room for `capacity` tokens, and the seconds that this took."""
    started = time.perf_counter()
    session = open_session(folder.model, options)
    seconds = time.perf_counter() - started
    return Decoder(session, folder, capacity), seconds


def open_pair(compiled: ModelFolder, source: ModelFolder, options: Options, capacity: int) -> Pair:
    """Opens both with the same number of threads and room for `capacity` tokens."""
    ours, seconds = open_alone(compiled, options, capacity)
    started = time.perf_counter()
    reference = open_session(source.model, Options(threads=options.threads), library=False)
    done = time.perf_counter() - started
    return Pair(ours, Decoder(reference, source, capacity), (seconds, done))


@contextmanager
def compiled_and_source(
    path: Path, baseline: Path | None, progress: Progress | None = None
) -> Iterator[tuple[ModelFolder, ModelFolder]]:
    """(compiled, source) folders of a model.

    `path` is a compiled model and `baseline` its source; or `path` is a source without a
    `baseline`, which is then compiled into a folder that exists as long as the context.

    Raises:
        AieError: the two are not such a pair, or the compilation fails.
    """
    model = inspect(path)
    if model.compiled:
        if baseline is None:
            raise AieError(
                f"{path} is already compiled: name the model that it was made from with "
                "--baseline, or pass only that model"
            )
        source = inspect(baseline)
        if source.compiled:
            raise AieError(f"--baseline {baseline} is also compiled; pass the source instead")
        yield model.folder, source.folder
        return
    if baseline is not None:
        raise AieError(f"{path} is not compiled, so it is its own baseline: leave out --baseline")
    with compiled_for_now(path, progress) as result:
        yield result.folder, model.folder


@contextmanager
def compiled_for_now(
    path: Path, progress: Progress | None = None, kv: KvType | None = None
) -> Iterator[CompileResult]:
    """Compiles into a temporary folder, which is deleted at the end of the context."""
    with tempfile.TemporaryDirectory(prefix="ort-aie-") as scratch:
        options = CompileOptions(kv=kv)
        yield compile_model(path, Path(scratch, "model"), options, progress=progress)
