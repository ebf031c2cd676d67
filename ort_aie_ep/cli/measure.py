"""Commands that compare our library with ONNX Runtime alone: bench, accuracy, demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import (
    Baseline,
    Json,
    KvType,
    NumericsOption,
    TargetOption,
    Threads,
    session_options,
)
from ort_aie_ep.cli.progress import Bar
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import written_beside
from ort_aie_ep.progress import Count

if TYPE_CHECKING:
    from ort_aie_ep.models.folder import ModelFolder
    from ort_aie_ep.runtime.sessions import Options
    from ort_aie_ep.tools.bench.bench import Comparison
    from ort_aie_ep.tools.bench.conditions import Conditions
    from ort_aie_ep.tools.bench.peers.plan import Plan
    from ort_aie_ep.tools.bench.peers.report import PeersReport


def _lengths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter(f"{text!r} is no list of token counts such as 128,512")
    return lengths


def _batch_sizes(text: str | None) -> tuple[int, ...] | None:
    """1 is always among them: it is what all others are compared with."""
    sizes = _lengths(text)
    return None if sizes is None else tuple(sorted({1, *sizes}))


@app.command("bench")
def bench_command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Source, or compiled folder.")],
    prompt_lengths: Annotated[
        str | None, typer.Option(metavar="N,N", help="Contexts in tokens. Default: 128,512,1024.")
    ] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode at each.")] = 32,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Runs of each, taking turns. Default: 5.")
    ] = None,
    baseline: Baseline = None,
    target: TargetOption = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
    json: Json = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure llama.cpp, ik_llama.cpp and OpenVINO too.")
    ] = False,
    starts: Annotated[
        int | None,
        typer.Option(min=1, help="With --peers: warm and cold starts of each. Default: 3."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --peers: where bench.{json,md,png} go."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Measure n sequences, and n tokens of one, in a call. With --peers it is a part "
            "of all. Default there: 1,2,4,8,16.",
        ),
    ] = None,
) -> None:
    """Measure speed against ONNX Runtime's CPU EP, or against other engines.

    Both run the same model in one process, taking turns. A source is compiled for the occasion:

    ```
    ort-aie bench MODEL
    ort-aie bench COMPILED --baseline MODEL --prompt-lengths 128,1024 --threads 4
    ```

    `--batch` measures instead what several rows in a call cost beside one: a token of each of n
    sequences, and n tokens of one, which is the verification of drafted tokens:

    ```
    ort-aie bench MODEL --batch 1,2,4,8,16
    ```

    With `--peers`, a Llama's int4 weights are written in each engine's format as they are, and each
    engine runs in a process of its own; one that fails is a line of the report. By default decoding
    is measured at contexts of 64, 512, 2048 and 4096 tokens and prefill at all but the first; then
    several rows in a call, the time from a process's start to its first token, with a warm and a
    cold page cache, and what a token of context costs us up to 32768. A model of 10⁹ weights takes
    about half an hour on two cores; what is in DIR after each round is good if it is interrupted:

    ```
    ort-aie bench --peers MODEL --out results
    ```
    """
    from ort_aie_ep.tools.bench import bench

    lengths = _lengths(prompt_lengths)
    options = session_options(target, numerics, threads)
    if peers:
        if baseline is not None:
            raise AieError("--peers compiles MODEL itself: leave out --baseline")
        sizes = _batch_sizes(batch)
        _bench_peers(context, model, lengths, new_tokens, runs, starts, sizes, options, json, out)
        return
    for name, value in (("--out", out), ("--starts", starts)):
        if value is not None:
            raise AieError(f"{name} belongs to --peers")
    runs = runs or 5
    if sizes := _batch_sizes(batch):
        _refuse_beside_batch(context)
        _bench_batches(model, baseline, sizes, runs, options, json)
        return
    with _both(model, baseline) as (compiled, source):
        plan = bench.Plan(lengths or bench.default_lengths(source, new_tokens), new_tokens, runs)
        with console.bar("bench", "runs", "opening both models") as progress:
            report = bench.bench(compiled, source, options, plan, progress)
    if json:
        console.print_json(report, plan=asdict(plan), options=asdict(options))
        return
    from ort_aie_ep.cli import tables

    console.out.print(tables.speed_table(report.comparisons))
    console.out.print(tables.agreement_lines(report.agreement))
    ours, reference = report.load_seconds
    console.note(
        f"Medians of {runs} runs of {new_tokens} decoded tokens; ratio: median of runs that "
        f"followed each other.\nLoading: ort_aie_ep {ours:.2f} s, CPU EP {reference:.2f} s.\n"
        + tables.conditions_line(threads)
    )


def _refuse_beside_batch(context: typer.Context) -> None:
    """Options that would go unheard: without --peers, --batch measures nothing else."""
    for name in ("prompt_lengths", "new_tokens"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise AieError(
                f"--{name.replace('_', '-')} does not go with --batch, which measures nothing else "
                "without --peers: leave one of them out"
            )


def _bench_batches(
    model: Path,
    baseline: Path | None,
    sizes: tuple[int, ...],
    runs: int,
    options: Options,
    json: bool,
) -> None:
    from ort_aie_ep.cli import tables
    from ort_aie_ep.tools.bench import several_rows
    from ort_aie_ep.tools.bench.peers.sheets import batches_sheet

    with (
        _both(model, baseline) as (compiled, source),
        console.bar("bench", "runs", "opening both models") as progress,
    ):
        report = several_rows.measure(compiled, source, options, sizes, runs, progress)
    if json:
        console.print_json(report, options=asdict(options))
        return
    console.out.print(tables.sheet_tables([batches_sheet(report)]))
    console.note(tables.conditions_line(options.threads))


def _bench_peers(
    context: typer.Context,
    model: Path,
    lengths: tuple[int, ...] | None,
    new_tokens: int,
    rounds: int | None,
    starts: int | None,
    batches: tuple[int, ...] | None,
    options: Options,
    json: bool,
    out: Path | None,
) -> None:
    from ort_aie_ep.explain.machine import physical_cores
    from ort_aie_ep.tools.bench import conditions
    from ort_aie_ep.tools.bench.peers import plan as plans
    from ort_aie_ep.tools.bench.peers import plot, report, runner
    from ort_aie_ep.tools.bench.peers.sheets import sheets

    plan = plans.Plan(
        lengths or plans.DECODE_LENGTHS,
        lengths or plans.PREFILL_LENGTHS,
        new_tokens,
        rounds or plans.ROUNDS,
        starts or plans.STARTS,
        options.threads or physical_cores(),
        {k: v for k, v in asdict(options).items() if k != "threads" and v is not None},
        batches=batches or plans.BATCHES,
    )
    if out is not None:
        plot.check_plot()
        out.mkdir(parents=True, exist_ok=True)
    machine, date = conditions.machine(), conditions.today()
    # Cold starts need the models on a disk, which /tmp may not be: beside the results, if anywhere.
    with TemporaryDirectory(prefix="ort-aie-", dir=out) as scratch:
        with console.bar("read the model"):
            source = runner.open_source(model, Path(scratch))
        environment = console.environment()
        held = conditions.Conditions(
            machine,
            date,
            _as_typed(context),
            f"{model.name}, {source.weights.sizes.describe()}",
            {name: environment[name] for name in ("ort_aie_ep", "onnxruntime", "kernels")},
            f"{plan.threads} threads; medians of {plan.rounds} rounds, {new_tokens} decoded tokens "
            f"each; {plan.starts} starts, warm and cold each.",
        )
        with console.bar("bench", "steps") as bar:
            results = runner.measure(
                source,
                plan,
                _Progress(bar, Count(bar, 0)),
                partial=lambda so_far: _write(report.report(so_far), held, plan, out),
                amx=machine.amx,
                demonstrate=lambda: _demonstration(options),
            )
    measured = report.report(results)
    if json:
        console.print_json(measured, plan=asdict(plan), conditions=asdict(held))
    else:
        from ort_aie_ep.cli import tables

        console.out.print(tables.sheet_tables(sheets(measured)))
        console.note(f"{machine.cpu} ({machine.identity}); {held.model}; {held.plan}")
    if out is not None:
        plot.plot(measured, out / "bench.png", f"{machine.cpu}; {held.model}; {date}")
        _write(measured, held, plan, out, "bench.png")
        console.note(f"written: {out / 'bench.json'}, {out / 'bench.md'}, {out / 'bench.png'}")


def _write(
    measured: PeersReport,
    held: Conditions,
    plan: Plan,
    out: Path | None,
    picture: str | None = None,
) -> None:
    """Writes bench.json and bench.md, whole or not at all."""
    from ort_aie_ep.tools.bench.peers import report
    from ort_aie_ep.tools.bench.peers.markdown import markdown

    if out is None:
        return
    settings = {"settings": {"plan": asdict(plan)}, "conditions": asdict(held)}
    report.write_json(measured, out / "bench.json", settings)
    with written_beside(out / "bench.md") as file:
        file.write(markdown(measured, held, picture))


def _demonstration(options: Options) -> Comparison | None:
    """Decoding of the demonstration model; None where the installation has none."""
    from ort_aie_ep.tools.bench import demo

    return demo.decode_speed(options) if demo.MODEL.is_dir() else None


def _as_typed(context: typer.Context) -> str:
    """The command with what was given, MODEL and DIR for paths: they mean nothing elsewhere."""
    words = ["ort-aie", context.info_name or ""]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        value = context.params.get(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or parameter.name == "json":
            continue
        if parameter.param_type_name == "argument":
            words.append("MODEL")
        elif isinstance(value, bool):
            words.append(parameter.opts[0])
        else:
            words += [parameter.opts[0], "DIR" if isinstance(value, Path) else str(value)]
    return " ".join(words)


@dataclass(frozen=True)
class _Progress:
    """What `bench --peers` tells of itself, as a bar and lines above it."""

    bar: Bar
    count: Count

    def total(self, steps: int) -> None:
        self.count.total = steps

    def step(self, what: str) -> None:
        self.count.what = what
        self.count.step()

    def note(self, text: str) -> None:
        self.bar.note(text)


@app.command("accuracy")
def accuracy_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Source, or compiled folder.")],
    tokens: Annotated[int, typer.Option(min=0, help="Tokens to score in passes.")] = 20_000,
    decode_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens to score one by one, besides.")
    ] = 2_000,
    window: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a window. Default: 512, or the context.")
    ] = None,
    kv: Annotated[
        list[KvType] | None,
        typer.Option(help="Also with this KV cache, as compile --kv makes it. Repeatable."),
    ] = None,
    baseline: Baseline = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure perplexity against ONNX Runtime's CPU EP.

    The text is a part of Python's own standard library, picked by a hash of module names. The
    reference is the CPU EP with accuracy_level 0; its own accuracy_level 4 is the yardstick:

    ```
    ort-aie accuracy MODEL
    ort-aie accuracy COMPILED --baseline MODEL --tokens 5000
    ort-aie accuracy MODEL --kv f16 --kv int8
    ```
    """
    from ort_aie_ep.models.interface import context_length
    from ort_aie_ep.tools.bench import accuracy

    with _both(model, baseline) as (compiled, source), _caches(baseline or model, kv) as caches:
        plan = accuracy.Plan(tokens, decode_tokens, window or min(512, context_length(source)))
        with console.bar("accuracy", "tokens", "opening the models") as progress:
            report = accuracy.accuracy(compiled, source, threads, plan, progress, caches)
    if json:
        console.print_json(report, plan=asdict(plan), threads=threads)
        return
    from ort_aie_ep.cli import tables

    console.out.print(tables.accuracy_tables(report))
    console.note(
        f"95 %: bootstrap over windows, {accuracy.RESAMPLES} resamples. The ratio (resampled in "
        "pairs), top-1 agreement and largest difference of a logit are against the first row; "
        "level is MatMulNBits' accuracy_level.\n" + tables.conditions_line(threads)
    )


