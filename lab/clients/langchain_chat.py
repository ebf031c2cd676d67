"""`langchain-openai`: python langchain_chat.py URL MODEL CHECK."""

from __future__ import annotations

import sys
from functools import reduce
from operator import add
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Wall(BaseModel):
    """An answer."""

    side: Literal["left", "right"]
    far: bool


@tool
def look(side: Literal["left", "right"]) -> str:
    """What is on one side."""
    return f"a wall on the {side}"


url, name, check = sys.argv[1:]
model: Any = ChatOpenAI(
    base_url=url, api_key="unused", model=name, temperature=0, max_tokens=60, max_retries=0
)
messages: list[Any] = [HumanMessage("Which wall is far?")]


def ask(choice: str) -> Any:
    """The model's message."""
    how = {"tool_choice": choice, "parallel_tool_calls": False, "strict": True}
    if check == "typed":
        how["response_format"] = Wall
    bound = model.bind_tools([look], **how)
    return reduce(add, bound.stream(messages)) if check == "streamed" else bound.invoke(messages)


asked = ask("look")
(call,) = asked.tool_calls
result = look.invoke(call)
assert isinstance(result, ToolMessage)
messages += [asked, result]
answer = ask("none")
assert answer.text
assert check != "typed" or isinstance(answer.additional_kwargs["parsed"], Wall)
