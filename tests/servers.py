"""Servers for tests: `ort-aie serve` in a process, and clients of OpenAI's package."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from background import with_default_signals

import ort_aie_ep

DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
# Names the speaker, so that a prompt of several turns contains them all; tools as Qwen's have it.
TEMPLATE = (
    "{% if tools %}# tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    'Answer <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>\n{% endif %}'
    "{% for m in messages %}# {{ m.role }}\n{{ m.content }}\n"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>\n"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}# assistant\n{% endif %}"
)
NAME = "demo"


def make_source(folder: Path, template: str = TEMPLATE) -> Path:
    """The demonstration model with a chat template."""
    source = folder / "source"
    shutil.copytree(DEMO, source)
    settings = source / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    return source


def make_model(folder: Path) -> Path:
    """The same, compiled."""
    ort_aie_ep.compile(make_source(folder), folder / NAME)
    return folder / NAME


@dataclass
class Served:
    """A running server, and what it said on stderr until it was there."""

    process: subprocess.Popen[str]
    url: str
    said: str

    def client(self, key: str = "unused", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, **options)

    @property
    def requests(self) -> int:
        """How many run or wait."""
        count: int = self.get("/health").json()["requests"]
        return count


def children_of(server: int) -> list[int]:
    """Model processes of a server."""
    tasks = Path(f"/proc/{server}/task").glob("*/children")  # a thread's are its own
    found = [int(one) for task in tasks for one in task.read_text().split()]
    return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


@contextmanager
def serving(model: Path | None, *options: str, descriptors: int | None = None) -> Iterator[Served]:
    """A server on a free port, ended by SIGINT as a user would end it; of all models if `model` is
    None.

    With `descriptors`, it may have so many open.
    """
    limit = [str(shutil.which("prlimit")), f"--nofile={descriptors}"] if descriptors else []
    command = [*limit, sys.executable, "-m", "ort_aie_ep", "serve", "--port", "0"]
    process = subprocess.Popen(
        with_default_signals(
            *command, "--threads", "1", *options, *([str(model)] if model else [])
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        while not (url := re.search(r"(http://\S+)/v1$", said, re.M)):
            line = process.stderr.readline()
            assert line, f"the server has ended: {said}"
            said += line
        yield Served(process, url[1], said)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
