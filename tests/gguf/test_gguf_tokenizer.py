"""tokenizer.json, templates and token ids that are made from a file's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from gguf_files import (
    MODELS,
    VOCABULARIES,
    byte_level,
    sentencepiece,
    text_with,
    vocabularies,
    write,
)
from tokenizers import Tokenizer

from ort_aie_ep.compiler.gguf.file import read_gguf
from ort_aie_ep.compiler.gguf.tokenizer import Written, write_tokenizer
from ort_aie_ep.errors import AieError

TEXT = "I'm 12345 HTTPServers,  naïve 你好\n\n👍"


def made(
    folder: Path, metadata: dict[str, Any], pre: str | None = None
) -> tuple[Tokenizer, dict[str, Any], Written]:
    """The tokenizer, its settings, and what else is made of them."""
    path = write(folder / "m.gguf", MODELS["llama"], None, **metadata)
    written = write_tokenizer(read_gguf(path), folder, pre)
    assert [file.name for file in written.files] == ["tokenizer.json", "tokenizer_config.json"]
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), settings, written


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
    tokenizer, settings, written = made(tmp_path, byte_level("<|end|>") | templates)
    tokens = tokenizer.encode("<start>hello  he<stop>", add_special_tokens=False).tokens
    assert tokens == ["<start>", "hel", "l", "o", "  ", "he", "<stop>"]
    # This kind of tokenizer usually begins a text.
    assert tokenizer.encode("he").tokens == ["<start>", "he"]
    assert settings["bos_token"] == "<start>"
    assert settings["chat_template"] == [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "B"},
    ]
    start, end, other = (tokenizer.token_to_id(t) for t in ("<start>", "<stop>", "<|end|>"))
    assert written.ids == {"bos_token_id": start, "eos_token_id": [end, other], "pad_token_id": end}


def test_texts_end_with_the_tokens_of_llama_cpp(tmp_path: Path) -> None:
    truths = json.loads(VOCABULARIES.read_text())
    wrong = []
    for name, metadata in vocabularies().items():
        tokenizer, _, written = made(tmp_path, metadata)
        ends = written.ids["eos_token_id"]
        found = {
            "ends": sorted(ends if isinstance(ends, list) else [ends]),
            "ids": tokenizer.encode(text_with(metadata)).ids,
        }
        if found != truths[name]:
            wrong.append((name, found, truths[name]))
    assert not wrong


def test_ids_outside_of_the_vocabulary_are_noted(tmp_path: Path) -> None:
    _, settings, written = made(tmp_path, byte_level(padding_token_id=9999))
    assert written.notes == [
        "not used: tokenizer.ggml.padding_token_id is 9999, and there are 262 tokens"
    ]
    assert "pad_token" not in settings


def test_an_option_says_how_a_text_is_divided_where_the_file_does_not(tmp_path: Path) -> None:
    tokenizer, _, _ = made(tmp_path, byte_level(pre=None), "gpt-2")
    assert tokenizer.pre_tokenizer.pre_tokenize_str("a 12345")[1][0] == "Ġ12345"
    with pytest.raises(AieError, match=r"tokenizer\.ggml\.pre is missing.*--gguf-pre.*one of"):
        made(tmp_path, byte_level(pre=None))
    with pytest.raises(AieError, match="gguf_pre 'new' is not known"):
        made(tmp_path, byte_level(), "new")
    with pytest.raises(AieError, match="gguf_pre is for byte-level BPEs"):
        made(tmp_path, sentencepiece(["a"]), "gpt-2")


def test_the_file_says_whether_a_text_begins_with_a_token(tmp_path: Path) -> None:
    metadata = byte_level(add_bos_token=False) | {"tokenizer.chat_template": "A"}
    tokenizer, settings, _ = made(tmp_path, metadata)
    assert tokenizer.encode("he").tokens == ["he"]
    assert (settings["add_bos_token"], settings["chat_template"]) == (False, "A")


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_joins_the_best_piece_first(prefixed: bool, tmp_path: Path) -> None:
    pieces = ["▁", "a", "b", "ab", "ba", "▁ab", "bab"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -3.0, -2.0, -4.0, -5.0]
    metadata = sentencepiece(pieces, scores=scores, add_space_prefix=prefixed)
    tokenizer, _, _ = made(tmp_path, metadata)
    # "ba" is better than "ab", which comes first.
    assert tokenizer.encode("abab").tokens[1:] == [*["▁"] * prefixed, "a", "bab"]
    assert tokenizer.encode("aé").tokens[-3:] == ["a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab aé").ids) == "ab aé"


def test_a_file_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", MODELS["llama"], None)
    assert write_tokenizer(read_gguf(path), tmp_path) == Written({}, [], [])
