"""Commands that make, run and explain models: compile, run, explain, doctor, synth."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ort_aie_ep.cli import console
from ort_aie_ep.cli.application import app
from ort_aie_ep.cli.checkpoint import CheckpointOptions
from ort_aie_ep.cli.model import HELP, METAVAR, local, opened, ready
from ort_aie_ep.cli.options import (
    DraftModelOption,
    DraftOption,
    Json,
    SamplingOptions,
    SystemOption,
    takes_options,
)
from ort_aie_ep.compiler.options import CompileOptions
from ort_aie_ep.disk import size_text
from ort_aie_ep.errors import AieError
from ort_aie_ep.runtime.options import Options

if TYPE_CHECKING:
    from ort_aie_ep.compiler.compiled_folder import CompileResult


@app.command("compile")
@takes_options
def compile_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC",
            help="Model folder, .onnx or .gguf file, checkpoint, or a name on a hub: "
            "OWNER/REPO[@REVISION][:FILE].",
        ),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="The new folder; it must not exist yet.")
    ],
    options: CompileOptions,
    checkpoint: CheckpointOptions,
) -> None:
    """Compile a model for the aie.* operators.

    The compiler turns 4-bit weights (MatMulNBits, DequantizeLinear) into weights of
    aie.Q4NXMatMul. It turns attention (GroupQueryAttention, MultiHeadAttention, Attention, or the
    separate operators that exporters write) into aie.FlowAttention. The compiled model has the same
    inputs and outputs and runs wherever the original did.

    If a model is not quantised, --quantize replaces every MatMul and Gemm with constant weights:
    bf16 gives aie.GEMM, all others aie.Q4NXMatMul. A table shows the error of each layer:

    ```
    ort-aie compile Llama-3.2-1B-int4 Llama-3.2-1B-aie
    ort-aie run Llama-3.2-1B-aie "Once upon a time"
    ort-aie compile MODEL COMPILED --kv f16 --last-logits
    ort-aie compile MODEL COMPILED --kv int8 --calibration TEXT
    ort-aie compile FLOAT_MODEL COMPILED --quantize q4nx --keep '*/lm_head/*'
    ort-aie compile MODEL_WITH_PICTURES COMPILED --quantize q4nx --vision bf16
    ort-aie compile FLOAT_MODEL COMPILED --quantize mixed --importance TEXT --bits 4.5
    ort-aie compile VISION_TOWER.onnx COMPILED --quantize bf16
    ort-aie compile OWNER/REPO COMPILED
    ```

    SRC may be a GGUF file of llama.cpp: ort-aie compile MODEL.gguf COMPILED.

    SRC may be a Hugging Face checkpoint: a folder with config.json and *.safetensors. The command
    then runs onnxruntime-genai's model builder on it first. The builder needs torch and
    transformers, in this Python or in another one:

    ```
    ort-aie compile Llama-3.2-1B-Instruct COMPILED --builder-env ort-aie-builder
    ort-aie compile Llama-3.2-1B-Instruct COMPILED --adapter LORA --builder-option block_size=64
    ```
    """
    from ort_aie_ep.compiler.compile import compile_model

    given = local(source)
    quantises = options.quantize is not None
    with (
        checkpoint.model(given, destination, quantises=quantises) as model,
        console.bar("compile", "bytes", "reading the model") as progress,
    ):
        result = compile_model(model, destination, options, progress=progress)
    from ort_aie_ep.cli.tables import layers_table, outcomes_table, plans_line, share_line
    from ort_aie_ep.models.folder import is_gguf

    if result.parts:
        console.heading(f"{result.folder.model.name}:")
    console.out.print(outcomes_table(result.outcomes))
    if result.plans:
        console.heading(plans_line(result.plans, result.divided_by))
    if share := share_line(result.outcomes):
        console.heading(share)
    for part in result.parts:
        console.heading(f"{part.file}:" if part.compiled else f"{part.file} {part.reason}")
        if part.nodes:
            console.out.print(outcomes_table(part.nodes))
        if part.plans:
            console.heading(plans_line(part.plans, part.divided_by))
    if result.layers:
        console.out.print(layers_table(result.layers))
    baseline = () if is_gguf(given.path) else ("--baseline", checkpoint.keep_source or given.path)
    tell(result, *baseline)


def tell(result: CompileResult, *baseline: object) -> None:
    """Prints what was written, and what to type next: `run`, or `bench` with `baseline`."""
    from ort_aie_ep.models.integrity import REPORT
    from ort_aie_ep.models.tokenizer import has_tokenizer
    from ort_aie_ep.running.next_step import lines, why_not_text
    from ort_aie_ep.running.templates import find_template

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
    if why_not_text(result.folder):
        console.next_lines(lines(result.folder))
    elif has_tokenizer(result.folder):
        chats = None
        with suppress(AieError):  # a template that cannot be read: chat says why
            chats = find_template(result.folder)
        if chats is None:
            console.next_command("ort-aie", "run", result.path, "def main(argv):")
        else:
            console.next_command("ort-aie", "chat", result.path)
    else:
        console.next_command("ort-aie", "bench", result.path, *baseline)


@app.command("run")
@takes_options
def run_command(
    folder: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="Text to continue. Without one, as chat."),
    ] = None,
    system: SystemOption = "",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="New tokens, at most. Default: 128, or all in a conversation."),
    ] = None,
    host: Annotated[
        Literal["session", "genai"],
        typer.Option(help="Run in a plain InferenceSession, or in onnxruntime-genai."),
    ] = "session",
    *,
    sampling: SamplingOptions,
    draft: DraftOption = 0,
    draft_model: DraftModelOption = None,
    options: Options,
) -> None:
    """Continue a prompt and report the speed, or converse.

    The model continues the prompt as it is; ort-aie chat answers a question. The new text goes to
    stdout, everything else to stderr:

    ```
    ort-aie run OWNER/REPO
    ort-aie run COMPILED "import os" --max-tokens 40 --temperature 0
    ort-aie run COMPILED "import os" --host genai --threads 4
    ort-aie run COMPILED "import os" --draft 8 --draft-model SMALLER
    ort-aie run COMPILED "import os" --target sim --max-tokens 2 --log trace
    ```
    """
    from ort_aie_ep.running.run import run_in_genai, run_in_session
    from ort_aie_ep.running.templates import find_template
    from ort_aie_ep.runtime.counters import npu_counters

    for given, name in ((draft, "draft"), (sampling.min_p, "min-p"), (prompt is None, "")):
        if given and host == "genai":
            what = f"--{name} works" if name else "a conversation is"
            raise AieError(f"{what} in ort_aie_ep's own loop only: leave out --host genai")
    if prompt is None:
        from ort_aie_ep.cli.chat import Talk, converse

        converse(Talk(folder, system, None, max_tokens, sampling, draft, draft_model), options)
        return
    if system:
        raise AieError(
            "--system is for a conversation: use ort-aie chat MODEL QUESTION, or leave out PROMPT"
        )
    count = max_tokens or 128
    with ExitStack() as models:
        model, guessing = models.enter_context(opened(folder, draft, draft_model, options.target))
        shown = models.enter_context(console.completion(prompt))
        if host == "genai":
            timing = run_in_genai(
                model.folder, options, prompt, count, shown.write, shown.progress,
                sampling.given(),
            )  # fmt: skip
        else:
            timing = run_in_session(
                model.folder, options, prompt, count, shown.write, shown.progress,
                draft, guessing, sampling.given(),
            )  # fmt: skip
    console.write_text("\n")
    decode = "" if timing.decode_speed is None else f", {timing.decode_speed:.1f} tok/s"
    console.note(
        f"prefill: {timing.prompt_tokens} tokens, {timing.prefill_speed:.1f} tok/s · "
        f"decode: {timing.new_tokens} tokens{decode}"
    )
    if timing.drafted is not None:
        right, verified = timing.drafted
        console.note(f"drafts: {right} of {verified} guessed tokens were right")
    counters = npu_counters()
    if counters.device_steps or counters.host_steps:
        console.note(str(counters))
    if sys.stderr.isatty() and find_template(model.folder) is not None:
        console.note(f"this model can chat: {console.command('ort-aie', 'chat', folder)}")


@app.command("explain")
def explain_command(
    model: Annotated[Path, typer.Argument(metavar=METAVAR, help=HELP)],
    nodes: Annotated[bool, typer.Option("--nodes", help="Print a row for each node.")] = False,
    ep: Annotated[
        bool,
        typer.Option(
            "--ep",
            help="Also show what the execution provider does with the model without compiling.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show where each node of a model runs, and why not on the NPU.

    If the model is not compiled, show what the compiler would make of each node:

    ```
    ort-aie explain MODEL
    ort-aie explain COMPILED --nodes
    ort-aie explain MODEL --ep
    ```
    """
    from ort_aie_ep.cli.tables import explanation_lines, explanation_table
    from ort_aie_ep.explain.explain import explain
    from ort_aie_ep.models.folder import find_model, other_models

    with ready(model, compiles=False) as path, console.bar("explain"):
        explanation = explain(path, provider=ep)
        lines = explanation_lines(explanation)
        others = [other.path.name for other in other_models(find_model(path))] * path.is_dir()
    if json:
        console.print_json(explanation)
        return
    console.out.print(explanation_table(explanation, nodes))
    if others:
        console.note(f"also in this folder: {', '.join(others)}; name a file to explain it")
    for line in lines:
        console.heading(line)
    options = explanation.compile_options
    if options is not None:
        console.next_command("ort-aie", "compile", model, "COMPILED", *options)


