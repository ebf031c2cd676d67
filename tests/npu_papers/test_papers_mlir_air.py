"""AMD's open decoder in the performance model, beside its nightly measurements."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from npu_papers import mlir_air
from npu_papers.machine import Machine
from npu_papers.mlir_air import CALIBRATION, COSTS, DECODERS, Constants, sweep
from npu_papers.tables import MLIR_AIR_TOKENS

from ort_aie_ep.npu.terms.eras import MLIR_AIR

MACHINE = Machine.of(MLIR_AIR)


@pytest.mark.parametrize("model", MLIR_AIR_TOKENS)
def test_every_cell_of_a_row_is_within_a_tenth(model: str) -> None:
    row = [cell for cell in mlir_air.cells() if cell.model == model]
    assert len(row) == 8
    assert max(abs(cell.error) for cell in row) < 0.10


def test_most_cells_are_nearer_and_few_were_fitted_to() -> None:
    swept = sweep()
    judged = [cell for cell in swept.cells if not cell.calibrates]
    assert len(judged) == 64 - len(CALIBRATION)
    assert swept.median == median(abs(cell.error) for cell in judged) < 0.05
    assert swept.worst == max(abs(cell.error) for cell in judged)


def test_fitting_again_gives_the_committed_constants() -> None:
    again = mlir_air.fit()
    for name, cost in COSTS.items():
        assert f"{getattr(again, name):.3g}" == f"{cost.value:.3g}", name
        assert cost.status == "fitted"
        low, high = cost.interval or (0, 0)
        assert low < cost.value < high


def test_the_fit_finds_constants_that_made_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Constants(flush=800, attention_block=1200, attention_rate=3.0)
    made = {
        model: tuple(
            cell.predicted for cell in mlir_air.cells(truth) if cell.model == model
        )
        for model in MLIR_AIR_TOKENS
    }  # fmt: skip
    monkeypatch.setattr(mlir_air, "MLIR_AIR_TOKENS", made)
    found = mlir_air.fit()
    assert vars(found) == pytest.approx(vars(truth), rel=1e-6)


def test_a_layer_reads_its_weights_once_padded_to_whole_rounds() -> None:
    # 3,072 rows are six rounds of 16 cores; 2,048 inputs are eight blocks.
    (step,) = mlir_air.projection(3072, 2048, 5120, flush=1000)
    assert step.read == 3072 * 2048 * 5 / 8
    assert step.kernels == 6 * (8 * 2240 + 1000)
    assert step.shim == step.read / 8
    (padded,) = mlir_air.projection(3073, 2048, 5120, flush=1000)
    assert padded.kernels == 7 / 6 * step.kernels


def test_attention_is_bound_by_cores_except_for_two_wide_queries() -> None:
    for model, decoder in DECODERS.items():
        bounds = MACHINE.by_bound(mlir_air.attention(decoder.shape, 1024, Constants()))
        bound = "streams" if model == "gemma3-4b" else "kernels"
        assert max(bounds, key=lambda name: bounds[name]) == bound, model


def test_a_window_of_the_model_does_not_shorten_its_attention() -> None:
    decoder = DECODERS["gemma3-4b"]
    windowless = replace(decoder, shape=replace(decoder.shape, window=None))
    assert mlir_air.token(decoder, 32768) == mlir_air.token(windowless, 32768)


def test_weights_of_a_token_are_those_that_the_decoder_packs() -> None:
    # mlir-air's own sizes of its weight buffers, in elements of two bytes.
    for model, elements in (("llama-3.2-1b", 386_662_400), ("llama-3.2-3b", 1_004_666_880),
                            ("gemma3-4b", 1_213_644_800), ("phi4-mini", 1_201_274_880),
                            ("qwen3-8b", 4 * 542_638_080 + 199_229_440)):  # fmt: skip
        decoder = DECODERS[model]
        cache = mlir_air.attention(decoder.shape, 1024, Constants())[0].read
        read = mlir_air.token(decoder, 1024).read - decoder.shape.layers * cache
        assert read == 2 * elements, model
