"""`ort-aie compile`: a model folder in, a folder with aie.* nodes and Q4NX weights out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ort_aie_ep.compiled_folder import (
    PAGE,
    REPORT,
    CompileResult,
    Progress,
    check_destination,
    write_folder,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import DOMAIN, NodeOutcome, WeightForm, run_passes
from ort_aie_ep.model_file import external_files, load_model
from ort_aie_ep.model_folder import ModelFolder, find_model

__all__ = ["PAGE", "REPORT", "CompileResult", "Progress", "compile_model"]

# What the passes replace: node by node, among ONNX's own operators too, and with `quantize`.
NODE_BY_NODE = ("MatMulNBits of 4 or 2 bits", "GroupQueryAttention")
WITH_FUSION = (
    "int4 DequantizeLinear in blocks",
    "Attention",
    "MultiHeadAttention",
    "exported attention with a KV cache",
)
WITH_QUANTIZE = ("MatMul", "Gemm with float weights")


def compile_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    kv: str | None = None,
    last_logits: bool = False,
    fuse: bool = True,
    quantize: str | None = None,
    keep: Sequence[str] = (),
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles the model in `source` into the new folder `destination`.

    Of what NODE_BY_NODE and WITH_FUSION name, projections become aie.Q4NXMatMul, attention becomes
    aie.FlowAttention, and a quantised embedding aie.Q4NXGather, on the lm_head's tensor if they are
    tied; with `quantize`, MatMul and Gemm with constant float weights become aie.Q4NXMatMul or
    aie.GEMM. Names, types and shapes of the graph's inputs and outputs stay unless asked otherwise;
    other files of the folder are carried over.

    Args:
        source: an onnxruntime-genai folder, a folder with one .onnx file (as optimum exports), or
            an .onnx file.
        destination: a folder that does not exist yet. It is written beside and renamed at the end.
        kv: "f16" or "bf16" gives past and present that type; None leaves it.
        last_logits: give each row's last token's logits alone, (batch, 1, vocabulary); the
            last that attention_mask shows, so rows may be padded on either side.
        fuse: let norms, residuals and gates join the projections; False replaces node by
            node and leaves what WITH_FUSION names.
        quantize: what float weights become: "q4nx" (4 bits, a range searched for each group of 32)
            or "bf16" (bfloat16 operands, float32 sums); None leaves them.
        keep: patterns (* and ?) of names of MatMul and Gemm nodes that `quantize` leaves alone.
        progress: called as weights are written.

    Raises:
        AieError: the source is no model, is damaged, or has nothing to compile; the destination
            exists or cannot be written; a pattern of `keep` matches nothing, or there is nothing to
            keep from. Nothing is left behind then.
    """
    form = _weight_form(quantize, keep)
    target = Path(destination)
    check_destination(target)
    folder = find_model(Path(source))
    model = load_model(folder.model)
    data_files = external_files(model)
    already = any(node.domain == DOMAIN for node in model.graph.all_nodes())
    report = run_passes(model, fuse=fuse, quantize=form, keep=keep)
    outcomes = tuple(report.outcomes.values())
    if not any(outcome.becomes for outcome in outcomes):
        if already:
            raise AieError(
                f"{folder.model} is compiled already: use it as it is, or give the model that it "
                "was made from"
            )
        raise AieError(f"{folder.model} {_nothing_to_compile(outcomes, fuse, form)}")
    # A bare .onnx file says nothing of its neighbours: they stay where they are. Listed before
    # anything is written: the destination may lie inside the source.
    skip = {folder.model, *data_files}
    others = _other_files(folder, skip) if Path(source).is_dir() else []
    return write_folder(
        target,
        model,
        report,
        source=folder,
        files=others,
        kv=kv,
        last_logits=last_logits,
        progress=progress,
    )


def _nothing_to_compile(
    outcomes: Sequence[NodeOutcome], fuse: bool, form: WeightForm | None
) -> str:
    *ops, last = (
        NODE_BY_NODE + (WITH_FUSION if fuse else ()) + (WITH_QUANTIZE if form is not None else ())
    )
    text = f"has nothing to compile: no {', '.join(ops)} or {last} that can be replaced"
    if not fuse:
        text += (
            "; fuse=False (--no-fuse) replaces node by node: leave it out if the model holds "
            f"ONNX's own operators ({', '.join(WITH_FUSION)})"
        )
    return text + "".join(f"\n  {o.node}: {o.reason}" for o in outcomes[:5])


def _weight_form(quantize: str | None, keep: Sequence[str]) -> WeightForm | None:
    if quantize is None:
        if keep:
            raise AieError("keep names nodes that are not to be quantised: give quantize as well")
        return None
    if quantize not in list(WeightForm):
        raise AieError(f"quantize is {quantize!r}; expected one of {', '.join(WeightForm)}")
    return WeightForm(quantize)


def _other_files(folder: ModelFolder, skip: set[Path]) -> list[Path]:
    skipped = {path.absolute() for path in skip}
    return [
        path
        for path in sorted(folder.path.rglob("*"))
        if path.absolute() not in skipped and path.is_file()
    ]
