"""What onnxruntime-genai's model builder can be told about a checkpoint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ort_aie_ep.errors import AieError

# Of the builder's precisions, those that ONNX Runtime's CPU EP has.
Precision = Literal["int4", "int8", "fp32"]
PRECISIONS = get_args(Precision)
_BOOL = r"true|false|True|False|0|1"
_INT, _ANY = r"\d+", r".+"
# The builder's --extra_options that make sense here, and their values as patterns. `int4_` before a
# name is its old spelling.
EXTRA = {
    "accuracy_level": r"0|1|2|3|4",
    "algo_config": r"default|rtn|k_quant|rtn_last|k_quant_last|k_quant_mixed|k_quant_linear",
    "block_size": r"16|32|64|128|256",
    "disable_qkv_fusion": _BOOL,
    "exclude_embeds": _BOOL,
    "exclude_lm_head": _BOOL,
    "exclude_mtp": _BOOL,
    "fuse_mlp_gate_up": _BOOL,
    "fuse_qk_norm_gqa": _BOOL,
    "fuse_qkv": _BOOL,
    "hf_remote": _BOOL,
    "include_hidden_states": _BOOL,
    "is_symmetric": _BOOL,
    "matmul_mixed_precision": _ANY,
    "moe_quant_type": r"int2|int4|int8",
    "nodes_to_exclude": _ANY,
    "num_hidden_layers": _INT,
    "op_types_to_quantize": _ANY,
    "past_present_share_buffer": _BOOL,
    "prune_lm_head": _BOOL,
    "qmoe_block_size": _INT,
    "shared_embeddings": _BOOL,
    "use_8bits_moe": _BOOL,
    "use_qdq": _BOOL,
    "windowed_kv_cache": _BOOL,
}
_OLD = "int4_"
# Options that this package sets itself, and what to use instead.
_TAKEN = {
    "adapter_path": "use --adapter, which merges the adapter into the weights",
    "config_only": "a model without weights cannot be compiled",
    "filename": "the file is always model.onnx",
    "hf_token": "nothing is downloaded, so no token is used",
}


@dataclass(frozen=True)
class BuildOptions:
    """How a checkpoint becomes a model.

    Attributes:
        precision: of the weights: one of PRECISIONS.
        extra: the builder's --extra_options, KEY=VALUE.
        adapter: a folder with a LoRA adapter to merge into the weights; None: there is none.
    """

    precision: Precision = "int4"
    extra: Sequence[str] = ()
    adapter: Path | None = None

    def check(self) -> None:
        """Raises AieError if the builder has no such precision, option or value."""
        if self.precision not in PRECISIONS:
            raise AieError(
                f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}"
            )
        seen = set()
        for option in self.extra:
            key = _check(option)
            if key in seen:
                raise AieError(f"--builder-option {key} is given twice")
            seen.add(key)

    def value(self, key: str) -> str | None:
        """The value of a builder's option; None if it is not given."""
        given = (option.split("=", 1) for option in self.extra)
        return {name.removeprefix(_OLD): value for name, value in given}.get(key)


def _check(option: str) -> str:
    """The name of the option in KEY=VALUE, without its old prefix."""
    key, equals, value = option.partition("=")
    if not equals:
        raise AieError(f"--builder-option is {option!r}; expected KEY=VALUE")
    if key in _TAKEN:
        raise AieError(f"--builder-option {key}: {_TAKEN[key]}")
    pattern = EXTRA.get(key, EXTRA.get(key.removeprefix(_OLD)))
    if pattern is None:
        near = difflib.get_close_matches(key, EXTRA, 1)
        raise AieError(
            f"--builder-option {key} is not an option of the builder for this CPU"
            + (f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(EXTRA)}")
        )
    if not re.fullmatch(pattern, value):
        expected = {_BOOL: "true or false", _INT: "a whole number", _ANY: "a value"}
        wanted = expected.get(pattern) or f"one of {pattern.replace('|', ', ')}"
        raise AieError(f"--builder-option {key} is {value!r}; expected {wanted}")
    return key.removeprefix(_OLD)
