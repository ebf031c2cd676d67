"""Files of prompts, and the folder of completions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ort_aie_ep import batch
from ort_aie_ep.batch import parts
from ort_aie_ep.batch.completer import Completion, Request
from ort_aie_ep.batch.job import Summary
from ort_aie_ep.batch.parts import Tally
from ort_aie_ep.batch.prompts import digest, read_prompts
from ort_aie_ep.cli import app
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import model_digest

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "one"},
    {"id": None, "prompt": "two"},
    {"id": "c", "messages": [{"role": "user", "content": "three"}]},
]


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_json_lines_and_parquet_are_the_same_prompts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = tmp_path / "prompts.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS, schema=_schema(pyarrow)), table)
    found = read_prompts(table)
    assert found == read_prompts(lines(tmp_path / "prompts.jsonl", *ROWS))
    assert [(request.id, request.prompt, request.error) for request in found] == [
        ("a", "one", ""), (2, "two", ""), ("c", None, ""),
    ]  # fmt: skip
    assert found[2].messages == ROWS[2]["messages"]


def _schema(pyarrow: Any) -> Any:
    text = pyarrow.string()
    message = pyarrow.struct([("role", text), ("content", text)])
    return pyarrow.schema([("id", text), ("prompt", text), ("messages", pyarrow.list_(message))])


def test_a_folder_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", {"prompt": "third"})
    lines(tmp_path / "a.ndjson", {"prompt": "first"}, "", {"prompt": "second"})
    (tmp_path / "notes.txt").write_text("no prompts")
    assert read_prompts(tmp_path) == [
        Request(1, "first"),
        Request(2, "second"),
        Request(3, "third"),
    ]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("{", "p.jsonl, row 1 is not JSON"),
        ("[" * 100_000, "p.jsonl, row 1 is not JSON"),
        ([1], "a row must be an object, got [1]"),
        ({"id": 1.5, "prompt": "x"}, "an id must be text or a whole number, got 1.5"),
        ({"id": True, "prompt": "x"}, "an id must be text or a whole number, got True"),
        ({"prompt": ["x"]}, "a prompt must be a string, got ['x']"),
        ({"text": "x"}, "there is neither a prompt nor messages"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:40],
)
def test_a_row_that_is_no_prompt_has_its_error_and_stops_no_other(
    row: Any, error: str, tmp_path: Path
) -> None:
    bad, good = read_prompts(lines(tmp_path / "p.jsonl", row, {"id": "b", "prompt": "x"}))
    assert bad.error.startswith(error)
    assert good == Request("b", "x")


def test_bad_rows_have_their_place_as_id_which_is_nobody_elses(tmp_path: Path) -> None:
    rows = ({"id": 0, "prompt": "x"}, "{", {"id": 2, "prompt": "x"}, {"id": 1.5, "prompt": "x"})
    found = read_prompts(lines(tmp_path / "p.jsonl", *rows))
    assert [request.id for request in found] == [0, "p.jsonl, row 2", 2, "p.jsonl, row 4"]


def test_messages_of_any_depth_are_taken_or_named(tmp_path: Path) -> None:
    for depth in (10, 600, 900, 3000):
        deep = '{"messages": [{"role": "user", "content": ' + "[" * depth + "]" * depth + "}]}"
        (request,) = read_prompts(lines(tmp_path / "p.jsonl", deep))
        assert len(digest([request])) == 64
        assert bool(request.error) or request.messages is not None


def test_bytes_that_are_not_utf8_are_a_row_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"prompt": "\xff"}\n{"prompt": "x"}\n')
    bad, good = read_prompts(file)
    assert "p.jsonl, row 1" in bad.error
    assert good == Request(2, "x")


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"prompt": "x"}, {"id": "b", "prompt": "x"})
    lines(tmp_path / "b.jsonl", {"id": "b", "prompt": "y"})
    with pytest.raises(AieError, match=r"'b' .*a.jsonl, row 2.*b.jsonl, row 1"):
        read_prompts(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("p.jsonl", b"\n", "has no prompts"),
        ("p.csv", b"x", r"does not end in .jsonl, .ndjson, .parquet"),
        ("p.parquet", b"x" * 20, "p.parquet cannot be read"),
    ],
)
def test_files_without_prompts_are_refused(
    file: str, content: bytes, error: str, tmp_path: Path
) -> None:
    if file.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(AieError, match=error):
        read_prompts(tmp_path / file)


def test_missing_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AieError, match=r"p.jsonl"):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(AieError, match=r"\.jsonl"):
        read_prompts(tmp_path)


def test_digest_tells_prompts_ids_and_orders_apart() -> None:
    one, two = Request("a", "x"), Request("b", "y")
    others = [[two, one], [one], [one, Request("b", "z")], [one, Request("c", "y")],
              [one, Request("b", error="y")]]  # fmt: skip
    assert digest([one, two]) not in {digest(requests) for requests in others}
    assert digest([one, two]) == digest([Request("a", "x"), two])


# --- the folder of completions ---

REQUESTS = [Request("a", "x"), Request(2, error="no prompt")]
DONE = [Completion("text", 3, 4, "length"), Completion(error="no prompt")]


def test_a_part_adds_up_to_what_was_written(tmp_path: Path) -> None:
    assert parts.attempt(tmp_path, 0) == 1
    tally = parts.write_part(tmp_path, 0, REQUESTS, DONE)
    assert tally == Tally(2, 1, 3, 4) == parts.read_part(tmp_path, 0, REQUESTS)
    assert [path.name for path in tmp_path.iterdir()] == ["part-000000.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "part-000000.jsonl").read_text().splitlines()]
    assert rows[1] == {
        "id": 2, "completion": "", "prompt_tokens": 0, "completion_tokens": 0,
        "finish_reason": "error", "error": "no prompt",
    }  # fmt: skip


def test_a_part_that_is_cut_or_of_other_prompts_is_missing(tmp_path: Path) -> None:
    parts.write_part(tmp_path, 0, REQUESTS, DONE)
    assert parts.read_part(tmp_path, 0, REQUESTS[:1]) is None
    assert parts.read_part(tmp_path, 0, [Request("b", "x"), REQUESTS[1]]) is None
    assert parts.read_part(tmp_path, 1, REQUESTS) is None
    file = tmp_path / "part-000000.jsonl"
    content = file.read_bytes()
    for end in range(len(content) - 1):
        file.write_bytes(content[:end])
        assert parts.read_part(tmp_path, 0, REQUESTS) is None


def test_a_folder_is_continued_with_the_same_settings_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    with parts.begun(folder, {"seed": 1, "model": "m"}):
        parts.attempt(folder, 0)
    with parts.begun(folder, {"seed": 1, "model": "m"}):
        assert parts.attempt(folder, 0) == 1, "a new run counts anew"
    for other, name in (({"seed": 2, "model": "m"}, r"seed \(1, not 2\)"), ({"seed": 1}, "model")):
        changed = {"seed": 1, "model": "n"} | other
        with (
            pytest.raises(AieError, match=f"{name}"),
            parts.begun(folder, changed),
        ):
            pass


def test_two_runs_at_once_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with parts.begun(tmp_path, {"seed": 1}):
        parts.attempt(tmp_path, 0)
        with (
            pytest.raises(AieError, match=re.escape(str(tmp_path))),
            parts.begun(tmp_path, {"seed": 1}),
        ):
            pass
        assert parts.attempt(tmp_path, 0) == 2, "the other has removed nothing"


def test_a_run_that_was_killed_at_its_beginning_leaves_a_folder_to_use(tmp_path: Path) -> None:
    (tmp_path / ".batch.json-0123456789abcdef").write_text("{")
    with parts.begun(tmp_path, {"seed": 1}):
        assert json.loads((tmp_path / "batch.json").read_text())["seed"] == 1


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    refused = pytest.raises(AieError, match=r"batch\.json")
    with refused, parts.begun(tmp_path, {}):
        pass


def test_the_digest_of_a_model_reads_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("model.onnx", "sub/encoder.onnx"):
        (tmp_path / name).write_text("x")
    found = {model_digest(tmp_path)}
    (tmp_path / "sub/encoder.onnx").write_text("y")
    found.add(model_digest(tmp_path))
    (tmp_path / "sub/encoder.onnx").rename(tmp_path / "encoder.onnx")
    assert len({*found, model_digest(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("done", "earlier", "code", "line"),
    [
        (Tally(7, 4), Tally(), 1, "ANSWERS: 3 completions, 4 failed: their lines have an error\n"),
        (Tally(), Tally(7, 4), 1, "ANSWERS: 3 completions, 4 failed: their lines have an error\n"),
        (Tally(7), Tally(2), 0, "ANSWERS: 9 completions\n"),
    ],
)
def test_the_command_fails_if_a_prompt_failed(
    done: Tally, earlier: Tally, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    summary = Summary(done, earlier, workers=1, start_seconds=0.5, seconds=1.0)
    monkeypatch.setattr(batch, "complete", lambda *_, **__: summary)
    result = CliRunner().invoke(app, ["batch", "MODEL", "prompts.jsonl", "ANSWERS"])
    assert (result.exit_code, result.stdout) == (code, line)
