"""What a GGUF file's metadata says of its model, and what GGUF changes in each family.

* llama.cpp rotates neighbouring channels where the builder's graph rotates the halves of a head. In
  `paired` families the converter has interleaved the rows of queries and keys accordingly.
* Norms of Gemma are stored with the 1 that the model adds to them, as the builder stores them.
* Stretched rotations of Llama 3 are a tensor, `rope_freqs`, that divides the frequencies; those of
  Phi 3 are two tensors, for contexts up to the original one and beyond.
* Phi 3 has queries, keys and values in one tensor, and gate and up in another (`joined`).
* Without `output`, the lm_head is the embedding.
* Granite multiplies each branch by a constant, and the logits by another. Here the sum of branches
  is divided by the first, which the embedding and the norms' epsilon allow for: a norm does not
  depend on the length of its input. The last norm carries the second.
* Where value heads of linear attention share a key head, the converter has put those that share
  one `key_heads` apart. Rows are put back, and the graph does it with the columns of the next
  projection, whose blocks may have more columns than a head has.
* Blocks after the last layer, which predict more tokens at once, are not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ort_aie_ep.compiler.gguf.file import Gguf, Tensor
from ort_aie_ep.compiler.gguf.keys import Keys
from ort_aie_ep.compiler.gguf.tensors import (
    EXACT,
    KNOWN,
    REQUANTISED,
    Experts,
    Floats,
    Indices,
    Matrix,
    Part,
    floats,
    stored_as,
    table_type,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.formats.file_forms import FileForm
from ort_aie_ep.models.builder.weights import FLOATS, INT4, Stored, rotary_frequencies
from ort_aie_ep.models.checked_json import shown
from ort_aie_ep.models.shapes import Hybrid, Shape, Yarn

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ROPE_FREQS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
NAMES = {
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "router": "ffn_gate_inp",
    "expert_bias": "exp_probs_b.bias",
    "z_proj": "attn_gate",
    "b_proj": "ssm_beta",
    "a_proj": "ssm_alpha",
    "conv1d": "ssm_conv1d",
    "dt_bias": "ssm_dt.bias",
    "neg_exp_A": "ssm_a",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
    "final_norm_layernorm": "output_norm",
}
"""The names of a layer's tensors, and of the last norm, by the builder's names."""
# Those that ".weight" does not follow.
_WHOLE_NAMES = ("exp_probs_b.bias", "ssm_dt.bias", "ssm_a")
_LFM2 = {
    "operator_layernorm": "attn_norm",
    "ffn_layernorm": "ffn_norm",
    "in_proj": "shortconv.in_proj",
    "conv": "shortconv.conv",
    "out_proj": "shortconv.out_proj",
    "final_norm_layernorm": "token_embd_norm",
}
# A router's function of its scores, as llama.cpp numbers them.
_SIGMOID = 2

# More positions than any model has; a table of rotations has a row for each.
_MOST_POSITIONS = 1 << 24
_MOST_CHANNELS = 1 << 12  # of a head
_MOST_SCALE = 1 << 20  # of branches; that of an epsilon is the square
# Values of rope.scaling.type.
_STRETCHES = ("linear", "yarn", "longrope", "none")
_MOST_TAPS = 1 << 8
_OF_STATES = ("in_proj", "out_proj", "qkv_proj", "z_proj", "a_proj", "b_proj")
_LATER = re.compile(r"blk\.(\d+)\.")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:\w+\.)*?(\w+_layernorm|\w+)$")


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        type: its model type in genai_config.json, which decides the graph.
        paired: whether rows of queries and keys are interleaved.
        joined: whether queries, keys and values are one tensor, and gate and up another.
        names: names of tensors that differ from NAMES.
        divided: whether tensors may divide the frequencies of rotations.
        scaled: whether keys scale embeddings, attention, branches and logits.
        partial: whether only a part of each head may be rotated.
        unrotated_every: see `Shape`.
    """

    type: str
    paired: bool = False
    joined: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    divided: bool = False
    scaled: bool = False
    partial: bool = False
    unrotated_every: int = 0


