"""The tokenizer in a GGUF file's metadata as tokenizer.json and tokenizer_config.json.

`tokenizer.ggml.model` is "gpt2", a byte-level BPE, or "llama", SentencePiece's BPE. GGUF does not
store how text is divided before a byte-level BPE, only a name for it, `tokenizer.ggml.pre`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ort_aie_ep.compiler.gguf.file import Gguf
from ort_aie_ep.compiler.gguf.vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    listed,
)
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.checked_json import Field, shown

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"

_SPACE = "▁"

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """Words without regard to case."""
    others = rf" ?[^\s{letters}\p{{N}}]+[\r\n]*"
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}|{others}|{_REST}"


def _cased(digits: str, endings: str) -> str:
    """Words, divided before an upper-case letter."""
    start, others = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    words = (f"{start}{_UPPER}*{_LOWER}+{endings}", f"{start}{_UPPER}+{_LOWER}*{endings}")
    return "|".join([*words, digits, others, _REST])


@dataclass(frozen=True)
class _Pre:
    """How text is divided before a byte-level BPE.

    Attributes:
        patterns: regular expressions whose matches are taken apart, one after the other.
        whole_words: a piece that is a token is not merged from bytes (ignore_merges).
        composed: text is normalised to NFC.
        bos: whether a text begins with the beginning-of-text token if the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    composed: bool = False
    bos: bool = False


