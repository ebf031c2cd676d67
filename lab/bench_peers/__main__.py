"""ort_aie_ep beside llama.cpp, ik_llama.cpp, OpenVINO GenAI and ONNX Runtime, on one model.

    ort-aie synth llama-3.2-1b MODEL --vocab 32000
    python lab/bench_peers MODEL --out DIR
    python lab/bench_peers MODEL --quick
    python lab/make_gguf.py FILE.gguf --type q4_k_m
    python lab/bench_peers FILE.gguf --out DIR

MODEL is a Llama or a dense Qwen3 in symmetric int4, as onnxruntime-genai's builder or `synth`
writes it: its weights are written in each engine's format, without quantising them again. Or it is
any GGUF file, which llama.cpp and ik_llama.cpp open as it is. Each engine runs in a process of its
own. `make bench` installs the engines; one that is missing, dies, or does not answer within 300
seconds gets a line, and the others go on. Prints the page, and with --out writes it to DIR as
bench.md, with bench.json and, with matplotlib, bench.png, after each round; Ctrl-C ends the run,
and the page says what is missing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_peers import machine
from bench_peers.engines import KINDS, OURS, GgufSource, Source
from bench_peers.gguf_file import gguf_source
from bench_peers.page import Conditions, page, plot, ratios
from bench_peers.rounds import Plan, Results, measure
from bench_peers.weights import DecoderWeights
from ort_aie_ep.cli.console import environment
from ort_aie_ep.errors import AieError
from ort_aie_ep.machine import physical_cores
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.runtime.sessions import inspect


def main() -> None:
    """Measures, prints and writes."""
    given = arguments()
    is_gguf = given.model.suffix == ".gguf"
    found = None if is_gguf else inspect(given.model)
    if found is not None and found.compiled:
        raise AieError(f"{given.model} is compiled; the peers need its source: pass that")
    plan = plan_of(given)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    so_far: list[Results] = []

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def keep(results: Results) -> None:
        so_far[:] = [results]
        if given.out:
            write(results, conditions, plan, given.out)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Beside the results, because /tmp may be memory, which the models would take.
    with TemporaryDirectory(prefix="bench-peers-", dir=given.out) as scratch:
        source: Source | GgufSource
        if found is None:
            source = gguf_source(given.model, Path(scratch))
        else:
            source = Source(found.folder, DecoderWeights(found.folder), Path(scratch))
        known = environment()
        versions = {name: known[name] for name in ("ort_aie_ep", "onnxruntime", "kernels")}
        conditions = Conditions(
            date.today().isoformat(),
            as_typed(given.model, given.out),
            f"{given.model.name}, {source.describe()}",
            f"{plan.threads} threads; {plan.new_tokens} tokens decoded a run.",
            machine.described() | versions,
        )
        try:
            measure(source, plan, [OURS, *(n for n in given.engines if n != OURS)], note, keep)
        except KeyboardInterrupt:
            if not so_far:
                raise SystemExit("interrupted before the first round was over") from None
            note("interrupted")
    print(page(so_far[0], conditions))
    if so_far[0].unfinished:
        raise SystemExit(130)


def arguments() -> argparse.Namespace:
    """The command line."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        prog="bench_peers", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for bench.{md,json,png}")
    parser.add_argument("--quick", action="store_true", help="one round, up to 512 tokens")
    parser.add_argument(
        "--decode", type=lengths, metavar="N,N", help="contexts (default: 64,512,2048,4096)"
    )
    parser.add_argument(
        "--prefill", type=lengths, metavar="N,N", help="prompts (default: 512,2048,4096)"
    )
    parser.add_argument("--new-tokens", type=int, default=32, help="decoded at each context (32)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of each engine")
    parser.add_argument("--numerics", choices=("auto", "bf16", "int8"), help="of ort_aie_ep")
    parser.add_argument(
        "--engines", nargs="+", choices=tuple(KINDS), default=tuple(KINDS), metavar="NAME",
        help=f"beside ort_aie_ep, some of: {'; '.join(KINDS)}",
    )  # fmt: skip
    return parser.parse_args()


def lengths(text: str) -> tuple[int, ...]:
    """A list of token counts."""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError(text)
    return found


def plan_of(given: argparse.Namespace) -> Plan:
    """What the options ask for."""
    decode, prefill, rounds = ((64, 512), (512,), 1) if given.quick else (
        (64, 512, 2048, 4096), (512, 2048, 4096), 5
    )  # fmt: skip
    return Plan(
        given.decode or decode,
        given.prefill or prefill,
        given.new_tokens,
        given.rounds or rounds,
        given.threads,
        given.numerics,
    )


def as_typed(model: Path, out: Path | None) -> str:
    """The command, with MODEL and DIR for paths, which mean nothing on other machines."""
    names = {str(model): "MODEL", str(out): "DIR"}
    return " ".join(["python lab/bench_peers", *(names.get(word, word) for word in sys.argv[1:])])


def write(results: Results, conditions: Conditions, plan: Plan, out: Path) -> None:
    """Writes the files, each completely or not at all."""
    picture = None
    if find_spec("matplotlib"):
        picture = "bench.png"
        title = f"{conditions.machine['CPU']}; {conditions.model}; {conditions.date}"
        plot(results, out / picture, title)
    kept = {name: asdict(x) for name, x in (("plan", plan), ("conditions", conditions))}
    beside = {"ratios": [asdict(ratio) for ratio in ratios(results)]}
    content = json.dumps(asdict(results) | beside | kept, indent=2, default=lambda path: path.name)
    for name, text in (("json", content), ("md", page(results, conditions, picture))):
        with written_beside(out / f"bench.{name}") as file:
            file.write(text)


if __name__ == "__main__":
    try:
        main()
    except AieError as error:
        raise SystemExit(f"error: {error}") from None
