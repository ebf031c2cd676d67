"""Codex and Claude Code, unmodified: each runs a command, is told what it printed, and goes on.

`check_agents.sh` installs them; AGENTS is where their commands are.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import TEMPLATE, make_source

CODEX = """model = "demo"
model_provider = "aie"
[model_providers.aie]
name = "aie"
base_url = "URL/v1"
env_key = "AIE_KEY"
wire_api = "responses"
"""
_EXEC = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
# The first turn of a conversation, and a later one.
COMMANDS = {
    "codex": ((*_EXEC, "Say hello"), (*_EXEC, "resume", "--last", "A second thing")),
    "claude": (
        ("claude", "-p", "Say hello", "--allowedTools", "Bash"),
        ("claude", "-c", "-p", "A second thing"),
    ),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and its log of turns."""
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    program, log = Path(__file__).parent / "scripted_server.py", folder / "turns"
    model = make_source(folder, TEMPLATE)
    process = subprocess.Popen([sys.executable, str(program), str(port), str(model), str(log)])
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.ConnectError:
                assert process.poll() is None
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.2)
        yield url, log
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("agent", COMMANDS)
def test_an_agent_runs_a_command_and_goes_on(
    agent: str, served: tuple[str, Path], tmp_path: Path
) -> None:
    url, log = served
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(CODEX.replace("URL", url))
    (tmp_path / "work").mkdir()
    kept = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
    environment = kept | {
        "HOME": str(tmp_path), "PATH": f"{os.environ['AGENTS']}:{os.environ['PATH']}",
        "AIE_KEY": "unused", "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": "demo", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip
    log.write_text("")
    said = [
        subprocess.run(
            command, cwd=tmp_path / "work", env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120,
        )
        for command in COMMANDS[agent]
    ]  # fmt: skip
    assert [one.returncode for one in said] == [0, 0], said
    assert "It printed: hello-42" in said[0].stdout
    assert "A second turn." in said[1].stdout
    turns: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    calling = [turn["finish_reason"] for turn in turns].index("tool_calls")
    call, result, later = turns[calling], turns[calling + 1], turns[-1]
    # What was read once is in the cache, but for the tokens that a turn reads at least.
    assert result["cached_tokens"] >= call["prompt_tokens"] - 64
    assert later["cached_tokens"] > call["prompt_tokens"] * 0.8
