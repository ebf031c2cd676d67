"""A model's tokens on an NPU, compared with those of the host.

The model runs in a process of its own, because failures there can be outside Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ort_aie_ep.errors import AieError

#: Seconds, a few of which compiling the model takes.
LIMIT = 300


@dataclass(frozen=True)
class Token:
    """A comparison of a model's tokens on the NPU with those on the host."""

    tokens: int
    same: int  # from the first, until the texts diverge
    near_tie: bool  # whether they diverge where the host barely prefers one token
    largest_difference: float  # of a logit
    largest_logit: float
    milliseconds: float  # a token, median of the repetitions
    host_milliseconds: float
    submissions: float  # for each token
    host_steps: dict[str, int]  # all that the NPU did not do, by reason

    @property
    def right(self) -> bool:
        """Whether the text is the same as on the host."""
        return self.same == self.tokens or self.near_tie


def run_apart(overlays: Path, target: str = "xrt", limit: float = LIMIT) -> Token:
    """`model_process.measure`. If that fails, raises AieError with its last line of output."""
    module = "ort_aie_ep.bringup.model_process"
    command = [sys.executable, "-P", "-m", module, str(overlays), target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise AieError(f"a model's tokens did not arrive within {limit:.0f} s") from error
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["nothing"]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        raise AieError(f"the model's process ended with {ended} and printed: {words[-1]}")
    return Token(**json.loads(done.stdout.splitlines()[-1]))
