"""Models with matrices of 8 bits beside 4, as the builder's k_quant_mixed writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

# Of two layers, the rule promotes the first (docs/quantize.md#mixed-widths).
PROMOTED = ("layers.0.attn.qkv_proj.", "layers.0.mlp.down_proj.", "lm_head.")

Codes = npt.NDArray[np.uint8]


def to_k_quant_mixed(model: ir.Model) -> None:
    """Gives the promoted matrices of a model of 4 bits and two layers 8 bits, and the embedding
    that is tied to the lm_head with it.

    The four new bits of each code are random. A weight moves by less than a step of 4 bits.
    """
    rng = np.random.default_rng(11)
    values = model.graph.initializers
    for node in list(model.graph):
        if node.op_type == "MatMulNBits" and any(p in _name(node, 1) for p in PROMOTED):
            codes = _nibbles(_array(node, 1))
            _set(node, 1, codes << 4 | rng.integers(0, 16, codes.shape, np.uint8))
            _set(node, 2, _array(node, 2) / 16)
            if len(node.inputs) > 3:
                blocks = codes.shape[1]
                _set(node, 3, _nibbles(_array(node, 3))[:, :blocks] << 4)
            node.attributes.add(ir.AttrInt64("bits", 8))
        elif node.op_type == "GatherBlockQuantized":
            # Its scales are the lm_head's; its data are the lm_head's codes as (N, K / 2) bytes.
            data = node.inputs[0]
            reshape = data.producer() if data is not None else None
            assert reshape is not None
            rows, row_bytes = _array(reshape, 1)
            shape = ir.tensor(np.array([rows, 2 * row_bytes]), name="embedding.bytes")
            values["embedding.bytes"] = ir.Value(name="embedding.bytes", const_value=shape)
            reshape.replace_input_with(1, values["embedding.bytes"])
            reshape.outputs[0].shape = None
            node.attributes.add(ir.AttrInt64("bits", 8))


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    return "" if value is None or value.name is None else value.name


def _array(node: ir.Node, index: int) -> npt.NDArray[Any]:
    value = node.inputs[index]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    assert tensor is not None
    return tensor.numpy()


def _nibbles(packed: Codes) -> Codes:
    """Twice as many values in the last axis, low half first."""
    both: Codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return both.reshape(*packed.shape[:-1], -1)


def _set(node: ir.Node, index: int, array: npt.NDArray[Any]) -> None:
    value = node.inputs[index]
    assert value is not None
    value.const_value = ir.tensor(array, name=value.name)
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)
