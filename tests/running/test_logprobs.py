"""Probabilities of tokens: their bytes are those of the text, whatever is left out of it."""

from __future__ import annotations

import pytest
from families import END, FAMILIES, WEATHER, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted
from tokenizers import Tokenizer, decoders, models

from ort_aie_ep.running.logprobs import TokenBytes
from ort_aie_ep.running.turns import Logprob, Turn

MESSAGES = [{"role": "user", "content": "?"}]
TOOLS = [{"type": "function", "function": {"name": WEATHER.name}}]
THINKING = FAMILIES["hermes"].template + "{# <think> </think> #}"


def sentencepiece() -> Tokenizer:
    """As Llama 2's and Gemma's: words with U+2581 for the space before them, and bytes."""
    words = [
        "<unk>",
        END,
        "\u2581true",
        "true",
        "\u2581",
        "\u2581\u2581\u2581",
        "\n",
        "\n\n",
        "é",
        "日",
    ]
    pieces = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([END])
    return tokenizer


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scripted]:
    folder = tmp_path_factory.mktemp("scripted")
    byte_level = make_tokenizer((), (*FAMILIES["hermes"].plain, "<think>", "</think>"))
    return {
        "bytes": Scripted(folder / "bytes", byte_level, THINKING),
        "sentencepiece": Scripted(folder / "pieces", sentencepiece(), THINKING),
    }


def joined(told: list[Logprob]) -> tuple[str, str]:
    """The text of tokens by their bytes, and by their characters."""
    whole = b"".join(token.bytes for token in told)
    return whole.decode("utf-8", "replace"), "".join(token.text for token in told)


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_bytes_of_tokens_join_to_the_text(
    scripted: dict[str, Scripted], kind: str, data: st.DataObject
) -> None:
    """Of any tokens: parts of characters, thoughts, calls, stop strings that cut within a token."""
    one = scripted[kind]
    tokenizer = one.prompts._tokenizer
    singles = ("<think>", "</think>", "<tool_call>", END, "get_", "\u2581true", "\n\n", "\u2581")
    marks = [[token] for text in singles if (token := tokenizer.token_to_id(text)) is not None]
    likely = [tokenizer.encode(text).ids for text in ("日本", "é\n\n", "a true\n", "ab")]
    some = st.one_of(
        st.integers(0, 265).map(lambda token: [token]), st.sampled_from([*marks, *likely])
    )
    parts = data.draw(st.lists(some, min_size=1, max_size=14))
    tokens = [token for part in parts for token in part]
    stops = st.sampled_from(["\n", "本", "b", "ru", "et", "\n\na"])
    stop = tuple(data.draw(st.lists(stops, max_size=2)))
    chat = data.draw(st.booleans())
    tools = TOOLS if chat and data.draw(st.booleans()) else []
    turn = Turn(
        "" if chat else "x",
        messages=MESSAGES if chat else (),
        tools=[],
        max_tokens=len(tokens) or 1,
        stop=stop,
        logprobs=2,
        ignore_end=True,
    )
    if tools:  # without a grammar, which would not let the script come
        asking = one.loop.asking
        turn = Turn(**{**vars(turn), "tools": tools})
        guide, asking._guide = asking._guide, lambda *_: None  # type: ignore[method-assign]
    try:
        deltas, told, _ = one.write(turn, tokens or [5])
    finally:
        if tools:
            asking._guide = guide  # type: ignore[method-assign]
    content = "".join(delta.content for delta in deltas)
    by_bytes, by_text = joined(told)
    assert by_text == content
    assert by_bytes == content
    assert all(len(token.top) == 2 for token in told)


def test_a_token_has_its_own_bytes() -> None:
    pieces = sentencepiece()
    bytes_of = TokenBytes(pieces)
    for text, wanted in (
        ("\u2581true", b" true"),
        ("true", b"true"),
        ("<0xE6>", b"\xe6"),
        (END, END.encode()),
    ):
        assert bytes_of(pieces.token_to_id(text)) == wanted
    level = make_tokenizer()
    for text in ("日本 é\n", "\x00\x7f\xad"):
        ids = level.encode(text).ids
        assert b"".join(map(TokenBytes(level), ids)) == text.encode()
    assert TokenBytes(level)(511) == b""  # a row of the logits without a token
