"""Every command where the system refuses something: one message, no traceback, no half a file.

The conditions are those that refuse root too: a full device, a folder that is a file, a file system
that is full.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import ort_aie

from ort_aie_ep.cli import app
from ort_aie_ep.cli import console as cli_console

DATA = Path(__file__).parent / "data"
LLAMA = str(DATA / "llama")
# Each command with its fewest words; {port} is taken by another program.
WORDS: dict[str, tuple[str, ...]] = {
    "demo": ("--new-tokens", "1", "--model", LLAMA),
    "compile": (LLAMA, "compiled"),
    "import-q4nx": (str(DATA / "q4nx_llama" / "model.q4nx"), "imported"),
    "export-q4nx": (LLAMA, "exported/model.q4nx", "--config", str(DATA / "q4nx_llama/config.json")),
    "run": (LLAMA, "text", "--max-tokens", "1"),
    "chat": (LLAMA,),
    "serve": (LLAMA, "--port", "{port}"),
    "batch": (LLAMA, "missing.jsonl", "answers"),
    "explain": (LLAMA,),
    "bench": (LLAMA, "--runs", "1", "--new-tokens", "1", "--prompt-lengths", "4"),
    "accuracy": (LLAMA, "--tokens", "64", "--decode-tokens", "2", "--window", "32"),
    "cache": (),
    "pull": (LLAMA,),
    "list": (),
    "show": (LLAMA,),
    "rm": ("missing",),
    "doctor": (),
    "tune": ("--seconds", "0.1"),
    "synth": ("llama-3.2-1b", "model", "--layers", "1", "--vocab", "64"),
    "predict": ("llama-3.2-1b", "--contexts", "1024"),
    "kernels": ("list",),
    "validate": (),
    "package-overlay": ("missing", "--out", "overlay"),
}  # fmt: skip
# With these words they print nothing to stdout.
SILENT = ("import-q4nx", "export-q4nx", "chat", "serve", "batch", "package-overlay", "pull", "rm")

# They say what the others say, after seconds of work.
SLOW = ("demo", "bench", "accuracy", "tune", "synth", "kernels")


def each(*commands: str) -> list[Any]:
    slow = pytest.mark.in_turn
    return [pytest.param(name, marks=slow) if name in SLOW else name for name in commands]


def test_every_command_has_its_words() -> None:
    assert set(WORDS) == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def words_of(command: str, port: int) -> list[str]:
    return [command, *(word.format(port=port) for word in WORDS.get(command, ()))]


def told(command: str, result: Any) -> str:
    """The message of a command that ended as commands end; empty if it succeeded."""
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    assert "Traceback" not in result.output
    if result.exit_code == 0:
        return ""
    # validate says in its report what failed.
    assert "error: " in result.stderr or command == "validate"
    return str(result.stderr)


def mistake(*words: object) -> str:
    message = told(str(words[0]), ort_aie(*words))
    assert message
    return message


# --- where results go ---


@pytest.mark.parametrize(
    "command", each("--version", "--help", *(name for name in WORDS if name not in SILENT))
)
def test_a_full_stdout_is_told(
    command: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(cli_console, "out", cli_console.Console(file=full))
        with pytest.raises(SystemExit) as end:
            app(words_of(command, port), prog_name="ort-aie")
        monkeypatch.undo()
        assert end.value.code == 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    assert re.search("stdout.*No space left", capsys.readouterr().err)


@pytest.mark.parametrize("command", each(*(name for name in WORDS if name not in SILENT)))
def test_a_narrow_encoding_shows_what_it_lacks_escaped(
    command: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    written = tmp_path / "out"
    with written.open("w", encoding="latin-1") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        monkeypatch.setattr(cli_console, "out", cli_console.Console(file=narrow))
        with pytest.raises(SystemExit) as end:
            app(words_of(command, port), prog_name="ort-aie")
        cli_console.write_text("\u6f22\u5b57")
    assert not end.value.code or command == "validate"
    assert written.read_text("latin-1").endswith("\\u6f22\\u5b57")


def test_a_shells_full_stdout_and_narrow_encoding() -> None:
    """As users type them: Python's own end of the process is among what may fail."""
    program = Path(sys.executable).with_name("ort-aie")
    done = subprocess.run(
        f"{program} run {LLAMA} text --max-tokens 1 > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search("stdout.*No space left", done.stderr)
    assert "Traceback" not in done.stderr
    narrow = subprocess.run(
        [program, "run", LLAMA, "text", "--max-tokens", "4"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )  # fmt: skip
    assert narrow.returncode == 0, narrow.stderr
    assert narrow.stdout


# --- where files go ---


@pytest.mark.parametrize("condition", ["cwd", "home"])
@pytest.mark.parametrize("command", each(*WORDS))
def test_a_folder_that_cannot_be_written(
    command: str, condition: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc cannot be written, and nothing can be made below a file, by root either."""
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "below")
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir("/proc" if condition == "cwd" else tmp_path)
    if condition == "home":
        monkeypatch.delenv("ORT_AIE_CACHE")
        for name in ("HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, below)
    told(command, ort_aie(*words_of(command, port)))


@pytest.mark.parametrize(
    "command", each("compile", "explain", "synth", "validate", "doctor", "cache", "predict")
)
def test_temporary_files_that_have_no_folder(
    command: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("tempfile.tempdir", None)
    told(command, ort_aie(*words_of(command, port)))


# Runs each command of a table with TMPDIR, the cache and the working folder on a file system of its
# own that has 100 kB left.
FULL = """
import json, os, sys
from pathlib import Path
from typer.testing import CliRunner
from ort_aie_ep.cli import app

os.chdir(sys.argv[1])
room = os.statvfs(".")
Path("fill").write_bytes(bytes(room.f_bavail * room.f_frsize - 100_000))
results = {}
for words in json.loads(sys.argv[2]):
    before = set(os.listdir())
    result = CliRunner().invoke(app, words)
    ended = isinstance(result.exception, SystemExit | None)
    results[words[0]] = (ended, result.exit_code, result.output, sorted(set(os.listdir()) - before))
print(json.dumps(results))
"""


@pytest.mark.in_turn
def test_a_file_system_that_is_full(tmp_path: Path, port: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=4m none {disk} && exec "
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*unshare, mount + "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    rows = [words_of(command, port) for command in WORDS]
    environment = {**os.environ, "TMPDIR": str(disk), "ORT_AIE_CACHE": str(disk / "cache")}
    done = subprocess.run(
        [*unshare, mount + '"$@"', "sh", sys.executable, "-P", "-c", FULL, disk, json.dumps(rows)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for command, (ended, code, output, left) in results.items():
        assert ended, (command, output)
        assert "Traceback" not in output, (command, output)
        if command == "validate":  # says in its report what failed
            continue
        assert code == 0 or "error: " in output, (command, output)
        if code:
            # ONNX Runtime writes the hidden file.
            assert not [name for name in left if name not in ("cache", ".ses")], (command, left)
    for command in ("compile", "synth", "demo", "bench", "accuracy", "tune"):
        _, code, output, _ = results[command]
        assert (code, str(disk) in output, "ORT_AIE_CACHE" in output) == (1, True, True), output


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "inside"
    for words in (
        ("synth", "llama-3.2-1b", inside, "--layers", "1", "--vocab", "64"),
        ("compile", LLAMA, inside),
    ):
        assert str(tmp_path / "file") in mistake(*words)


def test_too_little_room_is_told_by_folder_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1500))
    message = mistake("compile", LLAMA, tmp_path / "compiled")
    assert re.search(rf"\d+\.\d kB, .*{tmp_path}\S* .*1\.5 kB", message)
    assert "ORT_AIE_CACHE" in message


def test_tune_names_its_folder_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORT_AIE_CACHE", str(tmp_path / "file" / "cache"))
    message = mistake("tune", "--seconds", "0.1")
    assert str(tmp_path / "file") in message
    assert "ORT_AIE_CACHE" in message


# --- paths ---


@pytest.mark.parametrize("command", [*WORDS, "kernels build"])
def test_an_argument_that_is_not_utf8_is_a_mistake(command: str) -> None:
    strange = os.fsdecode(b"strange\xff")
    assert "strange\\udcff" in mistake(*command.split(), strange)
