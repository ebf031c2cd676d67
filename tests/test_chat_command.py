"""`ort-aie chat`, with the lines of a pipe and in a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from background import with_default_signals
from rich.console import Console
from servers import DEMO, make_source
from typer.testing import CliRunner

from ort_aie_ep import requirements
from ort_aie_ep.cli import app, console
from ort_aie_ep.cli.answer import Answer, Typed, finished
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running.conversation import Conversation
from ort_aie_ep.running.loop import open_loop
from ort_aie_ep.runtime.sessions import Options


def chat(model: Path, lines: str, *words: str) -> Any:
    return CliRunner().invoke(app, ["chat", str(model), "--threads", "1", *words], input=lines)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_source(tmp_path_factory.mktemp("chat"))


def test_each_line_of_a_pipe_is_a_turn(model: Path, tmp_path: Path) -> None:
    lines = f"import os\n\n/system Be brief.\n/usr/bin is what?\r\n/save {tmp_path}/saved.json\n"
    done = chat(model, lines, "--max-tokens", "9")
    assert done.exit_code == 0, done.output
    conversation = Conversation(open_loop(find_model(model), Options(threads=1)), max_tokens=9)
    answers = ["".join(d.content for d in conversation.say("import os"))]
    conversation.system("Be brief.")
    answers.append("".join(d.content for d in conversation.say("/usr/bin is what?")))
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)
    assert len(re.findall("answer: 9 tokens", done.stderr)) == 2
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved == {"messages": conversation.messages}


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("import os\n/sytsem Be brief.\n", ["/sytsem", "/system TEXT", "/clear"]),
        ("/load nowhere.json\n", ["nowhere.json"]),
        ("/save ~nobody-here/talk.json\n", ["~nobody-here/talk.json"]),
        ("import os " * 99 + "\n", ["/clear", "--context"]),
    ],
    ids=["command", "file", "home", "context"],
)
def test_a_line_that_cannot_be_is_named(model: Path, lines: str, named: list[str]) -> None:
    done = chat(model, lines, "--max-tokens", "2", "--context", "64")
    assert done.exit_code == 1
    assert all(word in done.stderr.rpartition("error: ")[2] for word in named), done.stderr


def test_what_a_conversation_needs_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no chat template" in chat(DEMO, "").stderr
    monkeypatch.setattr(requirements, "_found", lambda module: module != "prompt_toolkit")
    assert "'prompt_toolkit>=" in chat(model, "").stderr


def test_thoughts_are_not_in_a_pipe(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}{% if true %}<think>\n{% endif %}{# </think> #}"
    assert chat(make_source(tmp_path, template), "import os\n", "--max-tokens", "5").stdout == "\n"


def test_a_models_text_cannot_control_a_terminal() -> None:
    shown = "[red]a\tb\n\ufffd]52;c;eA==\ufffd\ufffd2J\ufffd"
    assert console.visible("[red]a\tb\n\x1b]52;c;eA==\x07\x9b2J\r") == shown


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = os.openpty()
        environment = os.environ | {
            "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(folder),
            "ORT_AIE_ISA": "portable",  # slow enough to be stopped
        }  # fmt: skip
        self.process = subprocess.Popen(
            with_default_signals(sys.executable, "-m", "ort_aie_ep", *words),
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self._read = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, pattern: str) -> str:
        """What was shown since the last call, up to a pattern."""
        end = time.monotonic() + 60
        while not (found := re.search(pattern, self._read)):
            assert select.select([self._ours], [], [], end - time.monotonic())[0], self._read
            self._read += os.read(self._ours, 65536).decode(errors="replace")
        shown, self._read = self._read[: found.end()], self._read[found.end() :]
        return shown

    def prompted(self) -> None:
        """Waits for a new prompt, which asks for marks around what is pasted."""
        self.until(r"\x1b\[\?2004h[\s\S]*?>")

    def close(self) -> int:
        os.close(self._ours)
        return self.process.wait(60)


def test_markdown_is_drawn_as_it_comes_and_html_stays() -> None:
    text = "# Head\n\nSome **words**,\n<b>a</b> line.\n\n```\nfor x:\n\n    y\n```\n1. one\n"
    ends = [finished(text[:end]) for end in range(len(text))]
    assert sorted(set(ends)) == [0, text.index("Some"), text.index("```")]
    shown = io.StringIO()
    with Answer(Console(file=shown, width=40, force_terminal=False)) as answer:
        answer.add("a thought", thought=True)
        for piece in text:
            answer.add(piece, thought=False)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    assert lines[0] == "a thought"
    assert "<b>a</b> line." in lines
    assert "Some words," in lines
    assert any(line.strip() == "y" for line in lines)


def test_keys_while_an_answer_comes_wait_without_their_escapes() -> None:
    typed = Typed()
    typed.add(b"\x1b[200~two\rlines\x1b[201~\x1b[A\x1bOB\x07!\r")
    assert typed.take() == "two\nlines!"
    assert typed.take() == ""


def test_words_that_other_programs_have_work(model: Path) -> None:
    lines = '/set parameter temperature 0\n"""import\nos"""\n/set\n/clear\n/stats\n/exit\nnever\n'
    done = chat(model, lines, "--max-tokens", "3")
    assert done.exit_code == 0, done.output
    assert "temperature 0.0, top_p 1.0" in done.stderr
    assert len(re.findall("answer: 3 tokens", done.stderr)) == 2  # and /stats
    assert "top_k must be" in chat(model, "/set top_k many\n").stderr
    once = chat(model, "", "import os", "--max-tokens", "3")
    raw = chat(DEMO, "", "import os", "--max-tokens", "3", "--no-template")
    for answered in (once, raw):
        assert answered.exit_code == 0, answered.output
        assert "answer: 3 tokens" in answered.stderr
    asked = CliRunner().invoke(app, ["run", str(model), "--max-tokens", "3"], input="import os\n")
    assert asked.stdout == once.stdout


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(model: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "chat", str(model), "--threads", "1")
    try:
        terminal.prompted()
        terminal.type("\x1b[200~import os\nimport sys\x1b[201~\r")
        terminal.until(r"\x1b\[\?2004l[\s\S]*?import[\s\S]*?import")  # of the answer
        terminal.type("typed ahead\x1b[A")
        terminal.type("\x03")
        tokens = re.search(r"(\d+) tokens, ", terminal.until(r"\d+ tokens, .*tok/s"))
        assert tokens is not None
        assert int(tokens[1]) < 1900
        terminal.prompted()
        terminal.type("/nonsense\r")
        terminal.until("error: .*/system TEXT")
        terminal.prompted()
        terminal.type("given up\x03")
        terminal.prompted()
        terminal.type("/save saved.json\r")
        terminal.prompted()
        terminal.type("\x04")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.process.kill()
        terminal.close()
    asked, answer = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert asked["content"] == "import os\nimport sys"
    assert answer["content"]
    history = tmp_path / "ort_aie_ep" / "chat_history"
    assert "+import sys" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
