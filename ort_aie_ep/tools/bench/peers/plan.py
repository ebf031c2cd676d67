"""What `bench --peers` measures, unless a user chooses otherwise, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.peers import growth
from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT

DECODE_LENGTHS = (64, 512, 2048, 4096)
PREFILL_LENGTHS = (512, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16)
ROUNDS = 5
STARTS = 3

TRIAL_TOKENS = 512
"""Longest context of the trial, which shows what fails before anything takes long."""

PILOT_ROUNDS = 2
"""Rounds with all ways; the faster of them counts, since another process can only slow one down."""
PILOT_MARGIN = 0.05
"""A way that comes this close to its library's fastest in the pilot stays: it may be the faster."""

DECODE, PREFILL = PHASES = ("decode", "prefill")


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        decode, prefill: context lengths in tokens.
        new_tokens: tokens decoded at each length.
        rounds: of all, after a trial of the shorter contexts.
        starts: of each engine, warm and cold each.
        threads: of each engine.
        options: of ours, such as numerics.
        growth: total lengths in tokens to fit the cost of context over; empty for none.
        batches: sequences, and tokens of one sequence, that a call gets; empty for none.
    """

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    new_tokens: int
    rounds: int
    starts: int
    threads: int
    options: dict[str, str]
    growth: tuple[int, ...] = growth.LENGTHS
    batches: tuple[int, ...] = BATCHES

    @property
    def lengths(self) -> tuple[int, ...]:
        """All context lengths, ascending."""
        return tuple(sorted({*self.decode, *self.prefill}))

    @property
    def capacity(self) -> int:
        """Tokens that a cache must hold."""
        return max(FIRST_PROMPT, *self.lengths) + self.new_tokens

    @property
    def trial(self) -> tuple[int, ...]:
        """Contexts that are tried first: it touches pages, fills caches and shows what fails."""
        return tuple(n for n in self.lengths if n <= TRIAL_TOKENS) or self.lengths[:1]

    @property
    def pilot(self) -> int:
        """Rounds that count before slow ways are left out."""
        return min(PILOT_ROUNDS, self.rounds)

    def growth_within(self, context: int) -> tuple[int, ...]:
        """Of the lengths to fit over, those that a model has room for; none if they fit no line."""
        lengths = tuple(n for n in self.growth if n <= context)
        return lengths if len(lengths) > 1 else ()
