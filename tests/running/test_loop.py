"""The generation loop: texts beside each other, caches that are found again, stop strings, seeds,
schemas."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_folders import DATA, MODELS, edited, few
from servers import make_model

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running import bounded
from ort_aie_ep.running import slots as slots_module
from ort_aie_ep.running.chunks import CHUNK_ALONE, CHUNK_BESIDE_TEXTS
from ort_aie_ep.running.genai import entries
from ort_aie_ep.running.loop import LEAST_READ, Event, Loop, Text, open_loop
from ort_aie_ep.running.prefixes import BLOCK
from ort_aie_ep.running.run import run_in_genai, run_in_session
from ort_aie_ep.running.templates import ChatTemplate, find_template
from ort_aie_ep.running.text import Stops
from ort_aie_ep.running.turns import Piece, PromptTooLongError, Sampling, Turn, Usage
from ort_aie_ep.runtime.sessions import Options

ONE_THREAD = Options(threads=1)
PROMPT = "def main(argv):"
# As in tests/models/test_genai_drafts.py: a row that is computed alone has other roundings than
# among others. On the models of tests/data it moves logits, of up to 10, by up to 0.05.
TIE = 0.1
WITH_TOKENIZER = [name for name in MODELS if (DATA / name / "tokenizer_config.json").is_file()]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["left", "right"]}, "size": {"enum": [1, 2]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def opened(
    model: Path, slots: int = 1, context: int | None = None, chunk: int = CHUNK_BESIDE_TEXTS
) -> Loop:
    return open_loop(find_model(model), ONE_THREAD, slots, context, chunk)


def written(loop: Loop, turn: Turn) -> tuple[str, Usage]:
    """A text alone."""
    return together(loop, [turn])[0]


def together(loop: Loop, turns: list[Turn], after: int = 0) -> list[tuple[str, Usage]]:
    """Texts that are begun one after the other, each `after` steps after the one before."""
    texts: list[Text] = []
    found: dict[Text, str] = {}
    usages: dict[Text, Usage] = {}

    def take(events: list[tuple[Text, Event]]) -> None:
        for text, event in events:
            assert not isinstance(event, AieError)
            if isinstance(event, Piece):
                found[text] = found.get(text, "") + event.delta.content
            else:
                usages[text] = event

    for turn in turns:
        texts.append(loop.add(turn))
        for _ in range(after):
            take(loop.step())
    while len(usages) < len(texts):
        take(loop.step())
    assert not loop.texts
    return [(found.get(text, ""), usages[text]) for text in texts]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("loop"))


@pytest.fixture(scope="module")
def loop(model: Path) -> Loop:
    return opened(model, 3)


def test_a_text_is_that_of_genais_own_loop(model: Path, loop: Loop) -> None:
    pieces: list[str] = []
    run_in_genai(find_model(model), ONE_THREAD, PROMPT, 30, pieces.append)
    text, usage = written(loop, Turn(PROMPT, max_tokens=30))
    assert text == "".join(pieces)
    assert usage.finish_reason == "length"
    assert usage.completion_tokens == 30


class Watched:
    """Slots that keep the logits of each position of each text."""

    def __init__(self, loop: Loop) -> None:
        self._slots, self.seen = loop.slots, {}
        loop.slots = self

    def __getattr__(self, name: str) -> object:
        return getattr(self._slots, name)

    def run(
        self, tokens: np.ndarray, before: np.ndarray, first: int, wanted: int = 0
    ) -> np.ndarray:
        logits = self._slots.run(tokens, before, first, wanted)
        for row, start, values in zip(tokens, before, logits, strict=True):
            self.seen[row.tobytes(), int(start)] = values[-1].copy()
        return logits


def test_logits_have_the_bits_of_a_text_alone_whatever_runs_beside_it(model: Path) -> None:
    """Longer and shorter neighbours, which come and go; keys are divided from 1,024 on."""
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 4000, size).tolist() for size in (1200, 40, 700, 300, 5)]
    turns = [Turn(p, max_tokens=n) for p, n in zip(prompts, (8, 30, 12, 25, 9), strict=True)]
    alone = opened(model)
    kept = Watched(alone)
    texts = []
    for turn in turns:
        texts.append(written(alone, turn))
    beside = opened(model, 3)
    watched = Watched(beside)
    assert [text for text, _ in together(beside, turns, after=2)] == [text for text, _ in texts]
    assert len(watched.seen) > 70
    for key, values in watched.seen.items():
        np.testing.assert_array_equal(values, kept.seen[key])


def test_what_prompts_share_is_copied_with_its_bits(model: Path) -> None:
    """From a text that runs, and from one that has ended, in whatever chunks it was read."""
    random = np.random.default_rng(4)
    system = random.integers(3, 4000, 500).tolist()
    turns = [Turn([*system, *random.integers(3, 4000, n).tolist()], max_tokens=9) for n in (90, 3)]
    fresh = opened(model, chunk=CHUNK_ALONE)
    kept = Watched(fresh)
    first, second = written(fresh, turns[0]), written(opened(model), turns[1])
    sharing = opened(model, 3)
    watched = Watched(sharing)
    (one, usage), (other, shared) = together(sharing, turns, after=4)
    assert (one, other) == (first[0], second[0])
    assert usage.cached_tokens == 0
    assert shared.cached_tokens == 503 - LEAST_READ
    again, found = written(sharing, turns[0])
    assert again == one
    assert found.cached_tokens == 590 - LEAST_READ
    last = np.array(turns[0].prompt[-LEAST_READ:]).tobytes(), 590 - LEAST_READ
    whole = np.array(turns[0].prompt).tobytes(), 0
    np.testing.assert_array_equal(watched.seen[last], kept.seen[whole])


@pytest.mark.parametrize("name", few(WITH_TOKENIZER, also=("lfm2", "gpt_oss")))
def test_a_later_turn_has_the_logits_of_a_fresh_one(name: str, tmp_path: Path) -> None:
    """Whether the model's caches can go back, grow, or neither."""
    ort_aie_ep.compile(DATA / name, tmp_path / name)
    kept = opened(tmp_path / name, 2)
    first = [int(token) for token in np.random.default_rng(2).integers(3, 100, 100)]
    written(kept, Turn(first, max_tokens=6))
    (held,) = [place.tokens for place in kept._places if place.tokens]
    assert held[:100] == first
    for second in ([*held, 7, 8, 9], [*first[:90], 5, 6]):
        logits = []
        for loop in (kept, opened(tmp_path / name)):
            watched = Watched(loop)
            _, usage = written(loop, Turn(second, max_tokens=1))
            logits.append(list(watched.seen.values())[-1])
            assert usage.prompt_tokens == len(second)
            loop.slots = watched._slots
            if loop is kept and second[-1] == 9:
                least = len(held) if not loop.slots.rewinds else len(second) - LEAST_READ
                assert usage.cached_tokens == least
        np.testing.assert_allclose(logits[0], logits[1], atol=TIE, rtol=0)


