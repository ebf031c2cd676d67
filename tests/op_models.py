"""Models of one op, sessions for them, and ways to run them with any dtype and shared buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from code_bytes import pack_codes
from onnx import TensorProto, helper

import ort_aie_ep

Array = npt.NDArray[Any]

ORT_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
# ONNX Runtime's own MatMulNBits and GatherBlockQuantized.
NEEDS_TWO_BITS = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="earlier ones run weights of two bits in few types or in none"
)
# The first whose CPU operator GroupQueryAttention has a KV cache of 8 or 4 bits.
QUANTISED_CACHES = (1, 28)
NEEDS_QUANTISED_CACHES = pytest.mark.skipif(
    ORT_VERSION < QUANTISED_CACHES, reason="no quantised KV cache in ONNX Runtime's own operator"
)

FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Unit roundoff: half the distance from 1 to the next value.
ROUNDOFF = {FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}

ONNX_TYPES = {
    FLOAT32: TensorProto.FLOAT,
    FLOAT16: TensorProto.FLOAT16,
    BFLOAT16: TensorProto.BFLOAT16,
    np.dtype(ml_dtypes.float8_e8m0fnu): 24,  # FLOAT8E8M0, which old packages onnx do not name
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(bool): TensorProto.BOOL,
}
NONE = "ort_aie.none"  # an initializer that stands for an omitted input
NUMPY_TYPES = {onnx_type: dtype for dtype, onnx_type in ONNX_TYPES.items()}


def onnx_tensor(name: str, array: Array) -> onnx.TensorProto:
    """An initializer of any type, bfloat16 included."""
    return helper.make_tensor(
        name, ONNX_TYPES[array.dtype], array.shape, np.ascontiguousarray(array).tobytes(), raw=True
    )


def pack_nibbles(x: Array) -> Array:
    """(N, M) values of 4 bits -> (N, ceil(M / 2)) bytes, low half first."""
    return pack_codes(x, 4)


def one_op_model(
    op_type: str,
    inputs: Mapping[str, Array | None],
    outputs: Mapping[str, npt.DTypeLike],
    attributes: Mapping[str, Any],
    *,
    domain: str = "aie",
    constants: Sequence[str] = (),
    name: str = "the_node",
    fill: bool | None = None,
    dims: Mapping[str, Sequence[int | str]] | None = None,
) -> bytes:
    """A serialised model with one node.

    Args:
        op_type: op of `domain`.
        inputs: the node's inputs in order; None leaves one empty. Graph inputs have their rank and
            type, but no dimensions.
        outputs: the node's outputs and their types.
        attributes: of the node.
        domain: of the node.
        constants: inputs that become initializers.
        name: of the node.
        fill: put the placeholder of compiled models where an input is left empty before others. By
            default only where ONNX Runtime needs it: before 1.24 it crashes on an empty name.
        dims: dimensions of some graph inputs, instead of unknown ones.
    """
    graph_inputs, initializers = [], []
    for key, array in inputs.items():
        if array is None:
            continue
        if key in constants:
            initializers.append(onnx_tensor(key, array))
        else:
            shape = (dims or {}).get(key, [None] * array.ndim)
            graph_inputs.append(helper.make_tensor_value_info(key, ONNX_TYPES[array.dtype], shape))
    names = [key if array is not None else "" for key, array in inputs.items()]
    while names and not names[-1]:
        names.pop()
    if domain == "aie" and "" in names and (ORT_VERSION < (1, 24) if fill is None else fill):
        names = [key or NONE for key in names]
        initializers.append(onnx_tensor(NONE, np.zeros(0, np.float32)))
    node = helper.make_node(
        op_type, names, list(outputs), name=name, domain=domain, **dict(attributes)
    )
    graph_outputs = [
        helper.make_tensor_value_info(key, ONNX_TYPES[np.dtype(dtype)], None)
        for key, dtype in outputs.items()
    ]
    graph = helper.make_graph([node], "graph", graph_inputs, graph_outputs, initializers)
    serialised: bytes = model_of(graph).SerializeToString()
    return serialised


def model_of(graph: onnx.GraphProto, opset: int = 21) -> onnx.ModelProto:
    """A model with the versions that the model builder writes, and ort_aie_ep's domain."""
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(key, 1) for key in ("com.microsoft", "aie")]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def session_options(threads: int = 2) -> onnxruntime.SessionOptions:
    """For `threads` that sleep while they wait. By default ONNX Runtime's threads spin, for longer
    than most of the tests' operators run, on cores that other test processes need."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(
    model: bytes | str, *, threads: int = 2, config: Mapping[str, str] | None = None
) -> onnxruntime.InferenceSession:
    """A CPU session that knows ort_aie_ep's ops. `config` holds session config entries."""
    options = session_options(threads)
    options.register_custom_ops_library(ort_aie_ep.library_path())
    options.log_severity_level = 4  # tests of errors check exceptions, not the log
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, Array | None],
    shared: Mapping[str, str] | None = None,
    *,
    misaligned: bool = False,
) -> dict[str, Array]:
    """Runs a session and returns copies of its outputs by name.

    Args:
        session: the session.
        feeds: graph inputs; None, and inputs that the graph does not have, are skipped.
        shared: output -> the input whose buffer it is bound to. The input's array is left
            untouched.
        misaligned: feed arrays that are aligned to one element only, as slices can be.
    """
    names = {value.name for value in session.get_inputs()}
    arrays = {
        key: _copy(array, misaligned)
        for key, array in feeds.items()
        if array is not None and key in names
    }
    values = {key: _ort_value(array) for key, array in arrays.items()}
    binding = session.io_binding()
    for key, value in values.items():
        binding.bind_ortvalue_input(key, value)
    for output in session.get_outputs():
        if shared and output.name in shared:
            binding.bind_ortvalue_output(output.name, values[shared[output.name]])
        else:
            binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    results = zip(session.get_outputs(), binding.get_outputs(), strict=True)
    return {output.name: _to_numpy(value) for output, value in results}


def _copy(array: Array, misaligned: bool) -> Array:
    flat = np.empty(array.size + 1, array.dtype)
    copy: Array = flat[1:] if misaligned else flat[:-1]
    copy[...] = array.reshape(-1)
    return copy.reshape(array.shape)


def _ort_value(array: Array) -> onnxruntime.OrtValue:
    """A view of `array`, which must outlive it."""
    raw = array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, ONNX_TYPES[array.dtype])


def _to_numpy(value: onnxruntime.OrtValue) -> Array:
    """A copy; OrtValue.numpy() does not support bfloat16."""
    dtype, shape = NUMPY_TYPES[value.element_type()], tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, dtype).reshape(shape).copy()
