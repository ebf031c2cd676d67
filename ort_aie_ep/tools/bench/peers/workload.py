"""What `bench --peers` measures by default, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from ort_aie_ep.tools.bench.peers.process import FIRST_PROMPT

DECODE_LENGTHS = (64, 512, 2048, 4096)
PREFILL_LENGTHS = (512, 2048, 4096)
ROUNDS = 5
STARTS = 3
QUICK_SECONDS = 600.0
"""Time for a quick run."""

# A decoded token takes as long as so many of a prompt: about 3 with AVX2, more with AVX-512. These
# guesses are for steps that have not been timed yet.
DECODED_COST = 4
WRITING_COST = 500
START_COST = 200

# Longest context of the trial, which shows failures before anything takes long.
TRIAL_TOKENS = 512
# Rounds with all engines; the faster one counts, as other processes can only slow one down. An
# engine this close to its library's fastest in the pilot stays: it may be the faster one.
PILOT_ROUNDS = 2
PILOT_MARGIN = 0.05

# Several rows in a call: tokens in each sequence before it, consecutive calls, whose mean counts.
BATCHES = (1, 2, 4, 8, 16)
CONTEXT = 64
CALLS = 4

# The cost of context: total lengths, and tokens to decode at each of them in a round.
GROWTH_LENGTHS = (512, 2048, 4096, 8192, 16384, 32768)
GROWTH_TOKENS = 16


@dataclass(frozen=True)
class Workload:
    """What to measure.

    Attributes:
        decode, prefill: context lengths, and `new_tokens` to decode at each, in tokens.
        rounds, starts: after a trial of the shorter contexts; starts are both warm and cold, or 0
            to skip them.
        threads, options: of each engine; options are those of ort_aie_ep, such as numerics.
        growth: total lengths in tokens for fitting the cost of context; empty to skip it.
        batches: sequences, and tokens of one sequence, in a call; empty to skip it.
        seconds: of a quick run, which has no more rounds than fit. After the trial it has only the
            fastest engine of each library, and at the longest contexts only the fastest of these if
            the first round would not fit. None for all rounds and engines.
    """

    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    new_tokens: int
    rounds: int
    starts: int
    threads: int
    options: dict[str, str]
    growth: tuple[int, ...] = GROWTH_LENGTHS
    batches: tuple[int, ...] = BATCHES
    seconds: float | None = None

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
        lengths = tuple(n for n in self.lengths if n <= TRIAL_TOKENS) or self.lengths[:1]
        return lengths if self.seconds is None else lengths[-1:]

    def growth_within(self, context: int) -> tuple[int, ...]:
        """The lengths for the fit that a model has room for; none if too few for a line."""
        lengths = tuple(n for n in self.growth if n <= context)
        return lengths if len(lengths) > 1 else ()
