"""Turns in onnxruntime-genai: caches that are found again, stop strings, seeds, schemas."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from model_folders import DATA, MODELS

import ort_aie_ep
from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import find_model
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.running import bounded
from ort_aie_ep.running.genai import entries
from ort_aie_ep.running.templates import ChatTemplate, find_template
from ort_aie_ep.running.turns import (
    Conversations,
    PromptTooLongError,
    Sampling,
    Turn,
    Usage,
    _Stops,
)
from ort_aie_ep.running.turns import choose as choose_token
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


def written(pieces: Generator[str, None, Usage]) -> tuple[str, Usage]:
    text = ""
    while True:
        try:
            text += next(pieces)
        except StopIteration as end:
            usage: Usage = end.value
            return text, usage


def opened(model: Path, caches: int = 1, context: int | None = None) -> Conversations:
    return Conversations(find_model(model), ONE_THREAD, caches, context)


@pytest.fixture(scope="module")
def conversations(model: Path) -> Conversations:
    return opened(model, 3)


def test_a_turn_is_the_text_of_genais_own_loop(model: Path, conversations: Conversations) -> None:
    from ort_aie_ep.running.run import run_in_genai

    pieces: list[str] = []
    run_in_genai(find_model(model), ONE_THREAD, PROMPT, 30, pieces.append)
    text, usage = written(conversations.run(Turn(PROMPT, max_tokens=30)))
    assert text == "".join(pieces)
    assert usage.finish_reason == "length"
    assert usage.completion_tokens == 30


@pytest.mark.parametrize("name", WITH_TOKENIZER)
def test_a_later_turn_has_the_logits_of_a_fresh_one(name: str, tmp_path: Path) -> None:
    """Whether the model can rewind (docs/hosts/genai.md) or not."""
    ort_aie_ep.compile(DATA / name, tmp_path / name)
    kept, fresh = opened(tmp_path / name), opened(tmp_path / name)
    first = [int(token) for token in np.random.default_rng(2).integers(3, 100, 20)]
    written(kept.run(Turn(first, max_tokens=6)))
    (cache,) = kept._caches
    assert cache.tokens[:20] == first
    for second in ([*cache.tokens, 7, 8, 9], [*first[:15], 5, 6]):
        logits = []
        for model in (kept, fresh):
            _, usage = written(model.run(Turn(second, max_tokens=1)))
            logits.append(model._caches[-1].generator.get_logits()[0, -1])
            assert usage.prompt_tokens == len(second)
            if model is kept and second[-1] == 9:
                assert usage.cached_tokens == len(second) - 3
        np.testing.assert_allclose(logits[0], logits[1], atol=TIE, rtol=0)
        fresh = opened(tmp_path / name)


def test_each_conversation_keeps_a_cache_until_others_need_it(model: Path) -> None:
    conversations = opened(model, 2)

    def cached(prompt: list[int]) -> int:
        return written(conversations.run(Turn(prompt, max_tokens=1)))[1].cached_tokens

    one, two, three = ([start, *range(50, 60)] for start in (5, 6, 7))
    assert [cached(prompt) for prompt in (one, two)] == [0, 0]
    assert [cached([*prompt, 61, 62]) for prompt in (one, two)] == [11, 11]
    assert cached(three) == 0  # in the place of the one that was used longest ago
    assert [cached([*prompt, 61, 62]) for prompt in (two, one)] == [12, 0]
    assert len(conversations._caches) == 2


def test_a_turn_that_is_given_up_leaves_its_cache_to_the_next(model: Path) -> None:
    conversations = opened(model)
    pieces = conversations.run(Turn(PROMPT))
    for _ in range(5):
        next(pieces)
    pieces.close()
    text, usage = written(conversations.run(Turn(PROMPT, max_tokens=8)))
    assert text == written(opened(model).run(Turn(PROMPT, max_tokens=8)))[0]
    assert usage.cached_tokens == usage.prompt_tokens - 1


def test_turns_that_run_at_the_same_time_do_not_mix(conversations: Conversations) -> None:
    prompts = (PROMPT, "import os", "class Test")
    alone = [written(conversations.run(Turn(prompt, max_tokens=20)))[0] for prompt in prompts]
    turns = [conversations.run(Turn(prompt, max_tokens=20)) for prompt in prompts]
    texts = dict.fromkeys(turns, "")
    while running := [turn for turn in turns if turn.gi_frame is not None]:
        for turn in running:
            texts[turn] += next(turn, "")
    assert list(texts.values()) == alone


def test_text_ends_before_a_stop_string_that_pieces_divide(conversations: Conversations) -> None:
    whole, _ = written(conversations.run(Turn(PROMPT, max_tokens=40)))
    stop = whole[23:31]  # begins and ends within tokens
    pieces = conversations.run(Turn(PROMPT, max_tokens=40, stop=("never there", stop)))
    text, usage = written(pieces)
    assert text == whole[: whole.index(stop)]
    assert usage.finish_reason == "stop"
    assert 0 < usage.completion_tokens < 40


def test_an_answer_that_is_written_again_keeps_the_prompt(model: Path) -> None:
    conversations = opened(model, 2)
    prompt = list(range(50, 90))
    written(conversations.run(Turn(prompt, max_tokens=100)))
    assert written(conversations.run(Turn(prompt, max_tokens=5)))[1].cached_tokens == 39


def test_nothing_follows_a_stop_string() -> None:
    stops = _Stops(("ab\ufffd",))
    assert stops.push("zab") == ("z", False)
    assert stops.push("\ufffd more") == ("", True)
    assert stops.rest() == ""


def test_text_that_only_begins_like_a_stop_string_is_shown_in_the_end(
    conversations: Conversations,
) -> None:
    whole, _ = written(conversations.run(Turn(PROMPT, max_tokens=40)))
    stop = whole[-5:] + "\0"
    assert written(conversations.run(Turn(PROMPT, max_tokens=40, stop=(stop,))))[0] == whole


def test_a_seed_repeats_a_text_on_any_cache(model: Path, conversations: Conversations) -> None:
    def text(seed: int, where: Conversations = conversations) -> str:
        sampling = Sampling(temperature=1.0, top_p=0.9, seed=seed)
        return written(where.run(Turn(PROMPT, max_tokens=30, sampling=sampling)))[0]

    assert text(1) == text(1) == text(1, opened(model))
    assert len({text(seed) for seed in range(4)}) == 4


def test_a_schema_is_followed_and_leaves_no_trace(conversations: Conversations) -> None:
    plain, _ = written(conversations.run(Turn(PROMPT, max_tokens=10)))
    for sampling in (None, Sampling(temperature=1.0, seed=3)):
        turn = Turn(PROMPT, max_tokens=200, sampling=sampling, schema=json.dumps(SCHEMA))
        text, usage = written(conversations.run(turn))
        found = json.loads(text)
        assert found["name"] in ("left", "right")
        assert found["size"] in (1, 2)
        assert usage.finish_reason == "stop"
    assert written(conversations.run(Turn(PROMPT, max_tokens=10)))[0] == plain
    with pytest.raises(AieError, match=r"onnxruntime-genai: .*nonsense"):
        written(conversations.run(Turn(PROMPT, schema='{"type": "nonsense"}')))
    assert written(conversations.run(Turn(PROMPT, max_tokens=10)))[0] == plain


def test_bad_prompts_are_named(conversations: Conversations, tmp_path: Path) -> None:
    with pytest.raises(AieError, match="the prompt is empty"):
        next(conversations.run(Turn("")))
    with pytest.raises(PromptTooLongError, match="3000 tokens and the context 2048"):
        next(conversations.run(Turn([5] * 3000)))
    for turn in (Turn("\ud800"), Turn(messages=[{"role": "user", "content": "\ud800"}])):
        with pytest.raises(AieError, match="not Unicode: surrogates not allowed"):
            next(conversations.run(turn))
    for token in (-1, 4096, 2**40):
        with pytest.raises(AieError, match=f"token {token} is not in the vocabulary of 4096"):
            next(conversations.run(Turn([5, token])))
    demo = Path(ort_aie_ep.__file__).parent / "demo_model"
    shutil.copytree(demo, tmp_path / "demo")
    with pytest.raises(AieError, match="no chat template"):
        next(opened(tmp_path / "demo").run(Turn(messages=[{"role": "user", "content": "x"}])))
    with pytest.raises(AieError, match="a context of 5000 tokens: the model's has 2048"):
        opened(tmp_path / "demo", context=5000)


def with_template(model: Path, folder: Path, template: object) -> Path:
    shutil.copytree(model, folder)
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text()) | {"chat_template": template}
    file.unlink()
    file.write_text(json.dumps(content))
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
    conversations = opened(with_template(model, tmp_path / "endless", template))
    with pytest.raises(AieError, match="the chat template"):
        next(conversations.run(Turn(messages=[{"role": "user", "content": "x"}])))
    assert written(conversations.run(Turn(PROMPT, max_tokens=2)))[0]


def test_a_chat_is_written_with_the_template_named_default(model: Path, tmp_path: Path) -> None:
    named = [
        {"name": name, "template": name + " {{ messages[0].content }}"}
        for name in ("tool_use", "default")
    ]
    folder = with_template(model, tmp_path / "named", named)
    conversations = opened(folder)
    written(conversations.run(Turn(messages=[{"role": "user", "content": "a\0b"}], max_tokens=1)))
    assert load_tokenizer(find_model(folder)).decode(
        conversations._caches[0].tokens
    ) == "default a\0b"  # fmt: skip
    with pytest.raises(AieError, match='none of the chat templates is named "default": tool_use'):
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
    assert template.render(json.dumps(messages)) == (
        '<|endoftext|>\n{"role": "user", "content": "<\u00e9>"}4TrueTrue'
    )
    for text, said in (
        ("{{ raise_exception('only one') }}", "refuses the messages: only one"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
    ):
        with pytest.raises(AieError, match=said):
            ChatTemplate(text, {}).render("[]")


def properties(count: int, start: str = "p") -> str:
    found = {f"{start}{i}": {"type": "string"} for i in range(count)}
    return json.dumps({"type": "object", "properties": found})


def test_a_grammar_that_takes_too_much_is_refused(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SECONDS", 100)  # so that memory is what counts
    with pytest.raises(AieError, match="the grammar of the JSON schema takes more than 8 MiB"):
        next(conversations.run(Turn(PROMPT, schema=properties(2800))))
    monkeypatch.setattr(bounded, "SECONDS", 1)
    begin = time.monotonic()
    many = {"type": "array", "items": {"type": "integer"}, "maxItems": 10**8}
    with pytest.raises(AieError, match="the JSON schema takes more than 1 seconds or 1024 MiB"):
        next(conversations.run(Turn(PROMPT, schema=json.dumps(many))))
    assert time.monotonic() - begin < 30  # a loaded machine's forks and all
    assert written(conversations.run(Turn(PROMPT, max_tokens=2)))[0]


def test_grammars_that_are_kept_have_a_bound(conversations: Conversations) -> None:
    """genai keeps 64; without a bound each would take 1 MB."""
    sizes = []
    for at in range(130):
        generator = conversations._generator(Turn(schema=properties(250, f"q{at}_")), 2)
        del generator
        if at in (69, 129):
            sizes.append(bounded.resident())
    assert sizes[1] - sizes[0] < 30e6


def test_texts_and_chats_begin_with_one_begin_of_text(model: Path, tmp_path: Path) -> None:
    """A text gets what the tokenizer puts before each, a chat what its template puts there."""
    from ort_aie_ep.running.run import run_in_genai, run_in_session

    folder = tmp_path / "begins"
    shutil.copytree(model, folder)
    begin = {"id": "<|endoftext|>", "type_id": 0}
    post_processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": begin}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {begin["id"]: {"id": begin["id"], "ids": [0], "tokens": [begin["id"]]}},
    }
    for name, more in (
        ("tokenizer.json", {"post_processor": post_processor}),
        ("tokenizer_config.json", {"chat_template": "{{ bos_token }}{{ messages[0].content }}"}),
    ):
        file = folder / name
        content = json.loads(file.read_text()) | more
        file.unlink()
        file.write_text(json.dumps(content))
    conversations = opened(folder)
    for turn in (
        Turn(PROMPT, max_tokens=1),
        Turn(messages=[{"role": "user", "content": PROMPT}], max_tokens=1),
    ):
        assert written(conversations.run(turn))[1].prompt_tokens == 6
        (cache,) = conversations._caches
        assert cache.tokens[0] == 0
        assert cache.tokens[1] != 0
    for run in (run_in_session, run_in_genai):
        assert run(find_model(folder), ONE_THREAD, PROMPT, 1, lambda _: None).prompt_tokens == 6


def test_the_context_ends_a_text(model: Path) -> None:
    text, usage = written(opened(model, context=30).run(Turn(PROMPT)))
    assert usage.finish_reason == "length"
    assert usage.prompt_tokens + usage.completion_tokens == 30
    assert text


def test_genai_config_chooses_the_sampling_that_a_turn_leaves_open(
    model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "sampled")
    file = tmp_path / "sampled" / "genai_config.json"
    config = json.loads(file.read_text())
    config["search"] |= {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    file.unlink()
    file.write_text(json.dumps(config))
    assert opened(tmp_path / "sampled")._sampling == Sampling(0.7, 0.9, 5)
    assert opened(model)._sampling == Sampling(0.0)


def test_threads_are_the_users_else_the_folders_else_onnx_runtimes_choice(model: Path) -> None:
    def threads(options: Options, **session_options: int) -> object:
        folder = find_model(model)
        assert folder.genai_config is not None
        folder.genai_config["model"]["decoder"]["session_options"].update(session_options)
        return entries(folder, options).get("intra_op_num_threads")

    assert threads(Options(threads=3), intra_op_num_threads=2) == 3
    assert threads(Options(), intra_op_num_threads=2) is None  # stays
    assert threads(Options()) == 0


def test_other_roundings_of_the_logits_choose_the_same_token() -> None:
    """However flat the probabilities are, if the two best differ by more than the rounding."""
    logits = np.random.default_rng(7).normal(0, 1, 4000)
    moved = logits + np.random.default_rng(8).uniform(-1e-4, 1e-4, 4000)
    sampling = Sampling(2.0)
    pairs = [
        [choose_token(row, sampling, np.random.default_rng(seed)) for row in (logits, moved)]
        for seed in range(200)
    ]
    # The best two are apart by an exponential variable: each differs with a chance of 1e-4.
    assert sum(one != other for one, other in pairs) <= 1


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.6, 0), (1.0, 3), (0.8, 4)])
def test_tokens_are_chosen_as_often_as_they_are_likely(top_p: float, top_k: int) -> None:
    """Against probabilities that are computed by sorting everything."""
    random = np.random.default_rng(5)
    logits = random.normal(0, 2, 12).astype(np.float32)
    weights = np.exp(logits / 0.7)
    order = np.argsort(-weights)
    if top_k:
        weights[order[top_k:]] = 0
    weights /= weights.sum()
    nucleus = np.cumsum(weights[order]) - weights[order] < top_p  # what is before has less
    weights[order[~nucleus]] = 0
    weights /= weights.sum()
    sampling, draws = Sampling(0.7, top_p, top_k), 4000
    counts = np.zeros(12)
    for _ in range(draws):
        counts[choose_token(logits, sampling, random)] += 1
    assert not counts[weights == 0].any()
    # Five standard deviations of a count.
    bound = 5 * np.sqrt(draws * weights * (1 - weights))
    assert (np.abs(counts - draws * weights) <= bound).all()
    assert choose_token(logits, Sampling(0), random) == order[0]
    with pytest.raises(AieError, match="logits are not numbers"):
        choose_token(logits * np.nan, sampling, random)
