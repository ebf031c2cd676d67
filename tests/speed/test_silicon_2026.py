"""mlir-air's prompts of 2026, composed by lab/silicon_2026, beside the published ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "lab"))

from silicon_2026 import parts, program
from silicon_2026.measured import PROMPTS, cells

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
