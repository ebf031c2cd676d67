"""What clients of all kinds send unasked, and what is put back: each as the client means it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from servers import NAME, Served, children_of, make_source, serving

import ort_aie_ep
from ort_aie_ep.serving.app import PATIENCE, QUIET
from ort_aie_ep.serving.limits import KEEP_ALIVE

USER = {"role": "user", "content": "import os"}
PROMPT = "def main(argv):"
JSON = {"Content-Type": "application/json"}


def asked(served: Served, messages: Any = None, **more: Any) -> dict[str, Any]:
    """The answer to a chat, which is there."""
    body = {"model": NAME, "messages": messages or [USER], "max_tokens": 8, **more}
    answer = served.post("/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def refused(served: Served, **more: Any) -> dict[str, Any]:
    """The error of a chat that is refused."""
    body = {"model": NAME, "messages": [USER], "max_tokens": 8, **more}
    content = json.dumps(body)  # also what httpx does not write, such as half a surrogate pair
    answer = served.post("/v1/chat/completions", content=content, headers=JSON, timeout=60)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def tool(parameters: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def test_a_refused_request_ends_no_other(served: Served) -> None:
    with ThreadPoolExecutor(1) as beside:
        long = beside.submit(asked, served, max_tokens=300)
        for token in ("-1", "4096", "999999", str(2**32 + 5)):
            assert refused(served, logit_bias={token: 5})["param"] == "logit_bias"
        assert long.result() == asked(served, max_tokens=300)


@pytest.mark.parametrize(
    ("change", "param", "said"),
    [
        ({"response_format": {"type": "json_schema", "schema": {"patternProperties": 5}}},
         "response_format", "Expected object for 'patternProperties', got 5"),
        ({"response_format": {"type": "json_schema", "schema": {"$ref": "#"}}},
         "response_format.schema", "its $ref '#' leads to itself"),
        ({"tools": [tool({}, description="\ud83d")]}, "tools.0.function.description",
         "half of a surrogate pair"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\udc00"}]}]},
         "messages.0.content.0.text", "half of a surrogate pair"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
         "messages.1", "a message of the role tool has its result"),
        ({"unheard_of": 1}, "unheard_of", "Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(served: Served, change: dict[str, Any], param: str, said: str) -> None:
    error = refused(served, **change)
    assert error["param"] == param
    assert said in error["message"]
    assert "llguidance" not in error["message"]


# Of messages, parts, tools and functions, what clients add or put back; none of it changes a text.
ADDED: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"}, "copilot_cache_control": {"type": "ephemeral"},
    "id": "msg_1", "is_error": True, "name": "me", "provider_specific_fields": {"a": None},
    "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}], "refusal": None,
    "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": ""}],
    "annotations": [], "audio": None, "parsed": {"a": 1}, "unheard_of": [1],
}  # fmt: skip


def test_what_clients_put_back_changes_no_text(served: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "import os"}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    tools = [tool({"type": "object"})]
    plain = asked(served, messages, tools=tools)
    full = [{**ADDED, **message} for message in messages]
    full[1] = {**full[1], "content": [{**ADDED, **full[1]["content"][0]}]}
    full[2] = {**full[2], "content": None, "tool_calls": [{**ADDED, **call, "index": 0}]}
    function = {**ADDED, **tools[0]["function"]}
    assert asked(served, full, tools=[{**ADDED, **tools[0], "function": function}]) == plain
    # An answer that is a thought alone, by either name, with a content or without one.
    for thought in (
        {"reasoning": "Hm."}, {"reasoning_content": "Hm.", "content": None}, {"content": None},
        {"reasoning": {"effort": "high"}, "content": ""},
    ):  # fmt: skip
        asked(served, [USER, {"role": "assistant", **thought}, USER])
    for arguments in ('{"a": "cu', "null", "[]", "", "no JSON"):
        cut = {**call, "function": {"name": "f", "arguments": arguments}}
        asked(served, [*messages[:2], {"role": "assistant", "tool_calls": [cut]}, messages[3]])


def test_fields_that_clients_send_unasked_are_taken(served: Served) -> None:
    plain = asked(served)
    for given in (
        {"cache_prompt": True}, {"stream_options": {"continuous_usage_stats": True}},
        {"presence_penalty": 0, "frequency_penalty": 0}, {"min_p": 0}, {"logit_bias": {"5": 0}},
        {"top_p": 1, "top_k": -1}, {"repetition_penalty": 1}, {"min_tokens": 0},
    ):  # fmt: skip
        assert asked(served, **given) == plain, given
    assert asked(served, repetition_penalty=2.0) != plain


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose template writes the names that it is given."""
    folder = tmp_path_factory.mktemp("shown")
    template = (
        "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }} "
        "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
    )
    ort_aie_ep.compile(make_source(folder, template), folder / NAME)
    with serving(folder / NAME, "--allowed-host", "my.name", "--cors-origin", "https://a.b") as one:
        yield one


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ({}, "   None|x"),
        ({"reasoning": {"effort": "high"}}, "  high |x"),
        ({"reasoning": {"effort": "high", "enabled": False}}, "False False high |x"),
        ({"thinking": {"type": "adaptive"}}, "True True  |x"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "False False  |x"),
        ({"enable_thinking": False}, "False False  |x"),
        ({"reasoning_effort": "none"}, "False False none |x"),
        ({"enable_thinking": True, "chat_template_kwargs": {"thinking": "own"}}, "True own  |x"),
    ],
)  # fmt: skip
def test_thinking_reaches_the_template(shown: Served, given: dict[str, Any], prompt: str) -> None:
    """By the number of tokens: those of the prompt as a text."""
    wanted = shown.post(
        "/v1/completions", json={"model": NAME, "prompt": prompt.replace("None|", "|"), "n": 1}
    )
    body = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **given}
    found = shown.post("/v1/chat/completions", json=body)
    tokens = [answer.json()["usage"]["prompt_tokens"] for answer in (found, wanted)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["left", "right"]}, {"const": {"a": [1]}}, {"type": "integer", "maximum": 9},
        {"anyOf": [{"const": 1}, {"type": "boolean"}]}, {"oneOf": [{"type": "null"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [True]}}},
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
         "additionalProperties": False},
        {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
    ],
    ids=["enum", "const", "number", "anyOf", "oneOf", "ref", "object", "array"],
)  # fmt: skip
def test_an_answer_follows_any_schema_in_any_shape(served: Served, schema: dict[str, Any]) -> None:
    for shape in (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        {"type": "json_schema", "schema": schema},
        {"type": "json_object", "schema": schema},
    ):
        answer = asked(served, response_format=shape, max_tokens=60)
        assert answer["finish_reason"] == "stop"
        jsonschema.validate(json.loads(answer["message"]["content"]), schema)
    some = asked(served, response_format={"type": "json_object"}, max_tokens=1)
    assert some["message"]["content"].startswith("{")


