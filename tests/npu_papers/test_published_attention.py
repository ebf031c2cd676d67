"""The catalog's factor for compiled code against attention kernels that others measured."""

from __future__ import annotations

import pytest
from npu_papers.attention import (
    DecoderAttention,
    Published,
    decoder_attention,
    flash_attention,
    published,
)
from npu_papers.tables import FLASH_ATTENTION, Latency


@pytest.mark.parametrize("kernel", published(), ids=lambda kernel: kernel.name)
def test_the_rule_for_cycles_gives_what_published_kernels_take(kernel: Published) -> None:
    assert kernel.modelled == pytest.approx(kernel.measured, rel=0.3)


@pytest.mark.parametrize("call", FLASH_ATTENTION, ids=lambda call: call.name)
def test_a_line_explains_the_latencies_of_flash_attention(call: Latency) -> None:
    line = flash_attention()
    assert line.seconds(call) == pytest.approx(call.seconds, rel=0.12)
    assert 0 < line.fixed(call) < line.seconds(call)


@pytest.mark.parametrize("unit", tuple(decoder_attention()), ids=str)
def test_channels_bind_where_keys_take_longer_than_their_cores(unit: DecoderAttention) -> None:
    least, most = unit.measured
    assert most == pytest.approx(least, rel=0.01)
    assert unit.channels_bind == (least > 1.1 * unit.fitted)
