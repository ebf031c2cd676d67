"""The tokens in a GGUF file's metadata: the type of each, and which of them begin and end a text.

Files name one token that ends a text, and models end theirs with others too. llama.cpp knows these
by their text, whatever type the file gives them (`llama_vocab::impl::load` in llama-vocab.cpp, with
which these rules agree token by token).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

ENDS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"),
        *("<|calls|>", "<|flush|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>"),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "<turn|>", "<|tool_response>"),
        *("<end_of_utterance>", "<｜end▁of▁sentence｜>", "[e~["),
    }
)
"""Tokens that end an answer."""

FILLING = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Tokens around code to fill in, by what llama.cpp calls them. A file may name one of each kind;
otherwise it is the first that has one of these texts. (In llama.cpp the order is that of a hash
table, but no known vocabulary has two of a kind.)"""

# Those of them that end an answer, as more code of the same file would follow.
_FILLING_ENDS = ("fim_pad", "fim_rep", "fim_sep")
# gpt-oss's parts of an answer.
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# In SentencePiece's vocabularies these have ids of their own. (llama.cpp has defaults for the
# others too, which are Falcon's: in another vocabulary a comma would end a text.)
_DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, the type of each, and the ids of some.

    Attributes:
        tokens: their texts.
        types: their types, CONTROL for those that are known by their text.
        ends: ids of tokens that end an answer.
        notes: what of the metadata is not used, in sentences.
    """

    tokens: list[str]
    types: list[int]
    bos: int | None
    eos: int | None
    pad: int | None
    unk: int | None
    ends: list[int]
    notes: list[str]

    @classmethod
    def of(cls, metadata: Field) -> Vocabulary:
        """Raises AieError for a vocabulary that is damaged."""
        given = listed(metadata, "tokens", str)
        tokens = [text or f"[EMPTY_{number}]" for number, text in enumerate(given)]
        types = listed(metadata, "token_type", int, [NORMAL] * len(tokens))
        if len(types) != len(tokens) or len(set(tokens)) != len(tokens) or not tokens:
            raise AieError(
                f"{metadata.file}: tokenizer.ggml.tokens has tokens twice, or not one for each "
                "token_type"
            )
        notes: list[str] = []
        defaults = _DEFAULTS.get(metadata.value.get("tokenizer.ggml.model", ""), {})

        def index(role: str) -> int | None:
            default = defaults.get(role, len(tokens))
            found = metadata.find(f"tokenizer.ggml.{role}_token_id")
            if found is not None:
                number = found.integer(-(1 << 63), 1 << 63)
                if 0 <= number < len(tokens):
                    return number
                notes.append(
                    f"not used: {found.path} is {number}, and there are {len(tokens)} tokens"
                )
            return default if default < len(tokens) else None

        bos, eos, pad, unk = map(index, ("bos", "eos", "padding", "unknown"))
        ids = {token: number for number, token in enumerate(tokens)}
        by_text = [ids[text] for text in ENDS & ids.keys()]
        ends = {eos, index("eot"), index("eom"), *by_text}
        for kind, texts in FILLING.items():
            chosen = index(kind)
            if chosen is None:
                chosen = min((ids[text] for text in texts if text in ids), default=None)
                by_text += [] if chosen is None else [chosen]
            if kind in _FILLING_ENDS:
                ends.add(chosen)
        for number in by_text:
            types[number] = CONTROL
        for text in _HARMONY:
            if text in ids and types[ids[text]] != CONTROL:
                types[ids[text]] = USER_DEFINED
        ending = {tokens[number] for number in ends if number is not None}
        # gpt-oss and Solar end a thought with <|end|>, and go on with the answer.
        if ending & {"<|call|>", "<|calls|>"} and ending & {"<|return|>", "<|flush|>"}:
            ends.discard(ids.get("<|end|>"))
        # Gemma 4 and PLaMo have </s> for text in HTML.
        if "</s>" in ending and ending & {"<|tool_response>", "<|plamo:eos|>"}:
            ends.discard(ids["</s>"])
            types[ids["</s>"]] = NORMAL
        # Hosts take the first as the one to write.
        ordered = sorted(number for number in ends if number is not None)
        ordered.sort(key=lambda number: number != eos)
        return cls(tokens, types, bos, eos, pad, unk, ordered, notes)

    def of_type(self, *wanted: int) -> list[str]:
        """The tokens of some types."""
        return [t for t, kind in zip(self.tokens, self.types, strict=True) if kind in wanted]


def listed(metadata: Field, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
    """A list of values of one type."""
    found = metadata.find(f"tokenizer.ggml.{name}")
    if found is None and default is not None:
        return default
    found = found or metadata.field(f"tokenizer.ggml.{name}")
    values = found.value
    legal = isinstance(values, list) and all(type(value) is kind for value in values)
    found.require(legal, f"a list of {kind.__name__}")
    return list(values)
