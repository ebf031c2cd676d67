"""Perplexity of a model at 4 and 2 bits, with a scale per block of 32 and per channel.

    python lab/accuracy_by_bits.py                       # the demonstration model
    python lab/accuracy_by_bits.py MODEL --tokens 5000

The script dequantises the weights of every MatMulNBits except a tied lm_head, quantises them again
and runs ort_aie_ep's operators with bf16 numerics on text held out of training (`ort-aie
accuracy`). What the source lost to its own 4 bits stays lost. Each group of weights is rounded to
nearest between its extremes ("extremes"), or in the best of several narrower ranges, fitted by
least squares to the codes that it gives ("searched"). The criterion is the error of the weights;
activations are not considered. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ort_aie_ep import _native
from ort_aie_ep.cli import console
from ort_aie_ep.formats import q4nx
from ort_aie_ep.graph_passes import run_passes
from ort_aie_ep.graph_passes.projection.matmul_nbits import matmul_weights, why_not_matmul
from ort_aie_ep.models.folder import ModelFolder, find_model
from ort_aie_ep.models.onnx_file import load_model
from ort_aie_ep.progress import Count
from ort_aie_ep.running.generate import Decoder
from ort_aie_ep.runtime.sessions import Options, open_operator
from ort_aie_ep.tools.bench import accuracy, demo

Floats = npt.NDArray[np.float32]
BLOCK = 32
# Fractions of a range's width that either end may lose. The best range of 4 levels for normal
# numbers ends at 1.5 deviations; the extremes of hundreds of numbers are at 3 and more.
LOST = np.arange(0, 0.4, 0.05, np.float32)
FITS = 2


@dataclass(frozen=True)
class Method:
    """How weights are quantised.

    Attributes:
        bits: bits of a code.
        per_channel: one scale and minimum for all in-features, instead of one for each 32.
        search: search for the best range, instead of using the extremes.
    """

    bits: int
    per_channel: bool
    search: bool

    def __str__(self) -> str:
        """The first cells of a row of the table."""
        grain = "per channel" if self.per_channel else f"per block of {BLOCK}"
        return f"{self.bits} | {grain} | {'searched' if self.search else 'extremes'}"


METHODS = [Method(*choice) for choice in product((4, 2), (False, True), (False, True))]


def quantise(weights: Floats, method: Method) -> tuple[npt.NDArray[np.uint8], Floats, Floats]:
    """(N, K) weights -> codes (N, K), and scales and minima (N, groups), bfloat16 values."""
    n, k = weights.shape
    x = weights.reshape(n, -1, k if method.per_channel else BLOCK)
    low, high = x.min(axis=2), x.max(axis=2)
    best: list[Floats] = [np.zeros_like(low), low, np.full_like(low, np.inf)]

    def attempt(scale: Floats, minimum: Floats) -> None:
        scale, minimum = (v.astype(q4nx.bfloat16).astype(np.float32) for v in (scale, minimum))
        codes = _codes(x, scale, minimum, method.bits)
        error = ((codes * scale[..., None] + minimum[..., None] - x) ** 2).sum(axis=2)
        better = error < best[2]
        for kept, tried in zip(best, (scale, minimum, error), strict=True):
            kept[better] = tried[better]

    for from_low, from_high in product(LOST, LOST) if method.search else [(0.0, 0.0)]:
        width = high - low
        minimum = low + np.float32(from_low) * width
        attempt((high - np.float32(from_high) * width - minimum) / (2**method.bits - 1), minimum)
    for _ in range(FITS if method.search else 0):
        codes = _codes(x, best[0], best[1], method.bits)
        mean_code, mean = codes.mean(axis=2), x.mean(axis=2)
        centred = codes - mean_code[..., None]
        spread = (centred**2).sum(axis=2)
        slope = (centred * x).sum(axis=2) / np.where(spread > 0, spread, 1)
        slope = np.where(spread > 0, slope, best[0]).astype(np.float32)
        attempt(slope, mean - slope * mean_code)
    codes = _codes(x, best[0], best[1], method.bits)
    return codes.astype(np.uint8).reshape(n, k), best[0], best[1]


def _codes(x: Floats, scale: Floats, minimum: Floats, bits: int) -> Floats:
    safe = np.where(scale > 0, scale, 1)
    codes: Floats = np.rint((x - minimum[..., None]) / safe[..., None]).clip(0, 2**bits - 1)
    return codes


def projections(model: ir.Model) -> Iterator[ir.Node]:
    """The projections whose weights no other node reads."""
    for node in model.graph:
        if node.op_type != "MatMulNBits" or why_not_matmul(node):
            continue
        if all(value is None or len(value.uses()) == 1 for value in node.inputs[1:]):
            yield node


def requantised(source: ModelFolder, method: Method) -> tuple[ir.Model, float]:
    """The model with other weights, and their root mean square error relative to the source's.

    The new MatMulNBits has blocks of 32, because no operator shares a scale among all of K: a scale
    per channel is repeated. Minima are zero points of the scales' type.
    """
    model = load_model(source.model)
    lost = total = 0.0
    for node in list(projections(model)):
        old = matmul_weights(node)
        weights = q4nx.dequantize(old.pack(q4nx.SHIPPING), old.n, old.k)
        codes, scales, minima = quantise(weights, method)
        groups = -(-old.k // BLOCK)
        scales, minima = (np.broadcast_to(v, (old.n, groups)) if method.per_channel else v
                          for v in (scales, minima))  # fmt: skip
        steps = np.where(scales > 0, scales, 1)
        spread = [np.repeat(v, BLOCK, axis=1)[:, : old.k] for v in (steps, minima)]
        lost += float(((codes * spread[0] + spread[1] - weights) ** 2).sum())
        total += float((weights**2).sum())
        in_byte = 8 // method.bits
        parts = codes.reshape(old.n, groups, -1, in_byte)
        shifts = (method.bits * np.arange(in_byte)).astype(np.uint8)
        arrays = {
            "B": np.bitwise_or.reduce(parts << shifts, axis=3),
            "scales": np.ascontiguousarray(steps, np.float32),
            "zero_points": np.ascontiguousarray(-minima / steps, np.float32),
        }
        node.resize_inputs(max(4, len(node.inputs)))
        for index, (name, array) in enumerate(arrays.items(), 1):
            tensor = ir.tensor(array, name=f"{node.name}.{name}")
            value = ir.Value(name=tensor.name, shape=tensor.shape, const_value=tensor,
                             type=ir.TensorType(tensor.dtype))  # fmt: skip
            model.graph.register_initializer(value)
            node.replace_input_with(index, value)
        node.attributes["bits"] = ir.AttrInt64("bits", method.bits)
        node.attributes["block_size"] = ir.AttrInt64("block_size", BLOCK)
    return model, (lost / total) ** 0.5


def decoder(model: ir.Model, source: ModelFolder, options: argparse.Namespace) -> Decoder:
    """A decoder that runs ort_aie_ep's operators on a model, with bf16 numerics on this CPU."""
    run_passes(model)
    for value in model.graph.initializers.values():  # into the model, which is not a file
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    content = ir.to_proto(model).SerializeToString()
    session = open_operator(content, Options("host", "bf16", options.threads))
    return Decoder(session, source, options.window)


