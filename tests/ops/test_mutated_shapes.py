"""Each claimed operator with each of its tensors in another shape, through both doors, beside ONNX
Runtime's own operators: what they refuse is never computed, and what they compute is the same.

tests/ops/test_attention_doors.py does the same for attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper
from op_models import ORT_VERSION, onnx_tensor, open_session, run
from provider_calls import provider_session, registered

from ort_aie_ep.graph_passes import run_passes

Array = npt.NDArray[np.generic]
MICROSOFT = "com.microsoft"
ROWS, K, N = 3, 64, 96
# All numbers are positive, so that a sum is as exact as its terms. The kernels round activations,
# weights and scales to bfloat16, 2^-8 each, in at most two products and a norm.
TOLERANCE = 8 * 2.0**-8


@dataclass(frozen=True)
class Case:
    """Nodes, and the tensors that they read: constants, and `inputs` that a call gives."""

    nodes: list[onnx.NodeProto]
    tensors: dict[str, Array]
    inputs: tuple[str, ...]
    # ONNX Runtime's own operator ends the process on weights of another rank.
    ranks: bool = True

    def model(self, tensors: dict[str, Array]) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "mutated",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(tensors[name].dtype), tensors[name].shape
                )
                for name in self.inputs
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [onnx_tensor(name, x) for name, x in tensors.items() if name not in self.inputs],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return model.SerializeToString()


def projection(x: str, y: str, part: str = "", bias: bool = False) -> onnx.NodeProto:
    weights = [f"{part}b", f"{part}scales", f"{part}zero_points"]
    inputs = [x, *weights, *(["", f"{part}bias"] if bias else [])]
    return helper.make_node("MatMulNBits", inputs, [y], name=f"{part}projection", domain=MICROSOFT,
                            K=K, N=N, bits=4, block_size=32, accuracy_level=1)  # fmt: skip


def floats(*shape: int) -> Array:
    return np.random.default_rng(shape).uniform(0.5, 1, shape).astype(np.float32)


def weights(part: str = "", bits: int = 4) -> dict[str, Array]:
    codes = np.random.default_rng(bits).integers(0, 256, (N, K // 32, 4 * bits), np.uint8)
    zero_points = np.zeros((N, -(-K // 32 * bits // 8)), np.uint8)
    return {
        f"{part}b": codes,
        f"{part}scales": floats(N, K // 32),
        f"{part}zero_points": zero_points,
    }


def norm(op_type: str, inputs: list[str], domain: str) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, ["normed"], name="norm", domain=domain, epsilon=1e-5)


X = {"x": floats(1, ROWS, K)}
EXPERTS, TOKENS = 4, 5
QMOE = helper.make_node(
    "QMoE", ["x", "router", "fc1", "fc1_scales", "fc1_bias", "fc2", "fc2_scales", "fc2_bias"],
    ["y"],
    name="experts", domain=MICROSOFT, k=2, activation_type="silu", expert_weight_bits=4,
    block_size=32, normalize_routing_weights=1,
)  # fmt: skip


def codes_of(*shape: int) -> Array:
    # Codes above the zero point of 8 alone: positive weights.
    return np.random.default_rng(shape).integers(9, 16, (*shape, 2)).astype(np.uint8) @ np.array(
        [1, 16], np.uint8
    )


CASES = {
    "MatMulNBits": Case(
        [projection("x", "y", bias=True)], X | weights() | {"bias": floats(N)}, ("x",)
    ),
    "SimplifiedLayerNormalization": Case(
        [norm("SimplifiedLayerNormalization", ["x", "gamma"], ""), projection("normed", "y")],
        X | weights() | {"gamma": floats(K)}, ("x",),
    ),
    "SkipSimplifiedLayerNormalization": Case(
        [norm("SkipSimplifiedLayerNormalization", ["x", "skip", "gamma"], MICROSOFT),
         projection("normed", "y")],
        X | weights() | {"skip": floats(1, ROWS, K), "gamma": floats(K)}, ("x", "skip"),
    ),
    "Add": Case(
        [projection("x", "p"), helper.make_node("Add", ["p", "residual"], ["y"], name="add")],
        X | weights() | {"residual": floats(1, ROWS, N)}, ("x", "residual"),
    ),
    "Mul": Case(
        [projection("x", "p"), helper.make_node("Mul", ["factor", "p"], ["y"], name="mul")],
        X | weights() | {"factor": floats(1, ROWS, N)}, ("x", "factor"),
    ),
    "Gather": Case(
        [helper.make_node("Gather", ["table", "tokens"], ["e"], name="embedding"),
         projection("e", "y")],
        weights() | {"table": floats(7, K), "tokens": np.array([[1, 0, 6]])}, ("tokens",),
    ),
    "GatherBlockQuantized": Case(
        [helper.make_node("Reshape", ["b", "rows"], ["flat"], name="flatten"),
         helper.make_node("GatherBlockQuantized", ["flat", "tokens", "scales", "zero_points"],
                          ["e"], name="embedding", domain=MICROSOFT, bits=4, block_size=32,
                          gather_axis=0, quantize_axis=1),
         projection("e", "y")],
        weights() | {"rows": np.array([N, K // 2]), "tokens": np.array([[1, 0, 6]])}, ("tokens",),
    ),
    "QMoE": Case(
        [QMOE],
        {"x": floats(TOKENS, K), "router": floats(TOKENS, EXPERTS),
         "fc1": codes_of(EXPERTS, N, K // 2), "fc1_scales": floats(EXPERTS, N, K // 32),
         "fc1_bias": floats(EXPERTS, N), "fc2": codes_of(EXPERTS, K, N // 2),
         "fc2_scales": floats(EXPERTS, K, N // 32), "fc2_bias": floats(EXPERTS, K)},
        ("x", "router"),
        ranks=False,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    if ORT_VERSION < (1, 24):
        yield
        return
    with registered():
        yield


def mutations(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Of another rank, transposed, one longer, one shorter, in each dimension."""
    size = int(np.prod(shape))
    changed = {(*shape, 1), (1, *shape), shape[:-1], (size,), *itertools.permutations(shape)}
    for axis, by in itertools.product(range(len(shape)), (1, -1)):
        changed.add((*shape[:axis], shape[axis] + by, *shape[axis + 1 :]))
    # ONNX Runtime's own norm divides by zero where its skip is empty, and ends the process.
    return sorted(other for other in changed - {shape} if 0 not in other)


