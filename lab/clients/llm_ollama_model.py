"""`llm` with `llm-ollama`: python llm_ollama_model.py URL MODEL CHECK."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Literal

# Read when the package is imported.
os.environ["OLLAMA_HOST"] = sys.argv[1].removesuffix("/v1")
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()
import llm
from pydantic import BaseModel, ConfigDict


class Wall(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")
    side: Literal["left", "right"]
    far: bool


def look(side: str) -> str:
    """What is on one side."""
    return f"a wall on the {side}"


_, name, check = sys.argv[1:]
model = llm.get_model(f"ollama/{name}")
assert model.supports_tools
talk = model.conversation()
for text in ("Which wall is far?", "And which one is near?"):
    answer = talk.prompt(
        text, stream=check == "streamed", temperature=0, num_predict=60,
        tools=[] if check == "typed" else [look], schema=Wall if check == "typed" else None,
    )  # fmt: skip
    assert answer.text()
    assert answer.usage().input
    if check == "typed":
        Wall.model_validate_json(answer.text())
