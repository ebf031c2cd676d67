"""Many clients at once on `ort-aie serve`: nothing lost, nothing mixed up, memory flat.

    pip install '.[serve]' openai
    python lab/serve_soak.py COMPILED --clients 50 --seconds 120

Each client is OpenAI's own, and asks again as soon as it has its answer, for one of:

* a completion, streamed or not, whose text is known: the model wrote it before, alone;
* a completion that it leaves after a few pieces;
* an answer by a JSON schema that contains the client's number and the request's, and nothing else.

It prints what was asked, answered, lost and mixed up, requests per second, and the memory of the
server and of its model's process over time. It exits with 1 if anything was lost or mixed up, or if
memory grew by more than --growth MB after the first third of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import openai

PROMPTS = ("def main(argv):", "import os", "class Test", "for line in", "# The", "if not", "x = [")
TOKENS = 24


class Soak:
    """The clients, and what they saw."""

    def __init__(self, url: str, model: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120)
        self.model = model
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.known: dict[str, set[str]] = {}

    async def learn(self) -> None:
        """Each prompt's text, on a new cache and on one that has read the prompt."""
        for prompt in PROMPTS:
            self.known[prompt] = {await self._whole(prompt) for _ in range(2)}

    async def _whole(self, prompt: str) -> str:
        answer = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=TOKENS, temperature=0
        )
        return answer.choices[0].text

    async def _streamed(self, prompt: str, leave_after: int | None = None) -> str:
        stream = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
        )
        text, ended = "", False
        async for piece in stream:
            text += piece.choices[0].text
            ended = piece.choices[0].finish_reason is not None
            if leave_after is not None and (leave_after := leave_after - 1) < 0:
                await stream.close()
                return text
        if not ended:
            self.faults.append(f"lost: the stream of {prompt!r} broke off after {text!r}")
        return text

    async def _numbered(self, client: int, request: int) -> None:
        own = {"client": client, "request": request}
        schema = {
            "type": "object",
            "properties": {name: {"const": value} for name, value in own.items()},
            "required": list(own),
            "additionalProperties": False,
        }
        answer = await self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": f"{client} {request}"}],
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )
        found = json.loads(answer.choices[0].message.content or "")
        if found != own:
            self.faults.append(f"mixed up: client {client}, request {request}, was told {found}")

    async def ask(self, client: int, end: float) -> None:
        """One client, until `end` (of time.monotonic)."""
        chance = random.Random(client)
        for request in itertools.count():
            if time.monotonic() > end:
                return
            prompt = chance.choice(PROMPTS)
            kind = chance.choice(("whole", "streamed", "left", "schema"))
            self.counts["asked"] += 1
            try:
                if kind == "schema":
                    await self._numbered(client, request)
                else:
                    leave = chance.randrange(4) if kind == "left" else None
                    text = await (
                        self._whole(prompt) if kind == "whole" else self._streamed(prompt, leave)
                    )
                    known = self.known[prompt]
                    if kind == "left":
                        right = any(one.startswith(text) for one in known)
                    else:
                        right = text in known
                    if not right:
                        self.faults.append(f"mixed up: {prompt!r} was continued by {text!r}")
                self.counts[kind] += 1
            except (openai.OpenAIError, ValueError) as error:
                self.faults.append(f"lost: {kind} {prompt!r}: {error!r}")


def memory(pid: int) -> list[float]:
    """Resident memory of a process and of the largest of its children, MB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def resident(one: str) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{one}/status").read_text())
        return int(found[1]) / 1000 if found else 0.0

    return [resident(str(pid)), max(map(resident, children))]


async def _run(arguments: argparse.Namespace, url: str, pid: int) -> int:
    soak = Soak(url, Path(arguments.model).resolve().name)
    await soak.learn()
    start = time.monotonic()
    end = start + arguments.seconds
    clients = [asyncio.create_task(soak.ask(i, end)) for i in range(arguments.clients)]
    samples: list[list[float]] = []
    print("seconds  answered  server MB  model MB")
    for step in range(1, 13):
        await asyncio.sleep(max(0.0, start + arguments.seconds * step / 12 - time.monotonic()))
        samples.append(memory(pid))
        answered = sum(soak.counts.values()) - soak.counts["asked"]
        seconds = time.monotonic() - start
        print(f"{seconds:7.1f}  {answered:8}  {samples[-1][0]:9.1f}  {samples[-1][1]:8.1f}")
    await asyncio.gather(*clients)
    asked = soak.counts.pop("asked")
    answered = sum(soak.counts.values())
    growth = [max(late) - late[0] for late in zip(*samples[3:], strict=True)]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.counts.items()))
    print(f"asked {asked}, answered {answered} ({kinds}), faults {len(soak.faults)}")
    print(f"{answered / (time.monotonic() - start):.1f} requests per second")
    print(f"growth after a third of the time: {growth[0]:.1f} and {growth[1]:.1f} MB")
    for fault in soak.faults[:10]:
        print(fault)
    return int(bool(soak.faults) or answered != asked or max(growth) > arguments.growth)


def main() -> int:
    """Starts a server and its clients: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="compiled folder with a chat template")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--growth", type=float, default=16, help="MB that memory may grow by")
    arguments, options = parser.parse_known_args()
    command = [
        sys.executable,
        "-m",
        "ort_aie_ep",
        "serve",
        arguments.model,
        "--port",
        "0",
        *options,
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        found = None
        while found is None:
            line = server.stderr.readline()
            if not line:
                return 1
            found = re.search(r"(http://\S+/v1)$", line)
        return asyncio.run(_run(arguments, found[1], server.pid))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
