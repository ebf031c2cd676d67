"""Completions of many prompts, on one machine or on several, with Ray Data.

    ort_aie_ep.batch.complete("COMPILED", "prompts.jsonl", "ANSWERS", max_tokens=64)

`complete` is the whole thing: it reads prompts (`prompts`), hands them to workers in parts (`job`),
and each worker writes the parts that it has finished (`parts`). A run that was killed continues
with the parts that are missing. `Completer` (`completer`) is the worker's model, for a Ray Data
pipeline of your own:

    dataset.map_batches(ort_aie_ep.batch.Completer, fn_constructor_args=["COMPILED"], ...)
"""

from __future__ import annotations

from ort_aie_ep.batch.completer import Completer
from ort_aie_ep.batch.job import Summary, complete

__all__ = ["Completer", "Summary", "complete"]