def test_a_text_that_is_given_up_leaves_its_cache_to_the_next(model: Path) -> None:
    loop = opened(model)
    prompt = [9] * (LEAST_READ + 10)
    text = loop.add(Turn(prompt))
    for _ in range(5):
        loop.step()
    loop.drop(text)
    again, usage = written(loop, Turn(prompt, max_tokens=8))
    assert again == written(opened(model), Turn(prompt, max_tokens=8))[0]
    assert usage.cached_tokens == 10
    assert not loop.step()


def test_a_long_prompt_lets_others_write_and_short_ones_pass(model: Path) -> None:
    loop = opened(model, 3)
    running = loop.add(Turn(PROMPT, max_tokens=100))
    loop.step()
    long = loop.add(Turn([7] * 1900, max_tokens=1))
    short = loop.add(Turn([8] * 20, max_tokens=1))
    ends: list[Text] = []
    for _ in range(30):
        before = running.written
        for _ in range(2):
            ends += [text for text, event in loop.step() if isinstance(event, Usage)]
        assert running.written > before
    assert ends == [short, long]
    loop.drop(running)


def test_several_short_prompts_are_read_between_two_steps(model: Path) -> None:
    """As many as a chunk has tokens."""
    loop = opened(model, 5)
    running = loop.add(Turn(PROMPT, max_tokens=100))
    loop.step()
    texts = [loop.add(Turn([n] * 100, max_tokens=9)) for n in (7, 8, 9)]
    more = loop.add(Turn([*[9] * 100, *range(50)], max_tokens=9))
    for count in ("11000", "11100", "22200", "22210", "22211"):
        loop.step()
        assert "".join(str(text.written) for text in (running, *texts, more)) == count
    assert more.cached == BLOCK


def test_a_model_that_fails_ends_its_texts_and_no_others(model: Path) -> None:
    loop = opened(model, 2)
    expected = written(loop, Turn(PROMPT, max_tokens=8))
    slots = loop.slots

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(slots, name)

        def run(self, *_: object) -> None:
            raise AieError("out of memory")

    text = loop.add(Turn(PROMPT, max_tokens=8))
    loop.slots = Failing()
    ((failed, error),) = loop.step()
    assert failed is text
    assert isinstance(error, AieError)
    loop.slots = slots
    again = written(loop, Turn(PROMPT, max_tokens=8))
    assert again[0] == expected[0]
    assert again[1].cached_tokens == 0