def main() -> None:
    """Score, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=demo.MODEL)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    source = find_model(options.model)
    errors: dict[str, float] = {}
    variants = [("the source", decoder(load_model(source.model), source, options))]
    with console.bar("quantise", "methods") as progress:
        count = Count(progress, len(METHODS))
        for method in METHODS:
            count.begin(str(method))
            model, errors[str(method)] = requantised(source, method)
            variants.append((str(method), decoder(model, source, options)))
            count.step()
    workload = accuracy.Workload(options.tokens, 0, options.window)
    with console.bar("score", "tokens") as progress:
        report = accuracy.score(lambda: variants, source, workload, progress)
    print(
        f"{source.path.name}: {report.scores[0].tokens} tokens in windows of {report.window}; "
        f"kernels {_native.selected_isa()}; ( ): 95 %, bootstrap over windows in pairs\n\n"
        "| bits | scales | range | error of weights | perplexity | / the source's |\n"
        "|---|---|---|---:|---:|---:|"
    )
    for score in report.scores:
        name = score.variant if score.variant in errors else f"{score.variant} | |"
        error = f"{errors[score.variant]:.1%}" if score.variant in errors else ""
        r = score.ratio
        print(
            f"| {name} | {error} | {score.perplexity.value:.2f} | "
            f"{r.value:.3f} ({r.low:.3f}-{r.high:.3f}) |"
        )


if __name__ == "__main__":
    main()
