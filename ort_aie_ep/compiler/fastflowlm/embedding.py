"""The embedding of a model as rows of bfloat16, however its graph looks them up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.models.shapes import Shape

# Rows that are widened and rounded at a time: whole blocks.
ROWS = 2048
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class Embedding:
    """Rows of a table, times a factor.

    Attributes:
        shape: (vocabulary, hidden).
        table: floats of that shape or, `transposed`, of the other; or Q4NX blocks.
        transposed: whether the graph transposes the table first (one that is the lm_head's too).
        factor: what the graph multiplies rows by (Gemma, by √hidden).
        initializers: names of the initializers that it reads.
    """

    shape: tuple[int, int]
    table: ir.TensorProtocol
    transposed: bool
    factor: np.float32
    initializers: frozenset[str]

    @classmethod
    def of(cls, path: Path, graph: ir.Graph, shape: Shape) -> Embedding:
        """What a graph looks up with its input_ids.

        Raises:
            AieError: it is not a table of floats or of 4 bits, or of another size than `shape`.
        """
        gathers = [
            node
            for node in graph
            if node.op_type in ("Gather", "Q4NXGather")
            and any(value is not None and value.name == "input_ids" for value in node.inputs)
        ]
        value = gathers[0].inputs[0] if len(gathers) == 1 else None
        producer = None if value is None else value.producer()
        transposed = producer is not None and producer.op_type == "Transpose"
        if producer is not None and transposed:
            value = producer.inputs[0]
        table = None if value is None else value.const_value
        if value is None or table is None or value.name is None:
            raise AieError(f"{path}: nothing looks up input_ids in a constant table of embeddings")
        dims = (shape.vocab, shape.hidden)
        floats = gathers[0].op_type == "Gather"
        expected = dims if floats else q4nx.blocks_shape(*dims)
        given = tuple(table.shape.numpy())
        fits = (given[::-1] if transposed else given) == expected
        if not fits or floats != (table.dtype in FLOATS):
            raise AieError(
                f"{path}: '{value.name}' is {table.dtype} {given}; a .q4nx file's embedding is "
                f"made from floats or from weights of 4 bits, by config.json {dims}"
            )
        factor, names = _factor(gathers[0].outputs[0])
        return cls(dims, table, transposed, factor, frozenset({value.name, *names}))

    def chunks(self) -> Iterator[npt.NDArray[Any]]:
        """Its rows in bfloat16, some at a time.

        Raises:
            AieError: one is not finite.
        """
        vocab, hidden = self.shape
        data = self.table.numpy()
        data = data.T if self.transposed else data
        for first in range(0, vocab, ROWS):
            last = min(vocab, first + ROWS)
            if self.table.dtype == ir.DataType.UINT8:
                blocks = data[first // q4nx.BLOCK_ROWS : -(-last // q4nx.BLOCK_ROWS)]
                rows = _native.dequantize(blocks, last - first, hidden)
            else:
                rows = data[first:last].astype(np.float32)
            rounded = (rows * self.factor).astype(q4nx.bfloat16)
            if not np.isfinite(rounded.astype(np.float32)).all():
                raise AieError("the embedding holds NaN or infinities, or values too large")
            yield rounded


def _factor(rows: ir.Value) -> tuple[np.float32, set[str]]:
    """The constant that rows are multiplied by, behind a Cast or not, and its name."""
    users = [*rows.consumers()]
    if len(users) != 1:
        return np.float32(1), set()
    (user,) = users
    if user.op_type == "Cast":
        return _factor(user.outputs[0])
    if user.op_type != "Mul":
        return np.float32(1), set()
    for value in user.inputs:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor.size == 1 and value is not None:
            return np.float32(tensor.numpy().item()), {str(value.name)}
    return np.float32(1), set()