def test_a_grammar_or_logits_that_fail_end_their_text_alone(model: Path) -> None:
    loop = opened(model, 3)
    alone = written(loop, Turn(PROMPT, max_tokens=20))[0]
    slots = loop.slots

    class Spoiling:
        def __getattr__(self, name: str) -> object:
            return getattr(slots, name)

        def run(
            self, tokens: np.ndarray, before: np.ndarray, first: int, wanted: int = 0
        ) -> np.ndarray:
            logits = slots.run(tokens, before, first, wanted).copy()
            if len(logits) == 3:
                logits[1] = np.nan
            return logits

    class Slow:
        ended = False

        def mask(self, into: np.ndarray) -> None:
            raise AieError("the grammar cannot go on")

    drawn = {"temperature": 1.0, "seed": 1}
    texts = [loop.add(Turn(PROMPT, max_tokens=20, sampling=s)) for s in ({}, drawn, drawn)]
    for _ in texts:
        loop.step()
    texts[2].guide = Slow()
    loop.slots = Spoiling()
    ends = dict(loop.step())
    assert isinstance(ends[texts[1]], AieError)
    assert isinstance(ends[texts[2]], AieError)
    assert loop.texts == [texts[0]]
    while loop.texts:
        loop.step()
    tokens = load_tokenizer(find_model(model)).decode(texts[0].tokens[texts[0].prompt :])
    assert tokens == alone


def test_text_ends_before_a_stop_string_that_pieces_divide(loop: Loop) -> None:
    whole, _ = written(loop, Turn(PROMPT, max_tokens=40))
    stop = whole[23:31]  # begins and ends within tokens
    text, usage = written(loop, Turn(PROMPT, max_tokens=40, stop=("never there", stop)))
    assert text == whole[: whole.index(stop)]
    assert usage.finish_reason == "stop"
    assert 0 < usage.completion_tokens < 40


