"""Clients of OpenAI's and ollama's interfaces, as they are published, with `ort-aie serve`.

    pip install '.[serve]' httpx openai      # and npm
    python lab/try_clients.py [CLIENT ...]

Each client has its tool loop: a question, a call, its result, an answer. It does that with whole
answers (loop), with streams (streamed), and with an answer of a type of its own (typed). The model
is the demonstration model with a chat template: its calls and types are held to their schemas. The
first answer must be a call (`tool_choice`), and the second one none. ollama's interface has no
`tool_choice`: there the model calls beside a format, or the client sends an earlier call.

The newest versions are installed into a temporary folder. The result is a table, with the fault in
place of "works"; the program exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from servers import NAME, make_model, serving

PROGRAMS = Path(__file__).parent / "clients"
CHECKS = ("loop", "streamed", "typed")
# `ai` wants a newer node than many machines have.
NPM = (
    "node@24", "openai", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "ollama",
    "ollama-ai-provider-v2", "zod",
)  # fmt: skip


@dataclass(frozen=True)
class Client:
    """A client: its name, its program with options, and the packages that it needs, of which the
    versions are told."""

    name: str
    program: tuple[str, ...]
    packages: tuple[str, ...]


_OPENAI, _COMPATIBLE = "@ai-sdk/openai", "@ai-sdk/openai-compatible"
CLIENTS = (
    Client("openai-python", ("openai_python.py",), ("openai",)),
    Client("pydantic-ai", ("pydantic_ai_agent.py",), ("pydantic-ai-slim[openai]",)),
    Client("langchain-openai", ("langchain_chat.py",), ("langchain-openai",)),
    Client("litellm", ("litellm_sdk.py", "openai"), ("litellm",)),
    Client("openai-npm", ("openai_npm.mjs",), ("openai",)),
    Client("ai-openai", ("vercel_ai.mjs", _OPENAI), ("ai", _OPENAI)),
    Client("ai-compatible", ("vercel_ai.mjs", _COMPATIBLE), ("ai", _COMPATIBLE)),
    Client("ollama-python", ("ollama_python.py",), ("ollama",)),
    Client("litellm-ollama", ("litellm_sdk.py", "ollama_chat"), ("litellm",)),
    Client("llm-ollama", ("llm_ollama_model.py",), ("llm", "llm-ollama")),
    Client("ollama-npm", ("ollama_npm.mjs",), ("ollama",)),
    Client("ai-ollama", ("ai_ollama.mjs",), ("ai", "ollama-ai-provider-v2")),
)


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def make_npm(folder: Path) -> None:
    """Installs the packages of JavaScript."""
    folder.mkdir()
    (folder / "package.json").write_text('{"type": "module"}')
    newest = (one if "@" in one[1:] else f"{one}@latest" for one in NPM)
    run("npm", "install", "--silent", "--no-fund", "--no-audit", *newest, cwd=folder)


def installed(client: Client, work: Path) -> tuple[list[str], list[str]]:
    """The beginning of a command that runs the client, and its versions."""
    program, *options = client.program
    if program.endswith(".mjs"):
        folder = work / "npm"
        if not folder.exists():
            make_npm(folder)
        # A module's imports are looked for beside it.
        shutil.copy(PROGRAMS / program, folder)
        modules = folder / "node_modules"
        versions = [
            str(json.loads((modules / one / "package.json").read_text())["version"])
            for one in client.packages
        ]
        return [str(modules / ".bin" / "node"), str(folder / program), *options], versions
    folder = work / client.name
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *client.packages, cwd=work)
    listed = run(python, "-m", "pip", "list", "--format", "json", cwd=work)
    known = {one["name"]: one["version"] for one in json.loads(listed)}
    versions = [known[one.partition("[")[0]] for one in client.packages]
    return [str(python), str(PROGRAMS / program), *options], versions


def fault(command: list[str], work: Path) -> str:
    """Why a client fails; empty if it does not."""
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return "takes more than 120 s"
    if done.returncode == 0:
        return ""
    print(done.stderr, file=sys.stderr)
    lines = [line for line in done.stderr.splitlines() if "Error" in line]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


def main() -> int:
    """Tries the clients that the command line names, or all: the exit code."""
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CLIENT", help=", ".join(names))
    chosen = parser.parse_args().names or names
    if unknown := {*chosen} - {*names}:
        parser.error(f"unknown client: {', '.join(sorted(unknown))}")
    works = True
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with serving(make_model(work / "model")) as served:
            rows = []
            for client in CLIENTS:
                if client.name not in chosen:
                    continue
                command, versions = installed(client, work)
                faults = [
                    fault([*command, f"{served.url}/v1", NAME, check], work) for check in CHECKS
                ]
                works &= not any(faults)
                told = [f"`{one}` {v}" for one, v in zip(client.packages, versions, strict=True)]
                rows.append((client.name, ", ".join(told), *(one or "works" for one in faults)))
    for row in (("client", "versions", *CHECKS), ("---",) * (2 + len(CHECKS)), *rows):
        print(f"| {' | '.join(row)} |")
    return int(not works)


if __name__ == "__main__":
    sys.exit(main())
