"""The parts of a problem of `ort-aie validate`: inputs, and numpy's values of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_aie_ep.bringup.references import BF16, Doubles, Reference
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm
from ort_aie_ep.npu.vocabulary.device import Device
from ort_aie_ep.npu.vocabulary.errors import DesignError
from ort_aie_ep.npu.vocabulary.sequence import evaluate

EPS = 1e-6
MAX_BYTES = 1 << 30  # several times the weights of the largest projection that is tried

Buffers = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Output:
    """A part of a result: `got` and the reference, of the same shape."""

    name: str
    got: Doubles
    reference: Reference


@dataclass(frozen=True)
class Problem:
    """A call of `sequence`: `buffers` by argument; `judge` receives them after the run.

    Outputs hold NaN before the run, so that elements that nobody wrote are detected.
    """

    sequence: str
    parameters: dict[str, int]
    buffers: Buffers
    judge: Callable[[Mapping[str, NDArray[Any]]], list[Output]]


@dataclass(frozen=True)
class Context:
    """A device, and the arguments of a sequence."""

    device: Device
    places: dict[str, Any]  # bytes of each argument, as the manifest has them
    form: BlockForm = SHIPPING  # of quantised weights

    def size(self, argument: str, parameters: Mapping[str, int]) -> int:
        """Bytes that an argument needs. Raises DesignError if the sequence has no such argument."""
        if argument not in self.places:
            raise DesignError(f"the sequence has no argument {argument}")
        return argument_bytes(argument, self.places[argument], parameters)


def argument_bytes(name: str, bytes: Any, parameters: Mapping[str, int]) -> int:
    """The size of an argument. Raises DesignError for one that no shape here can have."""
    size = evaluate(bytes, parameters)
    if not 0 <= size <= MAX_BYTES:
        raise DesignError(
            f"the sequence's argument {name} has {size} bytes; expected 0 to {MAX_BYTES}"
        )
    return size


def generator(parameters: Mapping[str, int]) -> np.random.Generator:
    """Random numbers that depend only on the shape."""
    return np.random.default_rng([abs(value) for value in parameters.values()])


def nan(*shape: int) -> NDArray[Any]:
    """An output that nobody has written."""
    return np.full(shape, np.nan, BF16)


def doubles(values: NDArray[Any]) -> Doubles:
    """float64 values, as the references need them."""
    with np.errstate(invalid="ignore"):  # NaN, where nobody wrote
        return values.astype(np.float64)
