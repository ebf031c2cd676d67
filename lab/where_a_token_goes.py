"""Where the time of a token or a prompt goes: where_a_token_goes.py COMPILED [--prompts N ...]

COMPILED is a dense model that `ort-aie compile` made, with one node for its decoder. Tokens run
with the timeline (`ort_aie.log=trace`), in turns with plain reads of memory by as many threads.
Prints, for a token after 16 and after 512 others, the median milliseconds of each kind of step, of
what is between steps and of the rest of ONNX Runtime's `run`, how fast projections read their
weights, and how long a plain read of them and of the cache takes. Of a projection's time, what its
bytes do not take is a constant a, by least squares over its shapes: time = a + bytes / rate. That
is its norm, its quantised activations, the start and the end of a parallel section, and the first
blocks, which nobody has fetched ahead.

Of prompts, it prints the share of attention, and the operations a second of its two products,
without keys that causality hides. `make kernel-bench` has the peak of a thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
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
class Plan:
    """A plan: its time in ms, its steps, its tokens, and the keys of its attention."""

    milliseconds: float
    steps: tuple[Step, ...]
    rows: int
    keys: int


def main() -> None:
    """Measures and prints tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="COMPILED")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument(
        "--rounds", type=int, default=10, help=f"turns of {TURN} tokens; default: 10"
    )
    parser.add_argument(
        "--after", type=int, nargs="+", default=(16, 512), help="tokens after so many; 16 512"
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=(), help="of so many tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        os.environ["ORT_AIE_TRACE"] = str(path)
        measured = measure(options)
        plans = plans_in(json.loads(path.read_text())["traceEvents"])
    size = sum(node.token_bytes for node in explain(options.model).nodes)
    print(f"{size / 1e6:.0f} MB of weights, {options.threads} threads")
    for after, runs in measured.runs.items():
        its = [plan for plan in plans if plan.rows == 1 and after < plan.keys <= after + TURN]
        report(after, runs, its, size, measured.cache_bytes * after, measured.read[after])
    if options.prompts:  # which followed the last token
        last = max(i for i, plan in enumerate(plans) if plan.rows == 1)
        report_prompts(options.prompts, plans[last + 1 :])


@dataclass(frozen=True)
class Measured:
    """By context: milliseconds of `run` for each token, and bytes a second of plain reads; bytes of
    a token's keys and values."""

    runs: dict[int, list[float]]
    read: dict[int, float]
    cache_bytes: int


def measure(options: argparse.Namespace) -> Measured:
    """Runs tokens, and then the prompts."""
    folder = inspect(options.model).folder
    session = open_session(folder.model, Options(threads=options.threads, log="trace"))
    longest = max((*options.after, *options.prompts))
    decoder = Decoder(session, folder, longest + 64)
    ids = np.random.default_rng(0).integers(3, decoder.vocabulary, decoder.capacity)
    decoder.prefill(ids[: max(options.after) + TURN])
    runs: dict[int, list[float]] = {}
    read: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as where:
        reading = _native.KernelTrials(where, options.threads)
        for after in options.after:
            times, reads = [], []
            for _ in range(options.rounds):
                reads.append(reading.read_bandwidth(0.1))
                for i in range(-4, TURN):  # threads wake up, and the read is out of the caches
                    decoder.length = after + i
                    decoder.forward(ids[after + i : after + i + 1])
                    times += [1000 * decoder.run_seconds] if i >= 0 else []
            runs[after], read[after] = times, median(reads)
    for prompt in options.prompts:
        decoder.length = 0
        decoder.prefill(ids[:prompt])
    return Measured(runs, read, decoder.token_bytes)


def plans_in(events: list[dict[str, Any]]) -> list[Plan]:
    """All plans, in order."""
    events = sorted(events, key=lambda event: float(event["ts"]))
    plans: list[Plan] = []
    steps: list[Step] = []
    milliseconds = 0.0
    # A step begins after its plan, so that the steps of a plan follow it.
    for event in [*events, {"cat": "node", "name": "", "dur": 0}]:
        if event["cat"] == "step":
            steps.append(Step(event["name"], event["dur"] / 1000, event["args"]))
        elif event["cat"] == "node":
            if steps:
                keys = max(step.facts.get("keys", 0) for step in steps)
                plans.append(Plan(milliseconds, tuple(steps), steps[0].facts["rows"], keys))
            steps, milliseconds = [], event["dur"] / 1000
    return plans


def kinds_of(plan: Plan) -> dict[str, float]:
    """Milliseconds of each kind of step, and between steps."""
    kinds: dict[str, float] = defaultdict(float)
    for step in plan.steps:
        kinds["projections" if step.kind in PROJECTIONS else step.kind] += step.milliseconds
    kinds["between steps"] = plan.milliseconds - sum(kinds.values())
    return kinds


def report_prompts(prompts: Sequence[int], plans: list[Plan]) -> None:
    """Prints a row for each prompt, which was run in chunks, a plan each."""
    print("\n| a prompt of | ms | attention | its share | its GFLOP/s | projections |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for prompt in prompts:
        end = next(i for i, plan in enumerate(plans) if plan.keys == prompt) + 1
        its, plans = plans[:end], plans[end:]
        whole = sum(plan.milliseconds for plan in its)
        attention, projections = (
            sum(kinds_of(plan)[kind] for plan in its) for kind in ("Attention", "projections")
        )
        flops = sum(
            4 * f["heads"] * f["dim"] * f["rows"] * (f["keys"] - (f["rows"] - 1) / 2)
            for plan in its for step in plan.steps if step.kind == "Attention"
            for f in [step.facts]
        )  # fmt: skip
        print(
            f"| {prompt} | {whole:.0f} | {attention:.0f} | {attention / whole:.1%} | "
            f"{flops / attention / 1e6:.0f} | {projections:.0f} |"
        )


def report(
    after: int, runs: list[float], tokens: list[Plan], size: int, cache: int, read: float
) -> None:
    """Prints the table of a context, and what a projection takes beside its bytes."""
    weights = sum(step.weights for step in tokens[0].steps if step.kind in PROJECTIONS)
    times: dict[str, list[float]] = defaultdict(list)
    shapes: dict[int, list[float]] = defaultdict(list)
    for run, token in zip(runs, tokens, strict=True):
        kinds = kinds_of(token)
        for step in token.steps:
            if step.kind in PROJECTIONS:
                shapes[step.weights].append(step.milliseconds)
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
    limit = 1000 * cache / read
    print(f"| of {cache / 1e6:.1f} MB of keys and values | {limit:.2f} | {limit / whole:.1%} |")
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
