"""Published speeds together: the model of each era, judged by what it was not fitted to."""

from __future__ import annotations

from statistics import median

from npu_papers.published import published, summaries


def test_every_cell_of_both_eras_is_there_once() -> None:
    every = list(published())
    assert len(every) == 50 + 24 + 64 + 59 + 54 + 11
    assert len({(one.source, one.model, one.context) for one in every}) == len(every)
    assert sum(one.fitted for one in every) == 5 + 6


def test_the_median_error_of_what_nothing_was_fitted_to_is_below_15_percent() -> None:
    judged = [abs(one.error) for one in published() if not one.fitted]
    *sources, together = summaries()
    assert together.median == median(judged) < 0.15
    assert together.worst == max(judged) == max(one.worst for one in sources)
    assert sum(one.cells for one in sources) == together.cells
