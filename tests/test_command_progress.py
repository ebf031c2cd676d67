"""Progress of commands: a bar in a terminal, lines without one, and an end at the total."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import succeeded
from rich.console import Console

import ort_aie_ep
from ort_aie_ep.cli import progress
from ort_aie_ep.cli.progress import Status, shown
from ort_aie_ep.graph_passes.weights import float_weights
from ort_aie_ep.progress import Count, within
from ort_aie_ep.running import run
from ort_aie_ep.tools.bench import demo
from ort_aie_ep.tools.synth import synth

LLAMA = Path(__file__).parent / "data" / "llama"
SHORT_BENCH = ("--prompt-lengths", "8", "--new-tokens", "4", "--runs", "1")

Ends = Callable[[str], dict[str, str]]


def told(unit: str, *calls: tuple[float, int, int]) -> Status:
    """The status after each (seconds, done, total), for work that began at 0 s."""
    status = Status("title", unit, began=0.0)
    for now, done, total in calls:
        status.tell(done, total, "what", now)
    return status


# --- what it says ---


@pytest.mark.parametrize(
    ("unit", "calls", "text"),
    [
        # 3.1 GB in 7.56 s; 9.3 GB are left.
        (
            "bytes",
            [(0, 0, 12_400_000_000), (7.56, 3_100_000_000, 12_400_000_000)],
            "3.1 of 12.4 GB, 410 MB/s, 23 s left",
        ),
        ("tokens", [(1, 0, 20_000), (3, 1_000, 20_000)],
         "1,000 of 20,000 tokens, 500 tokens/s, 38 s left"),
        ("runs", [(0, 0, 12), (25, 10, 12)], "10 of 12 runs, 2.5 s per run, 5 s left"),
        ("steps", [(0, 0, 9000), (60, 10, 9000)],
         "10 of 9,000 steps, 6.0 s per step, 14 h 59 min left"),
        ("designs", [(0, 0, 1)], "0 of 1 design"),
        # Nothing is counted yet, or too little for a rate.
        ("tokens", [], "8 s"),
        ("tokens", [(1, 0, 100), (1.1, 50, 100)], "50 of 100 tokens"),
        # Work that cannot be counted, or not yet.
        ("steps", [(0, 0, 0), (5, 10, 0)], "10 steps, 2.0 steps/s"),
        ("", [(0, 0, 0)], "8 s"),
        # Another stage has its own total and rate.
        ("tokens", [(0, 0, 100), (1, 100, 100), (2, 0, 50), (4, 10, 50)],
         "10 of 50 tokens, 5.0 tokens/s, 8 s left"),
    ],
)  # fmt: skip
def test_a_status_says_amount_rate_and_time_left(
    unit: str, calls: list[tuple[float, int, int]], text: str
) -> None:
    assert told(unit, *calls).text(calls[-1][0] if len(calls) > 1 else 8.0) == text


def test_a_rate_is_that_of_the_last_seconds() -> None:
    slow = ((1 + 10 * n, 600 + n, 900) for n in range(1, 9))
    assert told("bytes", (0, 0, 900), (1, 600, 900), *slow).rate() == pytest.approx(0.1)
    every_minute = told("runs", (0, 0, 9), (60, 1, 9), (120, 2, 9), (180, 3, 9))
    assert every_minute.text(180) == "3 of 9 runs, 60 s per run, 6 min 0 s left"


def test_what_is_overdue_has_no_time_left() -> None:
    status = told("runs", (0, 0, 4), (10, 1, 4))
    assert status.text(20) == "1 of 4 runs, 10 s per run, 20 s left"
    assert status.text(40) == "1 of 4 runs, 10 s per run"


@pytest.mark.parametrize(
    ("unit", "calls", "line"),
    [
        ("bytes", [(0, 0, 393_700_000), (4, 393_700_000, 393_700_000)],
         "title: 393.7 MB in 4.0 s, 98 MB/s"),
        ("tokens", [(0, 0, 100), (1, 100, 100), (2, 0, 50), (4, 50, 50)],
         "title: 150 tokens in 4.0 s, 38 tokens/s"),
        # Hashed, then packed.
        ("bytes", [(0, 0, 98_400_000), (2, 98_400_000, 98_400_000), (4, 90_000_000, 90_000_000)],
         "title: 98.4 MB in 4.0 s, 25 MB/s"),
        ("tests", [(0, 0, 11), (4, 2, 11)], "title: 2 of 11 tests in 4.0 s, 2.0 s per test"),
        ("", [], "title: 4.0 s"),
    ],
)  # fmt: skip
def test_the_last_line_says_what_was_done(
    unit: str, calls: list[tuple[float, int, int]], line: str
) -> None:
    assert told(unit, *calls).end(4.0) == line


def test_a_count_and_a_part_of_one() -> None:
    calls: list[tuple[int, int, str]] = []
    count = Count(within(lambda *call: calls.append(call), 5, 9), 3)
    count.begin("first")
    count.step(2)
    count.begin("second")
    count.step()
    assert calls == [(5, 9, "first"), (7, 9, "first"), (7, 9, "second"), (8, 9, "second")]
    assert within(None, 5, 9) is None


# --- where it says it ---


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    file = io.StringIO()
    with shown(Console(file=file, width=20), "compile", "bytes", "reading the model") as bar:
        while "reading" not in file.getvalue():
            time.sleep(0.01)
        bar(500, 1000, "a weight")
        while "weight" not in file.getvalue():
            time.sleep(0.01)
        bar.note("by the way")
        bar(1000, 1000, "")
    lines = file.getvalue().splitlines()
    assert lines[0] == "compile: 0 s: reading the model"
    assert "compile: 0.5 of 1.0 kB: a weight" in lines
    assert "by the way" in lines
    assert re.fullmatch(
        r"compile: 1.0 kB in [\d.]+ s, .*B/s|compile: 1.0 kB in .* bytes/s", lines[-1]
    )


def test_what_takes_little_time_leaves_nothing() -> None:
    file = io.StringIO()
    with shown(Console(file=file), "compile", "bytes", "reading the model") as bar:
        bar(10, 10, "")
    assert file.getvalue() == ""


def test_what_fails_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORT", 0.0)
    file = io.StringIO()
    with pytest.raises(RuntimeError), shown(Console(file=file), "compile", "bytes", ""):
        raise RuntimeError
    assert file.getvalue() == ""


def in_terminal(*command: str) -> tuple[str, str]:
    """(stdout, stderr) of a command whose stderr is a terminal but whose stdout is not."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while piece := os.read(ours, 65536):
                written += piece
        except OSError:  # Linux reports this when the other end is closed
            pass
        os.close(ours)
        assert process.stdout is not None
        stdout = process.stdout.read()
    assert process.returncode == 0, written.decode()
    return stdout, written.decode()


