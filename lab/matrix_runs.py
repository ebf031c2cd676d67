"""Runs any language model on the same tokens, for check_model_matrix.py to compare."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

# Pieces of one sequence: a prompt, single tokens, a second turn on the filled cache, one token.
PIECES = (21, 1, 1, 1, 9, 1)
# A padded batch: lengths of its prompts, and the number of single tokens after them.
LENGTHS, STEPS = (17, 6, 11), 3
FLIPPED = 0.1
CAPACITY = 64
SLIDING_DIM, WINDOW_SLACK = "past_sliding_length", 16

TYPES: dict[str, tuple[Any, int]] = {
    "tensor(float)": (np.float32, TensorProto.FLOAT),
    "tensor(float16)": (np.float16, TensorProto.FLOAT16),
    "tensor(bfloat16)": (ml_dtypes.bfloat16, TensorProto.BFLOAT16),
    "tensor(int64)": (np.int64, TensorProto.INT64),
    "tensor(int32)": (np.int32, TensorProto.INT32),
    "tensor(bool)": (np.bool_, TensorProto.BOOL),
}


class CannotFeedError(Exception):
    """The model has an input that this script does not know."""


@dataclass
class _State:
    """A state: an input (past) and the output that continues it (present)."""

    past: str
    present: str
    value: Any
    shared: bool


class Runner:
    """Feeds tokens to a session, whatever its inputs are called.

    It pads a batch on the right if caches are shared, as onnxruntime-genai does, and otherwise on
    the left, as transformers does.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, genai: dict[str, Any], batch: int
    ) -> None:
        self.session = session
        self._genai = genai
        self._outputs = [output.name for output in session.get_outputs()]
        self._shared = bool(genai.get("search", {}).get("past_present_share_buffer", False))
        self._mask = np.zeros((batch, 0), np.int64)
        self._states = [s for s in map(self._state, session.get_inputs()) if s is not None]
        presents = {state.present for state in self._states}
        # In a padded batch, the rows' windows differ, which ONNX Runtime refuses.
        self.windowed = any(info.shape[2:3] == [SLIDING_DIM] for info in session.get_inputs())
        own = [name for name in self._outputs if name not in presents]
        self.output = "logits" if "logits" in own else own[0]

    def run(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs (tokens, width) for each row's next tokens; one token if the graph prunes."""
        count = max(map(len, rows))
        tokens = np.zeros((len(rows), count), np.int64)
        shown = np.zeros_like(tokens)
        for index, row in enumerate(rows):
            at = slice(len(row)) if self._shared else slice(count - len(row), None)
            tokens[index, at], shown[index, at] = row, 1
        self._mask = np.concatenate([self._mask, shown], 1)
        binding = self.session.io_binding()
        held = []  # a binding does not keep Python objects alive
        states = {state.past: state for state in self._states}
        for info in self.session.get_inputs():
            if info.name in states:
                value = states[info.name].value
            else:
                value = _ort_value(self._feed(info, tokens), info.type)
            held.append(value)
            binding.bind_ortvalue_input(info.name, value)
        by_present = {state.present: state for state in self._states}
        for name in self._outputs:
            if name in by_present and by_present[name].shared:
                binding.bind_ortvalue_output(name, by_present[name].value)
            else:
                binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        results = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        for state in self._states:
            if not state.shared:
                value = results[state.present]
                state.value = _ort_value(_numpy(value), _type(value))
        logits = _numpy(results[self.output]).astype(np.float32)
        if logits.shape[1] == count:
            return [part[of == 1] for part, of in zip(logits, shown, strict=True)]
        # If the graph prunes to the last column, shorter rows of a prompt have padding there.
        return [part for part, row in zip(logits, rows, strict=True) if len(row) == count]

    def _feed(self, info: Any, tokens: np.ndarray) -> np.ndarray:
        dtype, rank = TYPES[info.type][0], len(info.shape)
        batch, count = tokens.shape
        if info.name in ("input_ids", "decoder_input_ids"):
            return tokens.astype(dtype)
        if info.name == "attention_mask" and rank == 2:
            return self._mask.astype(dtype)
        if info.name == "position_ids":
            positions = np.maximum(np.cumsum(self._mask, 1) - 1, 0)[:, -count:]
            shape = positions.shape if rank == 2 else (info.shape[0], *positions.shape)
            return np.broadcast_to(positions, shape).astype(dtype)
        if info.name == "inputs_embeds":
            table = np.random.default_rng(5).normal(0, 0.1, (1024, info.shape[2]))
            return table[tokens].astype(dtype)
        if all(isinstance(dim, int) for dim in info.shape[1:]):  # an encoder's output
            return np.random.default_rng(6).normal(0, 1, (batch, *info.shape[1:])).astype(dtype)
        raise CannotFeedError(f"input {info.name} {info.type} {info.shape}")

    def _state(self, info: Any) -> _State | None:
        present = next(
            (
                name
                for name in (
                    info.name.replace("past_key_values", "present"),
                    info.name.replace("past_", "present_"),
                    info.name.replace("past", "present"),
                )
                if name != info.name and name in self._outputs
            ),
            None,
        )
        if present is None:
            return None
        dims = list(info.shape)
        growing = len(dims) == 4 and not isinstance(dims[2], int)
        dims[0] = len(self._mask)
        if growing:
            dims[2] = self._rows(dims[2]) if self._shared else 0
            if not isinstance(dims[3], int):
                dims[3] = self._genai.get("model", {}).get("decoder", {}).get("head_size")
        if not all(isinstance(dim, int) for dim in dims):
            raise CannotFeedError(f"input {info.name} {info.type} {info.shape}")
        value = _ort_value(np.zeros(dims, TYPES[info.type][0]), info.type)
        return _State(info.name, present, value, growing and self._shared)

    def _rows(self, name: str) -> int:
        section = self._genai["model"]["decoder"].get("sliding_window", {})
        window = section.get("window_size", CAPACITY)
        return window + WINDOW_SLACK if name == SLIDING_DIM else CAPACITY


def genai_config(folder: Path) -> dict[str, Any]:
    """The folder's genai_config.json; empty if it does not exist."""
    file = folder / "genai_config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def rows_of(
    session: onnxruntime.InferenceSession, folder: Path, vocabulary: int
) -> list[np.ndarray]:
    """The model's outputs for the seeded tokens of PIECES, and of a batch of LENGTHS."""
    rng = np.random.default_rng(11)
    runner = Runner(session, genai_config(folder), 1)
    rows = []
    for count in PIECES:
        rows += runner.run([rng.integers(3, vocabulary, count)])
    if runner.windowed:
        return rows
    runner = Runner(session, genai_config(folder), len(LENGTHS))
    for lengths in (LENGTHS, *[(1,) * len(LENGTHS)] * STEPS):
        rows += runner.run([rng.integers(3, vocabulary, count) for count in lengths])
    return rows


