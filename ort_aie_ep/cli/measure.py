"""Commands that compare ort_aie_ep with ONNX Runtime alone: bench, accuracy, demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, METAVAR, local
from ort_aie_ep.cli.options import (
    Baseline,
    Json,
    NumericsOption,
    TargetOption,
    Threads,
    session_options,
)
from ort_aie_ep.compiler.options import KvType
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import written_beside

if TYPE_CHECKING:
    from ort_aie_ep.models.folder import ModelFolder
    from ort_aie_ep.runtime.sessions import Options
    from ort_aie_ep.tools.bench.bench import Comparison
    from ort_aie_ep.tools.bench.conditions import Conditions
    from ort_aie_ep.tools.bench.peers.report import PeersReport
    from ort_aie_ep.tools.bench.peers.workload import Workload


def _lengths(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        lengths = tuple(int(part) for part in text.split(","))
    except ValueError:
        lengths = ()
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of token counts such as 128,512")
    return lengths


def _batch_sizes(text: str | None) -> tuple[int, ...] | None:
    """Always includes 1, with which all other sizes are compared."""
    sizes = _lengths(text)
    return None if sizes is None else tuple(sorted({1, *sizes}))


@app.command("bench")
def bench_command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    prompt_lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Context lengths in tokens. Default: 128,512,1024."),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens to decode at each context length.")
    ] = 32,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Interleaved runs of each. Default: 5.")
    ] = None,
    baseline: Baseline = None,
    target: TargetOption = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
    json: Json = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure llama.cpp, ik_llama.cpp and OpenVINO.")
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="With --peers: only decode and prefill speeds, by one engine of each library, in "
            "ten minutes: as many rounds as fit, or one without the slowest at long contexts.",
        ),
    ] = False,
    starts: Annotated[
        int | None,
        typer.Option(min=1, help="With --peers: warm and cold starts of each engine. Default: 3."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --peers: folder to write bench.{json,md,png} to."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Measure calls with n sequences and with n tokens of one sequence. With --peers "
            "this is always measured, by default with 1,2,4,8,16.",
        ),
    ] = None,
) -> None:
    """Measure speed against ONNX Runtime's CPU EP, or against other engines.

    Both run the same model in one process, in interleaved rounds. A model that is not compiled yet
    is compiled into a temporary folder first:

    ```
    ort-aie bench MODEL
    ort-aie bench COMPILED --baseline MODEL --prompt-lengths 128,1024 --threads 4
    ```

    `--batch` instead compares the cost of several rows in a call with the cost of one row. The rows
    are one token of each of n sequences, or n tokens of one sequence, as when a model verifies
    drafted tokens:

    ```
    ort-aie bench MODEL --batch 1,2,4,8,16
    ```

    `--peers` writes the int4 weights of a Llama, Qwen3 or gpt-oss in each engine's format, without
    quantising them again, and runs each engine in a separate process. The report names an engine
    that fails, or that cannot be given the model: OpenVINO is given only a Llama. By default
    the command measures decoding at contexts of 64, 512, 2048 and 4096 tokens, and prefill at all
    but the first. It then measures several rows in a call, the time from a process's start to its
    first token with a warm and a cold page cache, and the cost of a token of context in ort_aie_ep
    up to 32768. A model of 10⁹ weights takes about half an hour on two cores with AVX-512, and over
    one without. `--quick` plans ten minutes by what each run has cost so far: it measures the
    speeds alone, of ort_aie_ep with an f16 KV cache and of one engine of each other library, the
    fastest in a trial. It has as many rounds as fit. If not even one does, the slowest peers are
    not measured at the longest contexts.

    DIR holds a valid report after each round. SIGINT (Ctrl-C) and SIGTERM end the command with what
    was measured until then:

    ```
    ort-aie bench --peers MODEL --out results
    ort-aie bench --peers MODEL --quick
    ```
    """
    from ort_aie_ep.tools.bench import bench

    lengths = _lengths(prompt_lengths)
    options = session_options(target, numerics, threads)
    model = local(model).path
    if peers:
        if baseline is not None:
            raise AieError("--peers compiles MODEL itself: leave out --baseline")
        if quick and (starts or batch):
            raise AieError(
                "--quick measures neither starts nor several rows: leave out the options"
            )
        sizes = _batch_sizes(batch)
        plan = _peers_workload(lengths, new_tokens, runs, starts, sizes, options, quick)
        _bench_peers(context, model, plan, options, json, out)
        return
    for name, value in (("--out", out), ("--starts", starts), ("--quick", quick or None)):
        if value is not None:
            raise AieError(f"{name} belongs to --peers: give --peers too, or leave it out")
    runs = runs or 5
    if sizes := _batch_sizes(batch):
        _refuse_beside_batch(context)
        _bench_batches(model, baseline, sizes, runs, options, json)
        return
    with _both(model, baseline) as (compiled, source):
        workload = bench.Workload(
            lengths or bench.default_lengths(source, new_tokens), new_tokens, runs
        )
        with console.bar("bench", "runs", "opening both models") as progress:
            report = bench.bench(compiled, source, options, workload, progress)
    if json:
        console.print_json(report, plan=asdict(workload), options=asdict(options))
        return
    from ort_aie_ep.cli import tables

    console.out.print(tables.speed_table(report.comparisons))
    console.out.print(tables.agreement_lines(report.agreement))
    ours, reference = report.load_seconds
    console.heading(
        f"Medians of {runs} runs of {new_tokens} decoded tokens. The ratio is the median over "
        f"pairs of consecutive runs.\nLoading: ort_aie_ep {ours:.2f} s, CPU EP {reference:.2f} s.\n"
        + tables.conditions_line(threads)
    )


def _refuse_beside_batch(context: typer.Context) -> None:
    """Refuses options that would have no effect: without --peers, --batch measures nothing else."""
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
    console.heading(tables.conditions_line(options.threads))


def _peers_workload(
    lengths: tuple[int, ...] | None,
    new_tokens: int,
    rounds: int | None,
    starts: int | None,
    batches: tuple[int, ...] | None,
    options: Options,
    quick: bool,
) -> Workload:
    from ort_aie_ep.explain.machine import physical_cores
    from ort_aie_ep.tools.bench.peers import workload as workloads

    workload = workloads.Workload(
        lengths or workloads.DECODE_LENGTHS,
        lengths or workloads.PREFILL_LENGTHS,
        new_tokens,
        rounds or workloads.ROUNDS,
        starts or workloads.STARTS,
        options.threads or physical_cores(),
        {k: v for k, v in asdict(options).items() if k != "threads" and v is not None},
        batches=batches or workloads.BATCHES,
    )
    if quick:
        limit = workloads.QUICK_SECONDS
        workload = replace(workload, starts=0, growth=(), batches=(), seconds=limit)
    return workload


def _bench_peers(
    context: typer.Context,
    model: Path,
    workload: Workload,
    options: Options,
    json: bool,
    out: Path | None,
) -> None:
    from ort_aie_ep.tools.bench import conditions
    from ort_aie_ep.tools.bench.peers import engines, plot, report, runner
    from ort_aie_ep.tools.bench.peers.course import Course
    from ort_aie_ep.tools.bench.peers.results import Results
    from ort_aie_ep.tools.bench.peers.sheets import sheets

    quick = workload.seconds is not None
    if out is not None:
        plot.check_plot()
        out.mkdir(parents=True, exist_ok=True)
    machine, date = conditions.machine(), conditions.today()
    kept: list[PeersReport] = []
    ended_with: SystemExit | None = None
    # Cold starts need the models on a disk, which /tmp may not be, so they go beside the results.
    with TemporaryDirectory(prefix="ort-aie-", dir=out) as scratch, console.ended_by_signals():
        with console.bar("read the model"):
            source = runner.open_source(model, Path(scratch))
        environment = console.environment()
        starts = f"; {workload.starts} starts, warm and cold each" if workload.starts else ""
        held = conditions.Conditions(
            machine,
            date,
            _as_typed(context),
            f"{model.name}, {source.weights.describe()}",
            {name: environment[name] for name in ("ort_aie_ep", "onnxruntime", "kernels")},
            f"{workload.threads} threads; {workload.new_tokens} tokens decoded a run{starts}.",
        )

        def keep(so_far: Results) -> None:
            kept.append(report.report(so_far))
            _write(kept[-1], held, workload, out)

        try:
            with console.bar("bench", "steps") as bar:
                results = runner.measure(
                    source,
                    workload,
                    Course(bar, bar.note, bar.left),
                    engines.QUICK if quick else tuple(engines.KINDS),
                    partial=keep,
                    amx=machine.amx,
                    demonstrate=None if quick else lambda: _demonstration(options),
                )
            keep(results)
        except SystemExit as ended:
            if not kept:
                console.note("interrupted before the first round was over")
                raise
            ended_with = ended
    measured = kept[-1]
    if json:
        console.print_json(measured, plan=asdict(workload), conditions=asdict(held))
    else:
        from ort_aie_ep.cli import tables

        console.out.print(tables.sheet_tables(sheets(measured)))
        console.heading(f"{machine.cpu} ({machine.identity}); {held.model}; {held.plan}")
    if out is not None:
        plot.plot(measured, out / "bench.png", f"{machine.cpu}; {held.model}; {date}")
        _write(measured, held, workload, out, "bench.png")
        console.note(f"written: {out / 'bench.json'}, {out / 'bench.md'}, {out / 'bench.png'}")
    if ended_with is not None:
        console.note(
            f"interrupted, with what was measured until then: {measured.results.unfinished}"
        )
        raise ended_with


def _write(
    measured: PeersReport,
    held: Conditions,
    workload: Workload,
    out: Path | None,
    picture: str | None = None,
) -> None:
    """Writes bench.json and bench.md, each completely or not at all."""
    from ort_aie_ep.tools.bench.peers import report
    from ort_aie_ep.tools.bench.peers.sheets import markdown

    if out is None:
        return
    settings = {"settings": {"plan": asdict(workload)}, "conditions": asdict(held)}
    report.write_json(measured, out / "bench.json", settings)
    with written_beside(out / "bench.md") as file:
        file.write(markdown(measured, held, picture))


def _demonstration(options: Options) -> Comparison | None:
    """Decoding speed of the demonstration model; None if it is not installed."""
    from ort_aie_ep.tools.bench import demo

    return demo.decode_speed(options) if demo.MODEL.is_dir() else None


def _as_typed(context: typer.Context) -> str:
    """The command as typed, with MODEL and DIR for paths, which mean nothing on other machines."""
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


def _kv_types(given: list[str] | None) -> list[str] | None:
    """Typer has choices for one value, not for several."""
    for kv in given or ():
        if kv not in get_args(KvType):
            raise typer.BadParameter(f"{kv!r} is not one of {', '.join(get_args(KvType))}")
    return given


@app.command("accuracy")
def accuracy_command(
    model: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    tokens: Annotated[
        int, typer.Option(min=0, help="Tokens to score in passes over whole windows.")
    ] = 20_000,
    decode_tokens: Annotated[
        int, typer.Option(min=0, help="Further tokens to score one by one.")
    ] = 2_000,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens in a window. Default: 512, or the model's context if that is shorter.",
        ),
    ] = None,
    kv: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"[{'|'.join(get_args(KvType))}]",
            callback=_kv_types,
            help="Also score with this KV cache, as compile --kv writes it. Repeatable.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text to score, in UTF-8; no more than it has. Default: a part of Python's "
            "standard library.",
        ),
    ] = None,
    baseline: Baseline = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure perplexity against ONNX Runtime's CPU EP.

    The text is a file, or a part of Python's standard library, picked by a hash of module names.
    The reference is the CPU EP with accuracy_level 0. The CPU EP with accuracy_level 4 is scored
    too, as a yardstick:

    ```
    ort-aie accuracy MODEL
    ort-aie accuracy MODEL --text book.txt
    ort-aie accuracy COMPILED --baseline MODEL --tokens 5000
    ort-aie accuracy MODEL --kv f16 --kv int8
    ```
    """
    from ort_aie_ep.models.interface import context_length
    from ort_aie_ep.tools.bench import accuracy
    from ort_aie_ep.tools.bench.statistics import RESAMPLES

    model = local(model).path
    with _both(model, baseline) as (compiled, source), _caches(baseline or model, kv) as caches:
        longest = window or min(512, context_length(source))
        workload = accuracy.Workload(tokens, decode_tokens, longest, text)
        with console.bar("accuracy", "tokens", "opening the models") as progress:
            report = accuracy.accuracy(compiled, source, threads, workload, progress, caches)
    if json:
        console.print_json(report, plan=asdict(workload), threads=threads)
        return
    from ort_aie_ep.cli import tables

    console.out.print(tables.accuracy_tables(report))
    console.heading(
        f"95 %: bootstrap over windows, {RESAMPLES} resamples. The first row is the "
        "reference for the ratio (resampled in pairs), the top-1 agreement and the largest "
        "difference of a logit. Level is the accuracy_level of MatMulNBits.\n"
        + tables.conditions_line(threads)
    )


