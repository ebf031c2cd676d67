"""The catalog's factor for compiled code against attention kernels that others measured."""

from __future__ import annotations

import pytest

from ort_aie_ep.npu.speed.published_attention import (
    FLASH_ATTENTION,
    Published,
    flash_attention,
    published,
)


@pytest.mark.parametrize("kernel", published(), ids=lambda kernel: kernel.name)
def test_the_rule_for_cycles_gives_what_published_kernels_take(kernel: Published) -> None:
    assert kernel.modelled == pytest.approx(kernel.measured, rel=0.3)


def test_a_line_explains_the_latencies_of_flash_attention() -> None:
    line = flash_attention()
    for heads, tokens, ms in FLASH_ATTENTION:
        assert line.seconds(heads, tokens) == pytest.approx(ms / 1e3, rel=0.12)
