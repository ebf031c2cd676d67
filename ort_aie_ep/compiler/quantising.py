"""What each matrix of float weights becomes, by the options of `compile`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ort_aie_ep.compiler.importance import Importance, measure
from ort_aie_ep.compiler.options import MIXED, CompileOptions, Quantize
from ort_aie_ep.compiler.widths import PLAIN, Product, by_budget, by_rule
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import Quantising, WeightForm
from ort_aie_ep.graph_passes.projection.float_matmul import (
    check_patterns,
    matching_patterns,
    quantisable,
)
from ort_aie_ep.graph_passes.unique_names import name_nodes, name_values
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.progress import Progress

VISION = "vision"
# `quantize` is for the language model: it leaves float weights of these genai_config.json parts.
NOT_QUANTISED = ("embedding", VISION, "speech", "joiner", "vad")


@dataclass(frozen=True)
class Choice:
    """What becomes of a model's float weights.

    Attributes:
        quantising: their forms; None: they stay.
        keep: the patterns of nodes to keep that are for this model.
    """

    quantising: Quantising | None
    keep: list[str]


def choose(
    options: CompileOptions,
    source: ModelFolder,
    main: ir.Model,
    others: Sequence[tuple[str, ir.Model | None]],
    progress: Progress | None,
) -> tuple[list[Choice], list[str]]:
    """A choice for each model, the main one's first, and notes on that one.

    Args:
        options: as given to `compile`.
        source: the folder of the models.
        main: its main model.
        others: its other parts by name, each with its model unless that is left alone.
        progress: counts what `importance` and `bits` read.
    """
    keep = [_matching(options, *each) for each in (("decoder", main), *others)]
    # The passes reject a pattern that matches nothing, so give unmatched ones to the main model.
    keep[0] += [name for name in options.keep if not any(name in names for names in keep)]
    quantising, notes = _of_main(options, source, main, keep[0], progress)
    each = [quantising, *(_of_part(options, part, model) for part, model in others)]
    return [Choice(*pair) for pair in zip(each, keep, strict=True)], notes


def _form(options: CompileOptions, part: str) -> Quantize | None:
    """What the float weights of a part of a folder should become."""
    if part == VISION:
        return options.vision
    return None if part in NOT_QUANTISED else options.quantize


def _matching(options: CompileOptions, part: str, model: ir.Model | None) -> list[str]:
    if model is None or _form(options, part) is None:
        return []
    name_nodes(model)
    return matching_patterns(model, options.keep)


def _of_part(options: CompileOptions, part: str, model: ir.Model | None) -> Quantising | None:
    """What a part other than the main model becomes: without a text, and so without importance."""
    form = _form(options, part)
    if model is None or form is None:
        return None
    if form == MIXED:
        return Quantising(PLAIN, by_rule(quantisable(model, options.keep)))
    return Quantising(WeightForm(form))


def _of_main(
    options: CompileOptions,
    source: ModelFolder,
    model: ir.Model,
    keep: Sequence[str],
    progress: Progress | None,
) -> tuple[Quantising | None, list[str]]:
    """What a folder's main model becomes, and notes on what was chosen."""
    if options.quantize is None:
        return None, []
    check_patterns(model, keep)
    name_values(model)
    products = quantisable(model, keep)
    found = None
    if options.importance is not None:
        found = measure(source, options.importance, keep, progress)
    notes = []
    if options.quantize == MIXED:
        plain, forms = PLAIN, _widths(options, source, products, found, progress)
    else:
        plain, forms = WeightForm(options.quantize), {}
    quantising = Quantising(plain, forms, {} if found is None else found.of)
    if options.quantize == MIXED:
        notes.append(_mean_bits(quantising, {w.key: w.shape for _, w in products}))
    if found is not None:
        notes.append(f"importance comes from {found.tokens} tokens of {found.text}")
    return quantising, notes


def _widths(
    options: CompileOptions,
    source: ModelFolder,
    products: Sequence[Product],
    found: Importance | None,
    progress: Progress | None,
) -> dict[str, WeightForm]:
    if options.bits is not None and found is not None:
        return by_budget(products, found, options.bits, progress)
    forms = by_rule(products)
    if products and not forms:
        raise AieError(
            f"mixed: the rule needs names such as lm_head, qkv_proj, v_proj or down_proj, and no "
            f"MatMul or Gemm in {source.model} has one: pass importance and bits, which need no "
            "names, or another quantize"
        )
    return forms


def _mean_bits(quantising: Quantising, shapes: dict[str, tuple[int, ...]]) -> str:
    sizes: dict[WeightForm, int] = {}
    for key, shape in shapes.items():
        form = quantising.forms.get(key, quantising.form)
        sizes[form] = sizes.get(form, 0) + math.prod(shape)
    total = sum(sizes.values())
    mean = sum(form.bits * size for form, size in sizes.items()) / max(total, 1)
    shares = ", ".join(f"{sizes[f] / total:.0%} in {f.bits} bits" for f in WeightForm if f in sizes)
    return f"mixed: codes of weights have {mean:.2f} bits on average ({shares})"
