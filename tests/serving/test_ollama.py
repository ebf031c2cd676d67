"""ollama's interface, by the client of its own package."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import ollama
import pytest
from servers import NAME, Served

from ort_aie_ep.running.answers import CallDelta, Delta
from ort_aie_ep.running.turns import Accepted, Piece, Usage
from ort_aie_ep.serving.ollama import Chat, Generate, OllamaAnswer

ASKED = [{"role": "user", "content": "import os"}]
FEW = {"num_predict": 8, "temperature": 0}
SIDES = {"type": "object", "properties": {"side": {"const": None}}, "required": ["side"],
         "additionalProperties": False}  # fmt: skip


def client(served: Served) -> ollama.Client:
    return ollama.Client(served.url)


def look(side: str) -> str:
    """Looks to a side.

    Args:
        side: left or right.
    """
    return f"a wall on the {side}"


def test_the_client_finds_the_model(served: Served) -> None:
    one = client(served)
    (model,) = one.list().models
    assert model.model == NAME
    assert model.size > 1_000_000
    shown = one.show(NAME)
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo == {"general.architecture": "llama", "llama.context_length": 2048}
    assert "temperature 0" in shown.parameters
    (loaded,) = one.ps().models
    assert (loaded.model, loaded.digest, loaded.context_length) == (NAME, model.digest, 2048)
    assert served.get("/api/version").json()["version"]


def test_a_chat_streamed_or_not_is_the_same_as_openais(served: Served) -> None:
    one = client(served)
    whole = one.chat(NAME, messages=ASKED, options=FEW)
    same = served.client().chat.completions.create(
        model=NAME, messages=ASKED, max_tokens=8, temperature=0
    )
    assert whole.message.content == same.choices[0].message.content
    assert (whole.prompt_eval_count, whole.eval_count) == (same.usage.prompt_tokens, 8)
    assert (whole.done_reason, whole.total_duration > whole.eval_duration > 0) == ("length", True)
    pieces = [*one.chat(f"{NAME}:latest", messages=ASKED, options=FEW, stream=True)]
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == 8
    stop = {"stop": whole.message.content[10:14]}
    assert one.chat(NAME, messages=ASKED, options=FEW | stop).done_reason == "stop"
    body = {
        "model": NAME,
        "messages": ASKED,
        "options": FEW | {"num_gpu": 1},
        "tool_choice": "auto",
    }
    # As litellm sends it: without a Content-Type.
    unasked = served.post("/api/chat", content=json.dumps(body | {"stream": False})).json()
    assert unasked["message"]["content"] == whole.message.content
    other = {"temperature": 1, "seed": 3, "repeat_penalty": 1.5, "num_ctx": 4096}
    assert one.chat(NAME, messages=ASKED, options=FEW | other).message != whole.message
    told = one.chat(NAME, messages=ASKED, options=FEW, logprobs=True, top_logprobs=2).logprobs
    assert "".join(token.token for token in told) == whole.message.content


def test_a_prompt_is_asked_or_continued(served: Served) -> None:
    one = client(served)
    system = [{"role": "system", "content": "Be brief."}]
    chat = one.chat(NAME, messages=[*system, *ASKED], options=FEW)
    asked = one.generate(NAME, "import os", system="Be brief.", options=FEW)
    assert asked.response == chat.message.content
    raw = one.generate(NAME, "import os", raw=True, options=FEW, stream=True)
    text = served.client().completions.create(
        model=NAME, prompt="import os", max_tokens=8, temperature=0
    )
    assert "".join(piece.response for piece in raw) == text.choices[0].text
    assert one.generate(NAME).done_reason == "load"


def test_an_answer_follows_a_format(served: Served) -> None:
    one, few = client(served), {"temperature": 1, "num_predict": 60}
    answer = one.chat(NAME, messages=ASKED, format=SIDES, options=few).message.content
    jsonschema.validate(json.loads(answer), SIDES)
    text = one.generate(NAME, "import os", format="json", options=FEW).response
    assert text.startswith("{")


def test_calls_and_results_are_those_of_other_interfaces(served: Served) -> None:
    """Shown to the model as the same messages are that OpenAI's client sends."""
    function = {"name": "look", "arguments": {"side": "left", "far": None}}
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    result = {"role": "tool", "tool_name": "look", "content": "a wall"}
    found = client(served).chat(NAME, [*ASKED, called, result], tools=[look], options=FEW)
    call = {"id": "x", "type": "function",
            "function": {**function, "arguments": json.dumps(function["arguments"])}}  # fmt: skip
    tool = ollama._utils.convert_function_to_tool(look).model_dump(exclude_none=True)
    messages: list[Any] = [
        *ASKED, {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "a wall"},
    ]  # fmt: skip
    expected = served.client().chat.completions.create(
        model=NAME, messages=messages, tools=[tool], max_tokens=8, temperature=0
    )
    assert found.prompt_eval_count == expected.usage.prompt_tokens
    assert found.message.content == expected.choices[0].message.content


