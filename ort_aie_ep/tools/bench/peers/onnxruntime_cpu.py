"""ONNX Runtime: the source on its CPU EP alone, or a compiled folder with ort_aie_ep.

Opening a session does not need onnx_ir, which takes longer to import than all the rest, so only
code that writes models imports it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.q4nx import GROUP, BlockForm
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.models.interface import TYPES
from ort_aie_ep.requirements import runtime_version
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench.peers import engines
from ort_aie_ep.tools.bench.peers.engines import Model, Settings, Source

if TYPE_CHECKING:
    from ort_aie_ep.compiler.options import KvType


def source_model(source: Source) -> Model:
    """The source as it is."""
    folder, bits = source.folder, source.weights.source_bits()
    read = int(source.weights.product_elements() * bits / 8)
    return Model(folder.path, bits, read, _bytes(folder))


def compiled_model(source: Source, *, kv: KvType | None, last_logits: bool = True) -> Model:
    """A compiled folder, with logits of only the last position as other engines compute for
    prompts; counts the Q4NX bytes that its projections read, without embeddings."""
    import onnx_ir as ir

    from ort_aie_ep.compiler.compile import compile_model
    from ort_aie_ep.compiler.options import CompileOptions
    from ort_aie_ep.graph_passes.planning import expand_plans
    from ort_aie_ep.graph_passes.walk import attribute
    from ort_aie_ep.models.onnx_file import load_model
    from ort_aie_ep.models.tokenizer import has_tokenizer

    calibration = None
    if kv == "int8" and not has_tokenizer(source.folder):
        # Weights are random: text has no meaning to them, and no speed depends on a scale.
        calibration = source.scratch / "calibration.npy"
        ids = np.random.default_rng(0).integers(0, source.weights.shape.vocab, (2, 64))
        np.save(calibration, ids)
    path = source.scratch / f"compiled-{kv or 'float'}{'' if last_logits else '-all-logits'}"
    options = CompileOptions(kv=kv, calibration=calibration, last_logits=last_logits)
    compile_model(source.folder.path, path, options)
    folder = find_model(path)
    model = load_model(folder.model)
    expand_plans(model)
    stored, read = 0.0, 0.0
    for node in model.graph:
        if node.domain != "aie" or node.op_type == "Q4NXGather":
            continue
        tensors = [value.const_value for value in node.inputs if value is not None]
        size = float(
            sum(t.nbytes for t in tensors if t is not None and t.dtype == ir.DataType.UINT8)
        )
        if node.op_type == "Q4NXMoE":  # a token reads the blocks of the experts that it takes
            size *= attribute(node, "top_k", 0) / attribute(node, "experts", 1)
        stored += size
        read += size
        form = BlockForm(
            attribute(node, "bits", 4),
            attribute(node, "group", GROUP),
            bool(attribute(node, "minima", 1)),
        )
        if form.minima and attribute(node, "symmetric", 0):  # kernels do not read these minima
            read -= size * (1 - replace(form, minima=False).block_bytes / form.block_bytes)
    bits = stored * 8 / source.weights.product_elements()
    return Model(folder.path, bits, round(read), _bytes(folder))


def _bytes(folder: ModelFolder) -> int:
    """Bytes of external data; a small model without any has its weights in the graph's file."""
    from ort_aie_ep.models.onnx_file import external_files, load_model

    files = external_files(load_model(folder.model)) or {folder.model}
    return sum(path.stat().st_size for path in files)


class _FilledDecoder(Decoder):
    """A decoder whose `length` can be set as if it had been given a prompt."""

    def fill(self) -> None:
        """Writes small random numbers into every row, because zeros may share a page of memory.

        Raises:
            AieError: the caches grow with the sequence.
        """
        if not self._shared:
            raise AieError(
                "past and present do not share a buffer: set search.past_present_share_buffer in "
                "genai_config.json"
            )
        generator = np.random.default_rng(0)
        made: dict[tuple[tuple[int, ...], str], npt.NDArray[Any]] = {}
        for cache in self._caches:
            key = (cache.shape, cache.type)
            if key not in made:
                made[key] = _small_numbers(generator, *key)
            self.buffers[cache.past][:] = made[key]


def _small_numbers(
    generator: np.random.Generator, shape: tuple[int, ...], kind: str
) -> npt.NDArray[Any]:
    dtype = TYPES[kind][0]
    if dtype in (np.int8, np.uint8):
        return generator.integers(0, 256, shape, np.uint8).view(dtype)
    return (generator.standard_normal(shape, np.float32) / np.float32(16)).astype(dtype)


class OrtEngine(engines.StepEngine):
    """An InferenceSession with bound caches, with ort_aie_ep's operators if `library` is set."""

    def __init__(self, model: Model, settings: Settings, *, library: bool) -> None:
        folder = find_model(model.path)
        wanted = settings.options if library else {}
        options = Options(wanted.get("target"), wanted.get("numerics"), settings.threads)
        session = open_session(folder.model, options, library=library)
        self._session, self._folder, self._capacity = session, folder, settings.capacity
        self._decoder = _FilledDecoder(session, folder, settings.capacity)
        self._filled = False
        caches = {v.type for v in session.get_inputs() if v.name.startswith("past_key_values.")}
        rows = next(v.shape[1] for v in session.get_outputs() if v.name == "logits")
        self.description = {
            "version": f"onnxruntime {runtime_version()}",
            "threads": str(settings.threads),
            "logits": "of the last position" if rows == 1 else "of all positions",
            "KV": ", ".join(sorted(kind[len("tensor(") : -1] for kind in caches)),
        }
        if library:
            from ort_aie_ep.runtime.kernels import chosen_kernels, kernels_line, tried_kernels

            self.description |= {
                "version": f"ort_aie_ep {ort_aie_ep.__version__}, {self.description['version']}",
                "kernels": kernels_line(chosen_kernels(), tried_kernels()),
                "numerics": options.numerics or "auto",
            }

    def reset(self) -> None:
        """See `StepEngine`."""
        self._decoder.reset()

    def forward(self, tokens: Sequence[int]) -> int:
        """See `StepEngine`."""
        return int(np.argmax(self._decoder.prefill(np.asarray(tokens, np.int64))))

    def decode_at(self, total: int, count: int) -> float:
        """See `Engine`; the caches must share a buffer."""
        if not self._filled:
            self._decoder.fill()
            self._filled = True
        token, start = 0, time.perf_counter()
        for _ in range(count):
            self._decoder.length = total - 1
            token = self.forward([token])
        return time.perf_counter() - start

    def batch_at(self, length: int, sequences: int, tokens: int, count: int) -> float:
        """See `Engine`; the caches must share a buffer."""
        decoder = _FilledDecoder(self._session, self._folder, self._capacity, sequences)
        decoder.fill()
        rows = engines.different_tokens(sequences, tokens)

        def call() -> None:
            decoder.length = length
            decoder.forward(rows)

        return engines.seconds_after_one(call, count)
