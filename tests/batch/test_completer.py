"""Completer: texts, chat templates, draws and errors, without Ray."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import DATA, MODELS

import ort_aie_ep
from ort_aie_ep.batch import Completer
from ort_aie_ep.batch.completer import Completion, Request, Settings
from ort_aie_ep.batch.job import Recorder
from ort_aie_ep.batch.parts import attempt, part_file
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import model_digest
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running.generate import Decoder, greedy
from ort_aie_ep.running.run import run_in_session
from ort_aie_ep.running.text import encode
from ort_aie_ep.runtime.sessions import Options, open_session

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def texts(done: list[Completion]) -> list[str]:
    return [one.completion for one in done]


def edited(compiled: Path, folder: Path, file: str, **changes: Any) -> Path:
    """A copy of a model with other values in the section "model" of a file, or at its top."""
    shutil.copytree(compiled, folder)
    content = json.loads((folder / file).read_text())
    content.get("model", content).update(changes)
    (folder / file).write_text(json.dumps(content))
    return folder


def test_prompts_together_give_the_texts_that_ort_aie_run_gives(
    compiled: Path, prompts: list[str]
) -> None:
    done = Completer(compiled, max_tokens=12, batch_size=8).complete(
        [Request(i, text) for i, text in enumerate(prompts[:20])]
    )
    folder = find_model(compiled)
    for text, one in zip(prompts, done, strict=False):
        pieces: list[str] = []
        timing = run_in_session(folder, Options(), text, 12, pieces.append)
        assert one.completion == "".join(pieces)
        assert (one.prompt_tokens, one.completion_tokens) == (timing.prompt_tokens, 12)
        assert one.finish_reason == "length"


@pytest.mark.parametrize("name", [name for name in ("gemma3", "lfm2") if name in MODELS])
def test_windows_and_states_give_a_prompt_the_text_that_it_has_alone(
    name: str, tmp_path: Path
) -> None:
    # Their vocabularies are random, so texts are long and differ from the first token on.
    ort_aie_ep.compile(DATA / name, tmp_path / name)
    given = [Request(i, text) for i, text in enumerate(("a b c", "tokens " * 30, "one two " * 9))]
    together, alone = (
        Completer(tmp_path / name, max_tokens=40, batch_size=size).complete(given)
        for size in (3, 1)
    )
    assert together == alone
    assert {one.finish_reason for one in alone} <= {"length", "stop"}
    # Fewer tokens than a window has, too.
    (few,) = Completer(tmp_path / name, max_tokens=4).complete(given[:1])
    assert (few.error, few.completion_tokens) == (None, 4)
    assert alone[0].completion.startswith(few.completion)


def test_text_ends_before_the_token_that_ends_it(compiled: Path, tmp_path: Path) -> None:
    folder = find_model(compiled)
    tokenizer = load_tokenizer(folder)
    tokens = encode(tokenizer, "def main(argv):")
    decoder = Decoder(open_session(folder.model), folder, 64)
    ids = list(greedy(decoder, tokens, 30, frozenset()))
    # A token of this text ends the texts of another copy of the model.
    place = next(i for i in range(5, 30) if ids[i] not in ids[:i])
    other = edited(compiled, tmp_path / "other", "genai_config.json", eos_token_id=ids[place])
    requests = [Request(0, "def main(argv):"), Request(1, "x = [")]
    whole = Completer(compiled, max_tokens=30).complete(requests)
    cut = Completer(other, max_tokens=30).complete(requests)
    assert whole[0].completion == tokenizer.decode(ids)
    assert cut[0] == Completion(tokenizer.decode(ids[:place]), len(tokens), place, "stop")
    assert whole[1].completion.startswith(cut[1].completion)


def test_text_ends_where_the_context_ends(compiled: Path, tmp_path: Path) -> None:
    short = edited(compiled, tmp_path / "short", "genai_config.json", context_length=24)
    near, far = Completer(short, max_tokens=16).complete(
        [Request(0, "x = 1\n" * 5), Request(1, "import os")]
    )
    assert near.prompt_tokens + near.completion_tokens == 24
    assert near.finish_reason == "length"
    assert far == Completer(compiled, max_tokens=16).complete([Request(1, "import os")])[0]


def test_messages_go_through_the_chat_template(compiled: Path, tmp_path: Path) -> None:
    chat = edited(compiled, tmp_path / "chat", "tokenizer_config.json", chat_template=TEMPLATE)
    # Parquet gives each message the keys of all.
    messages = [
        {"role": "system", "content": "write code", "name": None},
        {"role": "user", "content": 'print("ü")', "name": None},
    ]
    text = '<system>write code\n<user>print("ü")\n<assistant>'
    both = Completer(chat, max_tokens=10).complete(
        [Request(0, messages=messages), Request(1, text)]
    )
    assert both[0] == both[1]
    assert both[0].completion_tokens == 10


def test_draws_depend_on_seed_and_id_alone(compiled: Path) -> None:
    given = [Request(i, "import ") for i in range(6)]
    first = Completer(compiled, max_tokens=12, temperature=1.0, seed=3)
    one = texts(first.complete(given))
    assert len(set(one)) > 1
    assert texts(first.complete(given[::-1])) == one[::-1]
    assert texts(first.complete(given[2:4])) == one[2:4]
    assert texts(Completer(compiled, max_tokens=12, temperature=1.0, seed=4).complete(given)) != one


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(0, "x = 1\n" * 2000), "the prompt has 8000 tokens and the context 2048"),
        (Request(0, ""), "the prompt is empty"),
        (Request(0, 5), "a prompt must be a string, got 5"),
        (Request(0, b"text"), "a prompt must be a string, got b'text'"),
        (Request(0), "there is neither a prompt nor messages"),
        (Request(0, "\ud800"), "the text is not Unicode: surrogates not allowed"),
        (Request(0, messages=[{"role": "user", "content": "x"}]), "the model has no chat template"),
        (Request(0, messages="x"), "messages must be a list of objects, got 'x'"),
        (Request(0, messages=[{"content": "x"}]), "a message must have a role"),
        (Request(0, "x", error="said before"), "said before"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_prompt_has_its_error_and_stops_no_other(
    compiled: Path, request_: Request, error: str
) -> None:
    completer = Completer(compiled, max_tokens=4)
    good = Request(1, "import os")
    bad, one = completer.complete([request_, good])
    assert bad.error is not None
    assert error in bad.error
    assert (bad.finish_reason, bad.completion) == ("error", "")
    assert one == completer.complete([good])[0]
    assert one.error is None


def test_batches_of_ray_data_keep_their_columns(compiled: Path) -> None:
    completer = Completer(compiled, max_tokens=4)
    batch = {"prompt": np.array(["import os", "x = ["], object), "mine": np.array([7, 8])}
    done = completer(batch)
    assert done["mine"] is batch["mine"]
    assert done["completion"] == texts(
        completer.complete([Request("a", "import os"), Request("b", "x = [")])
    )
    assert done["finish_reason"] == ["length", "length"]
    assert done["error"] == [None, None]


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be a number from 0 on, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be a number from 0 on, got nan"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.partition(" ")[0],
)
def test_options_out_of_range_are_refused(
    compiled: Path, option: dict[str, Any], error: str
) -> None:
    with pytest.raises(AieError, match=error):
        Completer(compiled, **option)


# --- the actor of `complete` ---


def part(number: int, *texts: str) -> dict[str, Any]:
    """A part as Ray Data hands it to the actor."""
    requests = json.dumps([[index, text, None, ""] for index, text in enumerate(texts)])
    return {"part": np.array([number]), "requests": np.array([requests], object)}


def test_a_worker_writes_a_part_before_it_answers(compiled: Path, tmp_path: Path) -> None:
    recorder = Recorder(str(compiled), model_digest(compiled), str(tmp_path), Settings(4), 1)
    answer = recorder(part(3, "import os", ""))
    assert (answer["prompts"], answer["errors"], answer["failure"]) == ([2], [1], [""])
    found = [json.loads(line) for line in part_file(tmp_path, 3).read_text().splitlines()]
    (text,) = texts(Completer(compiled, max_tokens=4).complete([Request(0, "import os")]))
    assert [row["completion"] for row in found] == [text, ""]
    # Asked once more, as after the death of a machine, it answers without writing it again.
    inode = part_file(tmp_path, 3).stat().st_ino
    again = recorder(part(3, "import os", ""))
    assert {**again, "seconds": 0} == {**answer, "seconds": 0}
    assert part_file(tmp_path, 3).stat().st_ino == inode


def test_a_part_that_ended_three_workers_is_left_out(compiled: Path, tmp_path: Path) -> None:
    recorder = Recorder(str(compiled), model_digest(compiled), str(tmp_path), Settings(4), 1)
    for _ in range(3):
        attempt(tmp_path, 0)
    assert recorder(part(0, "import os"))["prompts"] == [0]
    assert not part_file(tmp_path, 0).exists()
    assert recorder(part(1, "import os"))["prompts"] == [1]


def test_a_worker_says_why_it_cannot_work(compiled: Path, tmp_path: Path) -> None:
    other = Recorder(str(compiled), "another", str(tmp_path), Settings(4), 1)
    assert "same model" in other(part(0, "x"))["failure"][0]
    missing = Recorder(str(tmp_path / "none"), "another", str(tmp_path), Settings(4), 1)
    assert "missing" in missing(part(0, "x"))["failure"][0]
    nowhere = tmp_path / "nowhere"
    lost = Recorder(str(compiled), model_digest(compiled), str(nowhere), Settings(4), 1)
    assert lost(part(0, "x"))["failure"] == [
        f"{nowhere} cannot be written: No such file or directory"
    ]


def test_a_model_that_fails_records_nothing_and_says_why(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(str(compiled), model_digest(compiled), str(tmp_path), Settings(), 1)
    part = {"part": [0], "requests": [json.dumps([[1, "import os", None, ""]])]}

    def fail(*_: object) -> None:
        raise AieError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(recorder._completer._loop.slots, "run", fail)
        answer = recorder(part)
        assert "out of memory" in answer["reason"][0]
        assert answer["prompts"] == [0]
        assert not list(tmp_path.glob("part-*"))
    answer = recorder(part)
    assert (answer["prompts"], answer["reason"], answer["part"]) == ([1], [""], [0])
