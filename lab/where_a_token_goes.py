"""Where the time of a token goes: where_a_token_goes.py COMPILED [--threads N]

COMPILED is a dense model that `ort-aie compile` made, with one node for its decoder. Tokens run
with the timeline (`ort_aie.log=trace`), in turns with plain reads of memory by as many threads.
Prints, for a token after 16 and after 512 others, the median milliseconds of each kind of step, of
what is between steps and of the rest of ONNX Runtime's `run`, and how fast projections read their
weights. Of a projection's time, what its bytes do not take is a constant a, by least squares over
its shapes: time = a + bytes / rate. That is its norm, its quantised activations, the start and the
end of a parallel section, and the first blocks, which nobody has fetched ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ort_aie_ep import _native
from ort_aie_ep.explain.explain import explain
from ort_aie_ep.machine import physical_cores
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, inspect, open_session

TOKENS_AFTER = (16, 512)
PROJECTIONS = ("MatMul", "GatedMLP")
TURN = 16  # tokens between two plain reads


@dataclass(frozen=True)
class Step:
    """An event of the timeline: its kind, its time in ms, and its facts."""

    kind: str
    milliseconds: float
    facts: dict[str, int]

    @property
    def weights(self) -> int:
        """Weights of a projection."""
        return self.facts["k"] * self.facts["n"] * (2 if self.kind == "GatedMLP" else 1)


@dataclass(frozen=True)
class Token:
    """A plan of one token: its time in ms, its steps, and the keys of its attention."""

    milliseconds: float
    steps: tuple[Step, ...]
    keys: int


def main() -> None:
    """Measures and prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="COMPILED")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument(
        "--rounds", type=int, default=10, help=f"turns of {TURN} tokens; default: 10"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        os.environ["ORT_AIE_TRACE"] = str(path)
        runs, read = measure(options.model, options.threads, options.rounds)
        tokens = tokens_in(json.loads(path.read_text())["traceEvents"])
    size = sum(node.token_bytes for node in explain(options.model).nodes)
    print(f"{size / 1e6:.0f} MB of weights, {options.threads} threads")
    for after in TOKENS_AFTER:
        its = [token for token in tokens if after < token.keys <= after + TURN]
        report(after, runs[after], its, size, read[after])


def measure(
    model: Path, threads: int, rounds: int
) -> tuple[dict[int, list[float]], dict[int, float]]:
    """By context: milliseconds of `run` for each token, and bytes a second of plain reads."""
    folder = inspect(model).folder
    session = open_session(folder.model, Options(threads=threads, log="trace"))
    decoder = Decoder(session, folder, max(TOKENS_AFTER) + 64)
    ids = np.random.default_rng(0).integers(3, decoder.vocabulary, decoder.capacity)
    decoder.forward(ids)
    runs: dict[int, list[float]] = {}
    read: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as where:
        reading = _native.KernelTrials(where, threads)
        for after in TOKENS_AFTER:
            times, reads = [], []
            for _ in range(rounds):
                reads.append(reading.read_bandwidth(0.1))
                for i in range(-4, TURN):  # threads wake up, and the read is out of the caches
                    decoder.length = after + i
                    decoder.forward(ids[after + i : after + i + 1])
                    times += [1000 * decoder.run_seconds] if i >= 0 else []
            runs[after], read[after] = times, median(reads)
    return runs, read


def tokens_in(events: list[dict[str, Any]]) -> list[Token]:
    """The plans of one token, in order."""
    events = sorted(events, key=lambda event: float(event["ts"]))
    tokens: list[Token] = []
    steps: list[Step] = []
    milliseconds = 0.0
    # A step begins after its plan, so that the steps of a plan follow it.
    for event in [*events, {"cat": "node", "name": "", "dur": 0}]:
        if event["cat"] == "step":
            steps.append(Step(event["name"], event["dur"] / 1000, event["args"]))
        elif event["cat"] == "node":
            if steps and steps[0].facts["rows"] == 1:
                keys = max(step.facts.get("keys", 0) for step in steps)
                tokens.append(Token(milliseconds, tuple(steps), keys))
            steps, milliseconds = [], event["dur"] / 1000
    return tokens


def report(after: int, runs: list[float], tokens: list[Token], size: int, read: float) -> None:
    """Prints the table of a context, and what a projection takes beside its bytes."""
    weights = sum(step.weights for step in tokens[0].steps if step.kind in PROJECTIONS)
    times: dict[str, list[float]] = defaultdict(list)
    shapes: dict[int, list[float]] = defaultdict(list)
    for run, token in zip(runs, tokens, strict=True):
        kinds: dict[str, float] = defaultdict(float)
        for step in token.steps:
            kinds["projections" if step.kind in PROJECTIONS else step.kind] += step.milliseconds
            if step.kind in PROJECTIONS:
                shapes[step.weights].append(step.milliseconds)
        kinds["between steps"] = token.milliseconds - sum(kinds.values())
        kinds["ONNX Runtime"] = run - token.milliseconds
        for kind, milliseconds in kinds.items():
            times[kind].append(milliseconds)
    whole, limit = median(runs), 1000 * size / read
    print(f"\n| a token after {after} | ms | share |\n| --- | ---: | ---: |")
    for kind, each in sorted(times.items(), key=lambda item: -median(item[1])):
        print(f"| {kind} | {median(each):.2f} | {median(each) / whole:.1%} |")
    print(f"| `run` | {whole:.2f} | |")
    rate = f"{read / 1e9:.1f} GB/s"
    print(f"| a plain read of the weights, {rate} | {limit:.2f} | {limit / whole:.1%} |")
    a, per_byte = np.polynomial.polynomial.polyfit(
        [count * size / weights for count in shapes], [median(each) for each in shapes.values()], 1
    )
    count = sum(step.kind in PROJECTIONS for step in tokens[0].steps)
    speed = size / 1e6 / median(times["projections"])
    print(
        f"\nprojections read {speed:.1f} GB/s ({1e9 * speed / read:.1%} of a plain read); "
        f"a projection: {1000 * a:.0f} µs and {1e-6 / per_byte:.1f} GB/s, {count} of them"
    )
    for number, each in sorted(shapes.items()):
        part = number * size / weights
        print(
            f"  {part / 1e6:6.2f} MB: {median(each):.3f} ms, {part / 1e6 / median(each):.1f} GB/s"
        )


if __name__ == "__main__":
    main()
