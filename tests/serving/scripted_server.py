"""The server with a model that writes what is scripted: a call of the tool that runs commands, and
then the last word that this printed.

    python scripted_server.py PORT FOLDER LOG

FOLDER has a model, for its tokenizer and chat template; LOG gets the usage of each turn, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.loop import Event, Loop, Text
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.turns import Sampling, Turn, Usage
from ort_aie_ep.serving.app import LOOPBACK, Server, create_app
from ort_aie_ep.serving.engine import Engine
from ort_aie_ep.serving.metrics import Metrics

CONTEXT = 2**17
# The tools of Codex and of Claude Code that run a command, with arguments.
RUN: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": "echo hello-$((40+2))"},
    "Bash": {"command": "echo hello-$((40+2))", "description": "Say hello"},
}


class Slots:
    """Slots whose logits prefer what the script has after the tokens that they hold."""

    together, every_row, rewinds, undoes, hidden, note = True, False, True, True, None, ""
    context, token_bytes, count = CONTEXT, 0, 2

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.scripts: list[tuple[list[int], list[int]]] = []
        self._held: list[list[int]] = [[], []]

    def run(self, tokens: Any, before: Any, first: int, wanted: int = 0) -> Any:
        logits = np.zeros((len(tokens), 1, self.vocabulary), np.float32)
        for row, start in enumerate(before):
            held = self._held[first + row]
            held[int(start) :] = tokens[row].tolist()
            for prompt, answer in reversed(self.scripts):
                at = len(held) - len(prompt)
                if held[: len(prompt)] == prompt and at < len(answer):
                    logits[row, 0, answer[at]] = 20
                    break
        return logits

    def keep(self, slot: int, length: int, held: int) -> int:
        del self._held[slot][length:]
        return length

    def copy(self, source: int, target: int, length: int) -> int:
        self._held[target] = self._held[source][:length]
        return length

    def swap(self, one: int, other: int, held: int) -> None:
        self._held[one], self._held[other] = self._held[other], self._held[one]


class Scripted(Loop):
    """A loop whose turns are scripted when they are asked for, and logged when they end."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._prompts, self._log = Prompts(find_model(folder)), log
        self._script = Slots(self._prompts.vocabulary)
        asking = Asking(self._prompts, self._prompts.vocabulary)
        super().__init__(self._script, asking, CONTEXT, Sampling())

    def add(self, turn: Turn) -> Text:
        text = super().add(turn)
        names = [tool["function"]["name"] for tool in turn.tools]
        last = turn.messages[-1]
        (tool,) = [*RUN.keys() & names] or [""]
        if last["role"] == "tool":
            answer = f"It printed: {last['content'].split()[-1]}"
        elif tool and "second" not in json.dumps(turn.messages):
            call = json.dumps({"name": tool, "arguments": RUN[tool]})
            answer = f"I look.\n<tool_call>\n{call}\n</tool_call>"
        else:
            answer = '{"title": "Hello"}' if turn.schema else "A second turn."
        tokens = self._prompts._tokenizer.encode(answer, add_special_tokens=False).ids
        self._script.scripts.append((list(text.tokens), [*tokens, min(self._prompts.ends)]))
        return text

    def step(self) -> list[tuple[Text, Event]]:
        events = super().step()
        with self._log.open("a") as log:
            for _, event in events:
                if isinstance(event, Usage):
                    print(json.dumps(vars(event)), file=log)
        return events


def main() -> None:
    port, folder, log = sys.argv[1:]
    with Engine(partial(Scripted, Path(folder), Path(log))) as engine:
        server = Server(engine, "demo", None, None, int(time.time()), Metrics())
        uvicorn.run(create_app(server, LOOPBACK), port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
