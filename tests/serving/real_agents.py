"""Coding agents, unmodified: each runs a command, is told what it printed, and goes on.

They come from npm and PyPI, at stated versions, into .cache/agents. The server is `ort-aie serve`
with nothing but a model, which writes what is scripted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coding_agents import AGENTS, URL, Agent
from scripted_model import ENDLESS, SECOND, make_scripted
from servers import NAME, Served, serving

import ort_aie_ep

INSTALLED = Path(__file__).parents[2] / ".cache" / "agents"
# What a request of the same conversation reads again, at most.
READ_AGAIN = 64
# What is no part of what is tried.
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
# Seconds in which a client's end ends its text.
DROPPED, LOOKS = 0.5, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripted")
    ort_aie_ep.compile(make_scripted(folder / "source"), folder / NAME)
    return folder / NAME


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    with serving(model) as served:
        yield served


@pytest.fixture(scope="module")
def cutting(model: Path) -> Iterator[Served]:
    """A server that cuts long answers."""
    with serving(model, "--max-tokens", "40") as served:
        yield served


def installed(agent: Agent) -> str:
    """The folder of its commands."""
    folder = INSTALLED / re.sub(r"\W+", "-", " ".join(agent.packages)).strip("-")
    python = "==" in agent.packages[0]
    commands = folder / ("bin" if python else "node_modules/.bin")
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        install: tuple[str | Path, ...] = (
            "npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error",
        )  # fmt: skip
        try:
            if python:
                subprocess.run([sys.executable, "-m", "venv", folder], check=True)
                install = (commands / "python", "-m", "pip", "install", "-q")
            subprocess.run([*install, *agent.packages], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"not run: {agent.packages[0]} cannot be installed: {error}")
        (folder / "ready").touch()
    return str(commands)


class Home:
    """A home folder of an agent, for one server."""

    def __init__(self, agent: Agent, served: Served, folder: Path) -> None:
        self._agent, self._url, self._folder = agent, served.url, folder
        (folder / "work").mkdir()
        for name, text in agent.settings.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(self._filled(text))
        kept = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
        given = {name: self._filled(value) for name, value in agent.environment.items()}
        path = f"{installed(agent)}:{os.environ['PATH']}"
        self._environment = {**kept, **QUIET, "HOME": str(folder), "PATH": path, **given}
        if agent.prepare:
            self.run(agent.prepare)

    def _filled(self, text: str) -> str:
        return re.sub(r"\bNAME\b", NAME, text.replace(URL, self._url))

    def start(self, command: tuple[str, ...], *text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*map(self._filled, command), *text], cwd=self._folder / "work", env=self._environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def run(self, command: tuple[str, ...], *text: str) -> str:
        """What it prints."""
        with self.start(command, *text) as process:
            try:
                return process.communicate(timeout=240)[0]
            finally:
                self.kill()

    def kill(self) -> None:
        """Ends all of its processes, also those that it left behind."""
        mark = f"HOME={self._folder}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:  # has ended, or is another user's
                continue


def counted(served: Served) -> Counter[str]:
    """What the server has counted."""
    found = re.findall(r"^ort_aie_(\w+(?:\{.*\})?) ([\d.]+)$", served.get("/metrics").text, re.M)
    return Counter({name: int(float(value)) for name, value in found})


def prompts(new: Counter[str]) -> tuple[int, int, int]:
    """Prompts that were counted: how many, their tokens, and how many of these a cache had, or
    could not have."""
    texts = sum(count for name, count in new.items() if name.startswith("texts_total"))
    cached = new["cached_tokens_total"] + READ_AGAIN * texts
    return texts, new["prompt_tokens_total"], cached


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name.replace(" ", "-"))
class TestAgent:
    def test_it_calls_and_goes_on(self, agent: Agent, served: Served, tmp_path: Path) -> None:
        home = Home(agent, served, tmp_path)
        start = counted(served)
        said = home.run(agent.begin, agent.text)
        assert agent.told in said
        called = counted(served)
        assert (called - start)['texts_total{end="tool_calls"}'] >= (agent.call is not None)
        texts, tokens, cached = prompts(called - start)
        if agent.call:  # the second of two prompts begins with the first
            assert cached > 0.4 * tokens
        said = home.run(agent.go_on or agent.begin, SECOND if agent.go_on else agent.text)
        assert ("A second turn." if agent.go_on else agent.told) in said
        # Some clients ask for a title or a summary too, by another prompt. The one without tools,
        # aider, puts the conversation before other texts.
        again = 0.8 if agent.call else 0.5
        assert prompts(counted(served) - called)[2] > again * tokens / texts

    def test_its_end_ends_its_text(self, agent: Agent, served: Served, tmp_path: Path) -> None:
        home = Home(agent, served, tmp_path)
        name = "first_token_seconds_count"
        before, end = counted(served)[name], time.monotonic() + 120
        process = home.start(agent.begin, ENDLESS)
        try:
            while counted(served)[name] == before:
                assert time.monotonic() < end
                time.sleep(0.1)
            assert counted(served)["texts_running"] > 0
        finally:
            home.kill()
            process.communicate()
        running = []
        for _ in range(LOOKS):  # a busy machine delays looks too
            time.sleep(DROPPED / LOOKS)
            running.append(counted(served)["texts_running"])
        assert running[-1] == 0


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.go_on], ids=lambda a: a.name)
def test_a_cut_turn_is_taken_back(agent: Agent, cutting: Served, tmp_path: Path) -> None:
    home = Home(agent, cutting, tmp_path)
    name = 'texts_total{end="length"}'
    before = counted(cutting)[name]
    home.run(agent.begin, ENDLESS)
    assert counted(cutting)[name] > before
    assert "A second turn." in home.run(agent.go_on, SECOND)
