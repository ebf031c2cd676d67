"""The options of a compilation, for Python, the command line and the cache alike.

An option is a field: its type and default, its lines in the class's docstring, which are also its
`--help`, and what `__post_init__` refuses.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar, get_args, get_type_hints

from ort_aie_ep.errors import AieError

KvType = Literal["f16", "bf16", "int8", "int4"]
Quantize = Literal["q4nx", "q2nx", "q8nx", "bf16", "mixed"]
Vision = Literal["bf16"]

MIXED: Quantize = "mixed"
# Token ids have this suffix, a text any other.
TOKEN_IDS = ".npy"
# Forms whose codes are searched for, so that it matters which in-features count.
_SEARCHED: tuple[Quantize, ...] = ("q4nx", "q2nx", "mixed")
_CODES: tuple[KvType, ...] = ("int8", "int4")
_LEAST_BITS, _MOST_BITS = 2, 8

_Path = str | os.PathLike[str]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class MissingOption(AieError):
    """`option` was given without `needed`: it `why`, such as "is for float weights"."""

    def __init__(self, option: str, needed: str, why: str) -> None:
        super().__init__(f"{option} {why}: pass {needed} as well")
        self.option, self.needed, self.why = option, needed, why


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Options for any weights; `import-q4nx` has only these.

    Attributes:
        kv: type of the KV cache. int8 and int4 have a scale for each channel, which the compiler
            finds by running the model on a text. Default: the model's own type, usually float32.
        calibration: text that gives `kv` int8 and int4 their scales, or token ids: integers
            (windows, tokens) in a .npy file. Text of the kind that the model will read works best.
            Default: sources of Python's standard library.
        last_logits: compute the logits of each row's last token only, for faster prompts. Rows may
            be padded on either side.
        fuse: fuse norms, residuals and gates into projections, and compile ONNX's own operators
            too. False: replace nodes one by one (MatMulNBits, GroupQueryAttention) and fuse
            nothing.
        plan: turn each region into one node, aie.Plan. False: write a node for each step, not one
            node for all. Results are the same.
        stoppable: write a node for each layer, so that a host can end a prompt between layers
            (RunOptions.terminate). For the CPU. Results are the same.
    """

    kv: KvType | None = None
    calibration: Path | None = field(default=None, metadata={"metavar": "FILE"})
    last_logits: bool = False
    fuse: bool = True
    plan: bool = True
    stoppable: bool = False

    @classmethod
    def of(cls, **given: Any) -> Self:
        """The options as Python's users write them: those of `CompileKeywords`.

        Raises:
            TypeError: one is not known; the error names the nearest.
        """
        known = [each.name for each in fields(cls)]
        for name in given.keys() - set(known):
            near = "".join(f"; did you mean {one!r}?" for one in get_close_matches(name, known, 1))
            raise TypeError(f"there is no option {name!r}{near}")
        for name in given.keys() & {"calibration", "importance"}:
            given[name] = None if given[name] is None else Path(given[name])
        if isinstance(keep := given.get("keep", ()), str):
            raise AieError(f"keep is {keep!r}; expected a list of names or patterns: [{keep!r}]")
        if "keep" in given:
            given["keep"] = tuple(keep)
        return cls(**given)

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, as JSON has them."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {
            option.name: str(value) if isinstance(value, Path) else value
            for option, value in values
            if value != option.default
        }

    def __post_init__(self) -> None:
        """Raises AieError for a value, or a combination, that does not exist, or a missing text."""
        _require_choice("kv", self.kv, KvType)
        if self.calibration is not None and self.kv not in _CODES:
            raise AieError(
                f"calibration is for a quantised KV cache: pass kv too, one of {', '.join(_CODES)}"
            )
        _require_text(self.calibration)


