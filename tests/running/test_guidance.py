"""Guides: masks of tokens for JSON schemas, back and forth, within limits."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import END, FAMILIES, follow, make_folder, make_guides, make_tokenizer

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.answers import Tool, find_format
from ort_aie_ep.running.guidance import KEPT, Guide, Guides
from ort_aie_ep.running.templates import ChatTemplate

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def guides() -> Guides:
    return make_guides(make_tokenizer())


def allowed(guide: Guide, words: int = 16) -> set[int]:
    mask = np.zeros(words, np.uint32)
    guide.mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def take(guide: Guide, text: str) -> None:
    for token in make_tokenizer().encode(text).ids:
        guide.take(token)


def test_a_text_follows_a_schema_to_its_end(guides: Guides) -> None:
    tokenizer = make_tokenizer()
    end = tokenizer.token_to_id(END)
    guide = guides.of_schema(json.dumps(SCHEMA))
    take(guide, '{"a":1')
    assert not guide.ended
    assert {tokenizer.token_to_id(text) for text in "2}"} < allowed(guide)
    assert not {end, tokenizer.token_to_id("Ġ")} & allowed(guide)  # compact: no white space
    take(guide, "}")
    assert guide.ended
    assert allowed(guide) == {end}
    for text in ('{"a": 1}', '{"a":"1"}', "{}", "[1]", '{"a":1}}'):
        assert follow(guides.of_schema(json.dumps(SCHEMA)), tokenizer, text) < len(text)
    with pytest.raises(AieError, match="grammar"):
        take(guides.of_schema(json.dumps(SCHEMA)), "x")


def test_logits_may_be_more_or_fewer_than_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    end, count = tokenizer.token_to_id(END), tokenizer.get_vocab_size()
    folder = make_folder(tmp_path / "model", tokenizer, "")
    for vocabulary in (count + 1000, count, count - 1, 320):
        guides = Guides(folder, {1 if end >= vocabulary else end}, vocabulary)
        found = allowed(guides.of_lark("start: /(.|\\n)*/"), (vocabulary + 31) // 32)
        assert max(found) < min(count, (vocabulary + 31) // 32 * 32)
        assert len(found) > 200
    for ends, why in (((), "names no token that ends"), ((count,), "out of range")):
        with pytest.raises(AieError, match=why):
            Guides(folder, ends, count)
    (folder.path / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}')
    with pytest.raises(AieError, match="grammar"):
        Guides(folder, {0}, 100)


def test_what_llguidance_refuses_is_an_error_that_says_so(guides: Guides) -> None:
    for schema, why in (
        ('{"type": "nonsense"}', "JSON schema is refused: Invalid type: nonsense"),
        ('{"type"', "JSON schema is refused: EOF"),
        ('{"type": "string", "pattern": "(?=a)"}', "look-around"),
    ):
        with pytest.raises(AieError, match=why):
            guides.of_schema(schema)
    with pytest.raises(AieError, match="grammar"):
        guides.of_lark("start: nowhere")
    schema = {"properties": {"a": {"type": "string", "format": "unheard-of"}}}
    form = find_format(ChatTemplate(FAMILIES["hermes"].template, {}), make_tokenizer())
    guides.of_lark(form.grammar([Tool("f", "", schema)]))
    with pytest.raises(AieError, match="Unknown format: unheard-of"):
        guides.of_lark(form.grammar([Tool("f", "", schema, strict=True)]))
    with pytest.raises(AieError, match=r"parameters of f .*'array'"):
        Tool("f", "", {"type": "array"})


def chain(count: int) -> dict[str, Any]:
    """Definitions that refer to the next one; llguidance follows them on the stack."""
    steps = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{count}": {"type": "null"}}}


LARGE = {
    "chain": (chain(1000), "has 1001 references in a schema: 128 are the most"),
    "text": ({"enum": ["x" * 2**19]}, "has 52.... characters: 262144 are the most"),
    "optional": ({"properties": {f"p{i}": {} for i in range(2700)}}, ""),
    "count": ({"items": {"anyOf": [{}, {"items": {}}]}, "type": "array", "minItems": 10**9}, ""),
    "repeats": ({"type": "string", "pattern": "^(a{1000}){1000}$"}, "too many expressions"),
}


@pytest.mark.parametrize(("schema", "why"), LARGE.values(), ids=LARGE)
def test_a_schema_takes_little_time_and_memory(guides: Guides, schema: Any, why: str) -> None:
    start = time.monotonic()
    with pytest.raises(AieError, match=why) if why else nullcontext():
        guide = guides.of_schema(json.dumps(schema))
        for _ in range(50):
            if not guide.ended:
                guide.take(max(allowed(guide)))
    assert time.monotonic() - start < 20  # on a loaded machine; alone, 1.2 s at most


def test_a_chain_of_references_up_to_the_limit_is_taken(guides: Guides) -> None:
    text = '{"x":' * 120 + "null" + "}" * 120
    assert follow(guides.of_schema(json.dumps(chain(120))), make_tokenizer(), text) == len(text)


def test_so_many_grammars_are_kept(guides: Guides) -> None:
    for number in range(2 * KEPT):
        guides.of_lark(f'start: "{number}"')
    assert len(guides._kept) == KEPT
    guide = guides.of_lark(f'start: "{KEPT}"')
    take(guide, str(KEPT))
    assert not guides.of_lark(f'start: "{KEPT}"').ended  # one does not move the others
