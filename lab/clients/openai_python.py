"""`openai` for Python: python openai_python.py URL MODEL CHECK."""

from __future__ import annotations

import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel


class Look(BaseModel):
    """What is on one side."""

    side: Literal["left", "right"]


class Wall(BaseModel):
    """An answer."""

    side: Literal["left", "right"]
    far: bool


url, model, check = sys.argv[1:]
completions = openai.OpenAI(base_url=url, api_key="unused", max_retries=0).chat.completions
messages: list[Any] = [{"role": "user", "content": "Which wall is far?"}]


def ask(**how: Any) -> Any:
    """The model's message."""
    how |= {"model": model, "messages": messages, "max_completion_tokens": 60, "temperature": 0}
    how["tools"] = [openai.pydantic_function_tool(Look, name="look")]
    if check == "streamed":
        with completions.stream(**how) as stream:
            return stream.get_final_completion().choices[0].message
    if check == "typed":
        return completions.parse(**how, response_format=Wall).choices[0].message
    return completions.create(**how).choices[0].message


asked = ask(tool_choice="required", parallel_tool_calls=False)
(call,) = asked.tool_calls
assert call.function.name == "look"
side = Look.model_validate_json(call.function.arguments).side
messages += [asked, {"role": "tool", "tool_call_id": call.id, "content": f"a wall on the {side}"}]
# The package takes a stream that ends at max_completion_tokens for a fault.
answer = ask(tool_choice="none", stop=" ")
assert answer.content
assert check != "typed" or isinstance(answer.parsed, Wall)