@dataclass(frozen=True, kw_only=True)
class CompileOptions(GraphOptions):
    """Options of `compile`: those of `GraphOptions`, and what float weights become.

    Attributes:
        quantize: quantise the float weights of MatMul and Gemm to q4nx, q2nx or q8nx (4, 2 or 8
            bits), to mixed (4 bits, and 8 where it matters most) or to bf16 (bfloat16, for vision
            towers). Default: leave them unchanged.
        importance: text, or token ids (.npy), that the model reads to find which weights matter:
            their errors count more. For q4nx, q2nx and mixed.
        bits: with `quantize` mixed and `importance`: mean bits of a weight, 2 to 8. Default: the
            rule of the model builder's k_quant_mixed chooses.
        vision: write the float weights of a folder's vision model in bf16 (bfloat16). Default:
            leave them unchanged; `quantize` does not change them.
        keep: nodes that `quantize` and `vision` leave unchanged: a name, or a pattern with * and ?.
        q4nx_compatible: pack 4-bit weights in the form of .q4nx files (5 bits a weight), which an
            NPU reads in place with any overlay, not in the smallest form for the source's groups
            (4.1 to 5 bits); the weights of a GGUF file in Q4NX and Q8NX, not in the types of the
            file, which NPUs do not read. Default: for a GGUF file if an NPU works here.
        gguf_pre: how the tokenizer of a GGUF file divides text before merging bytes, if the file
            does not say it or has an unknown name: a known name (docs/gguf.md). Default: the
            file's tokenizer.ggml.pre.
    """

    quantize: Quantize | None = None
    importance: Path | None = field(default=None, metadata={"metavar": "FILE"})
    bits: float | None = None
    vision: Vision | None = None
    keep: tuple[str, ...] = field(default=(), metadata={"metavar": "PATTERN"})
    q4nx_compatible: bool | None = None
    gguf_pre: str | None = field(default=None, metadata={"metavar": "NAME"})

    def __post_init__(self) -> None:
        """As for `GraphOptions`."""
        super().__post_init__()
        _require_choice("quantize", self.quantize, Quantize)
        _require_choice("vision", self.vision, Vision)
        if self.quantize is None:
            for name, given in (("importance", self.importance), ("bits", self.bits)):
                if given is not None:
                    raise MissingOption(name, "quantize", "is for float weights")
            if self.keep and self.vision is None:
                raise MissingOption("keep", "quantize", "names nodes that quantize leaves alone")
        elif self.importance is not None and self.quantize not in _SEARCHED:
            raise AieError(
                f"importance changes nothing for {self.quantize}, whose weights are rounded to "
                f"nearest: pass quantize with one of {', '.join(_SEARCHED)}, or omit importance"
            )
        if self.bits is not None:
            if self.quantize != MIXED or self.importance is None:
                raise AieError(
                    "bits is for mixed weights: pass quantize=mixed and importance as well"
                )
            if not _LEAST_BITS <= self.bits <= _MOST_BITS:  # also for NaN
                raise AieError(
                    f"bits is {self.bits:g}; expected {_LEAST_BITS} to {_MOST_BITS}: the mean bits "
                    "of a weight's code"
                )
        _require_text(self.importance)


class GraphKeywords(TypedDict, total=False):
    """`GraphOptions` as Python's users write them."""

    kv: KvType | None
    calibration: _Path | None
    last_logits: bool
    fuse: bool
    plan: bool
    stoppable: bool


class CompileKeywords(GraphKeywords, total=False):
    """`CompileOptions` as Python's users write them."""

    quantize: Quantize | None
    importance: _Path | None
    bits: float | None
    vision: Vision | None
    keep: Sequence[str]
    q4nx_compatible: bool | None
    gguf_pre: str | None


def takes(keywords: type) -> Callable[[_Function], _Function]:
    """Lets `help()` list the options, with their defaults, in the place of a function's **options:
    type checkers do so by themselves."""

    def decorated(function: _Function) -> _Function:
        own, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        shown = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        for name, hint in get_type_hints(keywords).items():
            default = getattr(CompileOptions, name)
            shown.append(inspect.Parameter(name, keyword, default=default, annotation=hint))
        vars(function)["__signature__"] = own.replace(parameters=shown)
        return function

    return decorated


def _require_choice(name: str, given: str | None, choices: Any) -> None:
    expected = get_args(choices)
    if given is not None and given not in expected:
        one_of = "one of " * (len(expected) > 1)
        raise AieError(f"{name} is {given!r}; expected {one_of}{', '.join(expected)}")


def _require_text(given: Path | None) -> None:
    if given is None:
        return
    from ort_aie_ep.models.files import is_missing  # which imports more than the rest of this

    if is_missing(given):
        kind = "token ids" if given.suffix == TOKEN_IDS else "text"
        raise AieError(f"{kind} {given} cannot be read: there is no such file")
