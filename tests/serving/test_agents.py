"""What coding agents speak: OpenAI's Responses and Anthropic's Messages, by the types of both
packages."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from openai.types.responses import Response
from servers import NAME, Served

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
