"""Compare two versions of the library, or two compilations of a model: bench_versions.py A B

A and B are PYTHON=FOLDER: the Python of an environment with that version installed, and a model
from the builder (past and present share memory). The model is either compiled, or a source, which
runs through the execution provider. Each side has a separate process, because the threads of a
session spin on cores that another session in the same process needs. Both measure in interleaved
turns of half a second, because memory is not equally fast all the time. Prints the milliseconds of
ONNX Runtime's `run` (median over turns), and B's time relative to A's: the median of the ratios of
neighbouring turns with its 95 % bounds (bootstrap over rounds), and the ratio of the least times.

    bench_versions.py .venv/bin/python=PLAN .venv/bin/python=NODES

NODES was made by `ort-aie compile --no-plan`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

from ort_aie_ep.cli.console import bar
from ort_aie_ep.progress import Count
from ort_aie_ep.tools.bench.statistics import median, ratio

# Threads of ONNX Runtime spin for a while after a run.
SETTLE_SECONDS = 0.1

# The program of one side, which uses its own version's package. It measures the call that each
# line on its input names.
PROCESS = """
import json, statistics, sys, time
from pathlib import Path
import numpy as np
import onnxruntime
import ort_aie_ep
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, inspect, open_session

folder, contexts, prompt, seconds = json.loads(sys.argv[1])
model = inspect(Path(folder))
if model.compiled:
    session = open_session(model.folder.model, Options())
else:
    name = "AieExecutionProvider"
    onnxruntime.register_execution_provider_library(name, ort_aie_ep.library_path())
    session = onnxruntime.InferenceSession(
        model.folder.model, providers=[name, "CPUExecutionProvider"], enable_fallback=False
    )
decoder = Decoder(session, model.folder, max(*contexts, prompt) + 64)
ids = np.random.default_rng(0).integers(3, decoder.vocabulary, decoder.capacity)

def run(start, rows):  # the cache before `start` stays, and is the same each time
    decoder.length = start
    decoder.forward(ids[start : start + rows], wanted=1)
    return 1000 * decoder.run_seconds

run(0, decoder.capacity)
print("ready", flush=True)
for line in sys.stdin:
    start, rows = json.loads(line)
    run(start, rows)
    end, times = time.perf_counter() + seconds, []
    while not times or time.perf_counter() < end:
        times.append(run(start + len(times) % 64 if rows == 1 else start, rows))
    print(statistics.median(times), flush=True)
"""


class Side:
    """A version in its own process."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        """Starts the process for PYTHON=FOLDER; a measurement takes at least one run."""
        python, _, folder = side.partition("=")
        what = json.dumps([folder, options.after, options.prompt, options.seconds])
        self._process = subprocess.Popen(
            [python, "-c", PROCESS, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def measure(self, start: int, rows: int) -> float:
        """Milliseconds of a call with `rows` after `start` tokens."""
        assert self._process.stdin
        print(json.dumps([start, rows]), file=self._process.stdin, flush=True)
        milliseconds = float(self._answer())
        time.sleep(SETTLE_SECONDS)
        return milliseconds

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process ended; see its output above")
        return line


def main() -> None:
    """Measures and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sides", nargs=2, metavar="PYTHON=FOLDER")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side; default: 10")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn; default: 0.5")
    parser.add_argument(
        "--after", type=int, nargs="+", default=(16, 512), help="tokens after so many; 16 512"
    )
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt; 512")
    parser.add_argument("--json", type=Path, help="add the turns to those in this file")
    options = parser.parse_args()
    what = {f"token after {start}": (start, 1) for start in options.after}
    what[f"prompt of {options.prompt}"] = (0, options.prompt)
    turns: dict[str, list[list[float]]] = {name: [[], []] for name in what}
    if options.json and options.json.exists():
        turns = json.loads(options.json.read_text())
    sides = [Side(side, options) for side in options.sides]
    with bar("bench", "turns") as progress:
        count = Count(progress, options.rounds * len(what) * len(sides))
        for number in range(options.rounds):
            for name, call in what.items():
                for side in (0, 1) if number % 2 == 0 else (1, 0):
                    count.begin(f"{name}, {'AB'[side]}")
                    turns[name][side].append(sides[side].measure(*call))
                    count.step()
            if options.json:
                options.json.write_text(json.dumps(turns))
    for each in sides:
        each.close()
    print("| | A, ms | B, ms | B / A | of the least times |\n| --- | ---: | ---: | ---: | ---: |")
    for name, (a, b) in turns.items():
        r = ratio(b, a)
        print(
            f"| {name} | {median(a).value:.3g} | {median(b).value:.3g} | "
            f"{r.value:.3f} ({r.low:.3f}–{r.high:.3f}) | {min(b) / min(a):.3f} |"
        )


if __name__ == "__main__":
    main()
