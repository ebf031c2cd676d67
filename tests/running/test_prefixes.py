"""Conversations that outlive their slots, in memory and in files."""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from model_folders import DATA, edited
from servers import make_source

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.files import model_digest
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.running import loop as loop_module
from ort_aie_ep.running import prefixes as prefixes_module
from ort_aie_ep.running.loop import LEAST_READ, Loop, open_loop
from ort_aie_ep.running.prefixes import BLOCK, Files, Keeping, Prefixes, _digest
from ort_aie_ep.running.slots import Pool
from ort_aie_ep.running.turns import Piece, Turn, Usage
from ort_aie_ep.runtime.sessions import Options

SYSTEM = np.random.default_rng(1).integers(3, 4000, 300).tolist()
MEMORY = Keeping(10**8)
# As in test_loop.py: how far logits of up to 10 are moved by rows that are computed alone.
TIE = 0.1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("prefixes"), None)


def compiled(folder: Path, kv: str | None) -> Path:
    ort_aie_ep.compile(make_source(folder), folder / "model", kv=kv)
    return folder / "model"


def opened(model: Path, keeping: Keeping | None = MEMORY, slots: int = 1) -> Loop:
    return open_loop(find_model(model), Options(threads=1), slots, 1024, keeping=keeping)


def written(loop: Loop, prompt: list[int], count: int = 1) -> tuple[str, Usage, np.ndarray]:
    """A text, and the last logits of its prompt."""
    seen: list[np.ndarray] = []
    run, loop.slots.run = loop.slots.run, lambda *given: seen.append(run(*given)) or seen[-1]
    loop.add(Turn(prompt, max_tokens=count, ignore_end=True))
    pieces = ""
    try:
        while True:
            for _, event in loop.step():
                if isinstance(event, Usage):
                    return pieces, event, seen[-count][0, -1].copy()
                assert isinstance(event, Piece)
                pieces += event.delta.content
    finally:
        loop.slots.run = run


def conversations(count: int, turns: int) -> Iterator[tuple[int, list[int]]]:
    """Prompts of agents in turn, with what is new in each: a system prompt that all have, which
    ends within a block, then their own."""
    random = np.random.default_rng(2)
    prompts = [list(SYSTEM) for _ in range(count)]
    for _ in range(turns):
        for prompt in prompts:
            new = random.integers(3, 4000, int(random.integers(20, 150))).tolist()
            prompt += new
            yield len(new), prompt


@pytest.mark.parametrize("kv", [None, "int4"])
def test_prompts_have_the_bits_of_fresh_ones_in_a_slot_that_others_had(
    kv: str | None, model: Path, tmp_path: Path
) -> None:
    folder = model if kv is None else compiled(tmp_path, kv)
    kept, fresh = opened(folder), opened(folder, Keeping(0))
    for number, (new, prompt) in enumerate(conversations(3, 3)):
        _, usage, logits = written(kept, prompt)
        np.testing.assert_array_equal(logits, written(fresh, prompt)[2])
        fresh.slots.keep(0, 0, 0)
        fresh._places[0].tokens = []
        if number:
            assert len(prompt) - usage.cached_tokens <= max(new + BLOCK, LEAST_READ)
    assert kept.prefixes is not None
    last = [prompt for _, prompt in [*conversations(3, 3)][-3:]]
    blocks = {tuple(p[:at]) for p in last for at in range(BLOCK, len(p) + 1, BLOCK)}
    assert len(kept.prefixes._rows) == len(blocks)  # what is shared is there once


def test_answers_are_kept_with_their_conversation(model: Path) -> None:
    """In one slot as in slots of their own, but for the end, which is read again as a prompt."""
    kept, own = opened(model), opened(model, Keeping(0), 3)
    whole: list[list[int]] = [[] for _ in range(3)]
    for number, (new, prompt) in enumerate(conversations(3, 3)):
        tokens = whole[number % 3]
        tokens += prompt if number < 3 else prompt[-new:]
        _, usage, logits = written(kept, tokens, 70)
        np.testing.assert_allclose(logits, written(own, tokens)[2], atol=TIE, rtol=0)
        if number > 2:
            assert len(tokens) - usage.cached_tokens <= max(new + BLOCK, LEAST_READ)
        tokens += kept._places[0].tokens[len(tokens) :]


def test_a_text_goes_on_with_what_others_read_meanwhile(model: Path) -> None:
    """Each token of a prompt that several texts begin with is read once."""
    loop = opened(model, slots=3)
    prompts = [[*SYSTEM, *SYSTEM, number] for number in range(3)]
    texts = [loop.add(Turn(prompt, max_tokens=1)) for prompt in prompts]
    loop.step()
    ends = {}
    while len(ends) < 3:
        ends |= {text: event for text, event in loop.step() if isinstance(event, Usage)}
    cached = sorted(ends[text].cached_tokens for text in texts)
    assert cached[1:] == [601 - LEAST_READ] * 2