def test_a_last_message_of_the_assistant_is_continued(served: Served) -> None:
    begun = {"role": "assistant", "content": "def f("}
    text = asked(served, [USER, begun])["message"]["content"]
    prompt = f"# user\n{USER['content']}\n# assistant\ndef f("
    body = {"model": NAME, "prompt": prompt, "max_tokens": 8}
    assert served.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
    for same in ({**begun, "prefix": True}, begun):
        more = {"continue_final_message": True, "add_generation_prompt": False}
        assert asked(served, [USER, same], **more)["message"]["content"] == text
    anew = asked(served, [USER, begun], continue_final_message=False)["message"]["content"]
    assert anew == asked(served, [USER, begun], add_generation_prompt=True)["message"]["content"]
    assert anew != text


def test_a_call_has_the_name_that_the_client_gave(served: Served) -> None:
    names = ["calendar.list", "a/b", "x" * 100]
    tools = [tool({"type": "object", "additionalProperties": False}, name) for name in names]
    for name in names:
        choice = {"type": "function", "function": {"name": name}}
        answer = asked(served, tools=tools, tool_choice=choice, max_tokens=200)
        (call,) = answer["message"]["tool_calls"]
        assert call["function"] == {"name": name, "arguments": "{}"}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        asked(served, [USER, answer["message"], result], tools=tools)