@app.command("demo")
def demo_command(
    prompt: Annotated[
        str | None, typer.Option(help="Python code for the model to continue.")
    ] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 96,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Use this model instead of the one that ships with ort_aie_ep."
        ),
    ] = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
) -> None:
    """See a small model complete a prompt.

    Compile the model that ships with ort_aie_ep, run it with ONNX Runtime alone and with
    ort_aie_ep, and compare texts, logits and speeds.
    """
    from ort_aie_ep.runtime.sessions import inspect
    from ort_aie_ep.tools.bench import demo
    from ort_aie_ep.tools.bench.pair import compiled_for_now

    where = model or demo.MODEL
    if model is None and not where.is_dir():
        raise AieError(
            "the demonstration model is not installed: reinstall ort_aie_ep, or give a model with "
            "--model DIR"
        )
    source = inspect(where).folder
    if model is None:
        console.out.print(
            "This is a small demonstration model, trained on the sources of Python's standard "
            "library. It writes plausible code, not correct code.\n"
        )
    from ort_aie_ep.cli import tables

    workload = demo.workload_for(source, demo.PROMPT if prompt is None else prompt, new_tokens)
    with ExitStack() as stack:
        with console.bar("compile", "bytes", "reading the model") as progress:
            result = stack.enter_context(compiled_for_now(where, progress))
        console.out.print("[bold]Compiled[/]")
        console.out.print(tables.outcomes_table(result.outcomes))
        with console.bar("demo", "runs", "opening both models") as progress:
            shown = demo.demonstrate(
                result.folder,
                source,
                session_options(None, numerics, threads),
                workload,
                progress,
            )
    console.out.print(tables.demonstration_panels(workload.prompt, shown))
    console.out.print(tables.agreement_lines(shown.agreement), "")
    console.out.print(tables.speed_table(shown.speeds))
    console.heading(tables.conditions_line(threads))
    console.next_command("ort-aie", "compile", "YOUR_MODEL", "COMPILED")


@contextmanager
def _both(model: Path, baseline: Path | None) -> Iterator[tuple[ModelFolder, ModelFolder]]:
    """(compiled, source); shows a bar if it has to compile the source."""
    from ort_aie_ep.tools.bench.pair import compiled_and_source

    source = None if baseline is None else local(baseline).path
    with ExitStack() as stack:
        with console.bar("compile", "bytes", "reading the model") as progress:
            both = stack.enter_context(compiled_and_source(model, source, progress))
        yield both


@contextmanager
def _caches(source: Path, kv: list[str] | None) -> Iterator[dict[str, ModelFolder]]:
    """The source, compiled with each of these KV caches."""
    from ort_aie_ep.tools.bench.pair import compiled_for_now

    with ExitStack() as stack:
        found: dict[str, ModelFolder] = {}
        for name in dict.fromkeys(cast("list[KvType]", kv or [])):
            with console.bar(f"compile, KV {name}", "bytes", "reading the model") as progress:
                result = stack.enter_context(compiled_for_now(source, progress, name))
            found[name] = result.folder
        yield found
