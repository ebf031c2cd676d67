"""The micro-measurements' overlay, simulated: bytes come out as they went in, from their own
core."""

from __future__ import annotations

import numpy as np
import pytest

from ort_aie_ep.aie_kernels.micro import design as micro
from ort_aie_ep.npu.simulator.session import Session
from ort_aie_ep.npu.terms.device import device

RNG = np.random.default_rng(17)


def any_bytes(*shape: int) -> np.ndarray:
    """Random bits: nothing is computed, so none may change."""
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def test_lanes_from_the_middle_on_take_both_channels_of_the_upper_columns() -> None:
    assert micro.lanes(1) == [(0, 0)]
    assert micro.lanes(4)[2:6] == [(2, 0), (3, 0), (2, 1), (3, 1)]
    for columns in (2, 4, 8):
        # Channel 1 of column 0 is for the ids.
        expected = {(c, i) for c in range(columns) for i in (0, 1)} - {(0, 1)}
        assert set(micro.lanes(columns)) == expected


@pytest.mark.parametrize(
    ("name", "lanes", "first", "objects"),
    [("npu2", 1, 0, 1), ("npu2", 15, 0, 3), ("npu2", 8, 4, 2), ("npu1", 3, 4, 2),
     ("npu2_1col", 1, 0, 5)],
)  # fmt: skip
def test_lanes_pass_on_what_they_are_given(name: str, lanes: int, first: int, objects: int) -> None:
    session = Session(micro.build(device(name)))
    size = objects * micro.OBJECT
    x = any_bytes(lanes, size)
    shape = {"bytes": size, "lanes": lanes, "first": first}

    y = np.zeros_like(x)
    (result,) = session.run("passthrough", shape, {"x": x, "y": y})
    np.testing.assert_array_equal(y, x)
    assert (result.read, result.written) == (x.size, x.size)

    last = np.zeros((lanes, micro.OBJECT), np.uint8)
    (result,) = session.run("read", shape, {"x": x, "y": last})
    np.testing.assert_array_equal(last, x[:, -micro.OBJECT :])
    assert (result.read, result.written) == (x.size, last.size)

    y[:] = 0
    (result,) = session.run("write", shape | {"calls": 2}, {"x": last, "y": y})
    np.testing.assert_array_equal(y, np.tile(last, objects))
    assert (result.read, result.written) == (last.size, x.size)


@pytest.mark.parametrize("objects", [1, 2])
def test_each_id_comes_out_of_its_own_core(objects: int) -> None:
    a, b = any_bytes(2, 2 * objects, micro.SMALL)
    y = np.zeros((2 * objects, 2, micro.SMALL), np.uint8)
    session = Session(micro.build(device("npu2_1col")))
    session.run("two_ids", {"objects": objects}, {"a": a, "b": b, "y": y})
    np.testing.assert_array_equal(y, np.stack([a, b], axis=1))


def test_small_objects_are_read_one_after_the_other() -> None:
    a, b = any_bytes(9, micro.SMALL), any_bytes(micro.SMALL)
    y = np.zeros((2, micro.SMALL), np.uint8)
    session = Session(micro.build(device("npu1_1col")))
    session.run("read_small", {"objects": 9}, {"a": a, "b": b, "y": y})
    np.testing.assert_array_equal(y, np.stack([a[-1], b]))
