"""What coding agents speak: OpenAI's Responses and Anthropic's Messages, by the types of both
packages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openresponses_types.types
import pydantic
import pytest
from anthropic.types import RawMessageStreamEvent
from coding_agents import AGENTS, Agent
from openai.types.responses import Response, ResponseStreamEvent
from servers import NAME, Served

from ort_aie_ep.running.answers import CallDelta, Delta
from ort_aie_ep.running.turns import Accepted, Piece, PromptTooLongError, Usage
from ort_aie_ep.serving.messages import MessageAnswer, Messages
from ort_aie_ep.serving.requests import Chat
from ort_aie_ep.serving.responses import ResponseAnswer, Responses

TEXT = "import os"
PARAMETERS = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}
LOOK: Any = {"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}
LOOKS: Any = {"name": "look", "input_schema": PARAMETERS}


def claude(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)


def strictly(model: Any, given: Any) -> Any:
    """`given` by the package's type, which has to have each field with its type."""
    return model.model_validate_json(given.model_dump_json(exclude_unset=True), strict=True)


def test_a_response_streamed_or_not_is_the_same(served: Served) -> None:
    client = served.client()
    how: Any = {"model": NAME, "input": TEXT, "max_output_tokens": 20, "store": False}
    whole = strictly(Response, client.responses.create(**how))
    assert whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(**how) as stream:
        events = [*stream]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    last = events[-1].response
    assert last.output_text == whole.output_text != ""
    assert last.usage.output_tokens == whole.usage.output_tokens == 20


