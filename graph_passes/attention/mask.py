"""Masks of scores that encode only causal order, a window, and the visible keys.

Before: attn_mask (B, 1, S, T), computed from the graph input attention_mask and from lengths
After:  causal=1, local_window_size and attention_mask, for which FlowAttention needs no matrix

This pass runs the nodes that compute the mask, on batches with padding and holes. A mask that
encodes anything else is used as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ort_aie_ep.graph_passes.attention.mask_reach import reach_of
from ort_aie_ep.graph_passes.base import ATTENTION_MASK
from ort_aie_ep.graph_passes.subgraph import MASKED, NoMatch, Part
from ort_aie_ep.graph_passes.walk import Array, above, constant, value_inputs

SEED = 1
SHORTEST = 64
LONGEST_PROMPT = 2048


@dataclass(frozen=True)
class CausalMask:
    """A query sees itself and the keys before it, `window` in total (-1: all), for which `shown`
    (the graph input attention_mask; None: all are shown) is not 0."""

    window: int
    shown: ir.Value | None


class MaskReader:
    """Reads the masks of a model, each once."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._known: dict[tuple[ir.Value, bool], CausalMask | None] = {}

    def read(self, mask: ir.Value, *, with_past: bool) -> CausalMask | None:
        """The meaning of the mask, or None if it encodes something else.

        `with_past`: the keys are those of a cache and of the call; else those of the call.
        """
        if (mask, with_past) not in self._known:
            try:
                found = _read(self._model, mask, with_past)
            except NoMatch:
                found = None
            self._known[mask, with_past] = found
        return self._known[mask, with_past]


def _read(model: ir.Model, mask: ir.Value, with_past: bool) -> CausalMask:
    for value in above([mask], edge=_is_constant, inputs=value_inputs):
        # No run contains all the values that a mask may look for: a token, or a kind of tokens.
        if value.is_graph_input() and value.name != ATTENTION_MASK:
            raise NoMatch(f"depends on the values of '{value.name}'")
    inputs = [value for value in above([mask], edge=_is_constant) if value.is_graph_input()]
    reach = reach_of(model, [mask])
    part = Part(model, inputs, [mask], reach.stand_ins)
    shown = next((v for v in inputs if v.name == ATTENTION_MASK), None)
    seen, total = reach.show(SHORTEST, lambda keys: _seen(part, inputs, keys, with_past))
    every, none = (
        _visible(part, inputs, 0, x)
        for x in (np.ones((1, 5), np.int64), np.zeros((1, 5), np.int64))
    )
    if np.array_equal(every, none):
        shown = None  # its length alone counts
    found = CausalMask(-1 if seen == total else seen, shown)
    for past, keys in _probes(with_past, found, total):
        actual, expected = _visible(part, inputs, past, keys), _expected(found, past, keys)
        # A query without a key is padding: what it sees instead does not matter.
        rows = expected.any(-1)
        if not np.array_equal(actual[rows], expected[rows]):
            raise NoMatch("says something else")
    if found.window < 0:
        return found

    def again(stand_ins: dict[int, int]) -> int:
        return _seen(Part(model, inputs, [mask], stand_ins), inputs, total, with_past)

    return replace(found, window=reach.true_window(found.window, again))


def _seen(part: Part, inputs: list[ir.Value], keys: int, with_past: bool) -> int:
    """How many of `keys` the last query sees, after a past or in a prompt without one."""
    if not with_past and keys > LONGEST_PROMPT:
        raise NoMatch(f"may have a window of {keys} keys")
    visible = _visible(part, inputs, keys - 1 if with_past else 0, np.ones((1, keys), np.int64))
    return int(visible[0, -1].sum())


def _is_constant(value: ir.Value) -> bool:
    return constant(value) is not None


def _probes(with_past: bool, mask: CausalMask, longest: int) -> Iterator[tuple[int, Array]]:
    """Lengths of the past, and which keys are shown (batch, past + new), `longest` at most."""
    lengths = [(0, 5), (0, 1)]
    if with_past:
        lengths += [(9, 1), (5, 4), (min(max(mask.window, 0) + 2, longest - 3), 3)]
    for past, new in lengths:
        total = past + new
        yield past, np.ones((2, total), np.int64)
        if mask.shown is None:
            continue
        position, padding = np.arange(total), np.array([0, 1, total // 2, total - 1])[:, None]
        yield past, (position >= padding).astype(np.int64)
        yield past, np.random.default_rng([SEED, total]).integers(0, 2, (3, total))


def _visible(part: Part, inputs: list[ir.Value], past: int, shown: Array) -> Array:
    """(batch, new, keys): which keys the mask lets a query see."""
    batch, total = shown.shape
    feeds = {value.name or "": _feed(value, past, shown) for value in inputs}
    (mask,) = part.run(feeds)
    try:
        whole = np.broadcast_to(mask, (batch, 1, total - past, total))[:, 0]
    except ValueError as error:
        raise NoMatch(f"is {mask.shape}") from error
    if mask.dtype == bool:
        return whole
    if not ((whole == 0) | (whole <= MASKED)).all():
        raise NoMatch("adds to scores that it does not hide")
    visible: Array = whole == 0
    return visible


def _feed(value: ir.Value, past: int, shown: Array) -> Array:
    """An input of a decoder; of tokens and positions, a mask uses only the lengths."""
    batch, total = shown.shape
    rank = len(value.shape) if value.shape is not None else 0
    if value.name == ATTENTION_MASK:
        return shown
    if value.dtype == ir.DataType.INT64 and rank == 2:
        return np.zeros((batch, total - past), np.int64)
    if value.shape is not None and rank in (3, 4):  # embeddings, a cache
        whole = {3: [batch, total - past], 4: [batch, value.shape[1], past]}[rank]
        dims = [*whole, value.shape[rank - 1]]
        if all(isinstance(d, int) for d in dims):
            return np.zeros(dims, np.float32)
    raise NoMatch(f"depends on '{value.name}'")


def _expected(mask: CausalMask, past: int, shown: Array) -> Array:
    key = np.arange(shown.shape[1])
    query = np.arange(past, shown.shape[1])[:, None]
    visible = key <= query
    if mask.window > 0:
        visible &= key > query - mask.window
    both: Array = visible & (shown[:, None] != 0 if mask.shown is not None else True)
    return np.broadcast_to(both, (len(shown), *visible.shape))