def test_in_a_terminal_a_bar_that_disappears(tmp_path: Path) -> None:
    code = (
        "import time; from ort_aie_ep.cli import console, progress; progress.SHORT = 0\n"
        "with console.bar('synth', 'bytes') as bar:\n"
        "    bar(0, 10**6, 'first'); time.sleep(0.6)\n"
        "    bar(10**6 // 2, 10**6, 'second'); time.sleep(0.6)\n"
        "    bar(10**6, 10**6, '')\n"
        "print('result')"
    )
    stdout, stderr = in_terminal(sys.executable, "-c", code)
    assert stdout == "result\n"
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", stderr)
    assert "synth ━" in plain
    assert re.search(r"0.5 of 1.0 MB, \d+ kB/s, 1 s left second", plain)
    assert "\x1b[2K" in stderr  # the bar's line is cleared
    assert re.fullmatch(r"synth: 1.0 MB in 1.\d s, \d+ kB/s", plain.splitlines()[-1].strip())


def test_colours_in_a_file_bring_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    file = io.StringIO()
    with shown(Console(file=file), "compile", "bytes", "reading") as bar:
        bar(1, 10, "a weight")
        while "weight" not in file.getvalue():
            time.sleep(0.01)
    plain = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    assert set(plain.splitlines()) <= {"compile: 0 s: reading", "compile: 1 of 10 bytes: a weight"}