def test_a_stop_string_of_ends_of_lines_ends_a_text_at_once(loop: Loop) -> None:
    """Also where tools are offered, and ends of lines wait for what follows them."""
    messages = [{"role": "user", "content": "import os"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    for turn in (Turn(PROMPT), Turn(messages=messages), Turn(messages=messages, tools=tools)):
        whole, _ = written(loop, replace(turn, max_tokens=60))
        at = whole.index("\n", 1)
        text, usage = written(loop, replace(turn, max_tokens=60, stop=(whole[at - 1] + "\n",)))
        assert text == whole[: at - 1]
        before, upto = written(loop, replace(turn, max_tokens=usage.completion_tokens - 1))
        assert upto.finish_reason == "length"
        assert "\n" not in before[1:]


def test_nothing_follows_a_stop_string() -> None:
    assert Stops(("b\n",)).push("ab", "\n") == ("a", True)
    assert Stops(("\n",)).push("ab", "\n\n") == ("ab", True)
    stops = Stops(("ab\ufffd",))
    assert stops.push("zab") == ("z", False)
    assert stops.push("\ufffd more") == ("", True)
    assert stops.rest() == ""


def test_text_that_only_begins_like_a_stop_string_is_shown_in_the_end(loop: Loop) -> None:
    whole, _ = written(loop, Turn(PROMPT, max_tokens=40))
    stop = whole[-5:] + "\0"
    assert written(loop, Turn(PROMPT, max_tokens=40, stop=(stop,)))[0] == whole


def test_a_seed_repeats_a_text_on_any_cache(model: Path, loop: Loop) -> None:
    def text(seed: int, where: Loop = loop) -> str:
        sampling = {"temperature": 1.0, "top_p": 0.9, "seed": seed}
        return written(where, Turn(PROMPT, max_tokens=30, sampling=sampling))[0]

    assert text(1) == text(1) == text(1, opened(model))
    assert len({text(seed) for seed in range(4)}) == 4


def test_a_schema_is_followed_and_leaves_no_trace(loop: Loop) -> None:
    plain, _ = written(loop, Turn(PROMPT, max_tokens=10))
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        turn = Turn(PROMPT, max_tokens=200, sampling=sampling, schema=json.dumps(SCHEMA))
        text, usage = written(loop, turn)
        found = json.loads(text)
        assert found["name"] in ("left", "right")
        assert found["size"] in (1, 2)
        assert usage.finish_reason == "stop"
    assert written(loop, Turn(PROMPT, max_tokens=10))[0] == plain
    with pytest.raises(AieError, match="nonsense"):
        written(loop, Turn(PROMPT, schema='{"type": "nonsense"}'))
    assert written(loop, Turn(PROMPT, max_tokens=10))[0] == plain


def test_bad_prompts_are_named(loop: Loop, tmp_path: Path) -> None:
    with pytest.raises(AieError, match="empty"):
        loop.add(Turn(""))
    with pytest.raises(PromptTooLongError, match=r"3000 .*2048"):
        loop.add(Turn([5] * 3000))
    for turn in (Turn("\ud800"), Turn(messages=[{"role": "user", "content": "\ud800"}])):
        with pytest.raises(AieError, match="Unicode"):
            loop.add(turn)
    for token in (-1, 4096, 2**40):
        with pytest.raises(AieError, match=f"token {token} .*4096"):
            loop.add(Turn([5, token]))
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    shutil.copytree(demo, tmp_path / "demo")
    with pytest.raises(AieError, match="template"):
        opened(tmp_path / "demo").add(Turn(messages=[{"role": "user", "content": "x"}]))
    with pytest.raises(AieError, match=r"5000 .*2048"):
        opened(tmp_path / "demo", context=5000)


def with_template(model: Path, folder: Path, template: object) -> Path:
    shutil.copytree(model, folder)
    with edited(folder / "tokenizer_config.json") as config:
        config["chat_template"] = template
    return folder


ENDLESS = {
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "size": "{{ 'a' * 10000000000 }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_without_an_end_is_an_error_of_the_chat(
    model: Path, tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SECONDS", 1)
    loop = opened(with_template(model, tmp_path / "endless", template))
    with pytest.raises(AieError, match="template"):
        loop.add(Turn(messages=[{"role": "user", "content": "x"}]))
    assert written(loop, Turn(PROMPT, max_tokens=2))[0]


def test_a_chat_is_written_with_the_template_named_default(model: Path, tmp_path: Path) -> None:
    named = [
        {"name": name, "template": name + " {{ messages[0].content }}"}
        for name in ("tool_use", "default")
    ]
    folder = with_template(model, tmp_path / "named", named)
    text = opened(folder).add(Turn(messages=[{"role": "user", "content": "a\0b"}]))
    assert load_tokenizer(find_model(folder)).decode(text.tokens) == "default a\0b"
    with pytest.raises(AieError, match=r'"default".*tool_use'):
        opened(with_template(model, tmp_path / "other", named[:1]))


def test_templates_have_what_transformers_gives_them(model: Path, tmp_path: Path) -> None:
    folder = with_template(model, tmp_path / "plain", "not this one")
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}\n"
        "  {% for m in messages %}\n"  # a line of a block alone leaves nothing
        "{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}\n"
        "  {% endfor %}\n"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    messages = [{"role": "user", "content": "<\u00e9>"}] * 2
    template = find_template(find_model(folder))
    assert template is not None
    assert template.render(messages) == (
        '<|endoftext|>\n{"role": "user", "content": "<\u00e9>"}4TrueTrue'
    )
    for text, said in (
        ("{{ raise_exception('only one') }}", "refuses the messages: only one"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
    ):
        with pytest.raises(AieError, match=said):
            ChatTemplate(text, {}).render([])
    # Kimi's templates add to a list.
    assert ChatTemplate("{% set _ = messages.append(1) %}{{ messages }}", {}).render([]) == "[1]"


def test_texts_and_chats_begin_with_one_begin_of_text(model: Path, tmp_path: Path) -> None:
    """A text gets what the tokenizer puts before each, a chat what its template puts there."""
    template = "{{ bos_token }}{{ messages[0].content }}"
    folder = with_template(model, tmp_path / "begins", template)
    begin = {"id": "<|endoftext|>", "type_id": 0}
    post_processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": begin}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {begin["id"]: {"id": begin["id"], "ids": [0], "tokens": [begin["id"]]}},
    }
    with edited(folder / "tokenizer.json") as tokenizer:
        tokenizer["post_processor"] = post_processor
    loop = opened(folder)
    for turn in (
        Turn(PROMPT, max_tokens=1),
        Turn(messages=[{"role": "user", "content": PROMPT}], max_tokens=1),
    ):
        text = loop.add(turn)
        assert text.prompt == 6
        assert text.tokens[0] == 0
        assert text.tokens[1] != 0
        loop.drop(text)
    for run in (run_in_session, run_in_genai):
        assert run(find_model(folder), ONE_THREAD, PROMPT, 1, lambda _: None).prompt_tokens == 6


def test_the_context_is_the_models_as_far_as_memory_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    shutil.copytree(demo, tmp_path / "demo")
    with edited(tmp_path / "demo" / "genai_config.json") as config:
        config["model"]["context_length"] = 20000
    cache = opened(tmp_path / "demo").slots.token_bytes
    for free, context in (
        (None, 4096), (cache * 4 * 3000, 4096), (cache * 4 * 8500, 8192), (2**50, 20000),
    ):  # fmt: skip
        monkeypatch.setattr(slots_module, "free_memory", lambda free=free: free)
        loop = opened(tmp_path / "demo", 2)
        assert loop.context == loop.slots.context == context
    assert written(loop, Turn(PROMPT, max_tokens=3))[1].completion_tokens == 3


def test_the_context_ends_a_text(model: Path) -> None:
    text, usage = written(opened(model, context=30), Turn(PROMPT))
    assert usage.finish_reason == "length"
    assert usage.prompt_tokens + usage.completion_tokens == 30
    assert text


def test_genai_config_chooses_the_sampling_that_a_turn_leaves_open(
    model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "sampled")
    with edited(tmp_path / "sampled" / "genai_config.json") as config:
        config["search"] |= {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    assert opened(tmp_path / "sampled").sampling == Sampling(0.7, 0.9, 5)
    assert opened(model).sampling == Sampling(0.0)
    with edited(tmp_path / "sampled" / "genai_config.json") as config:
        config["search"]["top_p"] = "much"
    with pytest.raises(AieError, match=r"search\.top_p must be a positive number, got 'much'"):
        opened(tmp_path / "sampled")


def test_what_clients_send_as_defaults_changes_nothing(loop: Loop) -> None:
    """And a penalty or a bias does not make tokens drawn."""
    alone = written(loop, Turn(PROMPT, max_tokens=20))
    defaults = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    for given in (*({name: value} for name, value in defaults.items()), {"min_p": 0.0},
                  {"top_p": 1.0}, {"top_k": 0}, {"bias": {5: 0.0}}, {"bias": {4095: -1.0}},
                  {"presence_penalty": -1e-6}, defaults):  # fmt: skip
        assert written(loop, Turn(PROMPT, max_tokens=20, sampling=given)) == alone, given
    own = Sampling(0.7, top_p=0.9)
    assert own.with_fields({"top_k": 3}) == Sampling(0.7, 0.9, 3)
    assert Sampling().with_fields({"top_k": 3}) == Sampling(1.0, top_k=3)
    assert Sampling().with_fields({"top_k": 3, "temperature": 0.0}) == Sampling(top_k=3)


def test_a_repetition_penalty_is_that_of_genai(model: Path, tmp_path: Path) -> None:
    """Of the config, in both hosts; of a turn, the same."""
    shutil.copytree(model, tmp_path / "penalty")
    with edited(tmp_path / "penalty" / "genai_config.json") as config:
        config["search"]["repetition_penalty"] = 1.3
    texts = []
    for run in (run_in_session, run_in_genai):
        pieces: list[str] = []
        run(find_model(tmp_path / "penalty"), ONE_THREAD, PROMPT, 40, pieces.append)
        texts.append("".join(pieces))
    texts.append(written(opened(tmp_path / "penalty"), Turn(PROMPT, max_tokens=40))[0])
    asked = Turn(PROMPT, max_tokens=40, sampling={"repetition_penalty": 1.3})
    texts.append(written(opened(model), asked)[0])
    assert texts == texts[:1] * 4
    assert texts[0] != written(opened(model), Turn(PROMPT, max_tokens=40))[0]


def test_no_end_comes_before_the_least_tokens(loop: Loop) -> None:
    """Unless a grammar has nothing else."""
    ends = {token: 100.0 for token in loop.prompts.ends}
    for least in (0, 5):
        turn = Turn(PROMPT, max_tokens=9, min_tokens=least, sampling={"bias": ends})
        assert written(loop, turn)[1].completion_tokens == least
    text, usage = written(loop, Turn(PROMPT, min_tokens=50, schema='{"enum": ["a"]}'))
    assert text == '"a"'
    assert usage.finish_reason == "stop"


def test_threads_are_the_users_else_the_folders_else_onnx_runtimes_choice(model: Path) -> None:
    def threads(options: Options, **session_options: int) -> object:
        folder = find_model(model)
        assert folder.genai_config is not None
        folder.genai_config["model"]["decoder"]["session_options"].update(session_options)
        return entries(folder, options).get("intra_op_num_threads")

    assert threads(Options(threads=3), intra_op_num_threads=2) == 3
    assert threads(Options(), intra_op_num_threads=2) is None  # stays
    assert threads(Options()) == 0
