"""The ONNX standard's node tests, and their results in a session.

`onnx.backend.test` builds models and data in memory: one node, or the function that defines
the operator, spelled out (`..._expanded`).
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, compose, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from op_models import BFLOAT16, FLOAT16, ONNX_TYPES, ROUNDOFF, Array, run

OpenSession = Callable[[onnx.ModelProto], onnxruntime.InferenceSession]

RIGHT = "right"
CANNOT_OPEN = "cannot open"
CANNOT_RUN = "cannot run"
WRONG = "wrong"

# The output's 16-bit values are rounded once; the expected ones come from numpy in that type, which
# also rounds scores, probabilities and products.
ROUNDINGS_OF_16_BITS = 4


@dataclass(frozen=True)
class NodeCase:
    """One of the standard's tests.

    Attributes:
        name: the test's name in the standard.
        model: lowered to the newest opset and IR that this ONNX Runtime reads.
        data: (inputs, expected outputs), each in the graph's order.
        rtol: the standard's tolerance.
        atol: the standard's tolerance.
    """

    name: str
    model: onnx.ModelProto
    data: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """The nodes of the graph itself."""
        return {node.op_type for node in self.model.graph.node}

    def is_one(self, operator: str) -> bool:
        """Whether the model is one node with this operator."""
        return self.operators == {operator} and len(self.model.graph.node) == 1

    def fits_its_opset(self) -> bool:
        """Whether none of its nodes, inputs or attributes is newer than the lowered opset."""
        opset = next(entry.version for entry in self.model.opset_import if not entry.domain)
        for node in self.model.graph.node:
            if not onnx.defs.has(node.op_type, opset, node.domain):
                return False
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
            known = {attribute.name for attribute in node.attribute} <= schema.attributes.keys()
            if not known or len(node.input) > schema.max_input:
                return False
        return True


EXPANDED = "_expanded"
# Operators that a pass replaces, fuses with others, or reads on the way to one that it replaces.
OF_INTEREST = {
    "Attention",
    "DequantizeLinear",
    "Gather",
    "Gelu",
    "Gemm",
    "LayerNormalization",
    "MatMul",
    "RMSNormalization",
    "RotaryEmbedding",
    "Softmax",
}
# The standard computes their outputs in Python loops, three quarters of the time that all take; no
# pass and no provider looks at them.
LEFT_OUT = ("averagepool", "lppool", "maxpool")
# Nine tenths of all nodes are in functions spelled out, those of one operator much alike.
ONE_SPELLED_OUT_OF = 4


@cache
def load_cases() -> list[NodeCase]:
    """The cases, in the standard's order, but for LEFT_OUT. Of functions spelled out, only some of
    OF_INTEREST."""
    for name in LEFT_OUT:
        module = f"onnx.backend.test.case.node.{name}"
        sys.modules.setdefault(module, types.ModuleType(module))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some expect infinities, and numpy warns of them
        tests = load_model_tests(kind="node")
    operators = {test.name: {node.op_type for node in test.model.graph.node} for test in tests}
    spelled_out = {name: name.split(EXPANDED)[0] for name in operators if EXPANDED in name}
    kept = [name for name, of in spelled_out.items() if operators.get(of, set()) & OF_INTEREST]
    left = spelled_out.keys() - set(kept[::ONE_SPELLED_OUT_OF])
    return [
        NodeCase(
            test.name,
            _readable(test.model),
            [([_value(v) for v in ins], [_value(v) for v in outs]) for ins, outs in test.data_sets],
            test.rtol,
            test.atol,
        )
        for test in tests
        if test.name not in left
    ]


def outcome(case: NodeCase, open_session: OpenSession, model: onnx.ModelProto | None = None) -> str:
    """RIGHT, or what went wrong and how; `model` replaces the case's own.

    Outputs that the standard does not list (`model` may add some) are ignored.
    """
    try:
        session = open_session(model or case.model)
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        return f"{CANNOT_OPEN}: {_first_line(error)}"
    try:
        for inputs, expected in case.data:
            names = [value.name for value in case.model.graph.input]
            actual = _run(session, dict(zip(names, inputs, strict=True)))
            outputs = [value.name for value in case.model.graph.output]
            for name, value in zip(outputs, expected, strict=True):
                difference = _difference(value, actual[name], case)
                if difference:
                    return f"{WRONG}: {name}: {difference}"
    except Exception as error:
        return f"{CANNOT_RUN}: {_first_line(error)}"
    return RIGHT


# Compiling and opening a model costs more than a node does.
CASES_IN_A_MODEL = 64


def together(cases: list[NodeCase]) -> Iterator[NodeCase]:
    """The cases beside each other in models of many, as far as their opsets and the way in which
    `_run` gives them their values agree."""

    def alike(case: NodeCase) -> tuple[bool, list[tuple[str, int]]]:
        values = [*case.model.graph.input, *case.model.graph.output]
        bfloat16 = any(v.type.tensor_type.elem_type == TensorProto.BFLOAT16 for v in values)
        return bfloat16, sorted((entry.domain, entry.version) for entry in case.model.opset_import)

    for _, same in groupby(sorted(cases, key=alike), alike):
        group = list(same)
        for start in range(0, len(group), CASES_IN_A_MODEL):
            yield _merged(group[start : start + CASES_IN_A_MODEL])


def _merged(cases: list[NodeCase]) -> NodeCase:
    merged = onnx.ModelProto()
    merged.CopyFrom(cases[0].model)
    merged.ir_version = max(case.model.ir_version for case in cases)
    merged.ClearField("graph")
    merged.graph.name = "together"
    inputs: list[Any] = []
    outputs: list[Any] = []
    for case in cases:
        graph = compose.add_prefix_graph(case.model.graph, f"{case.name}.")
        for field in ("node", "input", "output", "initializer", "sparse_initializer", "value_info"):
            getattr(merged.graph, field).extend(getattr(graph, field))
        ((ins, outs),) = case.data  # as all have it that ONNX Runtime runs
        inputs += ins
        outputs += outs
    largest = [max(getattr(case, name) for case in cases) for name in ("rtol", "atol")]
    return NodeCase(", ".join(case.name for case in cases), merged, [(inputs, outputs)], *largest)


def kind(result: str) -> str:
    """The first word of an `outcome`."""
    return result.split(":")[0]


def _run(session: onnxruntime.InferenceSession, feeds: dict[str, Any]) -> dict[str, Any]:
    feeds = {k: v for k, v in feeds.items() if k in {i.name for i in session.get_inputs()}}
    tensors = all(isinstance(v, np.ndarray) and v.dtype in ONNX_TYPES for v in feeds.values())
    if tensors and any("bfloat16" in v.type for v in session.get_inputs() + session.get_outputs()):
        return run(session, feeds)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _difference(expected: Any, actual: Any, case: NodeCase) -> str:
    """How they differ; empty if they agree."""
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"expected {len(expected)} values, got {actual!r:.80}"
        parts = zip(expected, actual, strict=True)
        return next(filter(None, (_difference(e, a, case) for e, a in parts)), "")
    if expected is None or not isinstance(actual, np.ndarray | np.generic):
        return "" if actual is expected else f"expected {expected!r:.80}, got {actual!r:.80}"
    if actual.shape != expected.shape:
        return f"expected shape {expected.shape}, got {actual.shape}"
    if expected.dtype.kind in "OUS":
        return "" if np.array_equal(expected.astype(str), actual.astype(str)) else "other strings"
    if actual.dtype != expected.dtype:
        return f"expected {expected.dtype}, got {actual.dtype}"
    rtol, atol = _tolerance(expected, case)
    if expected.dtype == BFLOAT16:
        expected, actual = expected.astype(np.float32), actual.astype(np.float32)
    if np.allclose(actual, expected, rtol, atol, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        return f"up to {np.max(np.abs(actual - expected)):.3g} of {np.max(np.abs(expected)):.3g}"


def _tolerance(expected: Array, case: NodeCase) -> tuple[float, float]:
    """(relative, absolute). The standard's own, which is for float32, except for 16-bit types."""
    if expected.dtype not in (FLOAT16, BFLOAT16) or not expected.size:
        return case.rtol, case.atol
    finite = np.abs(expected.astype(np.float32))
    largest = float(np.max(finite, where=np.isfinite(finite), initial=0))
    return case.rtol, ROUNDINGS_OF_16_BITS * ROUNDOFF[expected.dtype] * largest


