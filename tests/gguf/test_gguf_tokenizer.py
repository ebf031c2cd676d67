"""tokenizer.json, templates and token ids that are made from a file's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from gguf_files import MODELS, write
from tokenizers import Tokenizer, pre_tokenizers

from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.compiler.gguf.tokenizer import write_tokenizer

TEXT = "I'm 12345 HTTPServers,  naïve 你好\n\n👍"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(**changes: Any) -> dict[str, Any]:
    """A vocabulary of bytes and a few merges."""
    tokens = [*BYTES, "he", "hel", "Ġhe", "<|im_start|>", "<|im_end|>", "<|end|>", "  "]
    metadata = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": tokens,
        "token_type": [1] * (len(BYTES) + 3) + [3, 3, 3, 4],
        "merges": ["h e", "he l", "Ġ he"],
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}


def made(folder: Path, metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any], Any]:
    """The tokenizer, its settings, and the ids for genai_config.json."""
    path = write(folder / "m.gguf", MODELS["llama"], None, **metadata)
    ids, files = write_tokenizer(read_gguf(path), folder)
    assert [file.name for file in files] == ["tokenizer.json", "tokenizer_config.json"]
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), settings, ids


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("llama-bpe", ["I", "'m", "Ġ", "123", "45", "ĠHTTPServers"]),
        ("qwen2", ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServers"]),
        ("gpt-4o", ["I'm", "Ġ", "123", "45", "ĠHTTPServers"]),
        ("tekken", ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServers"]),
        ("gpt-2", ["I", "'m", "Ġ12345", "ĠHTTPServers"]),
        ("smollm", ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServers"]),
    ],
)
def test_text_is_divided_by_the_files_name_for_it(
    pre: str, pieces: list[str], tmp_path: Path
) -> None:
    tokenizer, _, _ = made(tmp_path, byte_level(pre=pre))
    divided = tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)
    assert [piece for piece, _ in divided][: len(pieces)] == pieces
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT


def test_special_tokens_are_found_and_templates_carried_over(tmp_path: Path) -> None:
    templates = {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    tokenizer, settings, ids = made(tmp_path, byte_level() | templates)
    tokens = tokenizer.encode("<|im_start|>hello  he<|im_end|>", add_special_tokens=False).tokens
    assert tokens == ["<|im_start|>", "hel", "l", "o", "  ", "he", "<|im_end|>"]
    # This kind of tokenizer usually begins a text.
    assert tokenizer.encode("he").tokens == ["<|im_start|>", "he"]
    assert settings["bos_token"] == "<|im_start|>"
    assert settings["chat_template"] == [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "B"},
    ]
    start, end, other = (
        tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|end|>")
    )
    assert ids == {"bos_token_id": start, "eos_token_id": [end, other], "pad_token_id": end}


def test_the_file_says_whether_a_text_begins_with_a_token(tmp_path: Path) -> None:
    metadata = byte_level(add_bos_token=False) | {"tokenizer.chat_template": "A"}
    tokenizer, settings, _ = made(tmp_path, metadata)
    assert tokenizer.encode("he").tokens == ["he"]
    assert (settings["add_bos_token"], settings["chat_template"]) == (False, "A")


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_joins_the_best_piece_first(prefixed: bool, tmp_path: Path) -> None:
    pieces = ["▁", "a", "b", "ab", "ba", "▁ab", "bab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -3.0, -2.0, -4.0, -5.0]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": prefixed,
    }
    given = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    tokenizer, _, _ = made(tmp_path, given)
    # "ba" is better than "ab", which comes first.
    assert tokenizer.encode("abab").tokens[1:] == [*["▁"] * prefixed, "a", "bab"]
    assert tokenizer.encode("aé").tokens[-3:] == ["a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab aé").ids) == "ab aé"


def test_a_file_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", MODELS["llama"], None)
    assert write_tokenizer(read_gguf(path), tmp_path) == ({}, [])
