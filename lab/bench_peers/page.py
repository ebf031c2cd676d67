"""Results as a page of tables, as a picture, and ort_aie_ep beside the fastest peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_peers.engines import KINDS, OURS
from bench_peers.rounds import DECODE, PHASES, Measured, Results
from ort_aie_ep.tools.bench.statistics import RESAMPLES, Interval, median, ratio


@dataclass(frozen=True)
class Conditions:
    """The date, the command with MODEL and DIR for paths, which mean nothing elsewhere, the model's
    name and sizes, threads and tokens in words, and the machine and versions by name."""

    date: str
    command: str
    model: str
    plan: str
    machine: dict[str, str]


@dataclass(frozen=True)
class Ratio:
    """An engine of ort_aie_ep / the peer with the highest median at a context, within rounds."""

    engine: str
    phase: str
    length: int
    peer: str
    ratio: Interval


def ratios(results: Results) -> list[Ratio]:
    """For each engine of ort_aie_ep, phase and context."""
    peers = [m for m in results.measured if not KINDS[m.engine].ours]
    found = []
    for ours in (m for m in results.measured if KINDS[m.engine].ours and peers):
        for phase in PHASES:
            for length, rounds in ours.speeds[phase].items():
                best = max(peers, key=lambda m: median(m.speeds[phase][length]).value)
                within = ratio(rounds, best.speeds[phase][length])
                found.append(Ratio(ours.engine, phase, length, best.engine, within))
    return found


def page(results: Results, conditions: Conditions, picture: str | None = None) -> str:
    """In Markdown; `picture` is the name of a file beside it."""
    facts = [*conditions.machine.items(), ("model", conditions.model)]
    rounds = len(results.reads)
    parts = [
        f"# {conditions.machine['CPU']}",
        "How fast ort_aie_ep and other engines run one model on this CPU, on "
        f"{conditions.date}, by",
        f"```sh\n{conditions.command}\n```",
        f"**Unfinished: {results.unfinished}.**" if results.unfinished else "",
        _table(("machine", ""), facts, numbers=False),
        conditions.plan,
        f"![speed against context]({picture})" if picture else "",
        "## Speed",
        _speeds(results),
        f"Medians of {rounds} round{'s' * (rounds != 1)}. ( ): 95 % bounds of the median, "
        f"bootstrap over rounds, {RESAMPLES} resamples.",
        "## Memory and bandwidth",
        _memory(results),
        "Load: opening the model, with its files in memory. Peak memory: VmHWM, mapped files "
        "included. GB/s: weights alone, in the format's bytes, at the shortest decoded context. "
        "Limit: the same round's best plain read of memory: "
        f"{_shown(median(results.reads), 1e9, '.1f')} GB/s.",
        "## Engines",
        _engines(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _speeds(results: Results) -> str:
    columns = [(p, n) for p in PHASES for n in results.measured[0].speeds[p]]
    rows = []
    for m in results.measured:
        found = [median(m.speeds[phase][length]) for phase, length in columns]
        cells = (_shown(v, digits=".1f" if v.value < 100 else ".0f") for v in found)
        rows.append((m.engine, *cells))
    beside = ratios(results)
    if beside:
        rows.append(("best peer", *(r.peer for r in beside if r.engine == OURS)))
    for engine in dict.fromkeys(r.engine for r in beside):
        cells = (_shown(r.ratio) for r in beside if r.engine == engine)
        rows.append((f"{engine} / best peer", *cells))
    header = ("tokens per second", *(f"{phase} {length}" for phase, length in columns))
    return _table(header, rows)


def _memory(results: Results) -> str:
    names = (
        "load, s", "peak memory, MB", "files, MB", "bits/weight", "GB/s decoding", "of limit"
    )  # fmt: skip
    return _table(("", *names), (_memory_row(m, results) for m in results.measured))


def _memory_row(m: Measured, results: Results) -> Sequence[str]:
    speed = ("", "")
    if m.speeds[DECODE]:
        shortest = m.speeds[DECODE][min(m.speeds[DECODE])]
        read = [tokens * m.model.weight_bytes for tokens in shortest]
        share = ratio(read, results.reads)
        speed = _shown(median(read), 1e9, ".1f"), _shown(share, 0.01, ".0f") + " %"
    sizes = (f"{size / 1e6:.0f}" if size else "" for size in (m.peak_bytes, m.model.file_bytes))
    return m.engine, f"{m.load_seconds:.2f}", *sizes, f"{m.model.bits:.2f}", *speed


def _engines(results: Results) -> str:
    rows = [
        (m.engine, "; ".join(f"{name}: {value}" for name, value in m.settings.items()))
        for m in results.measured
    ]
    return _table(("engine", "settings"), [*rows, *results.left_out.items()], numbers=False)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    rest = "---:" if numbers else "---"
    lines = [header, ("---", *[rest] * (len(header) - 1)), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _shown(value: Interval, unit: float = 1, digits: str = ".2f") -> str:
    middle, low, high = (format(x / unit, digits) for x in (value.value, value.low, value.high))
    return f"{middle} ({low}–{high})"


def plot(results: Results, path: Path, title: str) -> None:
    """Speed against context as a PNG, decode and prefill side by side, with 95 % bars."""
    from matplotlib.figure import Figure

    phases = [p for p in PHASES if results.measured[0].speeds[p]]
    figure = Figure(figsize=(2 + 5 * len(phases), 4), layout="constrained")
    panels = figure.subplots(1, len(phases), squeeze=False)[0]
    for axes, phase in zip(panels, phases, strict=True):
        for m in results.measured:
            values = [median(rounds) for rounds in m.speeds[phase].values()]
            axes.errorbar(
                list(m.speeds[phase]), [v.value for v in values],
                yerr=[[v.value - v.low for v in values], [v.high - v.value for v in values]],
                label=m.engine, marker="o", capsize=3, linewidth=2.5 if m.engine == OURS else 1.5,
            )  # fmt: skip
        lengths = sorted(results.measured[0].speeds[phase])
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xticks([], minor=True)
        axes.set_ylim(bottom=0)
        axes.set(title=phase, xlabel="context, tokens", ylabel="tokens per second")
        axes.grid(alpha=0.3)
    # Beside the axes, because inside it would hide points.
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title, fontsize="small")
    figure.savefig(path, dpi=150)
