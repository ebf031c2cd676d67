"""The command `batch`: completes many prompts, on this machine or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.model import HELP, METAVAR, ready
from ort_aie_ep.requirements import require


@app.command("batch")
def batch_command(
    model: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="File of prompts (.jsonl or .parquet), or a folder of such files. A row has a "
            "prompt or messages, and may have an id.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="Folder for the completions: a new one, or one to continue."
        ),
    ],
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens for a prompt, at most.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, help="0: always the most likely token; above 0: sample.")
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the most likely tokens whose probabilities sum to P.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed for sampling.")] = 0,
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="Texts that a worker writes at the same time."),
    ] = 4,
    part_size: Annotated[
        int,
        typer.Option(min=1, help="Prompts in a part, which a worker takes and writes as a whole."),
    ] = 16,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of workers. Default: one for each machine, or as --threads allows.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of each worker. Default: all CPUs of its machine."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray cluster, or auto for the one that this machine is part of. Default: "
            "RAY_ADDRESS, or this machine alone.",
        ),
    ] = None,
) -> None:
    """Complete the prompts of a file, on one machine or on many.

    OUTPUT gets a line of JSON for each prompt. To continue an interrupted run, run the same
    command again. The exit code is 1 if a prompt failed; the other prompts are completed.

    ```
    ort-aie batch COMPILED prompts.jsonl ANSWERS --max-tokens 64
    ort-aie batch COMPILED prompts.parquet ANSWERS --address auto
    cat ANSWERS/part-*.jsonl
    ```
    """
    require("ort-aie batch", ("jinja2", "pyarrow", "ray"))
    from ort_aie_ep.batch import complete

    with (
        _guarded(),
        ready(model) as path,
        console.bar("batch", "prompts", "hashing the model") as progress,
    ):
        summary = complete(
            path,
            inputs,
            output,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            batch_size=batch_size,
            part_size=part_size,
            workers=workers,
            threads=threads,
            address=address,
            progress=progress,
        )
    done, earlier = summary.done, summary.earlier
    if earlier.prompts:
        console.note(f"{earlier.prompts} prompts are complete from earlier runs")
    if done.prompts:
        workers_text = "1 worker" if summary.workers == 1 else f"{summary.workers} workers"
        console.note(
            f"{done.prompts} prompts: {done.completion_tokens} tokens by {workers_text} in "
            f"{summary.seconds:.1f} s, {summary.start_seconds:.1f} s of them to start; "
            f"then {summary.speed:.1f} tokens/s"
        )
    prompts, errors = done.prompts + earlier.prompts, done.errors + earlier.errors
    failed = f", {errors} failed: their lines have an error" if errors else ""
    console.write_text(f"{output}: {prompts - errors} completions{failed}\n")
    if errors:
        raise typer.Exit(1)


@contextmanager
def _guarded() -> Iterator[None]:
    """Keeps stdout for results: Ray prints there which workers died. Says how to go on after ^C."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        console.note("interrupted: run the same command again to continue")
        raise typer.Exit(130) from None
