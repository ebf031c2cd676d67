"""`ort-aie serve` with the client of OpenAI's package, from outside."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest
from background import with_default_signals
from servers import NAME, Served, children_of, serving
from typer.testing import CliRunner

from ort_aie_ep.cli import app
from ort_aie_ep.running.loop import LEAST_READ
from ort_aie_ep.serving.limits import LINES, FewLines

PROMPT = "def main(argv):"
JSON = {"Content-Type": "application/json"}
MESSAGES: list[Any] = [{"role": "user", "content": "import os"}]


def tool(properties: dict[str, Any], name: str = "f", strict: bool = False) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


TOOLS: list[Any] = [tool({"side": {"enum": ["left", "right"]}}, name) for name in ("turn", "look")]
DEEP = b'{"stop": ' + b"[" * 500 + b"]" * 500 + b"}"
LONG = 1900  # tokens, which take a while


def until(true: Callable[[], bool], seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_model_and_the_server_say_what_they_are(served: Served) -> None:
    (model,) = served.client().models.list().data
    assert model.id == NAME
    assert served.client().models.retrieve(NAME) == model
    assert served.get("/health").json() == {"status": "ok", "requests": 0}
    assert "/v1/chat/completions" in served.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize("path", ["completions", "chat/completions", "messages", "responses"])
def test_a_request_need_not_name_the_model(served: Served, path: str) -> None:
    text = {"completions": {"prompt": PROMPT}, "responses": {"input": PROMPT}}
    limit = {"max_output_tokens" if path == "responses" else "max_tokens": 3}
    asked = text.get(path, {"messages": MESSAGES}) | limit
    answer = served.post(f"/v1/{path}", json=asked, timeout=300).json()
    assert answer["model"] == NAME


def test_a_completion_streamed_or_not_is_the_same(served: Served) -> None:
    create = served.client().completions.create
    whole = create(model=NAME, prompt=PROMPT, max_tokens=20)
    (choice,) = whole.choices
    assert choice.text.startswith("\n    ")
    assert choice.finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 20)
    *pieces, last = create(
        model=NAME,
        prompt=PROMPT,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert len(pieces) > 10
    assert "".join(piece.choices[0].text for piece in pieces) == choice.text
    assert [piece.choices[0].finish_reason for piece in pieces][-2:] == [None, "length"]
    assert not last.choices
    assert last.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    ids = create(model=NAME, prompt=[5, 6, 7], max_tokens=4)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3
    assert (
        create(model=NAME, prompt=[PROMPT]).choices[0].text
        == choice.text[: len(create(model=NAME, prompt=PROMPT).choices[0].text)]
    )  # 16 tokens unless the body says more


def test_a_chat_streamed_or_not_is_the_same(served: Served) -> None:
    create = served.client().chat.completions.create
    whole = create(model=NAME, messages=MESSAGES, max_completion_tokens=20).choices[0]
    assert whole.message.role == "assistant"
    assert whole.message.content
    pieces = list(create(model=NAME, messages=MESSAGES, max_completion_tokens=20, stream=True))
    deltas = [piece.choices[0].delta for piece in pieces]
    assert "".join(delta.content or "" for delta in deltas) == whole.message.content
    assert [delta.role for delta in deltas[:2]] == ["assistant", None]
    content = [{"type": "text", "text": part} for part in ("import ", "os")]
    parts: list[Any] = [{"role": "user", "content": content}]
    assert create(model=NAME, messages=parts, max_tokens=20).choices[0] == whole


def test_a_prompt_that_extends_the_last_one_is_not_read_again(served: Served) -> None:
    create = served.client().chat.completions.create
    messages = [{"role": "user", "content": "class Cached:\n    def __init__(self):" * 20}]
    first = create(model=NAME, messages=messages, max_tokens=40)
    messages.append({"role": "assistant", "content": first.choices[0].message.content or ""})
    messages.append({"role": "user", "content": "again"})
    second = create(model=NAME, messages=messages, max_tokens=5)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == second.usage.prompt_tokens - LEAST_READ


def test_choices_are_texts_of_their_own(served: Served) -> None:
    create = served.client().completions.create
    how: dict[str, Any] = {"model": NAME, "prompt": PROMPT, "max_tokens": 12, "temperature": 1}
    whole = create(**how, n=3, seed=5)
    texts = [choice.text for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({*texts}) == 3
    assert texts[1] == create(**how, seed=6).choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 36
    streamed = ["", "", ""]
    for piece in create(**how, n=3, seed=5, stream=True):
        for choice in piece.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_logprobs_are_those_of_the_tokens(served: Served) -> None:
    how: dict[str, Any] = {"model": NAME, "max_tokens": 8, "temperature": 0}
    chat = served.client().chat.completions.create(
        **how, messages=MESSAGES, logprobs=True, top_logprobs=3
    )
    (choice,) = chat.choices
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert "".join(token.token for token in content) == choice.message.content
    for token in content:
        assert [token.token, token.logprob] == [
            token.top_logprobs[0].token,
            token.top_logprobs[0].logprob,
        ]
        assert 0 >= token.top_logprobs[0].logprob >= token.top_logprobs[2].logprob
    text = served.client().completions.create(**how, prompt=PROMPT, logprobs=1).choices[0]
    assert text.logprobs is not None
    assert text.logprobs.tokens is not None
    assert "".join(text.logprobs.tokens) == text.text
    assert text.logprobs.text_offset is not None
    assert text.logprobs.text_offset[1] == len(text.logprobs.tokens[0])


def test_bias_and_penalties_change_a_text(served: Served) -> None:
    def text(**how: Any) -> str:
        create = served.client().completions.create
        asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0} | how
        return create(model=NAME, **asked).choices[0].text

    plain = text()
    assert text(logit_bias={"300": 100}).count(text(logit_bias={"300": 100}, max_tokens=1)) >= 20
    assert text(frequency_penalty=2, presence_penalty=2) != plain


def test_sampling_and_stop(served: Served) -> None:
    def text(**how: Any) -> str:
        create = served.client().completions.create
        return create(model=NAME, prompt=PROMPT, max_tokens=30, **how).choices[0].text

    greedy = text()
    assert text(temperature=0) == text(temperature=1, top_p=1e-6) == greedy
    assert text(temperature=1, extra_body={"top_k": 1}) == greedy
    assert text(temperature=0.5, extra_body={"top_k": 10**30}, seed=-1) == text(
        temperature=0.5, seed=-1
    )
    assert text(temperature=1, seed=4) == text(temperature=1, seed=4) != text(seed=5)
    stop = greedy[20:26]
    for given in (stop, [stop, "zzz"]):
        ended = served.client().completions.create(
            model=NAME, prompt=PROMPT, max_tokens=30, stop=given, stream=True
        )
        pieces = [piece.choices[0] for piece in ended]
        assert "".join(piece.text for piece in pieces) == greedy[: greedy.index(stop)]
        assert pieces[-1].finish_reason == "stop"


class Answer(pydantic.BaseModel):
    side: Literal["left", "right"]
    sure: bool


def test_the_clients_own_types_are_followed(served: Served) -> None:
    parsed = served.client().chat.completions.parse(
        model=NAME, messages=MESSAGES, response_format=Answer, temperature=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    with_a_tool = served.client().chat.completions.parse(
        model=NAME,
        messages=MESSAGES,
        response_format=Answer,
        tools=[openai.pydantic_function_tool(Answer, name="look")],
        parallel_tool_calls=False,
        n=4,
        temperature=1,
    )
    for choice in with_a_tool.choices:
        calls = choice.message.tool_calls or []
        made = [choice.message.parsed, *(call.function.parsed_arguments for call in calls)]
        assert [type(one) for one in made if one] == [Answer]


def test_a_tool_is_called_and_its_result_goes_back(served: Served) -> None:
    """Question, call, result, answer; streamed or not."""
    create = served.client().chat.completions.create
    how: dict[str, Any] = {
        "model": NAME, "tools": TOOLS, "max_tokens": 200, "temperature": 0,
        "parallel_tool_calls": False,
    }  # fmt: skip
    whole = create(messages=MESSAGES, tool_choice="required", **how).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert not whole.message.content
    assert whole.message.tool_calls
    call = whole.message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name in ("turn", "look")
    assert json.loads(call.function.arguments)["side"] in ("left", "right")
    assert call.id.startswith("call_")
    names, arguments, reasons = [], "", []
    for piece in create(messages=MESSAGES, tool_choice="required", stream=True, **how):
        (choice,) = piece.choices
        reasons.append(choice.finish_reason)
        for delta in choice.delta.tool_calls or []:
            if delta.index == 0:
                assert delta.function is not None
                names += [delta.function.name] if delta.function.name else []
                arguments += delta.function.arguments or ""
    assert (names, arguments) == ([call.function.name], call.function.arguments)
    assert reasons[-1] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"seen": "wall"}'}
    again = [*MESSAGES, whole.message.model_dump(), result]
    answer = create(messages=again, tool_choice="none", **how | {"max_tokens": 5}).choices[0]
    assert answer.finish_reason == "length"
    assert answer.message.content
    named: Any = {"type": "function", "function": {"name": "look"}}
    one = create(messages=MESSAGES, tool_choice=named, **how)
    (look,) = one.choices[0].message.tool_calls or []
    assert look.type == "function"
    assert look.function.name == "look"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": 9}, "n: Input should be less than or equal to 8"),
        ({"top_logprobs": 2}, "top_logprobs: give logprobs too"),
        ({"functions": [{"name": "f"}]}, "functions: use tools"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools: two tools have one name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name: "),
        ({"tool_choice": "required"}, "tool_choice: there are no tools to call"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice: there is no tool 'x'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id: a message of the role"),
        ({"messages": [{"role": "user"}]}, "content: only messages of the roles"),
        ({"tools": [tool({"a": {"format": "unheard-of"}}, strict=True)]}, "Unknown format"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"stop": ["a"] * 17}, "stop: List should have at most 16 items"),
        ({"stop": ""}, "stop.0: String should have at least 1 character"),
        ({"stop": "x" * 1001}, "stop.0: String should have at most 1000 characters"),
        ({"stop": 5}, "stop: Input should be a valid list"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "schema: "),
        ({"unheard_of": 1}, "unheard_of: Extra inputs are not permitted"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role: Input should be"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no pictures"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "and the context 2048"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "q"}}}},
         "refused: "),
    ],
)  # fmt: skip
def test_what_is_not_taken_is_named(served: Served, change: dict[str, Any], said: str) -> None:
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": 2, "n": 1, "user": "me", **change}
    for stream in (False, True):
        answer = served.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    assert served.requests == 0


def schema(inner: object) -> dict[str, Any]:
    wrapped = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": wrapped}}


def nested(levels: int) -> object:
    return {"type": "array", "items": nested(levels - 1)} if levels else {"type": "integer"}


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}, "minItems: the"),
        ({"type": "string", "maxLength": 1e400}, "maxLength: the counts"),
        ({"type": "string", "pattern": "^(a{99}){99}$"}, "pattern: the counts"),
        ({"type": "array", "prefixItems": [{"minLength": 3000}] * 2}, "minLength: the counts"),
        (nested(70), "more than 64 levels"),
        ({"enum": ["x" * 70_000]}, "bytes: 65536 are taken"),
    ],
)  # fmt: skip
def test_schemas_without_a_bound_are_refused_before_the_model_sees_them(
    served: Served, inner: object, said: str
) -> None:
    body = {"model": NAME, "messages": MESSAGES, "response_format": schema(inner)}
    answer = served.post("/v1/chat/completions", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema"


def test_an_answer_of_the_client_goes_back_as_it_came(served: Served) -> None:
    """With the nulls that its package writes for what an answer does not have."""
    create = served.client().chat.completions.create
    first = create(model=NAME, messages=MESSAGES, max_tokens=8).choices[0].message
    kept = {"role": "assistant", "content": first.content}
    question = {"role": "user", "content": "again"}
    plain: list[Any] = [*MESSAGES, kept, question]
    dumped = first.model_dump() | {"name": "me", "tool_calls": None, "annotations": [], "parsed": 1}
    assert None in dumped.values()
    given: list[Any] = [*MESSAGES, dumped, {**question, "name": "you"}]
    none: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none"}
    how: dict[str, Any] = {
        **none,
        "reasoning_effort": "low",
        "response_format": {"type": "text", "json_schema": None},
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_options": {"mode": "implicit"},
        "parallel_tool_calls": None,
    }
    texts = [
        create(model=NAME, messages=messages, max_tokens=8, temperature=0, **more).choices[0]
        for messages, more in ((plain, none), (given, how))
    ]
    assert texts[0] == texts[1]
    null: Any = tool({"a": {"const": None}})  # in a schema null is a value
    one: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    answer = create(model=NAME, messages=MESSAGES, tools=[null], **one)
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.arguments == '{"a": null}'
    own: Any = {"type": "json_schema", "json_schema": {"schema": null["function"]["parameters"]}}
    answer = create(model=NAME, messages=MESSAGES, response_format=own)
    assert answer.choices[0].message.content == '{"a":null}'


def test_every_refusal_is_an_error_of_the_interface(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as tools:
        served.client().chat.completions.create(
            model=NAME, messages=MESSAGES, tools=[TOOLS[0], TOOLS[0]]
        )
    assert tools.value.param == "tools"
    with pytest.raises(openai.NotFoundError, match=r"/v1/embeddings .*/v1/chat/completions"):
        served.client().embeddings.create(model=NAME, input="x")
    huge = {"content": b'{"prompt": "' + b"x" * 5_000_000, "headers": JSON}
    for status, said, how in (
        (400, "not 'example.org'", {"headers": JSON | {"Host": "example.org"}}),
        (413, "larger than 1179648 bytes", huge),
        (413, "larger than 1179648 bytes", huge | {"content": iter([huge["content"]])}),
        (
            415,
            "must be application/json, got none",
            {"content": b"{}", "headers": {"Origin": "https://example.org"}},
        ),
        (
            415,
            "got application/x-www-form-urlencoded",
            {"data": {"a": "b"}, "headers": {"Origin": "https://example.org"}},
        ),
        (400, "more than 100 levels", {"content": DEEP, "headers": JSON}),
    ):
        answer = served.post("/v1/completions", **how)
        assert answer.status_code == status, how
        assert said in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_errors_have_the_clients_own_types(served: Served) -> None:
    client = served.client()
    with pytest.raises(openai.NotFoundError, match=r"'other'.*'demo'"):
        client.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=NAME, prompt=[5] * 2048)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="one prompt"):
        client.completions.create(model=NAME, prompt=["a", "b"])
    assert served.post("/v1/completions", content=b"{", headers={"content-type": "application/json"}
                       ).status_code == 400  # fmt: skip
    assert served.get("/nowhere").status_code == 404


def test_a_client_that_leaves_ends_its_turn(served: Served) -> None:
    client = served.client()
    stream = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
    next(stream)
    assert served.requests == 1
    stream.close()
    until(lambda: served.requests == 0, 3)
    with pytest.raises(openai.APITimeoutError):
        served.client(timeout=0.2).completions.create(model=NAME, prompt=PROMPT, max_tokens=LONG)
    until(lambda: served.requests == 0, 3)


def test_others_are_served_while_a_long_turn_runs(served: Served) -> None:
    client = served.client()
    long = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
    next(long)
    short = client.completions.create(model=NAME, prompt="import", max_tokens=3)
    assert short.choices[0].text
    assert served.requests == 1  # the long one
    long.close()


def test_more_than_may_wait_are_refused_and_a_key_is_wanted(model: Path) -> None:
    options = ("--parallel", "1", "--queue", "1", "--api-key", "secret", "--host", "127.0.0.2")
    with serving(model, *options) as served:
        assert served.get("/health").status_code == 200
        for key in ("", "wrong"):
            with pytest.raises(openai.AuthenticationError, match="API key"):
                served.client(key or "x").models.list()
        assert served.get("/v1/models").status_code == 401
        assert served.get("/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        refused = served.post("/v1/messages", json={}).json()["error"]
        assert refused["type"] == "authentication_error"
        client = served.client("secret")
        running = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
        next(running)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(
                client.completions.create, model=NAME, prompt="a", max_tokens=1
            )
            until(lambda: served.requests == 2)
            with pytest.raises(openai.RateLimitError, match="2 requests"):
                client.completions.create(model=NAME, prompt=PROMPT)
            running.close()
            assert waiting.result().choices[0].finish_reason == "length"


def kill_the_model(served: Served) -> None:
    for child in children_of(served.process.pid):
        os.kill(child, signal.SIGKILL)


def runs(process: int) -> bool:
    """Whether a process exists, and is not a dead one that nobody has asked for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_model_process_that_dies_is_replaced_and_finds_files(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / NAME
    shutil.copytree(model, folder)
    kept = tmp_path / "kept"
    with serving(folder, "--cache-dir", str(kept)) as served:
        create = served.client(timeout=60).completions.create
        create(model=NAME, prompt=[7] * 200, max_tokens=1)
        until(lambda: len([*kept.glob("*.kv")]) == 3)
        stream = create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
        next(stream)
        folder.rename(tmp_path / "away")
        kill_the_model(served)
        with pytest.raises(openai.APIError, match="died"):
            list(stream)
        until(lambda: served.get("/health").status_code == 503)
        with pytest.raises(openai.InternalServerError, match="died"):
            create(model=NAME, prompt=PROMPT)
        (tmp_path / "away").rename(folder)
        until(lambda: served.get("/health").status_code == 200)
        before = metrics(served)["ort_aie_cached_tokens_total"]
        assert create(model=NAME, prompt=[7] * 200, max_tokens=3).choices[0].text
        found = metrics(served)
        assert found["ort_aie_cached_tokens_total"] == before + 200 - LEAST_READ
        pool = {
            name: found[f'ort_aie_prefix_{name}{{model="{NAME}"}}']
            for name in ("blocks", "hit_tokens_total", "miss_tokens_total", "evictions_total")
        }
        assert [*pool.values()] == [3, 200 - LEAST_READ, LEAST_READ, 0]
        held, read, limit = (
            found[f'ort_aie_prefix_{name}{{model="{NAME}"}}']
            for name in ("bytes", "read_bytes_total", "limit_bytes")
        )
        assert 0 < held == read < limit
        assert served.requests == 0


def test_a_server_ends_its_requests_and_its_model_process_quietly(model: Path) -> None:
    with serving(model, "--parallel", "1", "--drain", "0") as served:
        children = children_of(served.process.pid)
        assert children
        create = served.client().completions.create
        stream = create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
        next(stream)
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(create, model=NAME, prompt=PROMPT, max_tokens=LONG)
            until(lambda: served.requests == 2)
            # As a long computation: it takes nothing from its pipe, and does not end by itself.
            os.kill(children[0], signal.SIGSTOP)
            served.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.InternalServerError, match="stopping"):
                waiting.result()
            with pytest.raises(openai.APIError, match="stopping"):
                list(stream)
        _, said = served.process.communicate(timeout=60)
        assert "Traceback" not in said
        assert len(said.splitlines()) <= 2
    assert served.process.returncode == 128 + signal.SIGTERM
    until(lambda: not any(map(runs, children)))


