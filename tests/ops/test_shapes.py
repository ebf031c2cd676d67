"""Tensors of other shapes than an operator takes, through both doors beside ONNX Runtime's CPU EP.

What the CPU EP refuses, neither door computes. What it computes, both compute alike or refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import onnxruntime
import pytest
from op_models import ORT_VERSION, Array, open_session, session_options
from provider_calls import devices, registered
from shape_cases import NAMED, Case, cases, mutations

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.provider import NAME

# Activations are rounded to bfloat16 before they meet weights. An element in another's place
# differs by as much as it is.
LARGEST_ERROR = 2.0**-5
# ONNX Runtime 1.32 refuses a total other than the past and the new tokens, earlier ones compute it;
# and it refuses one query of a mask for all, which ONNX's text broadcasts
# (docs/standard-operators.md).
NOT_MEASURED = {
    ("GroupQueryAttention", "q", "longer in 1"),
    ("MultiHeadAttention", "scores", "one in 2"),
    ("Attention", "mask", "one in 2"),
}
# ONNX Runtime's own kernel reads beyond position_ids, and ends the process.
ENDS_THE_PROCESS = {("GroupQueryAttention", "ids", "one dimension fewer")}
# Without them, ONNX Runtime's kernels check all shapes alike in every version, when they run.
ENTRIES = {"session.disable_prepacking": "1", "session.record_ep_graph_assignment_info": "1"}

CASES = cases()
T = TypeVar("T")
Sessions = dict[str, onnxruntime.InferenceSession | None]

pytestmark = pytest.mark.skipif(
    ORT_VERSION < (1, 31), reason="earlier ones end the process at more of these shapes"
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with registered():
        yield


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
        opened: Sessions = {"compiled": answer(lambda: self._compiled(case, data))}
        if cpu:
            opened["cpu"] = answer(lambda: session(data))
            opened["provider"] = answer(lambda: session(data, provider=True))
        return opened

    def _compiled(self, case: Case, data: bytes) -> onnxruntime.InferenceSession:
        self._made += 1
        source = self._folder / f"{self._made}.onnx"
        source.write_bytes(data)
        target = self._folder / f"{self._made}"
        ort_aie_ep.compile(source, target, quantize=case.quantize)
        return open_session(str(target / source.name), threads=1, config=ENTRIES)

    def left(self, opened: Sessions) -> dict[str, set[str]]:
        """The operators of the nodes that ONNX Runtime keeps, by the way."""
        compiled = onnx.load(self._folder / f"{self._made}" / f"{self._made}.onnx")
        by_provider = opened["provider"]
        assert by_provider is not None
        parts = by_provider.get_provider_graph_assignment_info()
        return {
            "compiled": {node.op_type for node in compiled.graph.node},
            "provider": {
                node.op_type for part in parts if part.ep_name != NAME for node in part.get_nodes()
            },
        }


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
        return answer(lambda: its.run(list(case.results), feeds))

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
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_door_computes_what_onnx_runtime_refuses(
    case: Case, one_of: int, tmp_path: Path
) -> None:
    models = Models(tmp_path)
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
            assert error(actual, expected) <= LARGEST_ERROR, way
        if known:
            left = models.left(opened)
            assert not left["compiled"] & set(case.claimed)
            assert not case.by_provider or not left["provider"] & set(case.claimed)
        for name, x in (base.tensors if known else base.feeds).items():
            if name in case.unchanged:
                continue
            for what, changed in mutations(x):
                key = (case.nodes[-1].op_type, name, what)
                # Sizes that a host chooses are changed where they are names: that needs no session.
                if key in NOT_MEASURED or (known and only_sizes_of_a_host(case, name, changed)):
                    continue
                reopen = known or name in base.free
                if reopen and next(opening) % one_of:
                    continue
                other = base.having(name, changed)
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
                        wrong.append(f"{way}, known={known}: {name} {what} {changed.shape}: {how}")
    assert wrong == []