def test_thoughts_and_calls_are_pieces_of_a_stream() -> None:
    answer = OllamaAnswer(Chat(model=NAME, messages=ASKED))
    events = [
        Accepted(7), Piece(Delta(reasoning="Hm."), (), 1), Piece(Delta(content="So"), (), 2),
        Piece(Delta(calls=(CallDelta(0, "c1", "look", '{"side": '),)), (), 3),
        Piece(Delta(calls=(CallDelta(0, "", "", '"left"}'), CallDelta(1, "c2", "f", ""))), (), 4),
        Usage("tool_calls", 7, 0, 5),
    ]  # fmt: skip
    lines = [line for event in events for line in answer.take(0, event)]
    pieces = [ollama.ChatResponse(**json.loads(answer.line(line))) for line in lines]
    assert [piece.message.thinking for piece in pieces if piece.message.thinking] == ["Hm."]
    assert "".join(piece.message.content for piece in pieces) == "So"
    calls = [call.function for piece in pieces for call in piece.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [
        ("look", {"side": "left"}),
        ("f", {}),
    ]
    assert (pieces[-1].done_reason, pieces[-1].eval_count) == ("stop", 5)
    whole = ollama.ChatResponse(**answer.body())
    assert (whole.message.thinking, len(whole.message.tool_calls)) == ("Hm.", 2)


def test_a_call_that_a_limit_cut_is_left_out() -> None:
    answer = OllamaAnswer(Chat(model=NAME, messages=ASKED))
    call = CallDelta(0, "c1", "look", '{"side": "le')
    events = [Accepted(7), Piece(Delta(calls=(call,)), (), 1), Usage("length", 7, 0, 1)]
    lines = [line for event in events for line in answer.take(0, event)]
    assert [line["message"].get("tool_calls") for line in [*lines, answer.body()]] == [None] * 3
    assert [line["done"] for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"think": True}, {"enable_thinking": True, "thinking": True}),
        ({"think": False}, {"enable_thinking": False, "thinking": False}),
        ({"think": "high"},
         {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}),
        ({}, {}),
    ],
)  # fmt: skip
def test_thinking_is_asked_for(given: dict[str, Any], options: dict[str, Any]) -> None:
    for body in (Chat(messages=ASKED, **given), Generate(prompt="x", **given)):
        assert body.turn(None).template_options == options


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0), ("0", 0), (2.5, 2.5), ("1h30m", 5400), ("1.5s", 1.5), ("250ms", 0.25), (-1, None),
     ("-1m", None), (10**400, None)],
)  # fmt: skip
def test_how_long_a_model_is_kept(given: Any, seconds: float | None) -> None:
    assert Chat(keep_alive=given).keep_alive == seconds


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"model": "other"}, 404, "there is no model 'other' here, only 'demo'"),
        ({"options": {"mirostat": 2}}, 400, "options.mirostat: only 0 is supported"),
        ({"options": {"temperature": -1}}, 400, "options.temperature: "),
        ({"keep_alive": "soon"}, 400, "keep_alive: a duration is"),
        ({"keep_alive": [1]}, 400, "keep_alive: "),
        ({"format": {"$ref": "#"}}, 400, "format: its $ref '#' leads to itself"),
        ({"messages": [{"role": "user", "content": "a", "images": ["aaaa"]}]}, 400,
         "this model only reads text"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "and the context 2048"),
        ({"messages": "x"}, 400, "messages: "),
    ],
)  # fmt: skip
def test_errors_are_texts(served: Served, change: dict[str, Any], status: int, said: str) -> None:
    for stream in (False, True):
        body = {"model": NAME, "messages": ASKED, "stream": stream, **change}
        answer = served.post("/api/chat", json=body)
        assert answer.status_code == status
        assert said in answer.json()["error"]
    with pytest.raises(ollama.ResponseError, match="no /api/pull here: ort-aie pull"):
        client(served).pull("x")