def test_sigterm_lets_running_texts_come_to_their_end(model: Path) -> None:
    with serving(model) as served:
        create = served.client().completions.create
        stream = create(model=NAME, prompt=PROMPT, max_tokens=1500, stream=True)
        next(stream)
        served.process.send_signal(signal.SIGTERM)

        def refused() -> bool:
            with suppress(openai.InternalServerError):
                create(model=NAME, prompt=PROMPT, max_tokens=1)
                return False
            return True

        until(refused, 5)
        assert [piece.choices[0].finish_reason for piece in stream][-1] == "length"
        served.process.communicate(timeout=60)
    assert served.process.returncode == 128 + signal.SIGTERM


def metrics(served: Served) -> dict[str, float]:
    lines = served.get("/metrics").text.splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


@pytest.mark.in_turn
def test_on_an_npu_one_text_is_written_at_a_time(model: Path) -> None:
    """And the server says so when it starts."""
    with serving(model, "--target", "sim", "--parallel", "4") as served:
        assert "an NPU computes it: one text at a time, the others wait" in served.said
        assert metrics(served)["ort_aie_slots"] == 1

        def text(prompt: str) -> int:
            answer = served.client().completions.create(
                model=NAME, prompt=prompt, max_tokens=1, extra_body={"ignore_eos": True}
            )
            assert answer.usage is not None
            return answer.usage.completion_tokens

        with ThreadPoolExecutor(2) as clients:
            assert [*clients.map(text, ("import", "def"))] == [1, 1]


