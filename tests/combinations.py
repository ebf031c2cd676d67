"""Every combination of design, device, columns and output that `build` admits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ort_aie_ep.aie_kernels.build import find_designs
from ort_aie_ep.npu.checks.progress import small_shapes
from ort_aie_ep.npu.terms.design import Design
from ort_aie_ep.npu.terms.device import DEVICES, Device
from ort_aie_ep.npu.terms.errors import DesignError
from ort_aie_ep.npu.terms.sequence import Sequence


def on_each_device(name: str) -> Iterator[Design]:
    """The design with its defaults, where that is possible."""
    for device in DEVICES.values():
        with suppress(DesignError):  # not for this architecture or so few columns
            yield find_designs()[name](device)


def admitted(name: str) -> list[Design]:
    """The design on every device, with every number of columns and every output."""
    return [param.values[0] for param in DESIGNS if param.id.split("-")[0] == name]


def combinations() -> Iterator[Any]:
    for name, make in find_designs().items():
        for device in DEVICES.values():
            for options in _options(make, device):
                chosen = "".join(f"-{value}" for value in options.values())
                with suppress(DesignError):
                    design = make(device, **options)
                    yield pytest.param(design, id=f"{name}-{device.name}{chosen}")


def _options(make: Any, device: Device) -> list[dict[str, Any]]:
    parameters = inspect.signature(make).parameters
    if "columns" in parameters:
        return [{"columns": n} for n in range(1, device.columns + 1)]
    return [{}]


DESIGNS = list(combinations())


def _smallest() -> list[Any]:
    """Each design once for each architecture, on the fewest columns that it allows."""
    chosen: dict[Any, Any] = {}
    for param in DESIGNS:
        design: Design = param.values[0]
        key = (design.name, design.device.architecture)
        size = (design.device.columns, len(design.workers))
        if key not in chosen or size < chosen[key][0]:
            chosen[key] = (size, param)
    return [param for _, param in chosen.values()]


SMALLEST = _smallest()


def _sequences() -> list[Any]:
    """Each sequence once for each architecture and design, with the design on the fewest
    columns."""
    seen = set()
    params = []
    for param in sorted(DESIGNS, key=lambda p: p.values[0].device.columns):
        design: Design = param.values[0]
        for name in design.sequences:
            if (design.name, design.device.architecture, name) not in seen:
                seen.add((design.name, design.device.architecture, name))
                params.append(pytest.param(design, name, id=f"{param.id}-{name}"))
    return params


SEQUENCES = _sequences()

# For sequences whose small shapes need more tasks than the compiler queues.
_MORE_SHAPES = {
    "append_rows": {
        "M": 64, "kv_heads": 4, "head_dim": 128, "rotary_dim": 128, "interleaved": 0, "norm": 1,
        "eps_bits": 0, "x_stride": 512, "position": 8, "capacity": 72,
    },
}  # fmt: skip


def shapes(sequence: Sequence) -> list[dict[str, int]]:
    """Small shapes, at least one of which the compiler fits in one stream."""
    more = _MORE_SHAPES.get(sequence.name)
    return [*small_shapes(sequence), *([more] if more else [])]