def _value(value: Any) -> Any:
    """The value in the form that a session takes: arrays, lists of arrays, None."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [_value(part) for part in value]
    return value if value is None else np.asarray(value)


def _readable(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with an opset that ONNX Runtime has.

    The standard's newest opset is often ahead of ONNX Runtime's, and most of its operators are the
    same in the one before; if not, the expected outputs show it. ONNX Runtime may still lack
    operators that are new in an opset that it reads.
    """
    opset, ir_version = _newest()
    copy = _lowered(model, opset, ir_version)
    if any(_is_new(node, opset) for node in copy.graph.node) and not _opens(copy):
        return _lowered(model, opset - 1, ir_version)
    return copy


def _lowered(model: onnx.ModelProto, opset: int, ir_version: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, ir_version)
    for entry in copy.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = min(entry.version, opset)
    return copy


def _is_new(node: onnx.NodeProto, opset: int) -> bool:
    """Whether an operator of domain "" is defined, or defined anew, in that opset."""
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, opset, ""):
        return False
    return onnx.defs.get_schema(node.op_type, opset, "").since_version == opset


@cache
def _newest() -> tuple[int, int]:
    """The newest opset of domain "" and the newest IR that ONNX Runtime reads without complaint."""
    opset = next(
        v for v in range(onnx.defs.onnx_opset_version(), 0, -1) if _opens(_relu(v, ir_version=10))
    )
    return opset, next(v for v in range(onnx.IR_VERSION, 0, -1) if _opens(_relu(opset, v)))


def _relu(opset: int, ir_version: int) -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def _opens(model: onnx.ModelProto) -> bool:
    try:
        open_on_cpu(model)
    except Exception:
        return False
    return True


def quiet_options() -> onnxruntime.SessionOptions:
    """One thread, and errors only as exceptions."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def open_on_cpu(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Only ONNX Runtime's own CPU execution provider."""
    return onnxruntime.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )


@cache
def outcomes_on_cpu() -> dict[str, str]:
    """Case → outcome with only ONNX Runtime's CPU execution provider."""
    return {case.name: outcome(case, open_on_cpu) for case in load_cases()}


def _first_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:160]