def compiled(model: bytes) -> onnxruntime.InferenceSession:
    rewritten = ir.from_proto(onnx.load_from_string(model))
    run_passes(rewritten)
    return open_session(ir.to_proto(rewritten).SerializeToString())


DOORS: dict[str, Callable[[bytes], onnxruntime.InferenceSession]] = {"compiled": compiled}
if ORT_VERSION >= (1, 24):
    DOORS["provider"] = provider_session


def result(
    opening: Callable[[bytes], onnxruntime.InferenceSession],
    model: bytes,
    inputs: dict[str, Array],
) -> Array | None:
    """y, or None where the model does not open or does not run."""
    try:
        return run(opening(model), inputs)["y"]
    except Exception:
        return None


def assert_same(name: str, model: bytes, inputs: dict[str, Array]) -> Array | None:
    """Asserts that both doors refuse what ONNX Runtime refuses, and give what it gives."""
    expected = result(open_session, model, inputs)
    for door, opening in DOORS.items():
        y = result(opening, model, inputs)
        # Older versions of ONNX Runtime check less than the newest, and so less than both doors.
        refuses = expected is None or (y is None and ORT_VERSION < (1, 32))
        assert (y is None) == refuses, (door, name)
        if y is not None:
            np.testing.assert_allclose(y, expected, rtol=TOLERANCE, err_msg=f"{door}, {name}")
    return expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_onnx_runtime_refuses_is_not_computed(case: Case) -> None:
    def check(tensors: dict[str, Array], what: str) -> Array | None:
        return assert_same(what, case.model(tensors), {i: tensors[i] for i in case.inputs})

    assert check(case.tensors, "as it should be") is not None
    shared = () if case is CASES["MatMulNBits"] else weights()
    for name, tensor in case.tensors.items():
        if name in shared and case is not CASES["GatherBlockQuantized"]:
            continue
        for shape in mutations(tensor.shape):
            if not case.ranks and len(shape) != tensor.ndim:
                continue
            check(case.tensors | {name: np.resize(tensor, shape)}, f"{name} of {shape}")
