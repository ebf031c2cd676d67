"""Widths that onnxruntime-genai's model builder can write, as hand-built graphs: each becomes the
expected operators, or is left with its reason."""

from __future__ import annotations

from itertools import product

import onnx
import onnx_ir as ir
import pytest
from builder_nodes import matmul_nbits, projection_weights, tied_model
from onnx import TensorProto, helper
from op_models import model_of, onnx_tensor
from test_dequantized_weights import weights_model

from ort_aie_ep.graph_passes import run_passes

# `block_size`; `algo_config`, as the bits of body and lm_head; `is_symmetric`.
BLOCKS = (16, 32, 64, 128, 256)
ALGORITHMS = {
    "default, rtn, k_quant": (4, 4),
    "rtn_last, k_quant_last": (4, 8),
    "int8": (8, 8),
}


def decoder_model(
    body: int, head: int, block_size: int, symmetric: bool, k: int = 512
) -> onnx.ModelProto:
    """x -> v_proj -> up_proj -> lm_head, without and with zero points."""
    nodes, initializers = [], {}
    source = "x"
    for name, n, bits in (("v_proj", k, body), ("up_proj", k, body), ("lm_head", 70, head)):
        weights = projection_weights(
            n, k, block_size=block_size, bits=bits, zero_points=not symmetric, prefix=name
        )
        initializers |= weights
        nodes.append(
            matmul_nbits(
                source, f"{name}.y", weights, n, k, block_size=block_size, bits=bits,
                name=f"/{name}/MatMul_Q{bits}",
            )
        )  # fmt: skip
        source = f"{name}.y"
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", k])],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, ["batch", "sequence", 70])],
        [onnx_tensor(name, array) for name, array in initializers.items()],
    )
    return model_of(graph)


def outcomes(model: onnx.ModelProto) -> dict[str, str]:
    """Node → what it became, or why it stayed."""
    report = run_passes(ir.from_proto(model))
    return {o.node: o.becomes or o.reason for o in report.outcomes.values()}


def expected(bits: int, block_size: int) -> str:
    if block_size != 16:
        return "aie.Q4NXMatMul"
    return f"block_size is 16; Q{bits}NX shares a scale among 32 in-features and cannot hold it"


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bits_blocks_and_symmetry(algorithm: str, block_size: int, symmetric: bool) -> None:
    body, head = ALGORITHMS[algorithm]
    found = outcomes(decoder_model(body, head, block_size, symmetric))
    assert found == {
        f"/{name}/MatMul_Q{bits}": expected(bits, block_size)
        for name, bits in (("v_proj", body), ("up_proj", body), ("lm_head", head))
    }


def test_layers_of_eight_bits_beside_four() -> None:
    """k_quant_mixed: some v_proj and down_proj have 8 bits, in one step with their neighbours."""
    model = ir.from_proto(decoder_model(4, 8, 32, symmetric=False))
    run_passes(model)
    widths = [
        (node.name, node.attributes["bits"].value if "bits" in node.attributes else 4)
        for node in model.graph
    ]
    assert widths == [
        ("/v_proj/MatMul_Q4", 4), ("/up_proj/MatMul_Q4", 4), ("/lm_head/MatMul_Q8", 8),
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("block_size", BLOCKS)
def test_tied_embeddings(bits: int, zero_points: bool, block_size: int) -> None:
    """int4_tied_embeddings: one tensor for both, also where the lm_head has 8 bits."""
    found = outcomes(tied_model(70, 512, block_size=block_size, bits=bits, zero_points=zero_points))
    reason = expected(bits, block_size)
    gather = "aie.Q4NXGather"
    if block_size == 16:
        gather = f"the projection that it is tied to stays on the CPU EP: {reason}"
    assert found == {"/model/embed/Gather": gather, "/lm_head/MatMul_Q4": reason}


@pytest.mark.parametrize(("block_size", "zero_points"), list(product(BLOCKS, [False, True])))
def test_use_qdq(block_size: int, zero_points: bool) -> None:
    """4 bits only: the builder refuses `use_qdq` with 8."""
    kind = "uint4" if zero_points else "int4"
    found = outcomes(weights_model(512, kind=kind, block_size=block_size, zero_points=zero_points))
    assert set(found.values()) == {expected(4, block_size)}
