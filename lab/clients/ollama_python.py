"""`ollama` for Python: python ollama_python.py URL MODEL CHECK."""

from __future__ import annotations

import sys
from typing import Any, Literal

import ollama
from pydantic import BaseModel, ConfigDict


class Wall(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")
    side: Literal["left", "right"]
    far: bool


def look(side: str) -> str:
    """What is on one side."""
    return f"a wall on the {side}"


url, name, check = sys.argv[1:]
client = ollama.Client(url.removesuffix("/v1"))
assert name in [one.model for one in client.list().models]
assert "tools" in (client.show(name).capabilities or ())
call: Any = {"function": {"name": "look", "arguments": {"side": "left"}}}
how: dict[str, Any] = {
    "model": name, "tools": [look], "options": {"temperature": 0, "num_predict": 60},
    "messages": [
        {"role": "user", "content": "Which wall is far?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "look", "content": look("left")},
    ],
}  # fmt: skip
if check == "streamed":
    answer = "".join(part.message.content or "" for part in client.chat(**how, stream=True))
elif check == "typed":
    typed = how | {"tools": None, "format": Wall.model_json_schema()}
    answer = client.chat(**typed).message.content or ""
    Wall.model_validate_json(answer)
else:
    answer = client.chat(**how).message.content or ""
assert answer
assert [one.model for one in client.ps().models] == [name]