FAMILIES = {
    "llama": Family("llama", paired=True, divided=True),  # and Mistral
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen3moe": Family("qwen3"),
    "gemma3": Family(
        "gemma3_text",
        names={
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    ),
    "phi3": Family("phi3", joined=True, divided=True, partial=True),
    "granite": Family("granite", paired=True, divided=True, scaled=True),
    "smollm3": Family("smollm3", paired=True, unrotated_every=4),
    "gpt-oss": Family("gptoss", names={"post_attention_layernorm": "post_attention_norm"}),
    "lfm2": Family("lfm2", names=_LFM2),
    "lfm2moe": Family("lfm2_moe", names=_LFM2),
    "qwen35": Family(
        "qwen3_5_text", names={"post_attention_layernorm": "post_attention_norm"}, partial=True
    ),
}


@dataclass(frozen=True)
class Rotary:
    """Frequencies of a rotary embedding, in radians a position, and a factor of cos and sin."""

    frequencies: Floats
    magnitude: float = 1.0


class Model:
    """A file as the weights of the builder's graph.

    Attributes:
        file: the file.
        shape: the sizes of the graph.
        rotary: rotary embeddings, by the suffix of their tables' names.
        notes: what of the file is not used, in sentences.
    """

    def __init__(
        self, file: Gguf, *, q4nx_compatible: bool = False, float_experts: bool = True
    ) -> None:
        """Raises AieError for a model that cannot be built, and says why.

        Without `float_experts`, experts that are floats become codes of 8 bits.
        """
        self.file = file
        self._q4nx_compatible = q4nx_compatible
        self._float_experts = float_experts
        architecture = file.metadata.field("general.architecture").text()
        if architecture not in FAMILIES:
            raise AieError(
                f"{file.path}: architecture {shown(architecture)} is not known; "
                f"known are {', '.join(FAMILIES)}"
            )
        self._family = FAMILIES[architecture]
        self._names = {**NAMES, **self._family.names}
        self._used: set[str] = set()
        self._matrices: dict[str, Matrix] = {}
        self._experts: dict[str, Experts] = {}
        self._logits = 1.0
        self.notes: list[str] = []
        for tensor in file.tensors.values():
            if tensor.kind.name not in KNOWN:
                raise AieError(
                    f"{file.path}: tensor '{tensor.name}' is {tensor.kind.name}; known types are "
                    f"{', '.join(KNOWN)}: take a file of one of these"
                )
        keys = Keys(file.metadata, architecture)
        self.shape = self._read_shape(keys)
        self.shape, self.rotary = self._read_rotary(keys)
        unused = ", ".join(keys.unused())
        self.notes += [f"not used, as in llama.cpp: {unused}"] if unused else []

    # --- sizes ---

    def _read_shape(self, keys: Keys) -> Shape:
        file, family = self.file, self._family
        embedding = self._tensor(EMBEDDING)
        if len(embedding.shape) != 2:
            raise AieError(f"{file.path}: tensor '{EMBEDDING}' is {embedding.shape}")
        vocab, hidden = embedding.shape
        heads = keys.integer("attention.head_count")
        layers = keys.integer("block_count", most=len(file.tensors)) - self._count_later(keys)
        kv_heads = keys.integers("attention.head_count_kv", layers, default=heads)
        shape = Shape(
            family=family.type,
            hidden=hidden,
            ffn=keys.integer("feed_forward_length"),
            layers=layers,
            heads=heads,
            kv_heads=max(kv_heads),
            head_dim=keys.integer(
                "attention.key_length", default=max(1, hidden // heads), most=_MOST_CHANNELS
            ),
            vocab=vocab,
            context=keys.integer("context_length", most=_MOST_POSITIONS),
            tied=HEAD not in file.tensors,
            epsilon=keys.positive("attention.layer_norm_rms_epsilon"),
            rope_theta=keys.positive("rope.freq_base", 10000.0),
            experts=keys.integer("expert_count", 0, 0),
            experts_per_token=keys.integer("expert_used_count", 0, 0),
            unrotated_every=family.unrotated_every,
        )
        if family.scaled:
            branch = keys.find("residual_scale") or 1.0
            if not 1 / _MOST_SCALE <= branch <= _MOST_SCALE:
                raise keys.fail("residual_scale", f"from 1/{_MOST_SCALE} to {_MOST_SCALE}")
            shape = replace(
                shape,
                attention_scale=keys.find("attention.scale"),
                embedding_scale=(keys.find("embedding_scale") or 1.0) / branch,
                epsilon=shape.epsilon / branch**2,
            )
            self._logits = keys.find("logit_scale") or 1.0
            if not keys.boolean("rope.scaling.finetuned", True):  # llama.cpp: no rotations at all
                shape = replace(shape, unrotated_every=1)
        expected = {
            "embedding_length": shape.hidden,
            "attention.value_length": shape.head_dim,
            "attention.causal": True,
            "expert_group_count": 0,
        }
        shape = self._with_states(shape, kv_heads, keys)
        if family.partial:  # Phi 4 mini rotates three quarters of each head
            rotary = keys.integer(
                "rope.dimension_count", 2, default=shape.head_dim, most=shape.head_dim
            )
            shape = replace(shape, rotary=rotary if rotary != shape.head_dim else None)
            if shape.hybrid and sum(shape.hybrid.sections) != rotary // 2:
                raise keys.fail("rope.dimension_sections", f"{rotary // 2} in all")
        else:
            expected["rope.dimension_count"] = shape.head_dim
        keys.require(expected)
        if not shape.kv_heads or shape.heads % shape.kv_heads or shape.head_dim % 2:
            raise keys.fail("attention.head_count_kv", "a divisor of head_count, and heads even")
        return self._with_window(self._with_experts(shape, keys), keys)

    def _with_experts(self, shape: Shape, keys: Keys) -> Shape:
        expected = keys.architecture in ("qwen3moe", "gpt-oss", "lfm2moe")
        if bool(shape.experts) != expected:
            raise keys.fail("expert_count", "above 0" if expected else f"0 in {keys.architecture}")
        if not expected:
            return shape
        if not 0 < shape.experts_per_token <= shape.experts:
            raise keys.fail("expert_used_count", f"from 1 to {shape.experts}")
        if shape.family == "lfm2_moe":
            keys.require({"expert_gating_func": _SIGMOID})
            dense = keys.integer("leading_dense_block_count", 0, 0, most=shape.layers)
            shape = replace(shape, dense_layers=dense, dense_ffn=shape.ffn)
        return replace(shape, ffn=keys.integer("expert_feed_forward_length", default=shape.ffn))

    def _count_later(self, keys: Keys) -> int:
        """Blocks that are counted as layers, and predict further tokens."""
        if self._family.type != "qwen3_5_text":
            keys.require({"nextn_predict_layers": 0})
            return 0
        count = keys.integer("nextn_predict_layers", 0, 0)
        layers = keys.integer("block_count") - count
        if layers < 1:
            raise keys.fail("nextn_predict_layers", "less than block_count")
        found = {each: _LATER.match(each) for each in self.file.tensors}
        later = {each for each, match in found.items() if match and int(match[1]) >= layers}
        self._used |= later
        if later:
            self.notes.append(f"not used: {len(later)} tensors that predict further tokens")
        return count

    def _with_states(self, shape: Shape, kv_heads: Sequence[int], keys: Keys) -> Shape:
        """Layers that have a state in place of attention."""
        layers, hybrid = range(shape.layers), None
        if shape.family in ("lfm2", "lfm2_moe"):
            keys.require({"attention.sliding_window": 0})
            taps = keys.integer("shortconv.l_cache", 2, most=_MOST_TAPS)
            hybrid = Hybrid(tuple(i for i in layers if kv_heads[i]), taps)
        elif shape.family == "qwen3_5_text":
            every = keys.integer("full_attention_interval", default=4)
            others = [int((i + 1) % every != 0) for i in layers]
            if "attention.recurrent_layers" in keys:
                others = keys.integers("attention.recurrent_layers", shape.layers)
            width = keys.integer("ssm.state_size", most=_MOST_CHANNELS)
            heads = keys.integer("ssm.group_count", most=_MOST_CHANNELS)
            value_heads = keys.integer("ssm.time_step_rank", most=_MOST_CHANNELS)
            keys.require({"ssm.inner_size": value_heads * width})
            if value_heads % heads:
                raise keys.fail("ssm.time_step_rank", "a multiple of ssm.group_count")
            hybrid = Hybrid(
                tuple(i for i in layers if not others[i]),
                keys.integer("ssm.conv_kernel", 2, most=_MOST_TAPS),
                heads,
                value_heads,
                width,
                alternate=value_heads > heads,
                sections=tuple(keys.integers("rope.dimension_sections", 4)[:3]),
            )
        with_attention = hybrid.attention if hybrid else layers
        if any(kv_heads[i] != shape.kv_heads for i in with_attention):
            raise keys.fail("attention.head_count_kv", "the same in all layers with attention")
        return replace(shape, hybrid=hybrid)

    def _with_window(self, shape: Shape, keys: Keys) -> Shape:
        """Sliding windows. Files of Phi 3 name one too, which llama.cpp does not use."""
        gemma = shape.family == "gemma3_text"
        if not gemma and shape.family != "gptoss":
            return shape
        window = keys.integer("attention.sliding_window", 0, 0)
        if window == 0 and not gemma:
            raise keys.fail("attention.sliding_window", "above 0")
        of_heads = ("attention.key_length_swa", "attention.value_length_swa")
        keys.require(dict.fromkeys((*of_heads, "rope.dimension_count_swa"), shape.head_dim))
        if gemma:
            keys.require({"final_logit_softcapping": 0.0})
            if shape.layers == 62:  # the one size with another scale: √(hidden / heads)
                shape = replace(shape, attention_scale=(shape.hidden // shape.heads) ** -0.5)
        else:
            keys.require({"rope.freq_base_swa": shape.rope_theta})
        every = keys.period("attention.sliding_window_pattern", 6 if gemma else 2, shape.layers)
        return replace(shape, window=window or None, global_every=every)

    # --- rotations ---

    def _read_rotary(self, keys: Keys) -> tuple[Shape, dict[str, Rotary]]:
        shape = self.shape
        width = shape.rotary or shape.head_dim
        kind = keys.text("rope.scaling.type", "linear")
        if kind not in _STRETCHES:
            raise keys.fail("rope.scaling.type", f"one of {', '.join(_STRETCHES)}")
        old, new = keys.find("rope.scale_linear"), keys.find("rope.scaling.factor")
        factor = (new if "rope.scaling.factor" in keys else old) or 1.0
        original = keys.integer(
            "rope.scaling.original_context_length", default=shape.context, most=_MOST_POSITIONS
        )
        magnitude = keys.positive("rope.scaling.attn_factor", 1.0)
        yarn = None
        if kind == "yarn":
            if factor < 1:
                raise keys.fail("rope.scaling.factor", "1 or more with YaRN")
            yarn = Yarn(factor, original, whole=shape.family != "gptoss")
        frequencies = rotary_frequencies(width, shape.rope_theta, yarn)
        if kind in ("linear", "longrope"):
            frequencies /= np.float32(factor)
        elif kind == "none" and shape.family == "gptoss" and factor != 1:
            # llama.cpp stretches the layers with windows, and no others.
            raise keys.fail("rope.scaling.factor", "1 where rope.scaling.type is none")
        pair = self._family.joined or kind == "longrope"
        divisors = ROPE_LONG if pair else ROPE_FREQS
        if self._family.divided and divisors in self.file.tensors:
            if pair:  # other rotations beyond the original context: the model is built up to there
                self._used.add(ROPE_LONG)
                shape = replace(shape, context=min(original, shape.context))
            frequencies /= self._divisors(ROPE_SHORT if pair else ROPE_FREQS, width // 2)
        rotary = Rotary(frequencies, magnitude * (yarn.magnitude if yarn else 1.0))
        if shape.family != "gemma3_text":
            return shape, {"": rotary}
        theta = keys.positive("rope.freq_base_swa", shape.local_rope_theta)
        local = Rotary(rotary_frequencies(width, theta), magnitude)
        return shape, {"_global": rotary, "_local": local}

    def _divisors(self, name: str, size: int) -> Floats:
        values = self._floats(name, (size,))
        if not (values > 0).all():
            raise AieError(f"{self.file.path}: tensor '{name}' has values that are not above 0")
        return values

    # --- weights ---

    def codings(self, basename: str) -> Stored | None:
        """How the matrix of a projection is stored: see `builder.decoder.build`."""
        if ".experts." in basename:
            return self.experts(basename).stored
        return self.matrix(basename).stored

    @property
    def table(self) -> ir.DataType | FileForm:
        """How an embedding that is not the lm_head's is stored."""
        tensor = self._tensor(EMBEDDING)
        stored = self._stored(tensor)
        return stored if isinstance(stored, FileForm) else table_type(tensor)

    def matrix(self, basename: str) -> Matrix:
        """The matrix of a projection, by its name in the builder, or the embedding."""
        if basename not in self._matrices:
            parts = self._parts(basename)
            stored = self._stored(*(part.tensor for part in parts))
            self._matrices[basename] = Matrix(parts, stored)
        return self._matrices[basename]

    def experts(self, basename: str) -> Experts:
        """The experts' matrices of a layer: gate_up_proj, or one of gate_proj, up_proj, down_proj.

        Q4NXMoE has each in a form of its own; if one has floats, MoE has all in floats. QMoE's
        codes have no minima, so that what has some is requantised.
        """
        if basename not in self._experts:
            tensors = self._expert_tensors(basename)
            layer = self._expert_tensors(f"{basename.rpartition('.')[0]}.gate_up_down_proj")
            has_floats = any(self._stored(tensor) == FLOATS for tensor in layer)
            stored = self._stored(*tensors, as_codes=has_floats)
            if has_floats and self._float_experts:
                stored = FLOATS
            elif (has_floats or self._q4nx_compatible) and stored not in (INT4, EXACT):
                stored = REQUANTISED
            rows = np.arange(math.prod(tensors[0].shape[:-1]))
            matrices = [Matrix([Part(tensor, rows)], stored) for tensor in tensors]
            self._experts[basename] = Experts(matrices, self.shape.experts, stored)
        return self._experts[basename]

    def _expert_tensors(self, basename: str) -> list[Tensor]:
        shape, names = self.shape, _expert_names(basename)
        size = (shape.ffn, shape.hidden)
        return [
            self._shaped(
                f"{name}.weight", (shape.experts, *(size[::-1] if "down" in name else size))
            )
            for name in names
        ]

    def _stored(self, *tensors: Tensor, as_codes: bool = False) -> Stored | None:
        """How tensors are stored, if all are stored alike."""
        compatible = as_codes or self._q4nx_compatible
        found = {stored_as(tensor.kind, q4nx_compatible=compatible) for tensor in tensors}
        return found.pop() if len(found) == 1 else None

    def expert_bias(self, basename: str) -> Floats:
        """Biases of experts (experts, n), zeros in families without: gate and up in turn."""
        shape, names = self.shape, _expert_names(basename)
        n = shape.hidden if "down" in names[0] else shape.ffn
        if shape.family != "gptoss":
            return np.zeros((shape.experts, n * len(names)), np.float32)
        parts = [
            floats(self._shaped(f"{name}.bias", (shape.experts, n)), slice(None)) for name in names
        ]
        return np.stack(parts, axis=2).reshape(shape.experts, -1)

    def bias(self, basename: str) -> Floats:
        """The bias of a projection."""
        return np.concatenate(
            [
                self._floats(part.tensor.name.removesuffix("weight") + "bias", part.rows.shape)[
                    part.rows
                ]
                for part in self._parts(basename)
            ]
        )

    def values(self, name: str, sizes: tuple[int, ...]) -> Floats:
        """What is no matrix, by the builder's name without ".weight": norms, sinks, a router's
        bias, and the vectors and convolutions of hybrids."""
        name = name.removesuffix(".layernorm")
        if name.endswith("conv1d.bias"):  # which no file has
            return np.zeros(sizes, np.float32)
        layer, role = _layer_and_role(name)
        stem = self._names[role]
        if layer == self.shape.layers:
            return self._floats(f"{stem}.weight", sizes) / np.float32(self._logits)
        whole = stem if stem in _WHOLE_NAMES else f"{stem}.weight"
        stored = (sizes[0], sizes[2]) if len(sizes) == 3 else sizes  # of a convolution
        values = self._floats(f"blk.{layer}.{whole}", stored)
        if role in ("conv1d", "dt_bias", "neg_exp_A"):
            values = values[self._value_rows(sizes[0])]
        return values.reshape(sizes)

    def _value_rows(self, count: int) -> Indices:
        """The order of rows whose last ones are value heads, of which those that share a key head
        become neighbours."""
        hybrid, rows = self.shape.hybrid, np.arange(count)
        assert hybrid is not None
        first = max(0, count - hybrid.values) if count > hybrid.value_heads else 0
        heads = rows[first:].reshape(-1, hybrid.key_heads, (count - first) // hybrid.value_heads)
        return np.concatenate([rows[:first], heads.swapaxes(0, 1).reshape(-1)])

    def embedding(self) -> Tensor:
        """The table of embeddings."""
        return self._tensor(EMBEDDING)

    def _floats(self, name: str, sizes: tuple[int, ...]) -> Floats:
        """A tensor in float32."""
        return floats(self._shaped(name, sizes), slice(None)).reshape(sizes)

    def check_all_used(self) -> None:
        """Raises AieError for an unused tensor: the model would not be what its makers intended."""
        unused = sorted(self.file.tensors.keys() - self._used)
        if unused:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            raise AieError(
                f"{self.file.path} has tensors that are not known in its architecture: "
                f"{', '.join(unused[:5])}{more}"
            )

    def _parts(self, basename: str) -> Sequence[Part]:
        if basename in ("lm_head", "model.embed_tokens"):
            name = HEAD if basename == "lm_head" and not self.shape.tied else EMBEDDING
            return [self._part(name, self.shape.vocab, self.shape.hidden)]
        layer, role = _layer_and_role(basename)
        shape, block = self.shape, f"blk.{layer}."
        if not shape.has_attention(layer) and role in _OF_STATES:
            return self._state_parts(layer, role)
        if role == "qkv_proj":
            if self._family.joined:
                n = shape.queries + 2 * shape.keys
                return [self._part(f"{block}attn_qkv.weight", n, shape.hidden)]
            sides = [basename.replace("qkv_proj", f"{each}_proj") for each in "qkv"]
            return [part for side in sides for part in self._parts(side)]
        ffn, gated = shape.ffn_of(layer), shape.family == "qwen3_5_text"
        n, k = {
            "q_proj": ((1 + gated) * shape.queries, shape.hidden),
            "k_proj": (shape.keys, shape.hidden),
            "v_proj": (shape.keys, shape.hidden),
            "o_proj": (shape.hidden, shape.queries),
            "gate_proj": (ffn, shape.hidden),
            "up_proj": (ffn, shape.hidden),
            "down_proj": (shape.hidden, ffn),
            "router": (shape.experts, shape.hidden),
        }[role]
        if self._family.joined and role in ("gate_proj", "up_proj"):
            whole = self._part(f"{block}ffn_up.weight", 2 * n, k)
            return [replace(whole, rows=whole.rows[:n] if role == "gate_proj" else whole.rows[n:])]
        part = self._part(f"{block}{self._names[role]}.weight", n, k)
        if self._family.paired and role in ("q_proj", "k_proj"):
            half = shape.head_dim // 2
            rows = part.rows.reshape(-1, half, 2).swapaxes(1, 2).reshape(-1)
            part = replace(part, rows=rows)
        return [part]

    def _state_parts(self, layer: int, role: str) -> Sequence[Part]:
        """The matrix of a projection beside a state."""
        hidden, hybrid = self.shape.hidden, self.shape.hybrid
        assert hybrid is not None
        n, k = {
            "in_proj": (3 * hidden, hidden),
            "out_proj": (hidden, hybrid.values or hidden),
            "qkv_proj": (2 * hybrid.keys + hybrid.values, hidden),
            "z_proj": (hybrid.values, hidden),
            "a_proj": (hybrid.value_heads, hidden),
            "b_proj": (hybrid.value_heads, hidden),
        }[role]
        stem = "attn_qkv" if role == "qkv_proj" else self._names[role]
        part = self._part(f"blk.{layer}.{stem}.weight", n, k)
        in_order = role in ("in_proj", "out_proj")
        return [part if in_order else replace(part, rows=self._value_rows(n))]

    def _part(self, name: str, n: int, k: int) -> Part:
        return Part(self._shaped(name, (n, k)), np.arange(n))

    def _shaped(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensor(name)
        if tensor.shape != shape:
            raise AieError(
                f"{self.file.path}: tensor '{name}' is {tensor.shape}; by the metadata it must be "
                f"{shape}"
            )
        return tensor

    def _tensor(self, name: str) -> Tensor:
        if name not in self.file.tensors:
            raise AieError(f"{self.file.path} lacks tensor '{name}'")
        self._used.add(name)
        return self.file.tensors[name]


def _layer_and_role(name: str) -> tuple[int, str]:
    match = _LAYER.match(name)
    assert match is not None, name
    return int(match[1]), match[2]


def _expert_names(basename: str) -> list[str]:
    layer, role = _layer_and_role(basename)
    parts = role.removesuffix("_proj").split("_")
    return [f"blk.{layer}.ffn_{part}_exps" for part in parts]
