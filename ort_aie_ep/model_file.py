"""Loading ONNX files safely: damage is named before anything is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ort_aie_ep.errors import AieError
from ort_aie_ep.files import is_missing, is_regular, read_regular
from ort_aie_ep.model_check import check_model
from ort_aie_ep.model_folder import inside


def is_compiled(model: ir.Model) -> bool:
    """Whether `ort-aie compile` made it."""
    return "ort_aie.format" in model.metadata_props


def load_model(path: Path) -> ir.Model:
    """Loads an ONNX file, weights left on disk, checks it, and sorts its nodes if they are not.

    Raises:
        AieError: no ONNX model; a graph or tensor that cannot be, as `check_model` says; a tensor
            without data; external data outside the folder, missing, truncated, or of a length that
            does not fit the tensor.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(read_regular(path))
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's have a base class without types
        raise AieError(f"{path} cannot be read as an ONNX model: {error}") from error
    unsorted = check_model(proto, path)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx_ir raises many kinds
        cause: BaseException = error  # the first one; onnx_ir's own say where, not what
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        raise AieError(f"{path} cannot be read as an ONNX model: {cause}") from error
    for tensor in _external_tensors(model):
        tensor.base_dir = path.parent
        _check_external(path, tensor)
    for node in model.graph.all_nodes():
        if node.domain:  # ONNX Runtime imports its own by itself; shape inference does not
            model.graph.opset_imports.setdefault(node.domain, 1)
    if unsorted:
        model.graph.sort()
    return model


def external_files(model: ir.Model) -> set[Path]:
    """The external data files that a loaded model reads."""
    return {Path(tensor.path) for tensor in _external_tensors(model)}


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR:
                    tensors = [attribute.value]
                elif attribute.type == ir.AttributeType.TENSORS:
                    tensors = list(attribute.value)
                else:
                    continue
                yield from (t for t in tensors if isinstance(t, ir.ExternalTensor))


def _check_external(model: Path, tensor: ir.ExternalTensor) -> None:
    where = f"{model.name}: tensor '{tensor.name}' has its data in '{tensor.location}'"
    file = Path(tensor.path)
    if not inside(model.parent, file):
        raise AieError(f"{where}, outside the model's folder")
    if not is_regular(file):
        raise AieError(
            f"{where}, which is {'missing' if is_missing(file) else 'not a regular file'}"
        )
    # The size by type and shape, not the length that the model claims.
    size = -(-tensor.size * tensor.dtype.bitwidth // 8)
    if tensor.length is not None and tensor.length != size:
        raise AieError(
            f"{where}: {tensor.length} bytes are given, but {tensor.dtype.name} "
            f"{tuple(tensor.shape.numpy())} needs {size}"
        )
    end = (tensor.offset or 0) + size
    actual = file.stat().st_size
    if end > actual:
        raise AieError(f"{where} up to byte {end}, but the file ends at {actual}: it is truncated")
