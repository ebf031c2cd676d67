"""Whether a model fits into this machine, and how fast it can be, before it is downloaded."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cache

from ort_aie_ep import platforms
from ort_aie_ep.disk import size_text
from ort_aie_ep.hub.contents import Choice, Kind

# Bytes of a compiled weight, of a byte of the source: the builder makes about 0.6 bytes of the two
# of a checkpoint; the other kinds are quantised already, and stay about as large.
_COMPILED = {Kind.checkpoint: 0.3}
# Beside the weights: the KV cache of a few thousand tokens, activations, ONNX Runtime itself. An
# allowance, as the file names say nothing of layers and heads.
_BESIDE = 1 << 29
# Smaller models stay in a CPU's caches, and the speed of its memory says nothing of them.
_IN_MEMORY = 1 << 26
_READS = 5


@dataclass(frozen=True)
class Fit:
    """What a model needs, and what this machine has.

    Attributes:
        weights: bytes of its weights once it is compiled, about.
        memory: bytes that it needs in memory, about.
        free: bytes of memory that are free; None if unknown.
        speed: tokens a second of a text that is written alone, about, where each token reads all
            weights at the speed of a plain read; a mixture of experts reads fewer. None for a
            small model, or if the memory's speed could not be measured.
    """

    weights: int
    memory: int
    free: int | None
    speed: float | None

    @property
    def fits(self) -> bool:
        """Whether it fits, or nothing is known against it."""
        return self.free is None or self.memory <= self.free

    def line(self) -> str:
        """What a user has to know, in a line."""
        text = f"needs about {size_text(self.memory)} of memory"
        if self.free is not None:
            text += f", {size_text(self.free)} are free"
        if not self.fits:
            return f"{text}: it does not fit, choose a smaller model"
        if self.speed is not None:
            digits = 0 if self.speed >= 10 else 1
            text += f"; about {self.speed:.{digits}f} tokens/s at the speed of this memory"
        return text


def fit(choice: Choice) -> Fit:
    """What a choice needs of this machine. Measures the memory's speed, once: a few seconds."""
    found = room(choice.size, choice.kind)
    bandwidth = read_bandwidth() if found.weights >= _IN_MEMORY else None
    return found if bandwidth is None else replace(found, speed=bandwidth / found.weights)


def room(size: int, kind: Kind) -> Fit:
    """What a model of so many bytes needs, without a speed."""
    weights = round(size * _COMPILED.get(kind, 1.0))
    return Fit(weights, weights + _BESIDE, platforms.free_memory(), None)


@cache
def read_bandwidth() -> float | None:
    """Bytes a second that all threads read from memory; None if it cannot be measured here."""
    from ort_aie_ep import _native

    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = _native.KernelTrials(folder, len(platforms.usable_cpus()))
            # On a shared machine it changes from one moment to the next.
            return max(trials.read_bandwidth(0.1) for _ in range(_READS))
    except (OSError, RuntimeError, ValueError):
        return None