def test_metrics_count_what_was_done(served: Served) -> None:
    until(lambda: served.requests == 0)
    before = metrics(served)
    done = served.client().completions.create(model=NAME, prompt=PROMPT, max_tokens=7)
    assert done.usage is not None
    found = metrics(served)
    for name, count in {
        "ort_aie_completion_tokens_total": 7,
        "ort_aie_prompt_tokens_total": done.usage.prompt_tokens,
        'ort_aie_texts_total{end="length"}': 1,
        "ort_aie_first_token_seconds_count": 1,
    }.items():
        assert found[name] - before.get(name, 0) == count, name
    assert found["ort_aie_slots"] == 4
    assert found["ort_aie_texts_running"] == 0


def test_a_server_that_is_killed_leaves_no_model_process(model: Path) -> None:
    """Which learns it from its pipe, also while it computes."""
    with serving(model) as served:
        children = children_of(served.process.pid)
        create = served.client().completions.create
        stream = create(model=NAME, prompt=PROMPT, max_tokens=LONG, stream=True)
        next(stream)
        served.process.kill()
        served.process.wait()
        until(lambda: not any(map(runs, children)), 20)


HALVES = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
)


def send_half(served: Served, stack: ExitStack, which: int) -> socket.socket:
    address, port = served.url.removeprefix("http://").split(":")
    half = stack.enter_context(socket.create_connection((address, int(port))))
    half.sendall(HALVES[which])
    half.settimeout(60)
    return half


