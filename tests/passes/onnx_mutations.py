"""ONNX files damaged by accident or on purpose: seeded, so that a failure can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

INTEGERS = (0, -1, 1, 2, 3, 7, 31, 2**31, 2**62, -(2**63), 2**63 - 1, 4096)
TEXTS = ("", "x", "/", "..", "n" * 3000)
TYPES = (0, 1, 2, 3, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 23, 99, -1)
OPERATORS = (
    "", "If", "Loop", "Constant", "Cast", "Reshape", "MatMulNBits", "GroupQueryAttention",
    "Identity", "Attention", "ConstantOfShape", "DequantizeLinear",
)  # fmt: skip
VALUES: tuple[Any, ...] = (1.5, "s", [1, 2], [1.0], ["a"], -1, 0, 2**62, float("nan"))


class _Mutator:
    """Makes one mutation per call; `pick` chooses from a sequence."""

    def __init__(self, model: onnx.ModelProto, generator: np.random.Generator) -> None:
        self.model, self.graph, self.generator = model, model.graph, generator
        self.node, self.tensor = self.pick(self.graph.node), self.pick(self.graph.initializer)

    def pick(self, choices: Any) -> Any:
        return choices[int(self.generator.integers(len(choices)))]

    def results(self) -> list[str]:
        return [name for node in self.graph.node for name in node.output]

    def of_tensor(self) -> None:
        tensor = self.tensor
        match self.generator.integers(5):
            case 0:
                tensor.data_type = self.pick(TYPES)
            case 1 if tensor.dims:
                tensor.dims[int(self.generator.integers(len(tensor.dims)))] = self.pick(INTEGERS)
            case 2:
                tensor.dims.append(self.pick(INTEGERS))
            case 3:
                tensor.ClearField(self.pick(("raw_data", "dims", "name", "data_type")))
            case _:
                tensor.name = self.pick([t.name for t in self.graph.initializer] + [*TEXTS])

    def of_external_data(self) -> None:
        keys, values = ("location", "offset", "length", "x"), ("..", "-1", "9" * 40, "x", "1e9")
        self.tensor.external_data.add(key=self.pick(keys), value=self.pick(values))
        self.tensor.data_location = onnx.TensorProto.EXTERNAL

    def of_edges(self) -> None:
        node = self.node
        match self.generator.integers(5):
            case 0:
                del node.input[int(self.generator.integers(len(node.input) + 1)) :]
            case 1:
                del node.output[:]
            case 2 if node.input:
                node.input[int(self.generator.integers(len(node.input)))] = self.pick(
                    [*self.results(), "", "nowhere"]
                )
            case 3:
                node.output[0] = self.pick([*self.results(), ""])
            case _:
                self.pick(self.graph.output).name = self.pick(["nowhere", "", *self.results()])

    def of_attributes(self) -> None:
        if not self.node.attribute:
            return
        attribute = self.pick(self.node.attribute)
        match self.generator.integers(4):
            case 0:
                attribute.type = self.pick(range(15))
            case 1:
                changed = helper.make_attribute(attribute.name, self.pick(VALUES))
                attribute.CopyFrom(changed)
            case 2:
                attribute.i = self.pick(INTEGERS)
            case _:
                del self.node.attribute[int(self.generator.integers(len(self.node.attribute)))]

    def of_nodes(self) -> None:
        node, graph = self.node, self.graph
        match self.generator.integers(6):
            case 0:
                node.op_type = self.pick(OPERATORS)
            case 1:
                node.domain = self.pick(["", "com.microsoft", "aie", "x.y", "ai.onnx"])
            case 2:
                node.name = self.pick([n.name for n in graph.node] + [*TEXTS])
            case 3:
                graph.node.add().CopyFrom(node)
            case 4:
                texts = [n.SerializeToString() for n in graph.node]
                del graph.node[:]
                for index in self.generator.permutation(len(texts)):
                    graph.node.add().ParseFromString(texts[int(index)])
            case _:
                inner = graph.SerializeToString()
                body = node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH)
                body.g.ParseFromString(inner)

    def of_interface(self) -> None:
        value = self.pick(self.graph.input)
        match self.generator.integers(5):
            case 0:
                value.ClearField("type")
            case 1:
                value.type.tensor_type.elem_type = self.pick(TYPES)
            case 2 if value.type.tensor_type.shape.dim:
                self.pick(value.type.tensor_type.shape.dim).dim_value = self.pick(INTEGERS)
            case 3:
                value.name = self.pick([*TEXTS, *self.results()])
            case _:
                self.model.opset_import.add(
                    domain=self.pick(["", "com.microsoft"]), version=self.pick(INTEGERS)
                )


_KINDS: tuple[Callable[[_Mutator], None], ...] = (
    _Mutator.of_tensor, _Mutator.of_external_data, _Mutator.of_edges, _Mutator.of_edges,
    _Mutator.of_attributes, _Mutator.of_nodes, _Mutator.of_interface,
)  # fmt: skip


def mutations(model: onnx.ModelProto, seed: int, count: int) -> Iterator[bytes]:
    """`count` files: `model` with one to three mutations, or cut off."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        mutated = onnx.ModelProto()
        mutated.CopyFrom(model)
        for _ in range(int(generator.integers(1, 4))):
            mutator = _Mutator(mutated, generator)
            mutator.pick(_KINDS)(mutator)
        data = mutated.SerializeToString()
        cut = generator.random() < 0.1
        yield data[: int(generator.integers(len(data)))] if cut else data
