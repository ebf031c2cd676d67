"""aie.FlowAttention where models rotate in nodes before it: positions of tokens, and the norms
around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attention_calls import (
    Inputs,
    attributes,
    check,
    flow_attention,
    random_inputs,
)
from op_models import BFLOAT16, FLOAT16, FLOAT32

BATCHES = [(4, (9,)), (4, (4,)), (5, (5, 2, 3)), (1, (8, 3, 5))]
AXES = {"position_axes": 3, "do_rotary": 1, "mrope_height": 5, "mrope_width": 4}


def with_positions(inputs: Inputs, *shape: int) -> Inputs:
    inputs["position_ids"] = np.random.default_rng(4).integers(0, 50, shape)
    return inputs


@pytest.mark.parametrize(("sequence", "lengths"), BATCHES)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_every_token_has_its_own_position(
    sequence: int, lengths: tuple[int, ...], dtype: npt.DTypeLike
) -> None:
    """Also those of a first prompt, where GroupQueryAttention counts from the first."""
    a = attributes(do_rotary=1, position_axes=1)
    inputs = random_inputs(a, sequence, lengths=lengths, max_position=50, dtype=dtype)
    check(a, with_positions(inputs, len(lengths), sequence))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [16, 12])  # of 16 pairs of channels
@pytest.mark.parametrize(("sequence", "lengths"), BATCHES)
def test_pairs_of_channels_rotate_by_time_height_or_width(
    sequence: int, lengths: tuple[int, ...], width: int, interleaved: int
) -> None:
    a = attributes(mrope_interleaved=interleaved, **AXES)
    inputs = random_inputs(a, sequence, lengths=lengths, max_position=50, rotary_width=width)
    check(a, with_positions(inputs, 3, len(lengths), sequence))


def test_the_three_positions_of_text_are_one() -> None:
    """Bit by bit as with one axis."""
    one = random_inputs(attributes(do_rotary=1), 7, lengths=(7,), max_position=50)
    with_positions(one, 1, 7)
    ids = one["position_ids"]
    assert ids is not None
    expected = flow_attention(attributes(do_rotary=1, position_axes=1), one)
    actual = flow_attention(attributes(**AXES), one | {"position_ids": np.stack([ids] * 3)})
    for name, y in expected.items():
        np.testing.assert_array_equal(actual[name], y, err_msg=name)


@pytest.mark.parametrize("rotation", [{}, {"do_rotary": 1}, {"do_rotary": 1, "position_axes": 1}])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("names", ["qk", "v", "qkv"])
@pytest.mark.parametrize(("sequence", "lengths"), [(1, (71,)), (20, (20, 13))])
def test_norms_before_and_after_rotation_and_of_values(
    sequence: int, lengths: tuple[int, ...], names: str, after: int, rotation: dict[str, Any]
) -> None:
    a = attributes(norm_after_rotary=after, qk_norm_epsilon=1e-3, **rotation)
    inputs = random_inputs(a, sequence, lengths=lengths, max_position=80)
    rng = np.random.default_rng(9)
    for name in names:
        inputs[f"{name}_norm_weight"] = (1 + 0.3 * rng.standard_normal(32)).astype(np.float32)
    if a.position_axes:
        with_positions(inputs, len(lengths), sequence)
    check(a, inputs)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("packed", [True, False])
def test_norms_of_values_in_every_type(dtype: npt.DTypeLike, packed: bool) -> None:
    a = attributes(do_rotary=1)
    inputs = random_inputs(a, 1, lengths=(9,), dtype=dtype, packed=packed)
    inputs["v_norm_weight"] = np.linspace(0.5, 1.5, 32).astype(dtype)
    check(a, inputs)


@pytest.mark.parametrize(
    ("given", "positions", "error"),
    [
        ({"position_axes": 2}, (1, 1), "position_axes must be 0, 1 or 3, got 2"),
        ({"position_axes": 1, "do_rotary": 0}, (1, 1), "position_axes=1 needs do_rotary=1"),
        ({"position_axes": 1}, None, "position_axes=1 needs input position_ids"),
        ({"position_axes": 1}, (1,), r"position_ids must be int64 \(1, 1\), got int64 \(1\)"),
        ({"position_axes": 3}, (1, 1), r"position_ids must be int64 \(3, 1, 1\), got .* \(1, 1\)"),
        ({"position_axes": 3, "mrope_height": 9, "mrope_width": 8}, (3, 1, 1),
         "mrope_height=9 and mrope_width=8 are more than the 16 pairs of channels"),
    ],
)  # fmt: skip
def test_wrong_positions_are_named(
    given: dict[str, int], positions: tuple[int, ...] | None, error: str
) -> None:
    a = attributes(**{"do_rotary": 1, **given})
    inputs = random_inputs(attributes(do_rotary=1), 1, lengths=(11,), max_position=50)
    if positions is not None:
        inputs["position_ids"] = np.zeros(positions, np.int64)
    with pytest.raises(Exception, match=error):
        flow_attention(a, inputs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_position_beyond_the_table_is_named(axis: int) -> None:
    a = attributes(**AXES)
    inputs = random_inputs(a, 1, lengths=(11, 11), max_position=50)
    inputs["position_ids"] = np.zeros((3, 2, 1), np.int64)
    inputs["position_ids"][axis, 1] = 50
    with pytest.raises(Exception, match=r"position 50 of batch row 1 .*cos_cache"):
        flow_attention(a, inputs)


def test_a_norm_of_values_has_a_weight_for_each_channel() -> None:
    inputs = random_inputs(attributes(), 1, lengths=(11,))
    inputs["v_norm_weight"] = np.ones(16, np.float32)
    with pytest.raises(Exception, match=r"v_norm_weight .*\(32\).*\(16\)"):
        flow_attention(attributes(), inputs)