def test_a_long_beginning_is_copied_in_parts_while_others_write(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loop_module, prefixes_module):
        monkeypatch.setattr(module, "AT_ONCE", 2)
    loop, prompt = opened(model, slots=2), [*SYSTEM, *SYSTEM]
    expected = written(loop, prompt)[0]
    loop.fail()  # no slot has it
    running = loop.add(Turn([5], max_tokens=100, ignore_end=True))
    loop.step()
    text = loop.add(Turn(prompt, max_tokens=1, ignore_end=True))
    read, wrote, said = [], [], ""
    while text in loop.texts or text in loop.waiting:
        before = running.written
        said += "".join(
            e.delta.content for t, e in loop.step() if t is text and isinstance(e, Piece)
        )
        read.append(text.read)
        wrote.append(running.written - before)
    assert read == [128, 256, 384, 512, 600]
    assert wrote == [1, 1, 1, 1, 0]
    assert (said, text.cached) == (expected, 600 - LEAST_READ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def test_a_later_process_finds_files_of_the_same_key_and_model(model: Path, folder: Path) -> None:
    prompt = [*SYSTEM, 5, 6, 7]
    first = opened(model, Keeping(10**8, folder))
    expected = written(first, prompt)
    assert first.prefixes is not None
    first.prefixes.close()
    assert len([*folder.glob("*.kv")]) == len(prompt) // BLOCK
    assert folder.stat().st_mode & 0o777 == 0o700
    for memory in (10**8, 0):  # 0: from files alone
        text, usage, logits = written(opened(model, Keeping(memory, folder)), prompt)
        assert (text, usage.cached_tokens) == (expected[0], len(prompt) - LEAST_READ)
        np.testing.assert_array_equal(logits, expected[2])
    other = opened(model, Keeping(10**8, folder, key="other"))
    assert written(other, prompt)[1].cached_tokens == 0
    exact = open_loop(
        find_model(model), Options(threads=1, numerics="bf16"), 1, 1024,
        keeping=Keeping(10**8, folder),
    )  # fmt: skip
    assert written(exact, prompt)[1].cached_tokens == 0


def test_a_models_files_are_hashed_once_until_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, kept = tmp_path / "model", tmp_path / "kept"
    model.mkdir()
    kept.mkdir()
    (model / "weights").write_bytes(b"one")
    found = [_digest(model, kept)]
    assert not [*kept.iterdir()]  # it may still change in the same tick of a clock
    monkeypatch.setattr(prefixes_module, "_SETTLED_SECONDS", -1)
    found += [_digest(model, kept), _digest(model, kept)]
    (known,) = kept.iterdir()
    assert found == [model_digest(model)] * 3
    known.write_text("0" * 64)
    assert _digest(model, kept) == "0" * 64
    known.write_text("")
    assert _digest(model, kept) == found[0]
    (model / "weights").write_bytes(b"two")
    assert _digest(model, kept) == model_digest(model) != found[0]


def test_files_that_are_damaged_or_foreign_are_read_as_if_they_were_missing(
    model: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = opened(model, Keeping(10**8, folder))
    expected = written(loop, SYSTEM)
    assert loop.prefixes is not None
    keys = [*loop.prefixes._rows]
    loop.prefixes.close()
    by_age = [folder / f"{key.hex()}.kv" for key in reversed(keys)]
    contents = [file.read_bytes() for file in by_age]
    flipped = bytearray(contents[1])
    flipped[1000] ^= 1
    other = folder / "notes.txt"
    other.write_text("mine")
    faults = (
        b"", flipped, contents[1][:-1], contents[1] + b"x", contents[2], b"\0" * len(contents[1]),
        None,
    )  # fmt: skip
    for fault in faults:
        by_age[1].unlink()
        if fault is None:
            by_age[1].mkdir()
        else:
            by_age[1].write_bytes(fault)
        caplog.clear()
        again = opened(model, Keeping(10**8, folder))
        text, usage, logits = written(again, SYSTEM)
        assert (text, usage.cached_tokens) == (expected[0], BLOCK)
        np.testing.assert_array_equal(logits, expected[2])
        assert len(caplog.records) == 1, caplog.text
        again.prefixes.close()
    assert by_age[1].is_dir()
    assert other.read_text() == "mine"


class Few(Pool):
    """Rows that say which tokens they are of, without a model."""

    token_bytes = 4

    def __init__(self) -> None:
        self.held = np.zeros(1024, np.int32)

    def rows(self, slot: int, start: int, count: int) -> np.ndarray:
        return self.held[start : start + count].copy().view(np.uint8)

    def put(self, slot: int, start: int, rows: np.ndarray, count: int) -> None:
        self.held[start : start + count] = rows.view(np.int32)[:count]


def test_a_thousand_conversations_do_not_grow_and_leave_what_they_share(folder: Path) -> None:
    """Nor do their files. Whatever is found is right."""
    slots, block = Few(), 4 * BLOCK
    files = Files(folder, 60 * (block + 32))
    prefixes = Prefixes(slots, 20 * block, b"", files)
    random = np.random.default_rng(0)
    shared = random.integers(0, 9, 5 * BLOCK).tolist()
    chances = []
    for number in range(1000):
        tokens = [*shared, *[10 + number % 30] * int(random.integers(1, 5 * BLOCK))]
        slots.held[:] = -1
        chain: list[bytes] = []
        held = prefixes.fill(0, tokens, chain, 0, len(tokens) - 1)
        assert slots.held[:held].tolist() == tokens[:held]
        assert number == 0 or held >= len(shared)
        chances.append(held)
        slots.held[: len(tokens)] = tokens
        prefixes.keep(0, tokens, chain, 0)
        assert len(prefixes._rows) <= 20
    assert max(chances) > len(shared) + BLOCK
    prefixes.close()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 60 * (block + 32)
    counts, rows = prefixes.counts, prefixes._rows.values()
    assert sum(each.nbytes for each in rows) == counts.bytes <= counts.limit_bytes
    assert (counts.hit_tokens, counts.blocks) == (sum(chances), len(rows))
    assert counts.evictions > 1000
    assert min(counts.written_bytes, counts.read_bytes) > 20 * block


def test_a_chain_longer_than_memory_keeps_its_beginning() -> None:
    slots = Few()
    slots.held[:] = tokens = [*range(1024)]
    prefixes = Prefixes(slots, 3 * 4 * BLOCK)
    assert prefixes.keep(0, tokens, chain := [], 0) == 16
    assert prefixes.fill(0, tokens, chain, 0, 1000) == 3 * BLOCK


def test_a_disk_that_takes_nothing_is_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The system refuses bytes of each file beyond some, as a full disk does."""
    slots = Few()
    files = Files(folder, 10**9)
    prefixes = Prefixes(slots, 10**6, b"", files)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        prefixes.keep(0, [*range(1024)], [], 0)
        files.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "prefixes cannot be written" in caplog.text
    assert not [*folder.iterdir()]


def test_a_text_that_fails_leaves_nothing_that_it_computed(model: Path, folder: Path) -> None:
    loop = opened(model, Keeping(10**8, folder))
    expected = written(loop, SYSTEM)
    run = loop.slots.run
    loop.slots.run = lambda *given: run(*given) * np.nan
    loop.add(Turn([*SYSTEM, *SYSTEM]))
    while loop.texts or loop.waiting:
        loop.step()
    assert loop.prefixes is not None
    assert len(loop.prefixes._rows) == len(SYSTEM) // BLOCK
    loop.prefixes.close()
    assert len([*folder.glob("*.kv")]) == len(SYSTEM) // BLOCK
    loop.slots.run = run
    assert written(loop, SYSTEM)[0] == expected[0]


def test_what_a_killed_process_left_is_removed_and_nothing_else(folder: Path) -> None:
    folder.mkdir()
    name = f".{'0' * 40}.kv-0123456789abcdef"
    for file, age in ((name, 4000), (name + "0", 0), ("." + "a" * 40, 4000)):
        (folder / file).write_bytes(b"half")
        os.utime(folder / file, (now := (folder / file).stat().st_mtime - age, now))
    Files(folder, 10**9).close()
    assert {file.name for file in folder.iterdir()} == {name + "0", "." + "a" * 40}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lfm2", "it has states"),
        ("qwen3_5", "it has states"),
        ("gpt_oss", "sliding_window_cache"),
        ("llama", "its caches grow with the text"),
    ],
)
def test_models_that_can_share_nothing_are_refused_by_name(
    name: str, why: str, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(DATA / name, tmp_path / "model"))
    if name == "llama":
        with edited(model / "genai_config.json") as config:
            config["search"]["past_present_share_buffer"] = False
    with pytest.raises(AieError, match=rf"can share no prefixes: .*{why}.*omit --cache-memory"):
        open_loop(find_model(model), Options(threads=1), keeping=Keeping(10**6))


def test_memory_without_room_for_a_block_is_refused(model: Path) -> None:
    with pytest.raises(AieError, match=r"--cache-memory 1.0 kB has no room for 64 tokens"):
        opened(model, Keeping(1000))