def distance(
    actual: list[np.ndarray], expected: list[np.ndarray], *, routed: bool = False
) -> float:
    """Norm of the difference over the norm of the expected rows.

    If the graph gives only the last rows, only those count. If tokens are `routed` to experts, the
    fraction FLIPPED with the largest differences does not count: a router with a near-tie chooses
    another expert at any rounding, and all logits change.
    """
    if len(actual) < len(expected):  # shorter rows of a padded prompt are missing
        longest = len(PIECES) + int(np.argmax(LENGTHS))
        missing = set(range(len(PIECES), len(PIECES) + len(LENGTHS))) - {longest}
        expected = [e for i, e in enumerate(expected) if i not in missing]
    of_actual = np.concatenate(actual)
    of_expected = np.concatenate([e[-len(a) :] for a, e in zip(actual, expected, strict=True)])
    differences = np.linalg.norm(of_actual - of_expected, axis=1)
    sizes = np.linalg.norm(of_expected, axis=1)
    if routed:
        kept = np.argsort(differences / sizes)[: int(len(sizes) * (1 - FLIPPED))]
        differences, sizes = differences[kept], sizes[kept]
    return float(np.linalg.norm(differences) / np.linalg.norm(sizes))


def with_accuracy_level(source: Path, destination: Path, level: int) -> Path:
    """Writes the model, beside its data, with this accuracy_level at each MatMulNBits."""
    model = onnx.load(source, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            kept = [a for a in node.attribute if a.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("accuracy_level", level)])
    onnx.save(model, destination)
    return destination


def _ort_value(array: np.ndarray, type_name: str) -> Any:
    array = np.ascontiguousarray(array)
    raw = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, TYPES[type_name][1])


def _type(value: Any) -> str:
    return re.sub(r"\s", "", value.data_type())


def _numpy(value: Any) -> np.ndarray:
    """A copy of the value; OrtValue.numpy() does not support bfloat16."""
    if _type(value) != "tensor(bfloat16)":
        return value.numpy().copy()
    import ctypes

    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), int(np.prod(shape)) * 2)
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape).copy()