def test_tokens_of_a_completion_join_to_its_text(served: Served) -> None:
    how: dict[str, Any] = {"model": NAME, "prompt": 'print("日本', "max_tokens": 24, "logprobs": 3}
    for more in ({}, {"temperature": 2, "seed": 3}, {"temperature": 2, "seed": 4}):
        (one,) = served.post("/v1/completions", json={**how, **more}).json()["choices"]
        told = one["logprobs"]
        assert "".join(told["tokens"]) == one["text"]
        ends = [
            at + len(text) for at, text in zip(told["text_offset"], told["tokens"], strict=True)
        ]
        assert told["text_offset"] == [0, *ends[:-1]]
        assert all(len(top) == 3 for top in told["top_logprobs"])
        stream = {**how, **more, "stream": True}
        chunks = list(events(served.post("/v1/completions", json=stream).text))
        offsets = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
        assert [at for told_here in offsets for at in told_here["text_offset"]] == told[
            "text_offset"
        ]
        chat = asked(served, logprobs=True, top_logprobs=2, max_tokens=24, **more)
        parts = [bytes(token["bytes"]) for token in chat["logprobs"]["content"]]
        assert b"".join(parts).decode("utf-8", "replace") == chat["message"]["content"]


def events(stream: str) -> Iterator[dict[str, Any]]:
    """The objects of server-sent events."""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def test_each_chunk_may_count_tokens(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 6, "stream": True}
    answer = served.post("/v1/completions", json={**body, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in events(answer.text)]
    assert counts == [1, 2, 3, 4, 5, 6, 6, 6]
    assert {chunk["usage"]["prompt_tokens"] for chunk in events(answer.text)} == {5}


def test_a_stream_begins_before_its_text(served: Served) -> None:
    """Whatever the model's process is at: here it stands still."""
    (process,) = children_of(served.process.pid)
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    os.kill(process, signal.SIGSTOP)
    try:
        start, times, last = time.monotonic(), [], ""
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as waiting:
            assert waiting.status_code == 200
            for line in waiting.iter_lines():
                times += [time.monotonic() - start] if line.startswith(":") else []
                if len(times) == 2:
                    os.kill(process, signal.SIGCONT)
                last = line or last
    finally:
        os.kill(process, signal.SIGCONT)
    assert times[0] >= PATIENCE
    assert times[1] >= PATIENCE + QUIET
    assert last == "data: [DONE]"
    # A refusal has its own status all the same.
    with pytest.raises(openai.BadRequestError):
        served.client().completions.create(model=NAME, prompt=[5] * 3000, stream=True)


def test_hosts_and_origins_are_named_by_their_options(served: Served, shown: Served) -> None:
    preflight = {"Origin": "https://a.b", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    error = served.post("/v1/completions", json={}, headers={"Host": "my.name"}).json()["error"]
    assert "ort-aie serve --allowed-host my.name" in error["message"]
    before = httpx.options(f"{served.url}/v1/chat/completions", headers=preflight)
    assert before.status_code == 403
    assert "ort-aie serve --cors-origin https://a.b" in before.json()["error"]["message"]
    assert shown.get("/v1/models", headers={"Host": "my.name:80"}).status_code == 200
    allowed = httpx.options(f"{shown.url}/v1/chat/completions", headers=preflight)
    assert allowed.status_code == 200
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 1}
    answer = shown.post("/v1/completions", json=body, headers={"Origin": "https://a.b"})
    assert answer.headers["access-control-allow-origin"] == "https://a.b"
    other = shown.post("/v1/completions", json=body, headers={"Origin": "https://other"})
    assert "access-control-allow-origin" not in other.headers


def test_a_body_may_be_as_long_as_the_context_is(shown: Served) -> None:
    """Characters as JSON escapes them take six bytes each."""
    text = "\\u65e5" * 190_000
    content = f'{{"model": "{NAME}", "prompt": "{text}"}}'
    assert 2**20 < len(content) < 2**20 + 64 * 2048
    answer = shown.post("/v1/completions", content=content, headers=JSON, timeout=60)
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_an_idle_connection_outlives_those_of_clients_pools() -> None:
    """httpx keeps one for 5 s, Node's undici 4 s, aiohttp 15 s, Go 90 s."""
    assert KEEP_ALIVE > 90
