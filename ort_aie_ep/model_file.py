"""Loading ONNX files safely: damage is named before anything is computed from it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.model_folder import inside

# Where a TensorProto without raw_data has its values, by type.
TYPED_DATA = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def is_compiled(model: ir.Model) -> bool:
    """Whether `ort-aie compile` made it."""
    return "ort_aie.format" in model.metadata_props


def load_model(path: Path) -> ir.Model:
    """Loads an ONNX file, weights left on disk, and checks that they are there.

    Raises:
        AieError: no ONNX model; a tensor without data; external data outside the folder, missing,
            truncated, or of a length that does not fit the tensor.
    """
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise many kinds
        cause: BaseException = error  # the first one; onnx_ir's own say where, not what
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        raise AieError(f"{path} cannot be read as an ONNX model: {cause}") from error
    if not len(model.graph):
        raise AieError(f"{path} holds no graph: it is empty or no ONNX model")
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                _check_external(path, value.const_value)
            elif isinstance(value.const_value, ir.TensorProtoTensor):
                _check_inline(path, value.const_value)
    return model


def external_files(model: ir.Model) -> set[Path]:
    """The external data files that a loaded model reads."""
    return {
        Path(value.const_value.path)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }


def _check_external(model: Path, tensor: ir.ExternalTensor) -> None:
    where = f"{model.name}: tensor '{tensor.name}' has its data in '{tensor.location}'"
    file = Path(tensor.path)
    if not inside(model.parent, file):
        raise AieError(f"{where}, outside the model's folder")
    if not file.is_file():
        raise AieError(f"{where}, which is missing")
    # The size by type and shape, not the length that the model claims.
    size = int(tensor.size * tensor.dtype.itemsize + 0.5)
    if tensor.length is not None and tensor.length != size:
        raise AieError(
            f"{where}: {tensor.length} bytes are given, but {tensor.dtype.name} "
            f"{tuple(tensor.shape.numpy())} needs {size}"
        )
    end = (tensor.offset or 0) + size
    actual = file.stat().st_size
    if end > actual:
        raise AieError(f"{where} up to byte {end}, but the file ends at {actual}: it is truncated")


def _check_inline(model: Path, tensor: ir.TensorProtoTensor) -> None:
    proto = tensor.raw
    if not proto.HasField("raw_data"):
        if tensor.size and not any(len(getattr(proto, field)) for field in TYPED_DATA):
            raise AieError(
                f"{model.name}: tensor '{tensor.name}', {tensor.dtype.name} "
                f"{tuple(tensor.shape.numpy())}, has no data: the graph was saved without its "
                "weights; export or download the model again, with them"
            )
    elif len(proto.raw_data) != tensor.nbytes:
        raise AieError(
            f"{model.name}: tensor '{tensor.name}' holds {len(proto.raw_data)} bytes, but "
            f"{tensor.dtype.name} {tuple(tensor.shape.numpy())} needs {tensor.nbytes}"
        )
