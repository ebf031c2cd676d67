"""Commands that make, run and look at models: compile, import-q4nx, run, explain, doctor, synth."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.options import (
    Host,
    Json,
    KvType,
    LogOption,
    NumericsOption,
    OnDeviceErrorOption,
    OverlaysOption,
    PromptChunkOption,
    TargetOption,
    Threads,
    session_options,
)
from ort_aie_ep.errors import AieError

if TYPE_CHECKING:
    from ort_aie_ep.compiler.compiled_folder import CompileResult


class Quantize(StrEnum):
    """What `compile --quantize` makes of float weights."""

    Q4NX = "q4nx"
    BF16 = "bf16"


Kv = Annotated[
    KvType | None,
    typer.Option(
        help="Type of the KV cache; int8 and int4 have scales for each channel, found by letting "
        "the model read a text. Default: the model's, float32 as a rule."
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Text for the scales of --kv int8 and int4, best of the kind that the model will "
        "read, or token ids (.npy). Default: sources of Python's standard library.",
    ),
]
LastLogits = Annotated[
    bool,
    typer.Option("--last-logits", help="Logits of each row's last token only: faster prompts."),
]
NoFuse = Annotated[
    bool,
    typer.Option("--no-fuse", help="Replace MatMulNBits and the like node by node, fuse nothing."),
]
NoPlan = Annotated[
    bool,
    typer.Option("--no-plan", help="A node for each step, not one for all: the same results."),
]


@app.command("compile")
def compile_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Model folder or .onnx file.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A folder that is not there.")],
    kv: Kv = None,
    calibration: Calibration = None,
    last_logits: LastLogits = False,
    no_fuse: NoFuse = False,
    no_plan: NoPlan = False,
    quantize: Annotated[
        Quantize | None,
        typer.Option(
            help="What float weights of MatMul and Gemm become: q4nx (4 bits, for language models) "
            "or bf16 (bfloat16, for vision towers). Default: they stay as they are."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Nodes that --quantize leaves alone: a name, * and ? allowed. Repeatable.",
        ),
    ] = None,
) -> None:
    """Compile a model for the aie.* operators.

    Weights of 4 bits (MatMulNBits, DequantizeLinear) become those of aie.Q4NXMatMul, attention
    (GroupQueryAttention, MultiHeadAttention, Attention, or spelled out as exporters do) becomes
    aie.FlowAttention. The result has the same inputs and outputs and runs wherever the original
    did.

    Of a model that is not quantised, --quantize replaces every MatMul and Gemm with constant
    weights: by aie.Q4NXMatMul with q4nx, by aie.GEMM with bf16. A table says what each layer lost:

    ```
    ort-aie compile Llama-3.2-1B-int4 Llama-3.2-1B-aie
    ort-aie run Llama-3.2-1B-aie "Once upon a time"
    ort-aie compile MODEL COMPILED --kv f16 --last-logits
    ort-aie compile MODEL COMPILED --kv int8 --calibration TEXT
    ort-aie compile FLOAT_MODEL COMPILED --quantize q4nx --keep '*/lm_head/*'
    ort-aie compile VISION_TOWER.onnx COMPILED --quantize bf16
    ```
    """
    if keep and quantize is None:
        raise typer.BadParameter("--keep names nodes that --quantize leaves alone: give both")
    from ort_aie_ep.compiler.compile import compile_model

    with console.bar("compile", "bytes", "reading the model") as progress:
        result = compile_model(
            source,
            destination,
            kv=kv.value if kv else None,
            calibration=calibration,
            last_logits=last_logits,
            fuse=not no_fuse,
            plan=not no_plan,
            quantize=quantize.value if quantize else None,
            keep=keep or (),
            progress=progress,
        )
    from ort_aie_ep.cli.tables import layers_table, outcomes_table, plans_line, share_line
    from ort_aie_ep.models.folder import find_model

    if result.parts:
        console.heading(f"{find_model(result.path).model.name}:")
    console.out.print(outcomes_table(result.outcomes))
    if result.plans:
        console.note(plans_line(result.plans, result.divided_by))
    if share := share_line(result.outcomes):
        console.note(share)
    for part in result.parts:
        console.heading(f"{part.file}:" if part.compiled else f"{part.file} {part.reason}")
        if part.nodes:
            console.out.print(outcomes_table(part.nodes))
        if part.plans:
            console.note(plans_line(part.plans, part.divided_by))
    if result.layers:
        console.out.print(layers_table(result.layers))
    _tell(result, "--baseline", source)


@app.command("import-q4nx")
def import_q4nx_command(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="model.q4nx, of FastFlowLM.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A folder that is not there.")],
    config: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="config.json. Default: the one beside FILE."),
    ] = None,
    kv: Kv = None,
    calibration: Calibration = None,
    last_logits: LastLogits = False,
    no_fuse: NoFuse = False,
    no_plan: NoPlan = False,
) -> None:
    """Write FastFlowLM weights as a compiled model.

    The tokenizer's files beside config.json come along. Nothing is quantised again: the blocks are
    those of the file.

    ```
    ort-aie import-q4nx Llama-3.2-1B-NPU2/model.q4nx Llama-3.2-1B-aie
    ort-aie run Llama-3.2-1B-aie "Once upon a time"
    ```
    """
    from ort_aie_ep.compiler.fastflowlm import import_q4nx

    with console.bar("import-q4nx", "bytes", "reading the file") as progress:
        result = import_q4nx(
            source,
            destination,
            config=config,
            kv=kv.value if kv else None,
            calibration=calibration,
            last_logits=last_logits,
            fuse=not no_fuse,
            plan=not no_plan,
            progress=progress,
        )
    _tell(result)


def _tell(result: CompileResult, *baseline: object) -> None:
    """What was written, and what to type next: `bench` with `baseline`, if not `run`."""
    from ort_aie_ep.compiler.compiled_folder import REPORT
    from ort_aie_ep.models.folder import find_model
    from ort_aie_ep.models.tokenizer import has_tokenizer
    from ort_aie_ep.running.next_step import lines, why_not_text

    console.out.print(
        f"{result.path}: {result.weight_bytes / 1e6:.1f} MB of weights; {REPORT} lists each node",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if result.cache is not None:
        from ort_aie_ep.cli.tables import cache_lines

        console.note(cache_lines(result.cache))
    for note in result.notes:
        console.note(note)
    folder = find_model(result.path)
    if why_not_text(folder):
        console.next_lines(lines(folder))
    elif has_tokenizer(folder):
        console.next_command("ort-aie", "run", result.path, "def main(argv):")
    else:
        console.next_command("ort-aie", "bench", result.path, *baseline)


@app.command("run")
def run_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder, compiled or not.")],
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 128,
    host: Annotated[Host, typer.Option(help="Plain InferenceSession, or onnxruntime-genai.")] = (
        Host.session
    ),
    draft: Annotated[
        int,
        typer.Option(
            min=0, max=16, help="With --host genai: tokens to draft from repetitions; 0: none."
        ),
    ] = 0,
    target: TargetOption = None,
    numerics: NumericsOption = None,
    threads: Threads = None,
    on_device_error: OnDeviceErrorOption = None,
    log: LogOption = None,
    overlays: OverlaysOption = None,
    prompt_chunk: PromptChunkOption = None,
) -> None:
    """Continue a prompt, and say how fast that was.

    Each token is the likeliest one. The new text goes to stdout, all else to stderr:

    ```
    ort-aie run COMPILED "import os" --max-tokens 40
    ort-aie run COMPILED "import os" --host genai --threads 4 --draft 4
    ort-aie run COMPILED "import os" --target sim --max-tokens 2 --log trace
    ```
    """
    from ort_aie_ep.running.run import run_in_genai, run_in_session
    from ort_aie_ep.runtime.counters import npu_counters
    from ort_aie_ep.runtime.sessions import inspect

    model = inspect(folder)
    if not model.compiled:
        console.note(f"{folder} is not compiled: it runs on ONNX Runtime's CPU EP alone")
    if draft and host is not Host.genai:
        raise AieError("drafts are onnxruntime-genai's: use --host genai with --draft")
    options = session_options(
        target, numerics, threads, on_device_error, log, overlays, prompt_chunk
    )
    with console.completion(prompt) as shown:
        if host is Host.genai:
            timing = run_in_genai(
                model.folder, options, prompt, max_tokens, shown.write, draft, shown.progress
            )
        else:
            timing = run_in_session(
                model.folder, options, prompt, max_tokens, shown.write, shown.progress
            )
    console.write_text("\n")
    decode = "" if timing.decode_speed is None else f", {timing.decode_speed:.1f} tok/s"
    console.note(
        f"prefill: {timing.prompt_tokens} tokens, {timing.prefill_speed:.1f} tok/s · "
        f"decode: {timing.new_tokens} tokens{decode}"
    )
    if timing.drafted is not None:
        right, verified = timing.drafted
        console.note(f"drafts: {right} of {verified} verified tokens were right")
    counters = npu_counters()
    if counters.device_steps or counters.host_steps:
        console.note(str(counters))


@app.command("explain")
def explain_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder or .onnx file.")],
    nodes: Annotated[bool, typer.Option("--nodes", help="A row for each node.")] = False,
    ep: Annotated[
        bool,
        typer.Option("--ep", help="Also what the execution provider does, without compiling."),
    ] = False,
    json: Json = False,
) -> None:
    """Say where each node of a model runs, and why not on the NPU.

    Of a model that is not compiled, what would become of each node:

    ```
    ort-aie explain MODEL
    ort-aie explain COMPILED --nodes
    ort-aie explain MODEL --ep
    ```
    """
    from ort_aie_ep.explain.explain import explain
    from ort_aie_ep.models.folder import find_model, other_models

    with console.bar("explain"):
        explanation = explain(model, provider=ep)
    if json:
        console.print_json(explanation)
        return
    from ort_aie_ep.cli.tables import (
        explanation_table,
        placement_line,
        plans_line,
        provider_line,
        share_line,
    )

    console.out.print(explanation_table(explanation, nodes))
    others = [other.path.name for other in other_models(find_model(model))] * model.is_dir()
    if others:
        console.note(f"also in this folder: {', '.join(others)}; give a file to explain it")
    console.note(
        f"{placement_line(explanation.nodes)}; ONNX Runtime may fuse some of the CPU EP's when it "
        "loads them"
    )
    if explanation.plans:
        console.note(plans_line(explanation.plans, explanation.divided_by))
    elif explanation.compiled:
        console.note("no plans: each operator is a node of its own, as --no-plan writes it")
    if share := share_line(explanation.nodes):
        console.note(share)
    if ep:
        console.note(provider_line(explanation))
    options = explanation.compile_options
    if options is not None:
        console.next_command("ort-aie", "compile", model, "COMPILED", *options)


@app.command("doctor")
def doctor_command(json: Json = False) -> None:
    """Check the installation, and what an NPU would need.

    Prints versions, runs an operator, and looks for the NPU, its driver and XRT. The exit code is 0
    if the host target works.
    """
    from ort_aie_ep.explain.doctor import diagnose
    from ort_aie_ep.explain.machine import why_no_npu

    with console.bar("doctor"):
        diagnosis = diagnose()
    if json:
        console.print_json(diagnosis)
    else:
        from ort_aie_ep.cli.tables import diagnosis_table

        console.out.print(diagnosis_table(diagnosis))
        if diagnosis.working:
            console.out.print("The host target works.", style="green")
            lacks = why_no_npu(diagnosis.npu)
            console.out.print(
                f"The xrt target cannot be used: {lacks}."
                if lacks
                else "The xrt target has all it needs; ort-aie first-day tries it."
            )
    if not diagnosis.working:
        raise AieError("the host target does not work: see above")


@app.command("synth")
def synth_command(
    shape: Annotated[str | None, typer.Argument(metavar="SHAPE", help="Name from --list.")] = None,
    destination: Annotated[
        Path | None, typer.Argument(metavar="DST", help="A folder that is not there.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Instead of the shape's own.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Instead of the shape's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    floats: Annotated[
        bool, typer.Option("--float", help="float32 weights: something to quantise.")
    ] = False,
    list_shapes: Annotated[bool, typer.Option("--list", help="List the shapes and end.")] = False,
) -> None:
    """Write a model of any size with random weights.

    Its graph is the one that onnxruntime-genai's builder writes at int4, or with --float before it
    quantises; measure speed and memory with it, without a download:

    ```
    ort-aie synth --list
    ort-aie synth llama-3.2-1b RANDOM
    ort-aie bench RANDOM
    ```
    """
    from ort_aie_ep.models.shapes import SHAPES
    from ort_aie_ep.tools.synth import synth

    if list_shapes:
        from ort_aie_ep.cli.tables import shapes_table

        console.out.print(shapes_table(SHAPES))
        return
    if shape is None or destination is None:
        raise typer.BadParameter("SHAPE and DST are needed; --list shows the shapes")
    with console.bar("synth", "bytes") as progress:
        path = synth(
            shape,
            destination,
            layers=layers,
            vocab=vocab,
            seed=seed,
            int4=not floats,
            progress=progress,
        )
    console.out.print(str(path), markup=False, highlight=False, soft_wrap=True)
    console.next_command("ort-aie", "bench", path)
