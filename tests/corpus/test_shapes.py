"""A tensor of another shape: what ONNX Runtime refuses, no door computes, and what it computes,
both compute alike.

One dimension more or fewer, two exchanged, longer or shorter in one: where the shape is in the
file, and where a call has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import TypeVar

import experts
import heads
import numpy as np
import onnx
import onnx_attention
import onnxruntime
import products
import pytest
import vectors
import weights
from graphs import AS_IT_IS, Array, Entry, Graph
from op_models import ORT_VERSION, open_session, session_options
from provider_calls import devices

import ort_aie_ep
from ort_aie_ep.errors import AieError

# Sizes of which no two are alike, nor like a width.
SIZES = {"batch": 3, "sequence": 5, "tokens": 5, "queries": 5, "keys": 5, "past": 7, "total": 12}
NAMED = {size: name for name, size in SIZES.items()}
# Activations are rounded to bfloat16 before they meet weights. An element in another's place
# differs by as much as it is.
LARGEST_ERROR = 2.0**-5
# ONNX Runtime 1.32 refuses a total other than the past and the new tokens, earlier ones compute it;
# and it refuses one query of a mask for all, which ONNX's text broadcasts
# (docs/standard-operators.md).
NOT_MEASURED = {
    ("GroupQueryAttention", "q", "longer in 1"),
    ("GroupQueryAttention", "qkv", "longer in 1"),
    ("MultiHeadAttention", "scores", "one in 2"),
    ("Attention", "mask", "one in 2"),
}
# ONNX Runtime's own kernel reads beyond position_ids, and ends the process.
ENDS_THE_PROCESS = {("GroupQueryAttention", "ids", "one dimension fewer")}
# Without prepacking, ONNX Runtime's kernels check all shapes alike in every version, when they run.
ENTRIES = {"session.disable_prepacking": "1"}
# The entries, at least one for each operator that is claimed, and constants that may be inputs.
ABOUT: dict[str, tuple[str, ...]] = {
    "a projection of 4 bits in blocks of 32, points=False": ("b",),
    "a projection of 4 bits in blocks of 32, points=True": ("b",),
    "a projection of 8 bits in blocks of 32, points=True": ("b",),
    "a projection of 2 bits in blocks of 32, points=True": ("b",),
    "zero points of float32 beside scales of float32": (),
    "scales and zero points in one dimension": (),
    "blocks that are dequantised: {'kind': 'int4', 'points': True, 'turned': False}": (),
    "without blocks: {'scales': 'columns', 'points': True, 'turned': False}": (),
    "a Gemm: {'op': 'Gemm', 'turned': False}": (),
    "rows of a table: {'op': 'Gather', 'turned': True}": (),
    "a product of floats, bf16": (),
    "a turned Gemm with a bias of floats, bf16": (),
    "an embedding shares the projection's 4 bits, points=False": (),
    "rows of a table": (),
    "a row of each batch row": (),
    "SimplifiedLayerNormalization goes into the product": ("w",),
    "RMSNormalization goes into the product": ("w",),
    "a sum that is an output keeps its name": ("w",),
    "a skip norm with a bias stays": ("w", "v"),
    "a norm of 32 with silu of a gate": ("g",),
    **{f"{op} of {what}: x, o": ("o",) if what != "a tensor" else ()
       for op in ("Add", "Mul") for what in ("a tensor", "a row", "one value")},
    **{f"{text} before a product": () for text in (
        "Sigmoid(x)", "Gelu(x)", "ms.Gelu(x)", "FastGelu(x)", "QuickGelu<alpha=1.0>(x)")},
    "a bias goes into its product: p, b, float32": ("b",),
    "its sum comes out if it is wanted: SimplifiedLayerNormalization": ("w",),
    "a gated MLP: s = Sigmoid(gate); a = Mul(gate, s), a, up": (),
    "experts: rows that are no whole blocks": (),
    "experts: silu": (),
    "of packed queries, keys and values": ("cos", "sin"),
    "with positions, a bias and sinks": ("sink",),
    "on a cache of 8 bits": ("one",),
    "its bias goes into the products": (),
    "a bias (1, 1, 40, 40) of scores": (),
    "a mask (2, 4, 5, 25) of float, is_causal=0": (),
    "rotations of joined heads by RotaryEmbedding": (),
    "rotations of joined heads by ms.RotaryEmbedding": (),
}  # fmt: skip
KNOWN = {
    entry.name: entry
    for subject in (experts, heads, onnx_attention, products, vectors, weights)
    for entry in subject.ENTRIES
}
T = TypeVar("T")
Sessions = dict[str, onnxruntime.InferenceSession | None]

pytestmark = [
    pytest.mark.skipif(
        ORT_VERSION < (1, 31), reason="earlier ones end the process at more of these shapes"
    ),
    pytest.mark.usefixtures("provider"),
]


@dataclass(frozen=True)
class Case:
    """An entry with values for all its inputs and constants; `free` constants may be inputs."""

    entry: Entry
    feeds: Mapping[str, Array]
    constants: Mapping[str, Array]
    free: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, Array]:
        """Those that the entry is about: not weights of products beside it."""
        beside = self.entry not in weights.ENTRIES and self.entry not in experts.ENTRIES
        found = {**self.feeds, **self.constants}
        return {name: x for name, x in found.items() if not (beside and "." in name)}

    def having(self, name: str, tensor: Array) -> Case:
        """The case with another tensor."""
        if name in self.feeds:
            return replace(self, feeds={**self.feeds, name: tensor})
        return replace(self, constants={**self.constants, name: tensor})

    def freed(self) -> Case:
        """The case with `free` constants as graph inputs."""
        given = {name: self.constants[name] for name in self.free}
        kept = {name: x for name, x in self.constants.items() if name not in self.free}
        return replace(self, feeds={**self.feeds, **given}, constants=kept)

    def model(self, *, known: bool) -> onnx.ModelProto:
        """With the shapes of its inputs, or with names for those dimensions that hosts choose."""
        graph = Graph(replace(self.entry, declared={}))
        graph.constants = dict(self.constants)
        graph.inputs = {
            name: (x.dtype, [dim if known or name in self.free else NAMED.get(dim, dim)
                             for dim in x.shape])
            for name, x in self.feeds.items()
        }  # fmt: skip
        return graph.model()


def case_of(name: str) -> Case:
    entry, free = KNOWN[name], ABOUT[name]
    # ONNX Runtime's GroupQueryAttention takes several tokens after a past for one batch row.
    sizes = SIZES | ({"batch": 1} if "GroupQueryAttention" in entry.text else {})
    fixed = any(not callable(feed) for feed in entry.feeds.values())
    if fixed or not entry.sizes[-1].keys() <= {"batch", "sequence", "past", "total", "any"}:
        sizes = dict(entry.sizes[-1])
    graph = Graph(entry)
    return Case(entry, graph.feeds(sizes), graph.constants, free)


def mutations(x: Array) -> Iterator[tuple[str, Array]]:
    """The tensor in other shapes, most with the same elements."""
    yield "one dimension more", x[None]
    if x.ndim > 1:
        yield "one dimension fewer", x.reshape(-1, *x.shape[2:])
    elif x.size == 1:
        yield "no dimension", x.reshape(())
    for a, b in pairwise(range(x.ndim)):
        if x.shape[a] != x.shape[b]:
            yield f"{a} and {b} exchanged", np.ascontiguousarray(np.swapaxes(x, a, b))
    for axis in range(x.ndim):
        yield f"longer in {axis}", np.concatenate([x, np.take(x, [0], axis)], axis)
        if x.shape[axis] > 1:
            yield f"shorter in {axis}", np.delete(x, -1, axis)
        if x.shape[axis] > 2:
            yield f"one in {axis}", np.take(x, [0], axis)


def session(data: bytes, *, provider: bool = False) -> onnxruntime.InferenceSession:
    options = session_options(threads=1)
    options.log_severity_level = 4
    for key, value in ENTRIES.items():
        options.add_session_config_entry(key, value)
    if provider:
        options.add_provider_for_devices(devices()[:1], {})
        return onnxruntime.InferenceSession(data, options, enable_fallback=False)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


class Models:
    """Sessions of models: on the CPU EP alone, and through both doors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def sessions(self, case: Case, *, known: bool, cpu: bool = True) -> Sessions:
        """By the way the model is opened; None where it is refused."""
        data = case.model(known=known).SerializeToString()
        opened: Sessions = {"compiled": answer(lambda: self._compiled(case.entry, data))}
        if cpu:
            opened["cpu"] = answer(lambda: session(data))
            opened["provider"] = answer(lambda: session(data, provider=True))
        return opened

    def _compiled(self, entry: Entry, data: bytes) -> onnxruntime.InferenceSession:
        self._made += 1
        source, target = self._folder / f"{self._made}.onnx", self._folder / f"{self._made}"
        source.write_bytes(data)
        ort_aie_ep.compile(source, target, quantize=entry.form or None)
        return open_session(str(target / source.name), threads=1, config=ENTRIES)


