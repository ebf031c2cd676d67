"""The closed form of each sequence that the NPU's scheduler invokes, by its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ort_aie_ep.formats.q4nx import BLOCK_COLS, BLOCK_ROWS, BlockForm
from ort_aie_ep.npu.speed import layer, operators
from ort_aie_ep.npu.speed.kernels import Kernels
from ort_aie_ep.npu.speed.operators import Step
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.prediction.tally import Part

Parameters = Mapping[str, int]
_Cost = Callable[[Parameters, Kernels, BlockForm], tuple[Step, ...]]


def cost_of(
    design: str, sequence: str, parameters: Parameters, kernels: Kernels, form: BlockForm
) -> tuple[Part, tuple[Step, ...]]:
    """The part of a call to which an invocation belongs, and its steps.

    Raises:
        DesignError: there is no closed form for the sequence.
    """
    overlay = "decode" if design in ("fused_dqp", "flow_kv") else design
    found = _COSTS.get((overlay, sequence))
    if found is None:
        raise DesignError(f"{design}: there is no closed form for the sequence {sequence}")
    part, cost = found
    return part, cost(parameters, kernels, form)


def _matvec(p: Parameters, kernels: Kernels, form: BlockForm) -> tuple[Step, ...]:
    return operators.fused_dqp(p["N"], p["K"], kernels=kernels, form=form)


def _layer(p: Parameters, kernels: Kernels, form: BlockForm) -> tuple[Step, ...]:
    sizes = layer.Layer(
        p["hidden"], p["heads"], p["kv_heads"], p["head_dim"], p["rotary_dim"], p["ffn"],
        p["window"], bool(p["gelu"]), bool(p["head_norm"]), bool(p["post_norm"]), bool(p["bias"]),
    )  # fmt: skip
    return (
        *layer.projections(sizes, kernels, form), *layer.attention(sizes, p["context"], kernels),
        *layer.between(sizes),
    )  # fmt: skip


_COSTS: Mapping[tuple[str, str], tuple[Part, _Cost]] = {
    ("decode", "matvec"): ("projections", _matvec),
    ("decode", "matvec_part"): ("projections", _matvec),
    ("decode", "rms_norm"): (
        "vector",
        lambda p, kernels, _: operators.token_norm(p["n"], bool(p["residual"]), kernels),
    ),
    ("decode", "glu"): (
        "vector", lambda p, kernels, _: operators.gated(1, p["n"], bool(p["kind"]), kernels),
    ),
    ("decode", "rope"): (
        "vector",
        lambda p, kernels, _: operators.token_rope(
            p["heads"], p["head_dim"], bool(p["norm"]), kernels
        ),
    ),
    ("decode", "append"): (
        "vector",
        lambda p, kernels, _: operators.token_append(
            p["kv_heads"], p["head_dim"], p["capacity"], kernels
        ),
    ),
    ("decode", "move_heads"): (
        "vector", lambda p, kernels, _: operators.token_rope(p["heads"], p["dim"], False, kernels),
    ),
    ("decode", "attention"): (
        "attention",
        lambda p, kernels, _: operators.flow_kv(
            p["context"], p["heads"], p["kv_heads"], p["head_dim"], p["window"] or None,
            kernels=kernels,
        ),
    ),
    ("fused_layer", "layer"): ("layers", _layer),
    ("fused_layer", "head"): (
        "lm_head", lambda p, kernels, form: layer.head(p["N"], p["hidden"], kernels, form),
    ),
    ("dequant", "dequant"): (
        "dequant",
        lambda p, kernels, form: operators.dequant(
            p["blocks"] * BLOCK_ROWS, BLOCK_COLS, kernels=kernels, form=form
        ),
    ),
    ("gemm", "gemm"): (
        "gemm", lambda p, kernels, _: operators.gemm(p["M"], p["K"], p["N"], kernels),
    ),
    ("gemm", "add_norm"): (
        "vector",
        lambda p, kernels, _: operators.row_norm(
            p["M"], p["n"], bool(p["residual"]), bool(p["norm"]), kernels
        ),
    ),
    ("gemm", "gate"): (
        "vector",
        lambda p, kernels, _: operators.row_gate(p["M"], p["N"], bool(p["kind"]), kernels),
    ),
    ("short_gemm", "project"): (
        "gemm",
        lambda p, kernels, form: operators.short_gemm(
            p["M"], p["K"], p["N"], kernels=kernels, form=form
        ),
    ),
    ("flow_qkv", "attention"): (
        "attention",
        lambda p, kernels, _: operators.flow_qkv(
            p["prompt"], p["past"], p["heads"], p["kv_heads"], p["head_dim"], p["window"] or None,
            bool(p["causal"]), kernels,
        ),
    ),
}  # fmt: skip
