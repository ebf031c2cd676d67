"""What `bench --peers` measures by default, and in which order."""

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
"""Longest context of the trial, which shows failures before anything takes long."""

PILOT_ROUNDS = 2
"""Rounds with all engines; the faster one counts, as other processes can only slow one down."""
PILOT_MARGIN = 0.05
"""An engine this close to its library's fastest in the pilot stays: it may be the faster one."""

DECODE, PREFILL = PHASES = ("decode", "prefill")


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        decode, prefill: context lengths in tokens.
        new_tokens: tokens to decode at each length.
        rounds: rounds of all measurements, after a trial of the shorter contexts.
        starts: starts of each engine, both warm and cold.
        threads: threads of each engine.
        options: options of ort_aie_ep, such as numerics.
        growth: total lengths in tokens for fitting the cost of context; empty to skip it.
        batches: sequences, and tokens of one sequence, in a call; empty to skip it.
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
        """Tokens that a cache must have room for."""
        return max(FIRST_PROMPT, *self.lengths) + self.new_tokens

    @property
    def trial(self) -> tuple[int, ...]:
        """Contexts to try first. This touches pages, fills caches and shows failures."""
        return tuple(n for n in self.lengths if n <= TRIAL_TOKENS) or self.lengths[:1]

    @property
    def pilot(self) -> int:
        """Rounds that count before slow engines are left out."""
        return min(PILOT_ROUNDS, self.rounds)

    def growth_within(self, context: int) -> tuple[int, ...]:
        """The lengths for the fit that a model has room for; none if too few for a line."""
        lengths = tuple(n for n in self.growth if n <= context)
        return lengths if len(lengths) > 1 else ()