def answer(ask: Callable[[], T]) -> T | None:
    """What `ask` returns, or None for a refusal, which is an error of ours or of ONNX Runtime's."""
    try:
        return ask()
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        if not (isinstance(error, AieError) or type(error).__module__.startswith("onnxruntime")):
            raise
        return None


def results(opened: Sessions, case: Case) -> dict[str, list[Array] | None]:
    def of(its: onnxruntime.InferenceSession) -> list[Array] | None:
        inputs = {value.name for value in its.get_inputs()}
        feeds = {name: x for name, x in case.feeds.items() if name in inputs}
        return answer(lambda: its.run(None, feeds))

    return {way: None if its is None else of(its) for way, its in opened.items()}


def error(actual: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest, relative to the largest value; infinite for other shapes."""
    pairs = list(zip(actual, expected, strict=True))
    if any(x.shape != y.shape for x, y in pairs):
        return np.inf
    return max(
        float(np.abs(x - y.astype(np.float64)).max(initial=0) / max(np.abs(y).max(initial=0), 1e-9))
        for x, y in pairs
    )


def only_sizes_of_a_host(case: Case, name: str, changed: Array) -> bool:
    before = case.tensors[name].shape
    if name not in case.feeds or len(before) != changed.ndim:
        return False
    return all(a == b or a in NAMED for a, b in zip(before, changed.shape, strict=True))


# Of the shapes that need a session of their own, each change takes one in so many.
THINNED = 10


@pytest.mark.parametrize("one_of", [THINNED, pytest.param(1, marks=pytest.mark.in_turn)])
@pytest.mark.parametrize("name", ABOUT)
def test_no_door_computes_what_onnx_runtime_refuses(name: str, one_of: int, tmp_path: Path) -> None:
    assert KNOWN[name].becomes != AS_IT_IS
    if KNOWN[name].since > ORT_VERSION:
        pytest.skip("this ONNX Runtime lacks the operators")
    case, models = case_of(name), Models(tmp_path)
    wrong = []
    opening = count()
    for known in (True, False):
        base = case if known else case.freed()
        opened = models.sessions(base, known=known)
        right = results(opened, base)
        expected = right.pop("cpu")
        assert expected is not None
        for way, actual in right.items():
            assert actual is not None, way
            assert error(actual, expected) <= max(LARGEST_ERROR, 2 * case.entry.near), way
        for tensor, x in (base.tensors if known else base.feeds).items():
            for what, changed in mutations(x):
                key = (Graph(case.entry).nodes[-1].op_type, tensor, what)
                # Sizes that a host chooses are changed where they are names: that needs no session.
                if key in NOT_MEASURED or (known and only_sizes_of_a_host(case, tensor, changed)):
                    continue
                reopen = known or tensor in base.free
                if reopen and next(opening) % one_of:
                    continue
                other = base.having(tensor, changed)
                cpu = key not in ENDS_THE_PROCESS
                its = models.sessions(other, known=known, cpu=cpu) if reopen else dict(opened)
                if not cpu:
                    its |= {"cpu": None, "provider": None}
                found = results(its, other)
                measure = found.pop("cpu")
                for way, actual in found.items():
                    if actual is None:
                        continue
                    if measure is None or error(actual, measure) > LARGEST_ERROR:
                        how = "computed" if measure is None else "other numbers"
                        wrong.append(
                            f"{way}, known={known}: {tensor} {what} {changed.shape}: {how}"
                        )
    assert wrong == []
