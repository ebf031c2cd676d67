"""Loads ONNX files safely: reports damage before anything is computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import inside, is_missing, is_regular, read_regular
from ort_aie_ep.models.onnx_check import check_model

_CONTRIBUTED = "com.microsoft"


def is_compiled(model: ir.Model) -> bool:
    """Whether `ort-aie compile` made it."""
    return "ort_aie.format" in model.metadata_props


def load_model(path: Path) -> ir.Model:
    """Loads an ONNX file, leaving weights on disk, checks it, and sorts its nodes if needed.

    Calls of the model's own functions are replaced by the functions' nodes, as in ONNX Runtime, so
    that all nodes are in graphs. Functions in other opsets than the model's stay. So do functions
    in ONNX Runtime's own domain: they say in standard operators what a kernel of ONNX Runtime
    does, for runtimes that lack it, and ONNX Runtime prefers the kernel.

    Raises:
        AieError: the file is not an ONNX model; `check_model` refuses a graph or tensor; a tensor
            has no data; external data is outside the folder, missing, truncated, or of a length
            that does not match the tensor.
    """
    proto, unsorted = read_graph(path)
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx_ir raises many kinds
        cause: BaseException = error  # the first; onnx_ir's own say where, not what
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        raise AieError(f"{path} cannot be read as an ONNX model: {cause}") from error
    if model.functions and _speak_one_language(model):
        try:
            common_passes.InlinePass(lambda function: function.domain != _CONTRIBUTED)(model)
        except Exception as error:  # onnx_ir raises many kinds
            raise AieError(f"{path}: its functions cannot be inlined: {error}") from error
    _resolve_external(model, path)
    for node in model.graph.all_nodes():
        if node.domain:  # ONNX Runtime imports its domains by itself; shape inference does not
            model.graph.opset_imports.setdefault(node.domain, 1)
    if unsorted:
        model.graph.sort()
    return model


def read_graph(path: Path) -> tuple[onnx.ModelProto, bool]:
    """Reads an ONNX file without its external data; also whether its nodes must be sorted.

    Raises:
        AieError: the file is not an ONNX model; `check_model` refuses a graph or tensor.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(read_regular(path))
    except OSError as error:
        raise AieError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # protobuf's share an untyped base class
        raise AieError(f"{path} cannot be read as an ONNX model: {error}") from error
    return proto, check_model(proto, path)


def _speak_one_language(model: ir.Model) -> bool:
    """Whether each function uses the model's version of every opset that both import."""
    return all(
        model.opset_imports.get(domain, version) == version
        for function in model.functions.values()
        for domain, version in function.opset_imports.items()
    )


def external_files(model: ir.Model) -> set[Path]:
    """The external data files of the initializers of a loaded model."""
    return {Path(tensor.path) for _, tensor in _external_initializers(model)}


def _external_initializers(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _resolve_external(model: ir.Model, path: Path) -> None:
    """Checks where external tensors have their data, and makes them read it there."""
    for value, tensor in _external_initializers(model):
        value.const_value = _resolved(path, tensor)
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR:
                if isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _read(path, attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                tensors = list(attribute.value)
                if any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
                    node.attributes[name] = ir.AttrTensors(name, [_read(path, t) for t in tensors])


def _read(path: Path, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Reads an attribute's tensor into memory: only initializers are written to a data file."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    found = _resolved(path, tensor)
    return ir.Tensor(found.numpy(), dtype=found.dtype, name=found.name)


class _CheckedTensor(ir.ExternalTensor):
    """An external tensor that reads its data where `_check_external` found it.

    With a base_dir, onnx_ir would refuse symbolic links out of the folder (every snapshot in a
    Hugging Face cache) and files with hard links (every file that uv installs).
    """

    __slots__ = ("_folder",)

    def __init__(self, folder: Path, tensor: ir.ExternalTensor) -> None:
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
        )
        self._folder = folder

    @property
    def path(self) -> str:
        return str(self._folder / self.location)


def _resolved(path: Path, tensor: ir.ExternalTensor) -> _CheckedTensor:
    found = _CheckedTensor(path.parent, tensor)
    _check_external(path, found)
    return found


def _check_external(model: Path, tensor: ir.ExternalTensor) -> None:
    where = f"{model.name}: tensor '{tensor.name}' has its data in '{tensor.location}'"
    file = Path(tensor.path)
    if not inside(model.parent, file):
        raise AieError(f"{where}, outside the model's folder")
    if not is_regular(file):
        raise AieError(
            f"{where}, which is {'missing' if is_missing(file) else 'not a regular file'}"
        )
    # The size from type and shape, not the length that the model claims.
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