@pytest.mark.in_turn
def test_connections_that_send_half_a_request_lock_nobody_out(model: Path) -> None:
    descriptors = 128
    with serving(model, descriptors=descriptors) as served, ExitStack() as stack:
        for at in range(2 * descriptors):
            send_half(served, stack, at % 2)
        assert (
            served.client(timeout=60).completions.create(model=NAME, prompt=PROMPT).choices[0].text
        )
        served.process.send_signal(signal.SIGINT)
        assert len(served.process.communicate(timeout=60)[1]) < 10_000
        assert served.process.returncode == 128 + signal.SIGINT


@pytest.mark.in_turn
def test_half_a_request_is_given_up(served: Served) -> None:
    with ExitStack() as stack:
        headers, body = (send_half(served, stack, which) for which in range(2))
        with suppress(ConnectionResetError):
            assert headers.recv(1000) == b""
        assert b"408 " in body.recv(1000)


def test_a_logger_says_no_more_than_its_lines_in_a_minute() -> None:
    few = FewLines()
    records = [logging.makeLogRecord({"msg": "x"}) for _ in range(3 * LINES)]
    kept = [record.msg for record in records if few.filter(record)]
    assert len(kept) == LINES
    assert "left out" in kept[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "lets other machines in: add --api-key"),
        (["--api-key", "schlüssel"], "use ASCII"),
        (["--models", "."], "give MODEL, which is then the only one, or --models"),
    ],
)
def test_options_that_cannot_be_say_why(model: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["serve", str(model), *options])
    assert done.exit_code == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--context", "5000"], "a context of 5000 tokens: the model's has 2048"),
        (["--host", "192.0.2.1", "--api-key", "x"], "cannot listen on 192.0.2.1:8000"),
    ],
)
def test_servers_that_cannot_start_say_why(model: Path, options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "ort_aie_ep", "serve", str(model), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize("clients", [8, pytest.param(50, marks=pytest.mark.in_turn)])
def test_clients_at_once_lose_and_mix_up_nothing(model: Path, clients: int) -> None:
    """For a short time; the script runs for as long as one likes."""
    script = Path(__file__).parents[2] / "lab" / "serve_soak.py"
    # Memory grows until genai's cache of grammars is full.
    options = ("--clients", str(clients), "--seconds", "2", "--growth", "60", "--threads", "1")
    done = subprocess.run(
        [sys.executable, script, model, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", faults 0\n" in done.stdout


def test_a_server_that_is_interrupted_while_it_opens_ends_with_its_model_process(
    model: Path,
) -> None:
    command = [sys.executable, "-m", "ort_aie_ep", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(with_default_signals(*command), stderr=subprocess.PIPE)

    until(lambda: bool(children_of(process.pid)))
    (child,) = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    until(lambda: not runs(child))