def test_a_command_in_a_terminal_keeps_stdout_clean(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("ort-aie")
    stdout, stderr = in_terminal(str(command), "synth", "tiny-llama", str(tmp_path / "m"))
    assert stdout == f"{tmp_path / 'm'}\n"
    assert "synth" in stderr


# --- each command ---


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ort_aie_ep.compile(LLAMA, tmp_path_factory.mktemp("progress") / "compiled").path


def test_compile_ends_at_its_bytes(ends: Ends, tmp_path: Path) -> None:
    result = succeeded("compile", LLAMA, tmp_path / "compiled")
    assert re.fullmatch(r"[\d.]+ kB", ends(result.stderr)["compile"])


def test_synth_ends_at_its_bytes(ends: Ends, tmp_path: Path) -> None:
    result = succeeded("synth", "tiny-llama", tmp_path / "m")
    size = (tmp_path / "m" / "model.onnx.data").stat().st_size
    assert ends(result.stderr) == {"synth": progress.amount(size, 0, "bytes")}


def test_run_ends_at_the_tokens_of_the_prompt(ends: Ends, compiled: Path) -> None:
    result = succeeded("run", compiled, "def main(argv):", "--max-tokens", "2")
    count = re.search(r"prefill: (\d+) tokens", result.stderr)
    assert count is not None
    assert ends(result.stderr) == {"read the prompt": f"{count[1]} tokens"}
    assert "open the model: " in result.stderr


def test_a_long_prompt_is_counted_in_parts(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_aie_ep.models.folder import find_model
    from ort_aie_ep.running import loop, run
    from ort_aie_ep.running.run import run_in_session
    from ort_aie_ep.runtime.sessions import Options

    monkeypatch.setattr(run, "CHUNK_ALONE", 4)
    monkeypatch.setattr(loop, "LEAST_READ", 1)
    calls: list[tuple[int, int, str]] = []
    folder, write = find_model(compiled), lambda _: None
    told = lambda *call: calls.append(call)  # noqa: E731
    timing = run_in_session(folder, Options(), "import os, sys, re", 1, write, told)
    count = timing.prompt_tokens
    assert [done for done, _, _ in calls] == [*range(0, count, 4), count]
    assert {total for _, total, _ in calls} == {count}


def test_run_in_genai_ends_at_the_tokens_of_the_prompt(ends: Ends, compiled: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    result = succeeded("run", compiled, "def main(argv):", "--max-tokens", "2", "--host", "genai")
    assert list(ends(result.stderr)) == ["read the prompt"]


def test_bench_ends_at_its_runs(ends: Ends, compiled: Path) -> None:
    result = succeeded("bench", LLAMA, *SHORT_BENCH)
    # Two runs of each of two sessions, the first not counted, and the logits of both.
    assert ends(result.stderr)["bench"] == "6 runs"
    assert "compile" in ends(result.stderr)


def test_bench_of_batches_ends_at_its_runs(ends: Ends) -> None:
    result = succeeded("bench", LLAMA, "--batch", "2", "--runs", "1")
    # Sizes 1 and 2, for sequences and for one sequence's tokens, in two rounds of two sessions.
    assert ends(result.stderr)["bench"] == "16 runs"


def test_accuracy_ends_at_its_tokens(ends: Ends, compiled: Path) -> None:
    plan = ("--tokens", "126", "--decode-tokens", "63", "--window", "64")
    result = succeeded("accuracy", compiled, "--baseline", LLAMA, *plan)
    # Four variants each read three windows of 63 tokens.
    assert ends(result.stderr) == {"accuracy": "756 tokens"}


def test_demo_ends_at_its_runs(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "workload_for", lambda *_: demo.Workload("import os", 4, 8, 4, 5))
    result = succeeded("demo", "--model", LLAMA, "--new-tokens", "4")
    # Two texts, the logits of both, and six runs of each.
    assert ends(result.stderr)["demo"] == "16 runs"


def test_simulate_ends_at_the_tokens_of_its_prompts(ends: Ends, compiled: Path) -> None:
    result = succeeded("predict", compiled, "--contexts", "16,32")
    assert ends(result.stderr) == {"predict": "48 tokens"}


def test_commands_that_nobody_can_count_say_their_time(ends: Ends) -> None:
    assert re.search(r"^explain: [\d.]+ s$", succeeded("explain", LLAMA).stderr, re.M)
    assert re.search(r"^doctor: [\d.]+ s$", succeeded("doctor").stderr, re.M)


def test_kernels_check_and_simulate_end_at_their_totals(ends: Ends) -> None:
    result = succeeded("kernels", "check", "dequant")
    assert ends(result.stderr) == {"kernels check": "1 design"}
    shape = ("--shape", "blocks=8")
    result = succeeded("kernels", "simulate", "dequant", "dequant", *shape)
    operations = re.search(r"(\d+) operations", result.stdout)
    assert operations is not None
    assert ends(result.stderr) == {"kernels simulate": f"{operations[1]} operations"}


# --- a session's cache ---


def test_a_session_counts_what_it_hashes_and_then_what_it_writes(tmp_path: Path) -> None:
    model = synth("tiny-llama", tmp_path / "model")
    calls: list[tuple[int, int, str]] = []
    ort_aie_ep.session(
        model, cache_dir=tmp_path / "cache", progress=lambda *call: calls.append(call)
    )
    ends_of_stages = [
        now for now, then in zip(calls, [*calls[1:], (0, 0, "")], strict=True) if then[0] < now[0]
    ]
    size = sum(path.stat().st_size for path in model.glob("model.onnx*"))
    hashed, written = ends_of_stages
    assert hashed == (size, size, "hashing model.onnx.data")
    assert written[0] == written[1] > 0


# --- a compilation ---


def test_a_quantised_matrix_is_counted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float_weights, "PIECE_BYTES", 1)  # a row of blocks at a time
    model = synth("tiny-llama", tmp_path / "model", int4=False)
    calls: list[tuple[int, int, str]] = []
    result = ort_aie_ep.compile(
        model,
        tmp_path / "compiled",
        quantize="q4nx",
        progress=lambda *call: calls.append(call),
    )
    assert result.layers
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][0] == calls[-1][1]
    down = "model.layers.0.mlp.down_proj.MatMul.weight_q4nx"
    assert len([done for done, _, what in calls if what == down]) > 2


def test_the_speed_of_decoding_leaves_out_the_end_of_a_bar() -> None:
    pause = 0.2

    def write(text: str) -> None:
        if text == "a":  # the first piece, before which a bar disappears
            time.sleep(pause)

    timing = run._timed(1, iter("abc"), write)
    assert timing.new_tokens == 3
    assert timing.decode_seconds < pause
    assert timing.prefill_seconds < pause
