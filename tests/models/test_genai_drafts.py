"""onnxruntime-genai's drafted tokens, rewind_to and later turns, through both doors.

Texts are compared with plain greedy decoding of the same model, token by token, except where two
tokens are nearly as likely: rows that are verified together are rounded in other places than one by
one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from model_folders import edited
from provider_calls import registered_in_genai

import ort_aie_ep
from ort_aie_ep.runtime.provider import NAME

og = pytest.importorskip("onnxruntime_genai")

DATA = Path(__file__).parent.parent / "data"
DEMO = Path(ort_aie_ep.__file__).parent / "demo_model"
# gemma3 has a window, qwen3 norms of heads, phi3 packed projections and partial rotation.
MODELS = ("demo", "gemma3", "qwen3", "phi3")
NEW = 40
# A row that is computed alone has other roundings than among others: of probabilities, to bfloat16,
# and in bf16 numerics of weights too. On these models it moves logits, of up to 10, by up to 0.05.
TIE = 0.1
# The same calls sum the same terms; float32 sums of some hundred terms of up to 10.
SAME = 1e-4

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Door:
    """A model folder for genai: compiled, or the source with the execution provider."""

    folder: Path
    prompt: list[int]

    def model(self, **overlay: Any) -> Any:
        config = og.Config(str(self.folder))
        config.overlay(json.dumps(overlay))
        return og.Model(config)

    def drafted(self, **overlay: Any) -> Any:
        """The model with a drafter."""
        return Door(self.folder.with_name("drafted"), self.prompt).model(**overlay)


@pytest.fixture(scope="module")
def provider() -> Iterator[None]:
    with registered_in_genai(og):
        yield


def err(folder: Path) -> None:
    """Noise on the lm_head: the model is then wrong about some tokens."""
    model = ir.load(folder / "model.onnx")
    scales = model.graph.initializers["lm_head.MatMul.weight_scales"]
    values = np.asarray(scales.const_value.numpy())
    noise = np.random.default_rng(5).normal(1, 0.1, values.shape)
    scales.const_value = ir.tensor((values * noise).astype(np.float32), name=scales.name)
    ir.save(model, folder / "model.onnx")


def make(name: str, kind: str, folder: Path) -> Door:
    """The model in `folder`, and in "drafted" beside it the same with a drafter that errs."""
    source = folder.with_name("source")
    shutil.copytree(DEMO if name == "demo" else DATA / name, source)
    drafted = folder.with_name("drafted")
    drafter = drafted / "drafter"
    drafted.mkdir()
    for target in (folder, drafter):
        if kind == "compiled":
            ort_aie_ep.compile(source, target)
        else:
            shutil.copytree(source, target)
        with edited(target / "genai_config.json") as config:
            decoder = config["model"]["decoder"]
            # One thread suits tiny models. genai rewinds a window only while nothing is dropped.
            decoder["session_options"]["intra_op_num_threads"] = 1
            if kind == "source":
                decoder["session_options"]["provider_options"] = [{NAME: {}}]
            if "sliding_window" in decoder:
                decoder["sliding_window"]["cache_slack"] = 96
        err(source)
    shutil.copytree(folder, drafted, copy_function=os.link, dirs_exist_ok=True)
    with edited(drafted / "genai_config.json") as config:
        config["model"]["draft"] = {**config["model"]["decoder"], "filename": "drafter/model.onnx"}
    phrase = np.random.default_rng(3).integers(3, config["model"]["vocab_size"], 12)
    return Door(folder, [int(token) for token in np.tile(phrase, 4)])


@pytest.fixture(scope="module", params=[f"{m} {d}" for m in MODELS for d in ("compiled", "source")])
def door(
    request: pytest.FixtureRequest, provider: None, tmp_path_factory: pytest.TempPathFactory
) -> Door:
    name, kind = request.param.split()
    return make(name, kind, tmp_path_factory.mktemp("drafts") / name)


@pytest.fixture(scope="module")
def demo(provider: None, tmp_path_factory: pytest.TempPathFactory) -> Door:
    return make("demo", "compiled", tmp_path_factory.mktemp("drafts") / "demo")


def start(model: Any, drafts: dict[str, Any] | None = None, **search: Any) -> Any:
    parameters = og.GeneratorParams(model)
    search = {"max_length": 120, "min_length": 120, "do_sample": False, **search}
    parameters.set_search_options(**search)
    if drafts is not None:
        parameters.set_speculative_options(**drafts)
    return og.Generator(model, parameters)


def write(generator: Any, count: int) -> list[int]:
    before = generator.token_count()
    for _ in range(count):
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[before:]]


def logits(generator: Any) -> Array:
    return np.array(generator.get_logits(), np.float32).ravel()


def begin_turn(generator: Any, turn: list[int]) -> None:
    """genai never runs the last token that it generated: without this, a turn that stops before the
    end of the text leaves a gap in the cache, with and without drafts."""
    written = generator.token_count()
    last = [int(token) for token in generator.get_sequence(0)[-1:]] if written else []
    if last:
        generator.rewind_to(written - 1)
    generator.append_tokens(last + turn)


def check(model: Any, generator: Any, turns: list[list[int]]) -> None:
    """Each token that a drafting generator writes is the one that the model alone chooses there,
    one token at a time, or is as likely within TIE. Most are that one."""
    alone, same = start(model), 0
    for turn in turns:
        begin_turn(generator, turn)
        alone.append_tokens(turn)
        for token in write(generator, NEW // len(turns)):
            row = logits(alone)
            assert row.max() - row[token] <= TIE
            same += token == row.argmax()
            alone.append_tokens([token])
    assert same >= 0.9 * NEW


def test_a_prompts_logits_that_genai_does_not_read_are_not_computed(door: Door) -> None:
    """It reads those of the last token that is not padding: token 0 is."""
    texts, rows = [], []
    for which in ("all", "last"):
        options = {"session_options": {"ort_aie.prompt_logits": which}}
        model = door.model(model={"decoder": options})
        for padding in (0, 5):
            generator = start(model)
            generator.append_tokens(door.prompt + [0] * padding)
            rows.append(np.array(generator.get_output("logits"), np.float32)[0])
            texts.append(write(generator, 8))
    assert texts[:2] == texts[2:]
    for whole, last in zip(rows[:2], rows[2:], strict=True):
        assert np.isnan(last[:-32, 0]).all()
        np.testing.assert_allclose(last[-32:], whole[-32:], atol=SAME, rtol=0)


N_GRAMS = {"ngram_size": 3, "max_draft_tokens": 4}


def test_drafts_from_repetitions_give_the_greedy_text(door: Door) -> None:
    model = door.model()
    generator = start(model, N_GRAMS)
    check(model, generator, [door.prompt])
    told = generator.get_speculative_stats()
    assert told["draft_tokens_evaluated"] > 0
    assert told["target_verify_forward_passes"] > 0


def test_the_most_tokens_that_are_drafted_together_give_the_greedy_text(demo: Door) -> None:
    generator = start(demo.model(), {"max_draft_tokens": 16, "ngram_size": 2})
    check(demo.model(), generator, [demo.prompt])
    assert generator.get_speculative_stats()["draft_tokens_evaluated"] > 0


@pytest.mark.parametrize("drafter", [False, True], ids=["repetitions", "drafter"])
def test_sampled_text_is_drafted_and_repeatable(demo: Door, drafter: bool) -> None:
    drafting = demo.drafted() if drafter else demo.model()
    sampling = {"do_sample": True, "top_k": 20, "temperature": 0.7, "random_seed": 5}
    texts = []
    for _ in range(2):
        drafts = {"max_draft_tokens": 4} if drafter else N_GRAMS
        generator = start(drafting, drafts, **sampling)
        generator.append_tokens(demo.prompt)
        texts.append(write(generator, NEW))
        told = generator.get_speculative_stats()
        assert 0 < told["draft_tokens_accepted"] <= told["draft_tokens_evaluated"]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("drafter", [False, True], ids=["repetitions", "drafter"])
def test_a_grammar_holds_for_drafted_text(demo: Door, drafter: bool) -> None:
    model = demo.drafted() if drafter else demo.model()
    grammar = r"(import (os|sys)\n){4}"
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=120, do_sample=False)
    parameters.set_speculative_options(**({"max_draft_tokens": 4} if drafter else N_GRAMS))
    parameters.set_guidance("regex", grammar)
    generator = og.Generator(model, parameters)
    generator.append_tokens(demo.prompt)
    while not generator.is_done():
        generator.generate_next_token()
    text = og.Tokenizer(model).decode(generator.get_sequence(0)[len(demo.prompt) :])
    assert re.fullmatch(grammar, text)


def test_drafts_of_a_model_give_the_greedy_text(door: Door) -> None:
    generator = start(door.drafted(), {"max_draft_tokens": 3})
    check(door.model(), generator, [door.prompt])
    told = generator.get_speculative_stats()
    assert 0 < told["draft_tokens_accepted"] < told["draft_tokens_evaluated"]


def test_a_model_with_the_last_logits_alone_verifies_drafts_one_by_one(
    demo: Door, tmp_path: Path
) -> None:
    ort_aie_ep.compile(DEMO, tmp_path / "last", last_logits=True)
    decoder = json.loads((demo.folder / "genai_config.json").read_text())["model"]["decoder"]
    decoder["filename"] = os.path.relpath(demo.folder / "model.onnx", tmp_path / "last")
    target = Door(tmp_path / "last", demo.prompt)
    generator = start(target.model(model={"draft": decoder}), {"max_draft_tokens": 3})
    check(demo.model(), generator, [demo.prompt])
    told = generator.get_speculative_stats()
    assert 0 < told["draft_tokens_accepted"] < told["target_forward_passes"]


BF16 = {"model": {"decoder": {"session_options": {"ort_aie.numerics": "bf16"}}}}


@pytest.mark.parametrize("drafter", [False, True], ids=["repetitions", "drafter"])
@pytest.mark.parametrize("overlay", [{}, BF16], ids=["", "bf16"])
def test_drafts_go_on_in_later_turns(door: Door, overlay: dict[str, Any], drafter: bool) -> None:
    """A turn begins wherever the text stops, so also within a round."""
    drafting = door.drafted(**overlay) if drafter else door.model(**overlay)
    generator = start(drafting, {"max_draft_tokens": 4} if drafter else N_GRAMS)
    turns = [door.prompt, [7], door.prompt[3:20], door.prompt[:2]]
    check(door.model(**overlay), generator, turns)
    assert generator.get_speculative_stats()["draft_tokens_evaluated"] > 0


def replay(model: Any, calls: list[list[int]], **search: Any) -> Any:
    """A generator whose model was called with these tokens."""
    generator = start(model, **search)
    for tokens in calls:
        generator.append_tokens(tokens)
    return generator


# To generated tokens, into the prompt, and to the beginning.
REWOUND_TO = (60, 59, 43, 20, 0)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "copied"])
def test_a_rewound_cache_gives_the_logits_of_a_fresh_run(door: Door, shared: bool) -> None:
    if door.folder.name == "gemma3" and not shared:
        pytest.skip("ONNX Runtime's operator refuses a window on a cache that grows, as does this")
    check_rewound(door.model(), door.prompt, REWOUND_TO, past_present_share_buffer=shared)


def check_rewound(model: Any, prompt: list[int], lengths: tuple[int, ...], **search: Any) -> None:
    """The fresh run never saw what was rewound, and makes the calls for what was kept: attention of
    up to 17 positions rounds probabilities in another order than attention of more."""
    generator = replay(model, [prompt], **search)
    calls = [prompt, *([token] for token in write(generator, 20))]
    # Then fewer tokens, or more.
    then = ([5], prompt[:4], prompt[::-1], [9], prompt)
    for length, tokens in zip(lengths, then, strict=True):
        generator.rewind_to(length)
        generator.append_tokens(tokens)
        calls = [*cut(calls, length), tokens]
        fresh = replay(model, calls, **search)
        np.testing.assert_allclose(logits(generator), logits(fresh), atol=SAME, rtol=0)


def cut(calls: list[list[int]], length: int) -> list[list[int]]:
    """The calls for the first tokens."""
    kept = []
    for tokens in calls:
        if length > 0:
            kept.append(tokens[:length])
        length -= len(tokens)
    return kept


# Codes are rewound to where a call ended: fewer rows of a prompt may be summed in another order,
# and a key between two codes then gets the other.
@pytest.mark.parametrize(
    ("kv", "lengths"), [("f16", REWOUND_TO), ("int8", (60, 59, 48, 48, 0))], ids=["f16", "int8"]
)
def test_a_smaller_cache_is_rewound_too(
    demo: Door, kv: str, lengths: tuple[int, ...], tmp_path: Path
) -> None:
    ort_aie_ep.compile(DEMO, tmp_path / "model", kv=kv)
    model = Door(tmp_path / "model", demo.prompt).model()
    check_rewound(model, demo.prompt, lengths, past_present_share_buffer=True)


@pytest.mark.parametrize("drafter", [False, True], ids=["repetitions", "drafter"])
def test_a_rewind_among_drafted_tokens(demo: Door, drafter: bool) -> None:
    drafting = demo.drafted() if drafter else demo.model()
    generator = start(drafting, {"max_draft_tokens": 4} if drafter else N_GRAMS)
    generator.append_tokens(demo.prompt)
    text = write(generator, 22)
    generator.rewind_to(len(demo.prompt) + 10)
    generator.append_tokens(text[10:13])
    assert write(generator, 9) == text[13:]


def test_a_batch_is_rewound_to_its_beginning(door: Door) -> None:
    model = door.model()
    rows = np.array([door.prompt, door.prompt[::-1]], np.int32)
    generator = start(model, batch_size=2)
    texts = []
    for tokens in (rows, rows[::-1], rows):
        generator.append_tokens(tokens)
        for _ in range(12):
            generator.generate_next_token()
        texts.append([generator.get_sequence(i).tolist() for i in range(2)])
        generator.rewind_to(0)
    assert texts[0] == texts[1][::-1] == texts[2]


def run_turn(engine: Any, request: Any, tokens: list[int], count: int) -> tuple[int, list[int]]:
    """A turn's number, and its tokens. An engine without a paged cache, for which ONNX Runtime has
    no operator on CPUs, neither shares prompts nor verifies drafts."""
    options = og.TurnOptions(request)
    options.set_do_sample(False)
    options.set_max_generated_tokens(count)
    turn = request.begin_turn(np.array(tokens, np.int32), options)
    buffer, text = engine.create_event_buffer(8), []
    while engine.has_pending_requests():
        token = og.EngineEventFlags.TOKEN.value
        for event in engine.run(buffer):
            text += [event.token] if event.flags.value & token else []
            if event.flags.value & og.EngineEventFlags.TURN_FINISHED.value:
                usage = event.usage
                told = usage.prompt_tokens, usage.cached_prompt_tokens, usage.generated_tokens
                assert told == (len(tokens), 0, count)
        if len(text) == 1:
            with pytest.raises(RuntimeError, match="does not support speculative draft"):
                request.set_draft_tokens(np.array(tokens[:2], np.int32))
    return turn, text


def test_turns_of_the_engine_are_those_of_a_generator(door: Door) -> None:
    model = door.model()
    engine = og.Engine(model)
    assert engine.max_draft_tokens_per_proposal() == 0  # it drafts with a paged cache alone
    request = engine.create_request()
    turns = [door.prompt, door.prompt[:7]]
    generator, texts = start(model), []
    for turn in turns:
        begin_turn(generator, turn)
        number, text = run_turn(engine, request, turn, 10)
        assert text == write(generator, 10)
        texts.append(text)
    request.rewind_to_start_of_turn(number)
    assert run_turn(engine, request, turns[1], 10)[1] == texts[1]