def test_a_message_streamed_or_not_is_the_same(served: Served) -> None:
    client = claude(served)
    how: Any = {
        "model": NAME, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 20,
    }  # fmt: skip
    whole = strictly(anthropic.types.Message, client.messages.create(**how))
    assert whole.stop_reason == "max_tokens"
    with client.messages.stream(**how) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert last.content[0].text == whole.content[0].text != ""
    assert last.usage.output_tokens == 20
    stop = whole.content[0].text[20:26]
    stopped = client.messages.create(**how, stop_sequences=["zzz", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    how.pop("max_tokens")
    assert client.messages.count_tokens(**how).input_tokens == whole.usage.input_tokens


def test_a_response_calls_and_takes_the_result(served: Served) -> None:
    client = served.client()
    how: Any = {
        "model": NAME, "tools": [LOOK, {"type": "web_search"}], "temperature": 0,
        "max_output_tokens": 200, "parallel_tool_calls": False,
    }  # fmt: skip
    asked: list[Any] = [{"role": "user", "content": TEXT}]
    whole = strictly(Response, client.responses.create(input=asked, tool_choice="required", **how))
    (call,) = whole.output
    assert whole.status == "completed"
    assert json.loads(call.arguments)["side"] in ("left", "right")
    with client.responses.stream(input=asked, tool_choice="required", **how) as stream:
        (again,) = stream.until_done().get_final_response().output
    assert (again.name, again.arguments) == ("look", call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "a wall " * 90}
    answer = client.responses.create(input=[*asked, call, result], tool_choice="none", **how)
    assert answer.output_text
    assert answer.usage is not None
    said = {"role": "user", "content": "again"}
    more = client.responses.create(
        input=[*asked, call, result, *answer.output, said],  # type: ignore[list-item]
        tool_choice="none", **how,
    )  # fmt: skip
    assert more.usage is not None
    assert more.usage.input_tokens_details.cached_tokens >= answer.usage.input_tokens


def test_a_message_calls_and_takes_the_result(served: Served) -> None:
    create = claude(served).messages.create
    how: Any = {"model": NAME, "tools": [LOOKS], "max_tokens": 200}
    one: Any = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    asked: list[Any] = [{"role": "user", "content": TEXT}]
    whole = strictly(anthropic.types.Message, create(messages=asked, tool_choice=one, **how))
    assert whole.stop_reason == "tool_use"
    (call,) = whole.content
    assert call.input["side"] in ("left", "right")
    with claude(served).messages.stream(messages=asked, tool_choice=one, **how) as stream:
        (again,) = stream.get_final_message().content
    assert (again.name, again.input) == ("look", call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "a wall " * 90}
    asked += [whole.model_dump(include={"role", "content"}), {"role": "user", "content": [result]}]
    none: Any = {"type": "none"}
    answer = create(messages=asked, tool_choice=none, **how)
    asked += [answer.model_dump(include={"role", "content"}), {"role": "user", "content": "again"}]
    more = create(messages=asked, tool_choice=none, **how)
    assert answer.usage.cache_read_input_tokens is not None
    before = answer.usage.cache_read_input_tokens + answer.usage.input_tokens
    assert more.usage.cache_read_input_tokens is not None
    assert more.usage.cache_read_input_tokens >= before


PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_the_page_says_what_the_real_programs_were_given(agent: Agent) -> None:
    page = PAGE.read_text()
    assert f"| {agent.name} | {agent.version} |" in page
    for name, text in agent.settings.items():
        assert not name.startswith(".") or (f"~/{name}" in page and f"\n{text}```" in page)
    assert [name for name in agent.environment if name not in page] == []
    assert " ".join(agent.prepare) in page


BODIES = Path(__file__).parent / "bodies"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages?beta=true"
# What the real programs sent: the file, where, and what a model is to see of it.
SENT: dict[str, tuple[str, type[Responses | Messages], list[tuple[str, str]]]] = {
    "codex": (RESPONSES, Responses, [
        ("system", "You are a coding agent running in the Codex CLI"), ("system", "<skills"),
        ("user", "<environment_context>"), ("user", "Say hello"), ("assistant", "I look."),
        ("tool", "hello-42\n"),
    ]),
    "claude": (MESSAGES, Messages, [
        ("system", "You are a Claude agent"), ("user", "<system-reminder>"),
        ("system", "Available agent types"), ("assistant", "I look."), ("tool", "hello-42"),
    ]),
    "claude_title": (MESSAGES, Messages, [("system", "You are a Claude"), ("user", "<session>")]),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_what_the_real_programs_send_is_read_whole(served: Served, name: str) -> None:
    path, kind, shown = SENT[name]
    text = (BODIES / f"{name}.json").read_text()
    turn = kind.model_validate_json(text).turn(None)
    assert len(turn.messages) == len(shown)
    for message, (role, begin) in zip(turn.messages, shown, strict=True):
        assert message["role"] == role
        assert message["content"].startswith(begin)
    for hidden in ("billing", "cache_control", "web_search", "multi_agent"):
        assert hidden not in repr((turn.messages, turn.tools))
    if "title" not in name:
        assistant = turn.messages[-2]
        assert assistant["reasoning_content"] == "Hm, well."
        assert assistant["tool_calls"][0]["id"] == turn.messages[-1]["tool_call_id"] == "call_1"
        assert len(turn.tools) == 2
    body = json.loads(text)
    for stream in (True, False):
        body |= {"stream": stream, "max_output_tokens" if "input" in body else "max_tokens": 8}
        answer = served.post(path, json=body, timeout=100)
        assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens"] == 8


@pytest.mark.parametrize("name", ["cline", "continue", "llm", "opencode", "pi", "qwen"])
def test_what_the_real_programs_chat_is_read_whole(served: Served, name: str) -> None:
    body = json.loads((BODIES / f"{name}.json").read_text())
    asked, called, result = Chat.model_validate(body).turn(None).messages[-3:]
    assert (asked["role"], called["role"]) == ("user", "assistant")
    assert "Say hello" in asked["content"]
    assert called["content"].startswith("I look, by ")
    assert "hello-$((40+2))" in called["tool_calls"][0]["function"]["arguments"]
    assert "hello-42" in result["content"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"]
    limit = {"max_completion_tokens" if "max_completion_tokens" in body else "max_tokens": 4}
    answer = served.post("/v1/chat/completions", json=body | limit, timeout=100)
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "change", "place", "said"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id", "whole conver"),
        (RESPONSES, {"tools": [{"type": "custom", "name": "f"}]}, "tools.0.type", "'function'"),
        (RESPONSES, {"input": [{"role": "user"}]}, "input.0.content", "must have it"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0", "no pictures"),
        (RESPONSES, {"unheard_of": 1}, "unheard_of", "Extra inputs"),
        (RESPONSES, {"input": "word " * 3000}, None, "the context 2048"),
        (MESSAGES, {"max_tokens": None}, "max_tokens", "Field required"),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "f"}]}, "tools.0.type", "'custom'"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages.0.content.0.tool_use_id", "required"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         "messages.0.content.0", "no pictures"),
        (MESSAGES, {"messages": [{"role": "user", "content": "word " * 3000}]}, None,
         "prompt is too long: 30"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_form_of_its_interface(
    served: Served, path: str, change: dict[str, Any], place: str | None, said: str
) -> None:
    asked: dict[str, Any] = {"model": NAME, "input": TEXT}
    if path == MESSAGES:
        asked = {"model": NAME, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 4}
    for stream in (False, True):
        answer = served.post(path, json={**asked, "stream": stream, **change})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert said in error["message"]
        if path == MESSAGES:
            assert answer.json()["type"] == "error"
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(f"{place}: " if place else said)
        else:
            assert error["param"] == place
            assert error["code"] == (None if place else "context_length_exceeded")
    page = {"Origin": "https://example.org"}
    form = served.post(path, data={"a": "b"}, headers=page).json()
    assert form["error"]["message"].startswith("the Content-Type")


def test_what_opens_a_session_is_answered(served: Served) -> None:
    assert httpx.head(served.url).status_code == 200
    opened = served.client().responses.create(model=NAME, input="", max_output_tokens=1)
    assert (opened.status, opened.output) == ("completed", [])


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def test_null_is_an_argument_of_a_call() -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": None}, "caller": None}
    said = {"role": "assistant", "content": [call]}
    turn = Messages.model_validate({"model": NAME, "messages": [said], "max_tokens": 1}).turn(None)
    assert turn.messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": None}


def test_pictures_of_earlier_messages_are_left_out_with_a_word() -> None:
    asked = {"role": "user", "content": [{"type": "input_text", "text": "See: "}, PICTURE]}
    result = {"type": "function_call_output", "call_id": "c", "output": [PICTURE]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}
    body = {"model": NAME, "input": [asked, {"role": "user", "content": "Go on."}, call, result]}
    first, _, called, seen = Responses.model_validate(body).turn(None).messages
    assert first["content"].startswith("See: [a picture")
    assert called["tool_calls"][0]["function"]["arguments"] == "{"
    assert seen["content"].startswith("[a picture")
    parts = [{"type": "text", "text": "See: "}, {"type": "image_url", "image_url": {"url": "x"}}]
    chat = {"model": NAME, "messages": [{"role": "user", "content": parts}]}
    with pytest.raises(pydantic.ValidationError, match="no pictures"):
        Chat.model_validate(chat)
    chat["messages"] = [*chat["messages"], {"role": "user", "content": "Go on."}]  # type: ignore[misc]
    assert Chat.model_validate(chat).turn(None).messages[0] == first


# The events of Open Responses, by their types.
OPEN_EVENTS: dict[str, type[pydantic.BaseModel]] = {
    kind.value: event
    for event in vars(openresponses_types.types).values()
    if isinstance(event, type) and event.__name__.endswith("StreamingEvent")
    for kind in event.model_fields["type"].annotation
}

# A thought, a text and two calls, as a loop gives them.
CALLS = (
    CallDelta(0, "call_a", "f"), CallDelta(0, arguments='{"x":'), CallDelta(0, arguments=" 1}"),
    CallDelta(1, "call_b", "g", "{}"),
)  # fmt: skip
EVENTS = (
    Accepted(9), Piece(Delta(reasoning="Hm"), completion_tokens=2),
    Piece(Delta(reasoning=".", content="A"), completion_tokens=4),
    Piece(Delta("B"), completion_tokens=5), Piece(Delta(calls=CALLS), completion_tokens=9),
)  # fmt: skip


@pytest.mark.parametrize("reason", ["tool_calls", "length"])
def test_each_event_has_the_type_of_the_package(reason: str) -> None:
    asked = Responses(model=NAME, input=TEXT)  # type: ignore[arg-type]
    for answer, kind in (
        (ResponseAnswer(asked), ResponseStreamEvent), (MessageAnswer(NAME), RawMessageStreamEvent),
    ):  # fmt: skip
        made = [answer.take(0, event) for event in (*EVENTS, Usage(reason, 9, 4, 9))]
        events = [event for some in made for event in some]
        read = pydantic.TypeAdapter(kind)
        kinds = [read.validate_json(json.dumps(e), strict=True).type for e in events]
        if kind is ResponseStreamEvent:
            done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
            whole = Response.model_validate_json(json.dumps(answer.body()), strict=True)
            openresponses_types.ResponseResource.model_validate_json(json.dumps(answer.body()))
            for event in events:
                # Thoughts are told as OpenAI's packages and Codex have it.
                if not event["type"].startswith("response.reasoning_text"):
                    OPEN_EVENTS[event["type"]].model_validate_json(json.dumps(event))
            at = {"completed_at": whole.completed_at}  # another second may have begun
            assert {**events[-1]["response"], **at} == {**answer.body(), **at}
            assert done == answer.body()["output"]
            assert [item.type for item in whole.output] == [
                "reasoning", "message", "function_call", "function_call",
            ]  # fmt: skip
            assert whole.usage is not None
            assert whole.usage.output_tokens_details.reasoning_tokens == 4
            assert whole.usage.input_tokens_details.cached_tokens == 4
            assert kinds[-1] == f"response.{whole.status}"
        else:
            message = anthropic.types.Message.model_validate_json(json.dumps(answer.body()))
            assert [block.type for block in message.content] == [
                "thinking", "text", "tool_use", "tool_use",
            ]  # fmt: skip
            assert message.content[2].input == {"x": 1}  # type: ignore[union-attr]
            assert message.stop_reason == {"length": "max_tokens"}.get(reason, "tool_use")
            assert message.usage.input_tokens == 5
            assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


def test_a_stream_has_events_while_the_model_is_at_work() -> None:
    response = ResponseAnswer(Responses(model=NAME, input=TEXT))  # type: ignore[arg-type]
    assert response.quiet("…") == ": …\n\n"  # the first event has to be response.created
    begun = response.take(0, Accepted(9))
    comment, event = response.quiet("…").removesuffix("\n\n").split("\n\n")
    name, data = event.split("\n")
    assert (comment, name) == (": …", "event: response.in_progress")
    event = data.removeprefix("data: ")
    read = pydantic.TypeAdapter(ResponseStreamEvent).validate_json(event, strict=True)
    assert read.type == "response.in_progress"
    assert read.sequence_number == len(begun)
    assert MessageAnswer(NAME).quiet("…") == ': …\n\nevent: ping\ndata: {"type": "ping"}\n\n'


def test_an_error_in_a_stream_has_the_form_of_its_interface() -> None:
    asked = Responses(model=NAME, input=TEXT)  # type: ignore[arg-type]
    failed = ResponseAnswer(asked).failed(PromptTooLongError(30, 20))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
    error = MessageAnswer(NAME).failed(PromptTooLongError(30, 20))
    assert error["error"]["message"] == "prompt is too long: 30 tokens > 20 maximum"
    assert pickle.loads(pickle.dumps(PromptTooLongError(30, 20))).context == 20
