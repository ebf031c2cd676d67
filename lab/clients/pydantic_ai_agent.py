"""`pydantic-ai`: python pydantic_ai_agent.py URL MODEL CHECK."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Wall(BaseModel):
    """An answer."""

    side: Literal["left", "right"]
    far: bool


class CallFirst(AbstractCapability[Any]):
    """The first step calls, and the second one answers."""

    def get_model_settings(self) -> Any:
        """Settings for a step."""
        return lambda context: {"tool_choice": "required" if context.run_step == 1 else "none"}


async def main(url: str, name: str, check: str) -> None:
    """Runs the agent."""
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=url, api_key="unused"))
    agent: Agent[None, Any] = Agent(
        model,
        output_type=NativeOutput(Wall) if check == "typed" else str,
        capabilities=[CallFirst()],
        model_settings={"temperature": 0, "max_tokens": 60, "parallel_tool_calls": False},
    )
    looked = []

    @agent.tool_plain
    def look(side: Literal["left", "right"]) -> str:
        """What is on one side."""
        looked.append(side)
        return f"a wall on the {side}"

    question = "Which wall is far?"
    if check == "streamed":
        async with agent.run_stream(question) as stream:
            answer = "".join([piece async for piece in stream.stream_text(delta=True)])
    else:
        answer = (await agent.run(question)).output
    assert len(looked) == 1
    assert isinstance(answer, Wall) if check == "typed" else answer


asyncio.run(main(*sys.argv[1:]))