@app.command("doctor")
def doctor_command(
    compiled: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A compiled folder, to check the files, or a name on a hub or a GGUF file, to see "
            "if it fits.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check the installation, the NPU, the files of a compiled folder, or whether a model fits.

    Print versions, run an operator, and look for the NPU, its driver and XRT. With a compiled
    folder, also compare the files with their hashes, because a session does not notice damaged
    weights. The exit code is 0 if the host target works and the files are unchanged. With a name
    on a hub or a GGUF file, show what would be downloaded, whether it fits into this machine, and
    how fast it can be; no weights are downloaded:

    ```
    ort-aie doctor
    ort-aie doctor COMPILED
    ort-aie doctor OWNER/REPO
    ```
    """
    if compiled is not None and _tell_what_fits(compiled, json=json):
        return
    from ort_aie_ep.explain.doctor import diagnose
    from ort_aie_ep.machine import why_no_npu

    with console.bar("doctor", "bytes" if compiled else "") as progress:
        diagnosis = diagnose(compiled, progress)
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
                else "The xrt target has everything it needs; try it with ort-aie validate."
            )
    if not diagnosis.working:
        raise AieError("the host target does not work: see the first missing item above")
    if diagnosis.damage:
        raise AieError(f"{compiled}: {diagnosis.damage}")


def _tell_what_fits(given: Path, *, json: bool) -> bool:
    """Prints what a name or a GGUF file is, and whether it fits; returns whether it was one."""
    from ort_aie_ep.compiler.gguf import parts_of
    from ort_aie_ep.hub.contents import Choice, File, Kind
    from ort_aie_ep.hub.fits import fit
    from ort_aie_ep.hub.models import find
    from ort_aie_ep.hub.names import find_name
    from ort_aie_ep.models.folder import is_gguf

    if find_name(given) is None and not is_gguf(given):
        return False
    with console.bar("doctor"):
        if found := find(given):
            choice, what, left, line = found.choice, fit(found.choice), found.left, found.line()
        else:
            files = tuple(File(part.name, part.stat().st_size) for part in parts_of(given))
            choice, left = Choice(Kind.gguf, files[0].name, files), 0
            what = fit(choice)
            line = f"{given}: {choice.kind}, {size_text(choice.size)}; {what.line()}"
    if json:
        console.print_json(what, model=str(given), bytes=choice.size, left=left)
    else:
        console.heading(line)
    if not what.fits:
        raise AieError(f"{given} does not fit into the free memory")
    return True


@app.command("synth")
def synth_command(
    shape: Annotated[
        str | None, typer.Argument(metavar="SHAPE", help="A name from --list.")
    ] = None,
    destination: Annotated[
        Path | None, typer.Argument(metavar="DST", help="The new folder; it must not exist yet.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Number of layers. Default: the shape's.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Vocabulary size. Default: the shape's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
    block_size: Annotated[
        int | None,
        typer.Option(help="Weights that share a scale: 16, 32, 64, 128 or 256. Default: 32."),
    ] = None,
    floats: Annotated[
        bool, typer.Option("--float", help="Write float32 weights, which --quantize can compress.")
    ] = False,
    list_shapes: Annotated[bool, typer.Option("--list", help="List the shapes and exit.")] = False,
) -> None:
    """Write a model of any size with random weights.

    The graph is the same as from onnxruntime-genai's builder at int4, or with --float in float32.
    Use it to measure speed and memory without a download:

    ```
    ort-aie synth --list
    ort-aie synth llama-3.2-1b RANDOM
    ort-aie bench RANDOM
    ```
    """
    from ort_aie_ep.models.builder.weights import BLOCK
    from ort_aie_ep.models.shapes import SHAPES
    from ort_aie_ep.tools.synth import synth

    if list_shapes:
        from ort_aie_ep.cli.tables import shapes_table

        console.out.print(shapes_table(SHAPES))
        return
    if shape is None or destination is None:
        raise typer.BadParameter("give both SHAPE and DST; --list shows the shapes")
    if floats and block_size is not None:
        raise AieError("--block-size is for int4 weights: omit it, or omit --float")
    with console.bar("synth", "bytes") as progress:
        path = synth(
            shape,
            destination,
            layers=layers,
            vocab=vocab,
            seed=seed,
            int4=not floats,
            block_size=BLOCK if block_size is None else block_size,
            progress=progress,
        )
    console.out.print(str(path), markup=False, highlight=False, soft_wrap=True)
    console.next_command("ort-aie", "bench", path)
