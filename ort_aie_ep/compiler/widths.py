"""`quantize="mixed"`: which matrices get more bits than others, by a rule or by a budget."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from ort_aie_ep.compiler.importance import Importance
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes.walk import node_label
from ort_aie_ep.graph_passes.weights.float_weights import (
    Floats,
    FloatWeights,
    WeightForm,
    part_of,
    quantised,
)
from ort_aie_ep.progress import Count, Progress

Product = tuple[ir.Node, FloatWeights]

# What a budget chooses from; `mixed` gives a matrix that nothing else is said of the middle one.
WIDTHS = (WeightForm.Q2NX, WeightForm.Q4NX, WeightForm.Q8NX)
PLAIN = WeightForm.Q4NX
_BEST = WeightForm.Q8NX

_LAYER = re.compile(r"(?:^|[./])layers[./](\d+)[./]")
_PROMOTED = re.compile(r"(?:^|[./])(?:qkv_proj|v_proj|down_proj)(?:[./]|$)")
_HEAD = re.compile(r"(?:^|[./])lm_head(?:[./]|$)")

# Out-features of a matrix whose error stands for all of them.
_SAMPLED = 512


def by_rule(products: Sequence[Product]) -> dict[str, WeightForm]:
    """The matrices that get 8 bits by the rule of the model builder's k_quant_mixed, by
    `FloatWeights.key`.

    They are the lm_head, and the projections qkv_proj, v_proj and down_proj of some of L layers:
    layer i if i < L/8 or i >= 7L/8 or (i - round(L/8)) % 3 = 2. The builder (onnxruntime-genai
    0.18, `make_matmul_mixed_precision`) took the layers from llama.cpp. Names of nodes, or of their
    weights, tell which a matrix is.
    """
    named = [(f"{node_label(node)}\n{weights.value.name}", weights) for node, weights in products]
    layers = [int(match[1]) for name, _ in named for match in _LAYER.finditer(name)]
    count = max(layers, default=-1) + 1
    found = {}
    for name, weights in named:
        parts = name.split("\n")
        layer = next((int(m[1]) for m in map(_LAYER.search, parts) if m), None)
        promoted = layer is not None and _is_promoted(layer, count)
        promoted = promoted and any(map(_PROMOTED.search, parts))
        if promoted or any(map(_HEAD.search, parts)):
            found[weights.key] = _BEST
    return found


def _is_promoted(layer: int, layers: int) -> bool:
    eighth = layers / 8
    return layer < eighth or layer >= 7 * eighth or (layer - round(eighth)) % 3 == 2


@dataclass
class _Unit:
    """Matrices that get the same width: those of the same shape that multiply the same value, such
    as gate and up, which are one operator only then."""

    weights: list[FloatWeights]
    errors: dict[WeightForm, float]  # by width, as `_errors` has them

    @property
    def size(self) -> int:
        return sum(math.prod(weights.shape) for weights in self.weights)

    def bytes_of(self, form: WeightForm) -> int:
        return sum(math.prod(form.blocks_shape(*w.shape[::-1])) for w in self.weights)


def by_budget(
    products: Sequence[Product], importance: Importance, bits: float, progress: Progress | None
) -> dict[str, WeightForm]:
    """A width for each matrix, with at most `bits` on average over all weights of `products`.

    Every matrix begins with the least width that a budget of `bits` may need: 2 below 4 bits,
    otherwise 4. Step by step, the matrix gets its next width for which this removes most error for
    each byte that it adds, as long as the budget allows. The error is that of the product, not
    relative to it: a product's outputs are added to others, or are logits. Matrices that the text
    told nothing about keep PLAIN.

    `progress` counts bytes of float weights.

    Raises:
        AieError: weights are not finite.
    """
    matrices = {w.key: (node, w) for node, w in products}
    everything = sum(math.prod(w.shape) for _, w in matrices.values())
    widths = WIDTHS if bits < PLAIN.bits else WIDTHS[WIDTHS.index(PLAIN) :]
    units = _units([p for p in matrices.values() if p[1].key in importance.of])
    count = Count(progress, sum(w.tensor.nbytes for unit in units for w in unit.weights))
    for unit in units:
        count.begin("measuring the error of each width")
        for weights in unit.weights:
            try:
                errors = _errors(weights, importance.of[weights.key], widths)
            except ValueError as problem:  # not finite
                raise AieError(f"weights '{weights.key}': {problem}") from problem
            for form, error in errors.items():
                unit.errors[form] = unit.errors.get(form, 0) + error
            count.step(weights.tensor.nbytes)
    room = bits * everything
    room -= PLAIN.bits * (everything - sum(unit.size for unit in units))
    return _spend(units, widths, room)


def _spend(
    units: Sequence[_Unit], widths: Sequence[WeightForm], room: float
) -> dict[str, WeightForm]:
    """Widths with at most `room` bits in all."""
    chosen = [widths[0] for _ in units]
    room -= sum(unit.size * widths[0].bits for unit in units)
    following = dict(pairwise(widths))

    def step(index: int) -> tuple[float, int, WeightForm, WeightForm] | None:
        unit, form = units[index], chosen[index]
        more = following.get(form)
        if more is None:
            return None
        gain = unit.errors[form] - unit.errors[more]
        return -gain / (unit.bytes_of(more) - unit.bytes_of(form)), index, form, more

    steps = [s for s in map(step, range(len(units))) if s is not None]
    heapq.heapify(steps)
    while steps:
        _, index, form, more = heapq.heappop(steps)
        cost = units[index].size * (more.bits - form.bits)
        if cost > room:
            continue  # smaller matrices may still fit
        room -= cost
        chosen[index] = more
        if (further := step(index)) is not None:
            heapq.heappush(steps, further)
    return {
        weights.key: form
        for unit, form in zip(units, chosen, strict=True)
        for weights in unit.weights
    }


def _units(products: Sequence[Product]) -> list[_Unit]:
    units: dict[tuple[ir.Value | None, tuple[int, ...]], _Unit] = {}
    for node, weights in products:
        key = (node.inputs[0], weights.shape)
        units.setdefault(key, _Unit([], {})).weights.append(weights)
    return list(units.values())


def _errors(
    weights: FloatWeights, importance: Floats, widths: Sequence[WeightForm]
) -> dict[WeightForm, float]:
    """By width, the mean square error of the product, summed over its out-features, of which a
    sample stands for all."""
    k, n = weights.shape
    step = -(-n // _SAMPLED)
    lost, sampled = dict.fromkeys(widths, 0.0), 0
    for rows, cols, piece in weights.pieces():
        first = -(rows.start or 0) * q4nx.BLOCK_ROWS % step
        sample = np.ascontiguousarray(piece[first::step])
        if sample.size:
            sampled += sample.size
            for form in widths:
                lost[form] += quantised(sample, form, part_of(importance, cols, piece))[-1]
    return {form: error * n * k / sampled for form, error in lost.items()}
