"""`litellm` with one of its providers: python litellm_sdk.py PROVIDER URL MODEL CHECK."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it downloads a list of prices
import litellm
from pydantic import BaseModel


class Wall(BaseModel):
    """An answer."""

    side: Literal["left", "right"]
    far: bool


SIDES = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}},
    "required": ["side"],
    "additionalProperties": False,
}
LOOK = {"name": "look", "description": "What is on one side.", "parameters": SIDES}
provider, url, name, check = sys.argv[1:]
messages: list[Any] = [{"role": "user", "content": "Which wall is far?"}]


def ask(choice: str) -> Any:
    """The model's message."""
    how: dict[str, Any] = {
        "model": f"{provider}/{name}", "api_base": url, "api_key": "unused", "messages": messages,
        "tools": [{"type": "function", "function": LOOK}], "temperature": 0, "max_tokens": 60,
        "num_retries": 0,
    }  # fmt: skip
    if provider == "openai":
        how |= {"tool_choice": choice, "parallel_tool_calls": False}
    else:  # without a choice, the model calls the tool beside a format
        how |= {"api_base": url.removesuffix("/v1"), "response_format": Wall}
        if choice == "none":
            del how["tools"]
    if check == "streamed":
        chunks = [*litellm.completion(**how, stream=True)]
        return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    if check == "typed":
        how["response_format"] = Wall
    return litellm.completion(**how).choices[0].message


asked = ask("required")
(call,) = asked.tool_calls
assert call.function.name == "look"
side = json.loads(call.function.arguments)["side"]
messages += [asked, {"role": "tool", "tool_call_id": call.id, "content": f"a wall on the {side}"}]
answer = ask("none")
assert answer.content
if check == "typed":
    Wall.model_validate_json(answer.content)
