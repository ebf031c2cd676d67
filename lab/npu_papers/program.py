"""A token and a prompt: operators composed into runs, layers and models."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Literal

from npu_papers.machine import Machine, copies
from npu_papers.sizes import layer_projections, lm_head, norms_of_layer, windows
from ort_aie_ep.aie_kernels.dequant.cost import dequant
from ort_aie_ep.aie_kernels.flow_kv.cost import flow_kv
from ort_aie_ep.aie_kernels.flow_qkv.cost import flow_qkv
from ort_aie_ep.aie_kernels.fused_dqp.cost import fused_dqp
from ort_aie_ep.aie_kernels.gemm.cost import gemm
from ort_aie_ep.aie_kernels.machine import Step
from ort_aie_ep.aie_kernels.vector_ops.cost import gated, rms_norm, rope
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.models.shapes import Shape
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.prediction.tally import Part, Tally, Timing

#: Overlays: the paper's decode placement (FusedDQP, FlowKV, vector operators) and prefill's three.
Overlay = Literal["decode", "dequant", "gemm", "flow_qkv"]


def decode(
    shape: Shape, context: int, machine: Machine, switches_per_layer: int = 0,
    form: BlockForm = SHIPPING,
) -> Timing:  # fmt: skip
    """One token with `context` tokens in the cache, and weights in a form.

    All operators of a layer are in one overlay and one run; the last norm and the projection to the
    vocabulary are another: layers + 1 runs. As in the papers, one pair has all keys of a KV head.
    The host's own work (embedding, sampling) is not counted. `switches_per_layer` is for placements
    whose operators do not fit into one overlay: then the work between two switches is a run.
    """
    tally = Tally(machine)
    layers = shape.layers
    columns, kernels = machine.fused_dqp_columns, machine.kernels
    for projection in layer_projections(shape):
        steps = fused_dqp(projection.outputs, projection.inputs, columns, kernels, form)
        tally.add("projections", steps, layers)
    for window, count in windows(shape).items():
        steps = flow_kv(
            context,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            window,
            machine.flow_kv_pairs,
            kernels,
            shared=False,
        )
        tally.add("attention", steps, count)
    _vectors(tally, shape, 1)
    head = lm_head(shape)
    tally.add("lm_head", fused_dqp(head.outputs, head.inputs, columns, kernels, form))
    return tally.timing(layers * max(1, switches_per_layer) + 1, layers * switches_per_layer)


def prefill(shape: Shape, prompt: int, machine: Machine) -> Timing:
    """A prompt of `prompt` tokens with nothing cached, up to the first token.

    It goes layer by layer, each over the whole prompt. A layer's weights are dequantised into DDR
    at once; then its operators follow, each in its overlay and in as many runs as the watchdog
    requires. The vector operators are those of the decode overlay: one core each.
    """
    tally = Tally(machine)
    layers = shape.layers
    runs = 0
    projections = {p.name: p for p in layer_projections(shape)}

    def run(part: Part, steps: tuple[Step, ...], times: int) -> None:
        nonlocal runs
        one = tally.add(part, steps, times)
        runs += times * max(1, ceil(one / costs.WATCHDOG_BUDGET.value))

    kernels = machine.kernels
    every = tuple(
        step
        for p in projections.values()
        for step in dequant(p.outputs, p.inputs, machine.columns, kernels)
    )
    run("dequant", every, layers)
    for p in projections.values():
        run("gemm", gemm(prompt, p.inputs, p.outputs, kernels), layers)
    for window, count in windows(shape).items():
        steps = flow_qkv(
            prompt, 0, shape.heads, shape.kv_heads, shape.head_dim, window, kernels=kernels
        )
        run("attention", steps, count)
    places = layer_overlays().count("decode")
    each = _vectors(tally, shape, prompt) / places
    runs += places * layers * max(1, ceil(each / costs.WATCHDOG_BUDGET.value))
    head = lm_head(shape)
    run(
        "lm_head",
        fused_dqp(head.outputs, head.inputs, machine.fused_dqp_columns, kernels),
        1,
    )
    return tally.timing(runs, switches_of(layers))


def layer_overlays() -> tuple[Overlay, ...]:
    """Overlays of a prefill layer in order, a run each; "decode" has the vector operators.

    The order is: norms (of the last layer's output and this layer's input), all weights, QKV,
    rotation and norms of heads, attention, O, norms, gate and up, their product, down.
    """
    return (
        "decode", "dequant", "gemm", "decode", "flow_qkv", "gemm", "decode", "gemm", "decode",
        "gemm",
    )  # fmt: skip


def switches_of(layers: int) -> int:
    """Changes of overlay in a prefill; it begins and ends in the decode overlay."""
    order = (*layer_overlays() * layers, "decode")
    return sum(a != b for a, b in pairwise(order))


def _vectors(tally: Tally, shape: Shape, rows: int) -> float:
    """Add the vector operators of all layers; returns the seconds of one layer."""
    kernels = tally.machine.kernels
    norms = norms_of_layer(shape)
    normed, gelu = shape.family != "llama", shape.family == "gemma3_text"
    operators = (
        *(rms_norm(rows, shape.hidden, kernels),) * norms,
        rope(rows, shape.heads, shape.kv_heads, shape.head_dim, normed, kernels),
        gated(rows, shape.ffn, gelu, kernels),
    )
    one = sum(
        tally.add("vector", copies(steps, tally.machine.vector_copies), shape.layers)
        for steps in operators
    )
    tally.add("vector", rms_norm(1, shape.hidden, kernels))
    return one
