"""mlir-air's prompts of 2026, composed by lab/silicon_2026, beside the published ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab"))

from silicon_2026 import parts, program

from ort_aie_ep.aie_kernels.kernel_cycles import OURS, SILICON
from ort_aie_ep.npu.terms import costs
from ort_aie_ep.npu.terms.eras import PAPERS, SILICON_2026
from ort_aie_ep.prediction.measured import CONTEXTS, PROMPTS, TOKENS, cells

# What the composition is for: half of the cells within this.
MEDIAN = 0.15


@pytest.mark.parametrize("first", range(program.HELD_OUT))
def test_cells_that_nothing_was_fitted_to_are_explained(first: int) -> None:
    fitted, held = program.split(first)
    assert {*fitted} | {*held} == {*cells(PROMPTS)}
    assert len(held) >= len(cells(PROMPTS)) // program.HELD_OUT
    assert program.median_error(held, program.fit(fitted)) < MEDIAN


def test_published_parts_alone_explain_the_prompts() -> None:
    every = cells(PROMPTS)
    assert program.median_error(every, program.Constants()) < MEDIAN
    assert program.median_error(every, program.fit(program.split()[0])) < MEDIAN


def test_the_fit_finds_constants_that_made_the_cells() -> None:
    made = program.Constants(1.25, 12e9)
    of = tuple(
        program.Cell(
            c.model, c.tokens, program.prompt(program.MODELS[c.model], c.tokens).seconds(made)
        )
        for c in cells(PROMPTS)
    )
    found = program.fit(of)
    assert found.device == pytest.approx(made.device)
    assert found.host == pytest.approx(made.host)


@pytest.mark.parametrize("method", parts.TILE_M)
def test_products_are_lines_in_their_tiles(method: parts.Method) -> None:
    assert np.median(np.abs(parts.product_line(method).errors)) < 0.06
    assert min(parts.product_line(method).constants) > 0


def test_attention_of_heads_of_256_follows_from_those_of_64_and_128() -> None:
    model = program.MODELS["gemma3-4b"]
    seconds = model.shape.layers * program.attention_seconds(model, 2048)
    assert seconds * 1e3 == pytest.approx(parts.PROFILES["gemma3-4b"]["attention"], rel=0.05)


def test_eight_rounds_of_queries_read_all_keys() -> None:
    model = program.MODELS["llama-3.2-1b"]
    short, long = (program.attention_seconds(model, tokens) for tokens in (2048, 4096))
    # 4 rounds read 1, 2, 3 and 4 quarters; 8 rounds all of twice as many keys.
    fixed = sum(
        constant * count
        for constant, count in zip(parts.attention_line().constants, (1, 8), strict=True)
    )
    assert (long - fixed) / (short - fixed) == pytest.approx(8 * 8 / (1 + 2 + 3 + 4))


def test_long_prompts_of_four_queries_a_key_are_head_first() -> None:
    model = program.MODELS["llama-3.1-8b"]
    assert program.is_seq_first(model, 1024)
    assert not program.is_seq_first(model, 2048)
    assert program.is_seq_first(program.MODELS["llama-3.2-3b"], 4096)


def test_the_package_has_the_constants_of_the_composition() -> None:
    clock = SILICON_2026.clock
    device = program.fit(program.split()[0]).device
    assert PAPERS.clock.value / device == pytest.approx(clock.value, rel=0.005)
    assert clock.bounds[0] < clock.value < clock.bounds[1]
    _, product, _, _ = parts.product_line("fused-cast").constants
    assert 1 / product / PAPERS.clock.value == pytest.approx(costs.PRODUCT_RATE.value, rel=0.005)
    rate = parts.attention_rate() / PAPERS.clock.value
    assert rate == pytest.approx(costs.PROMPT_ATTENTION_RATE.value, rel=0.005)


@pytest.mark.parametrize(
    ("model", "rate"),
    [
        ("llama-3.2-1b", costs.TOKEN_ATTENTION_RATE),
        ("qwen3-8b", costs.WIDE_TOKEN_ATTENTION_RATE),
    ],
)
def test_attention_of_tokens_is_what_keys_took(model: str, rate: costs.Cost) -> None:
    shape = program.MODELS[model].shape
    at = dict(zip(CONTEXTS, TOKENS[model], strict=True))
    taken = (1 / at[32768] - 1 / at[1024]) / (32768 - 1024) / shape.layers  # for each key
    # Four pairs; two products.
    products = 2 * shape.heads * shape.head_dim / 4
    assert products / taken / SILICON_2026.clock.value == pytest.approx(rate.value, rel=0.02)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_no_kernel_is_predicted_faster_than_silicon_showed(head_dim: int) -> None:
    for queries in (1, 4, 8):
        cycles = SILICON.flow_kv_chunk(queries, head_dim)
        assert cycles >= OURS.flow_kv_chunk(queries, head_dim)
        rate = costs.TOKEN_ATTENTION_RATE if head_dim < 128 else costs.WIDE_TOKEN_ATTENTION_RATE
        assert 2 * queries * 4096 / cycles <= rate.value * (1 + 1e-9)
    assert SILICON.flow_qkv_chunk(64, head_dim) >= OURS.flow_qkv_chunk(64, head_dim)
    assert 64 * 64 * 128 / SILICON.gemm_step <= costs.PRODUCT_RATE.value * (1 + 1e-9)