_LLAMA3 = _Pre((_words(_THREE_DIGITS),), whole_words=True, bos=True)
_DIGIT_BY_DIGIT = _Pre((_DIGIT, _GPT2))
PRE = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Pre(_LLAMA3.patterns)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"),
        _Pre((_words(_DIGIT),), composed=True),
    ),
    "qwen35": _Pre((_words(_DIGIT, r"\p{L}\p{M}"),), composed=True),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "talkie"),
        _Pre((_cased(_THREE_DIGITS, f"{_ENDINGS}?"),)),
    ),
    "tekken": _Pre((_cased(_DIGIT, ""),), whole_words=True, bos=True),
    **dict.fromkeys(
        (
            *("gpt-2", "olmo", "mpt", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"),
            *("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "modern-bert"),
        ),
        _Pre((_GPT2,)),
    ),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r"), _DIGIT_BY_DIGIT),
}
"""What each known name in tokenizer.ggml.pre stands for."""

# Parts of names in tokenizer.ggml.pre whose <mask> takes the spaces before it.
_MASKING = ("jina-v2-de", "jina-v2-es", "jina-v2-code")


@dataclass(frozen=True)
class Written:
    """A tokenizer as files.

    Attributes:
        ids: the token ids of genai_config.json.
        files: tokenizer.json and tokenizer_config.json; none for a file without a tokenizer.
        notes: what of the file is not used, in sentences.
    """

    ids: dict[str, int | list[int]]
    files: list[Path]
    notes: list[str]


def write_tokenizer(file: Gguf, folder: Path, pre: str | None = None) -> Written:
    """Writes tokenizer.json and tokenizer_config.json into `folder`; `pre` is used in the place of
    the file's tokenizer.ggml.pre.

    Raises:
        AieError: the tokenizer is of another kind, divides text in a way that is not known, or is
            damaged.
    """
    metadata = file.metadata
    kind = metadata.find("tokenizer.ggml.model")
    if pre is not None and (kind is None or kind.value != "gpt2"):
        raise AieError(f"gguf_pre is for byte-level BPEs, which {file.path} does not have: omit it")
    if kind is None or kind.value in ("none", "no_vocab"):
        return Written({}, [], [])
    if kind.value not in ("gpt2", "llama"):
        raise kind.fail("gpt2 or llama: no other kind of tokenizer is known")
    vocabulary = Vocabulary.of(metadata)
    try:
        settings = _save(metadata, vocabulary, str(kind.value), pre, folder / TOKENIZER)
    except AieError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise AieError(f"{metadata.file}: its tokenizer is damaged: {error}") from error
    settings |= {
        f"{role}_token": vocabulary.tokens[index]
        for role in ("bos", "eos", "pad", "unk")
        if (index := getattr(vocabulary, role)) is not None
    }
    text = json.dumps(settings | _templates(metadata), indent=2, ensure_ascii=False)
    (folder / SETTINGS).write_text(text + "\n", "utf-8")
    files = [folder / TOKENIZER, folder / SETTINGS]
    return Written(_token_ids(vocabulary), files, vocabulary.notes)


def _save(
    metadata: Field, vocabulary: Vocabulary, kind: str, pre: str | None, path: Path
) -> dict[str, str | bool]:
    """Writes tokenizer.json; returns what is in tokenizer_config.json about it."""
    if kind == "gpt2":
        tokenizer, bos = _byte_level(metadata, vocabulary, pre)
    else:
        tokenizer, bos = _sentencepiece(metadata, vocabulary), True
    for types, special in (((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False)):
        added = [
            AddedToken(token, special=special, normalized=False, **_strips(metadata, token))
            for token in vocabulary.of_type(*types)
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    adds_bos = _flag(metadata, "add_bos_token", bos) and vocabulary.bos is not None
    adds_eos = _flag(metadata, "add_eos_token", False) and vocabulary.eos is not None
    _add_ends(tokenizer, vocabulary, adds_bos, adds_eos)
    tokenizer.save(str(path))
    return {
        "tokenizer_class": "LlamaTokenizer" if kind == "llama" else "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "add_eos_token": adds_eos,
        "clean_up_tokenization_spaces": False,
    }


def _strips(metadata: Field, token: str) -> dict[str, bool]:
    """Whether an added token takes the spaces before it, or those after it. No key says so, and
    llama.cpp goes by names (the end of `llama_vocab::impl::load`)."""
    pre = str(metadata.value.get("tokenizer.ggml.pre", ""))
    name = str(metadata.value.get("general.name", "")).lower()
    if any(each in pre for each in _MASKING):
        return {"lstrip": token == "<mask>"}
    if "phi-3" in name or "phi3" in name:
        return {"rstrip": token not in ("<unk>", "<s>", "<|endoftext|>")}
    return {"lstrip": "modern-bert" in name and token == "[MASK]"}


def _flag(metadata: Field, name: str, default: bool) -> bool:
    found = metadata.find(f"tokenizer.ggml.{name}")
    return default if found is None else found.boolean()


def _byte_level(
    metadata: Field, vocabulary: Vocabulary, given: str | None
) -> tuple[Tokenizer, bool]:
    """A byte-level BPE, and whether it usually begins with a token."""
    found = metadata.find("tokenizer.ggml.pre")
    name = given or (found.value if found else None)
    if name not in PRE:
        what = f"gguf_pre {shown(name)}" if given else f"tokenizer.ggml.pre {shown(name)}"
        why = f"{what} is not known" if name else "tokenizer.ggml.pre is missing"
        raise AieError(
            f"{metadata.file}: {why}, so it is unknown how to divide a text: pass gguf_pre "
            f"(--gguf-pre) with the name that fits the model, one of {', '.join(PRE)}"
        )
    pre = PRE[name]
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [_pair(merge) for merge in listed(metadata, "merges", str)]
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre.whole_words))
    if pre.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(each), "isolated") for each in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.bos


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(metadata: Field, vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece's BPE, which joins the neighbours that make the piece with the best score."""
    scores = listed(metadata, "scores", float)
    if len(scores) != len(vocabulary.tokens):
        raise AieError(
            f"{metadata.file}: tokenizer.ggml.scores has {len(scores)} scores for "
            f"{len(vocabulary.tokens)} tokens"
        )
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    pieces = set(vocabulary.of_type(NORMAL))
    merges = sorted(
        (-scores[ids[piece]], ids[piece[:at]], ids[piece[at:]], piece[:at], piece[at:])
        for piece in pieces
        for at in range(1, len(piece))
        if piece[:at] in pieces and piece[at:] in pieces
    )
    unknown = None if vocabulary.unk is None else vocabulary.tokens[vocabulary.unk]
    pairs = [(left, right) for *_, left, right in merges]
    tokenizer = Tokenizer(
        models.BPE(ids, pairs, unk_token=unknown, fuse_unk=unknown is not None, byte_fallback=True)
    )
    prefixed = _flag(metadata, "add_space_prefix", True)
    replaced = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if prefixed else replaced
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps
    )
    return tokenizer


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, bos: bool, eos: bool) -> None:
    """Lets the tokenizer put tokens before and after a text."""
    given = {
        role: vocabulary.tokens[index]
        for role, index, wanted in (("bos", vocabulary.bos, bos), ("eos", vocabulary.eos, eos))
        if wanted and index is not None
    }
    if given:
        first, last = given.get("bos"), given.get("eos")
        one = [*([first] if first else []), "$A", *([last] if last else [])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=one,
            pair=[*one, *(f"{each.replace('$A', '$B')}:1" for each in one)],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in given.values()],
        )


def _templates(metadata: Field) -> dict[str, Any]:
    """The chat template, or a list of them by name if there are several."""
    key = "tokenizer.chat_template"
    found = {
        name[len(key) :].removeprefix(".") or "default": metadata.field(name).text()
        for name in metadata.value
        if name == key or name.startswith(f"{key}.")
    }
    if not found:
        return {}
    if [*found] == ["default"]:
        return {"chat_template": found["default"]}
    listed = [{"name": name, "template": text} for name, text in found.items()]
    return {"chat_template": listed}


def _token_ids(vocabulary: Vocabulary) -> dict[str, int | list[int]]:
    """bos_token_id, eos_token_id and pad_token_id as genai_config.json has them."""
    ends = vocabulary.ends
    if not ends:
        raise AieError(
            "the file's tokenizer.ggml.eos_token_id is missing; without it no text would end"
        )
    first = ends[0]
    return {
        "bos_token_id": first if vocabulary.bos is None else vocabulary.bos,
        "eos_token_id": ends if len(ends) > 1 else first,
        "pad_token_id": first if vocabulary.pad is None else vocabulary.pad,
    }
