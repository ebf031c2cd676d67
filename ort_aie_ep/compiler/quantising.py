"""What `compile` was asked to do with float weights, and what each matrix becomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ort_aie_ep.compiler.importance import measure
from ort_aie_ep.compiler.widths import MIXED, PLAIN, by_budget, by_rule, check_budget
from ort_aie_ep.errors import AieError
from ort_aie_ep.graph_passes import Quantising, WeightForm
from ort_aie_ep.graph_passes.projection.float_matmul import check_patterns, quantisable
from ort_aie_ep.graph_passes.unique_names import name_values
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.progress import Progress

FORMS = (*WeightForm, MIXED)
# Forms whose codes are searched for, so that it matters which in-features count.
_SEARCHED = (WeightForm.Q4NX, WeightForm.Q2NX, MIXED)
# `quantize` is for the language model: it leaves float weights of these genai_config.json parts.
# For the vision model there is `vision`.
NOT_QUANTISED = ("embedding", "vision", "speech", "joiner", "vad")
VISION = "vision"


@dataclass(frozen=True)
class FloatWeightOptions:
    """The options of `compile` for float weights.

    Attributes:
        quantize: a WeightForm, "mixed", or None to leave them.
        importance: the text that tells which in-features matter.
        bits: the budget of "mixed" in mean bits of a code; without it, a rule chooses.
        vision: "bf16", or None to leave those of the folder's vision model.
        keep: patterns of names of nodes that stay.
    """

    quantize: str | None = None
    importance: Path | None = None
    bits: float | None = None
    vision: str | None = None
    keep: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises AieError for a value, or a combination, that does not exist."""
        if self.vision not in (None, WeightForm.BF16):
            raise AieError(f"vision is {self.vision!r}; expected {WeightForm.BF16}")
        if self.quantize is None:
            for name, given in (("importance", self.importance), ("bits", self.bits)):
                if given is not None:
                    raise AieError(f"{name} is for float weights: pass quantize as well")
            if self.keep and self.vision is None:
                raise AieError("keep names nodes that quantize leaves alone: pass quantize as well")
            return
        if self.quantize not in FORMS:
            raise AieError(f"quantize is {self.quantize!r}; expected one of {', '.join(FORMS)}")
        if self.importance is not None and self.quantize not in _SEARCHED:
            raise AieError(
                f"importance changes nothing for {self.quantize}, whose weights are rounded to "
                f"nearest: pass quantize with one of {', '.join(_SEARCHED)}, or omit importance"
            )
        if self.bits is not None:
            if self.quantize != MIXED or self.importance is None:
                raise AieError(
                    "bits is the budget of mixed weights that a text decides: pass quantize=mixed "
                    "and importance as well"
                )
            check_budget(self.bits)

    def quantises(self, part: str) -> bool:
        """Whether the float weights of a part of a folder are replaced."""
        asked = self.vision if part == VISION else self.quantize
        return asked is not None and (part == VISION or part not in NOT_QUANTISED)

    def of_part(self, model: ir.Model, part: str) -> Quantising | None:
        """For a part of a folder that no text is read with, and that is replaced."""
        if part == VISION:
            return Quantising(WeightForm.BF16)
        assert self.quantize is not None
        if self.quantize == MIXED:
            return Quantising(PLAIN, by_rule(quantisable(model, self.keep)))
        return Quantising(WeightForm(self.quantize))

    def of_main(
        self, source: ModelFolder, model: ir.Model, keep: Sequence[str], progress: Progress | None
    ) -> tuple[Quantising | None, list[str]]:
        """For a folder's main model, whose nodes have names, and notes on what was chosen."""
        if self.quantize is None:
            return None, []
        check_patterns(model, keep)
        name_values(model)
        products = quantisable(model, keep)
        found = None
        if self.importance is not None:
            found = measure(source, self.importance, keep, progress)
        if self.quantize != MIXED:
            forms = {}
        elif self.bits is not None and found is not None:
            forms = by_budget(products, found, self.bits, progress)
        else:
            forms = by_rule(products)
            if products and not forms:
                raise AieError(
                    f"mixed: no name of a MatMul or Gemm in {source.model} tells that it is the "
                    "lm_head, or qkv_proj, v_proj or down_proj of a layer, so the rule cannot "
                    "choose: pass importance and bits, which need no names, or another quantize"
                )
        plain = PLAIN if self.quantize == MIXED else WeightForm(self.quantize)
        quantising = Quantising(plain, forms, {} if found is None else found.of)
        notes = []
        if self.quantize == MIXED:
            notes.append(_mean_bits(quantising, dict((w.key, w.shape) for _, w in products)))
        if found is not None:
            notes.append(f"importance comes from {found.tokens} tokens of {found.text}")
        return quantising, notes


def _mean_bits(quantising: Quantising, shapes: dict[str, tuple[int, ...]]) -> str:
    sizes: dict[WeightForm, int] = {}
    for key, shape in shapes.items():
        form = quantising.forms.get(key, quantising.form)
        sizes[form] = sizes.get(form, 0) + math.prod(shape)
    total = sum(sizes.values())
    mean = sum(form.bits * size for form, size in sizes.items()) / max(total, 1)
    shares = ", ".join(f"{sizes[f] / total:.0%} in {f.bits} bits" for f in WeightForm if f in sizes)
    return f"mixed: codes of weights have {mean:.2f} bits on average ({shares})"
