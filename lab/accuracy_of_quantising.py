"""Perplexity of what `compile --quantize` makes of float weights, beside the float model.

    python lab/accuracy_of_quantising.py                       # the demonstration model
    python lab/accuracy_of_quantising.py FLOAT_MODEL --tokens 5000 --text TEXT

The repository has the demonstration model at four bits only, so its float model has the values of
those four bits in float32. Each variant is compiled and scored with bf16 numerics on text held out
of training (`ort-aie accuracy`); importance comes from --text, by default text of the training
part, which the script writes to a file. Prints Markdown.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import ort_aie_ep
from ort_aie_ep import _native
from ort_aie_ep.cli import console
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import WeightForm
from ort_aie_ep.graph_passes.weights.packed import MatMulNBitsWeights
from ort_aie_ep.models import corpus
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.progress import Count
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_session
from ort_aie_ep.tools.bench import accuracy, demo

REFERENCE = "float32, ONNX Runtime"
# Characters of each module that the default text has.
_OF_MODULE = 2000


def variants(text: Path) -> dict[str, dict[str, Any]]:
    """Names of rows, and the options of `compile` for each."""
    weighed = {"importance": text}
    by_name: dict[str, dict[str, Any]] = {
        "q8nx": {"quantize": "q8nx"},
        "q4nx": {"quantize": "q4nx"},
        "q4nx --importance": {"quantize": "q4nx"} | weighed,
        "mixed": {"quantize": "mixed"},
        "mixed --importance": {"quantize": "mixed"} | weighed,
    }
    for bits in (6, 5, 4.5, 3.5, 3, 2.5):
        name = f"mixed --importance --bits {bits:g}"
        by_name[name] = {"quantize": "mixed", "bits": bits} | weighed
    by_name["q2nx --importance"] = {"quantize": "q2nx"} | weighed
    by_name["q2nx"] = {"quantize": "q2nx"}
    return by_name


def float_model(source: ModelFolder, folder: Path) -> ModelFolder:
    """A copy of a folder whose MatMulNBits, and embedding tied to one, are float32."""
    shutil.copytree(source.path, folder, ignore=shutil.ignore_patterns("*.onnx", "*.data"))
    model = load_model(source.model)
    tables: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if node.op_type == "MatMulNBits":
            weights = MatMulNBitsWeights.of(node)
            values = _native.dequantize(weights.pack(q4nx.SHIPPING), weights.n, weights.k)
            name = (node.name or "").removesuffix("_Q4")
            table = _initializer(model.graph, f"{name[1:].replace('/', '.')}.weight", values)
            tables[weights.b] = table
            flipped = ir.node("Transpose", [table], {"perm": [1, 0]}, name=f"{name}/Transpose")
            product = ir.node("MatMul", [node.inputs[0], flipped.outputs[0]], name=name)
            _replace(node, [flipped, product])
    for node in list(model.graph):
        if node.op_type == "GatherBlockQuantized":
            reshape = node.inputs[0].producer() if node.inputs[0] is not None else None
            assert reshape is not None
            (tied,) = (t for b, t in tables.items() if b is reshape.inputs[0])
            _replace(node, [ir.node("Gather", [tied, node.inputs[1]], name=node.name)])
    ir.passes.common.RemoveUnusedNodesPass()(model)
    ir.save(model, folder / "model.onnx", external_data="model.onnx.data")
    return find_model(folder)


def _initializer(graph: ir.Graph, name: str, values: np.ndarray[Any, Any]) -> ir.Value:
    tensor = ir.tensor(values, name=name)
    value = ir.Value(
        name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _replace(node: ir.Node, by: list[ir.Node]) -> None:
    result = by[-1].outputs[0]
    result.name, result.type, result.shape = (
        node.outputs[0].name,
        node.outputs[0].type,
        node.outputs[0].shape,
    )
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], by, node.outputs, [result])


def default_text() -> str:
    """The beginning of each module of the training text."""
    return "".join(text[:_OF_MODULE] for _, text in corpus.training_text())


def main() -> None:
    """Compile, score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        source = (
            float_model(find_model(demo.MODEL), work / "float")
            if options.model is None
            else find_model(options.model)
        )
        text = options.text
        if text is None:
            text = work / "text"
            text.write_text(default_text())
        session = open_session(source.model, Options(threads=options.threads), library=False)
        decoders = [(REFERENCE, Decoder(session, source, options.window))]
        widths: dict[str, tuple[float, float]] = {}
        given = variants(text)
        with console.bar("compile", "variants") as progress:
            count = Count(progress, len(given))
            for name, choices in given.items():
                count.begin(name)
                result = ort_aie_ep.compile(source.path, work / name, **choices)
                sizes = [(layer, layer.k * layer.n) for layer in result.layers]
                weights = sum(size for _, size in sizes)
                mean = sum(WeightForm(one.form).bits * size for one, size in sizes) / weights
                stored = sum(
                    np.prod(WeightForm(one.form).blocks_shape(one.n, one.k)) for one, _ in sizes
                )
                widths[name] = (mean, float(stored) / 1e6)
                session = open_session(
                    result.path / "model.onnx", Options("host", "bf16", options.threads)
                )
                decoders.append((name, Decoder(session, result.folder, options.window)))
                count.step()
        workload = accuracy.Workload(options.tokens, 0, options.window)
        with console.bar("score", "tokens") as progress:
            report = accuracy.score(lambda: decoders, source, workload, progress)
    print(
        f"{report.scores[0].tokens} tokens in windows of {report.window}; kernels "
        f"{_native.selected_isa()}; ( ): 95 %, bootstrap over windows in pairs\n\n"
        "| --quantize | bits of a code | MB | perplexity | / float |\n|---|---:|---:|---:|---:|"
    )
    for score in report.scores:
        mean, size = widths.get(score.variant, (32.0, float("nan")))
        r = score.ratio
        print(
            f"| {score.variant} | {mean:.2f} | {size:.2f} | {score.perplexity.value:.2f} | "
            f"{r.value:.4f} ({r.low:.4f}-{r.high:.4f}) |"
        )


if __name__ == "__main__":
    main()
