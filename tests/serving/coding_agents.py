"""The programs that `real_agents.py` runs, and what docs/agents.md says to set for each.

In settings, variables and commands, URL is the server's address, and NAME the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

URL = "http://127.0.0.1:8000"
# What the call of a tool that runs commands is to print, which its arguments do not say.
PRINTED, COMMAND = "hello-42", "echo hello-$((40+2))"
# What asks for a file, in place of a call.
FILE = "Write the file hello.txt"


@dataclass(frozen=True)
class Agent:
    """A program without a screen.

    Attributes:
        packages: of npm as `NAME@VERSION`, or of PyPI as `NAME==VERSION`; the first is the program.
        begin: the command that begins a conversation with the text that follows.
        go_on: the command that continues it; empty if it only does that on a screen.
        settings: files below the home folder.
        environment: variables.
        call: its tool, and the arguments.
        text, told: what it is asked, and what it then prints.
        prepare: a command that writes settings.
    """

    name: str
    packages: tuple[str, ...]
    begin: tuple[str, ...]
    go_on: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    call: tuple[str, Mapping[str, object]] | None = None
    text: str = "Say hello"
    told: str = f"It printed: {PRINTED}"
    prepare: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return self.packages[0].rpartition("@" if "@" in self.packages[0] else "=")[2]


_CODEX = """model = "NAME"
model_provider = "aie"
[model_providers.aie]
name = "aie"
base_url = "http://127.0.0.1:8000/v1"
env_key = "AIE_KEY"
wire_api = "responses"
"""
_OPENCODE = """{
  "provider": {"aie": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "http://127.0.0.1:8000/v1", "apiKey": "unused"},
    "models": {"NAME": {"limit": {"context": 65536, "output": 8192}}}
  }},
  "model": "aie/NAME",
  "small_model": "aie/NAME"
}
"""
_PI = """{"providers": {"aie": {
  "baseUrl": "http://127.0.0.1:8000/v1", "api": "openai-completions", "apiKey": "unused",
  "models": [{"id": "NAME"}]
}}}
"""
_CONTINUE = """name: local
version: 1.0.0
schema: v1
models:
  - {name: NAME, provider: openai, model: NAME, apiBase: http://127.0.0.1:8000/v1, apiKey: unused,
     roles: [chat], capabilities: [tool_use]}
"""
_LLM = """- {model_id: NAME, model_name: NAME, supports_tools: true, api_base: "http://127.0.0.1:8000/v1"}
"""
_OPENAI_AGENTS = '''import asyncio, subprocess, sys
import agents

agents.set_tracing_disabled(True)

@agents.function_tool
def run(command: str) -> str:
    """Runs a command."""
    return subprocess.check_output(command, shell=True, text=True)

async def main(text: str) -> None:
    agent = agents.Agent("Agent", instructions="Use the tool.", tools=[run], model="NAME")
    kept = agents.SQLiteSession("one", "sessions.db")
    print((await agents.Runner.run(agent, text, session=kept)).final_output)

asyncio.run(main(sys.argv[1]))
'''
_OPENAI = {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "unused"}
_RUN = """import subprocess
def run(command: str) -> str:
    return subprocess.getoutput(command)
"""
_BASH = {"command": COMMAND, "description": "Say hello"}
_EXEC = ("codex", "exec")
_ALL = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_QWEN = ("qwen", "--auth-type", "openai", "-m", "NAME", "--yolo")
_PI_MODEL = ("pi", "--provider", "aie", "--model", "NAME", "--offline", "-p")
_LLM_MODEL = ("llm", "-m", "NAME", "--functions", _RUN)
_AIDER = (
    "aider", "--model", "openai/NAME", "--openai-api-base", f"{URL}/v1", "--edit-format", "whole",
    "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update", "--no-pretty",
    "--analytics-disable",
)  # fmt: skip
AGENTS = (
    Agent(
        "Codex", ("@openai/codex@0.171.0",), (*_EXEC, *_ALL), (*_EXEC, *_ALL, "resume", "--last"),
        {".codex/config.toml": _CODEX}, {"AIE_KEY": "unused"},
        ("exec_command", {"cmd": COMMAND}),
    ),
    Agent(
        "Claude Code", ("@anthropic-ai/claude-code@2.1.197",),
        ("claude", "--allowedTools=Bash", "-p"), ("claude", "-c", "-p"),
        environment={
            "ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": "unused", "ANTHROPIC_MODEL": "NAME",
        },
        call=("Bash", _BASH),
    ),
    Agent(
        "opencode", ("opencode-ai@1.18.33",), ("opencode", "run"), ("opencode", "run", "-c"),
        {".config/opencode/opencode.json": _OPENCODE}, call=("bash", _BASH),
    ),
    Agent(
        "Qwen Code", ("@qwen-code/qwen-code@0.24.4", "node@24"), _QWEN, (*_QWEN, "-c"),
        environment=_OPENAI,
        call=("run_shell_command", {"command": COMMAND, "is_background": False}),
    ),
    Agent(
        "Cline", ("cline@3.0.65",), ("cline",),
        prepare=(
            "cline", "auth", "-p", "openai-compatible", "-k", "unused", "-m", "NAME",
            "-b", f"{URL}/v1",
        ),
        call=("run_commands", {"commands": [COMMAND]}),
    ),
    Agent(
        "pi", ("@mariozechner/pi-coding-agent@0.73.1", "node@24"), _PI_MODEL, (*_PI_MODEL, "-c"),
        {".pi/agent/models.json": _PI}, call=("bash", _BASH),
    ),
    Agent(
        "Continue", ("@continuedev/cli@1.5.47", "node@24"), ("cn", "--auto", "-p"),
        ("cn", "--auto", "--resume", "-p"), {".continue/config.yaml": _CONTINUE},
        call=("Bash", _BASH),
    ),
    Agent(
        "aider", ("aider-chat==0.86.2",), (*_AIDER, "--message"),
        (*_AIDER, "--restore-chat-history", "--message"), environment={"OPENAI_API_KEY": "unused"},
        text=FILE, told="Applied edit to hello.txt",
    ),
    Agent(
        "OpenAI Agents SDK", ("openai-agents==0.24.0",), ("python", "agent.py"),
        ("python", "agent.py"), {"work/agent.py": _OPENAI_AGENTS}, _OPENAI,
        ("run", {"command": COMMAND}),
    ),
    Agent(
        "smolagents", ("smolagents[openai]==1.26.0",),
        ("smolagent", "--action-type", "tool_calling", "--tools", "python_interpreter",
         "--model-type", "OpenAIModel", "--model-id", "NAME", "--api-base", f"{URL}/v1",
         "--api-key", "unused"),
        call=("python_interpreter", {"code": "print(f'hello-{40+2}')"}),
    ),
    Agent(
        "llm", ("llm==0.36",), _LLM_MODEL, (*_LLM_MODEL, "-c"),
        {".config/io.datasette.llm/extra-openai-models.yaml": _LLM},
        call=("run", {"command": COMMAND}),
    ),
)  # fmt: skip
