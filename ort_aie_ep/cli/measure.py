"""Commands that compare ort_aie_ep with ONNX Runtime alone: bench, accuracy, demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, METAVAR, local, ready
from ort_aie_ep.cli.options import Baseline, Json, takes_options
from ort_aie_ep.compiler.options import KvType
from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.options import Options

if TYPE_CHECKING:
    from ort_aie_ep.models.folder import ModelFolder


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
@takes_options
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
    runs: Annotated[int, typer.Option(min=1, help="Interleaved runs of each.")] = 5,
    baseline: Baseline = None,
    json: Json = False,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Instead measure calls with n sequences and with n tokens of one sequence.",
        ),
    ] = None,
    *,
    options: Options,
) -> None:
    """Measure speed, alone or beside another engine.

    A model in ONNX is measured beside ONNX Runtime's CPU EP, and a GGUF file beside llama.cpp if
    llama-cpp-python is installed. A compiled folder is measured alone, or with --baseline beside
    the CPU EP. Both engines run in one process, in interleaved rounds:

    ```
    ort-aie bench OWNER/REPO
    ort-aie bench MODEL.gguf --prompt-lengths 512 --new-tokens 128 --json
    ort-aie bench COMPILED --baseline MODEL --prompt-lengths 128,1024 --threads 4
    ```

    `--batch` instead compares the cost of several rows in a call with the cost of one row. The rows
    are one token of each of n sequences, or n tokens of one sequence, as when a model verifies
    drafted tokens:

    ```
    ort-aie bench MODEL --batch 1,2,4,8,16
    ```
    """
    from ort_aie_ep.tools.bench import bench

    lengths = _lengths(prompt_lengths)
    if sizes := _batch_sizes(batch):
        _refuse_beside_batch(context)
        _bench_batches(local(model).path, baseline, sizes, runs, options, json)
        return
    with ExitStack() as stack:
        compiled, source, gguf = _engines(stack, model, baseline)
        workload = bench.Workload(
            lengths or bench.default_lengths(compiled, new_tokens), new_tokens, runs
        )
        with console.bar("bench", "runs", "opening the model") as progress:
            if source is None:
                report = bench.bench_alone(compiled, options, workload, gguf, progress)
            else:
                report = bench.bench(compiled, source, options, workload, progress)
    if json:
        console.print_json(report, plan=asdict(workload), options=asdict(options))
        return
    from ort_aie_ep.cli import tables

    console.out.print(tables.speed_table(report.comparisons, report.against))
    if report.agreement is not None:
        console.out.print(tables.agreement_lines(report.agreement))
    names = ("ort_aie_ep", report.against)
    loading = (f"{n} {s:.2f} s" for n, s in zip(names, report.load_seconds, strict=False))
    ratio = " The ratio is the median over pairs of consecutive runs." if report.against else ""
    console.heading(
        f"Medians of {runs} runs of {new_tokens} decoded tokens.{ratio}\n"
        f"Loading: {', '.join(loading)}.\n" + tables.conditions_line(options.threads)
    )


def _engines(
    stack: ExitStack, given: Path, baseline: Path | None
) -> tuple[ModelFolder, ModelFolder | None, Path | None]:
    """The compiled model, its source if that is ONNX, and its file if it is GGUF and llama.cpp is
    there; the stack closes them."""
    from ort_aie_ep.compiler.sources import is_onnx
    from ort_aie_ep.models.folder import find_model, is_gguf
    from ort_aie_ep.runtime.sessions import inspect
    from ort_aie_ep.tools.bench import llama_cpp

    path = local(given).path
    if is_onnx(path) and (baseline is not None or not inspect(path).compiled):
        compiled, source = stack.enter_context(_both(path, baseline))
        return compiled, source, None
    compiled = find_model(stack.enter_context(ready(given)))
    if not is_gguf(path):
        return compiled, None, None
    if not llama_cpp.is_there():
        console.note("pip install llama-cpp-python, and llama.cpp is measured beside it")
        return compiled, None, None
    return compiled, None, path


def _refuse_beside_batch(context: typer.Context) -> None:
    """Refuses options that would have no effect, because --batch measures nothing else."""
    for name in ("prompt_lengths", "new_tokens"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise AieError(
                f"--{name.replace('_', '-')} cannot be used with --batch: omit one of them"
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
    from ort_aie_ep.tools.bench.statistics import RESAMPLES

    with (
        _both(model, baseline) as (compiled, source),
        console.bar("bench", "runs", "opening both models") as progress,
    ):
        report = several_rows.measure(compiled, source, options, sizes, runs, progress)
    if json:
        console.print_json(report, options=asdict(options))
        return
    console.out.print(tables.batches_table(report))
    console.heading(
        f"Medians of {runs} runs with 95 % bounds (bootstrap over runs, {RESAMPLES} resamples). "
        f"Calls follow a context of {several_rows.CONTEXT} tokens, and return the logits of all "
        "rows.\nn tokens of one sequence: the cost of verifying n - 1 drafted tokens.\n"
        + tables.conditions_line(options.threads)
    )


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
            help="UTF-8 text to score. Default: a part of Python's standard library.",
        ),
    ] = None,
    baseline: Baseline = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each session. Default: ONNX Runtime's choice."),
    ] = None,
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
@takes_options
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
    *,
    options: Options,
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
            shown = demo.demonstrate(result.folder, source, options, workload, progress)
    console.out.print(tables.demonstration_panels(workload.prompt, shown))
    console.out.print(tables.agreement_lines(shown.agreement), "")
    console.out.print(tables.speed_table(shown.speeds))
    console.heading(tables.conditions_line(options.threads))
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