@app.command("demo")
def demo_command(
    prompt: Annotated[str | None, typer.Option(help="Python code to continue.")] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add to it.")] = 96,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Another model to show it with.")
    ] = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
) -> None:
    """See it work: a small model completes a prompt.

    Compiles the model that ships with the package, runs it with ONNX Runtime alone and with our
    library, and compares texts, logits and speeds.
    """
    from ort_aie_ep.models.folder import find_model
    from ort_aie_ep.runtime.sessions import inspect
    from ort_aie_ep.tools.bench import demo
    from ort_aie_ep.tools.bench.pair import compiled_for_now

    where = model or demo.MODEL
    if model is None and not where.is_dir():
        raise AieError("this installation has no demonstration model; give one with --model DIR")
    source = inspect(where).folder
    if model is None:
        console.out.print(
            "A small demonstration model, trained on the sources of Python's standard library: it "
            "has learnt what code looks like, not what it means.\n"
        )
    from ort_aie_ep.cli import tables

    plan = demo.plan_for(source, demo.PROMPT if prompt is None else prompt, new_tokens)
    with ExitStack() as stack:
        with console.bar("compile", "bytes", "reading the model") as progress:
            result = stack.enter_context(compiled_for_now(where, progress))
        console.out.print("[bold]Compiled[/]")
        console.out.print(tables.outcomes_table(result.outcomes))
        with console.bar("demo", "runs", "opening both models") as progress:
            shown = demo.demonstrate(
                find_model(result.path),
                source,
                session_options(None, numerics, threads),
                plan,
                progress,
            )
    console.out.print(tables.demonstration_panels(plan.prompt, shown))
    console.out.print(tables.agreement_lines(shown.agreement), "")
    console.out.print(tables.speed_table(shown.speeds))
    console.note(tables.conditions_line(threads))
    console.next_command("ort-aie", "compile", "YOUR_MODEL", "COMPILED")


@contextmanager
def _both(model: Path, baseline: Path | None) -> Iterator[tuple[ModelFolder, ModelFolder]]:
    """(compiled, source), with a bar while a source is compiled."""
    from ort_aie_ep.tools.bench.pair import compiled_and_source

    with ExitStack() as stack:
        with console.bar("compile", "bytes", "reading the model") as progress:
            both = stack.enter_context(compiled_and_source(model, baseline, progress))
        yield both


@contextmanager
def _caches(source: Path, kv: list[KvType] | None) -> Iterator[dict[str, ModelFolder]]:
    """The source compiled with each of these KV caches."""
    from ort_aie_ep.models.folder import find_model
    from ort_aie_ep.tools.bench.pair import compiled_for_now

    with ExitStack() as stack:
        found = {}
        for name in dict.fromkeys(one.value for one in kv or ()):
            with console.bar(f"compile, KV {name}", "bytes", "reading the model") as progress:
                result = stack.enter_context(compiled_for_now(source, progress, name))
            found[name] = find_model(result.path)
        yield found
