"""`ort-aie run`: completes a prompt in plain ONNX Runtime or in onnxruntime-genai."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.chunks import CHUNK_ALONE
from ort_aie_ep.running.drafts import open_drafts
from ort_aie_ep.running.genai import least_length, module, open_model, refusal, require_config
from ort_aie_ep.running.loop import Loop, sampling_of
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.slots import open_slots
from ort_aie_ep.running.turns import Turn
from ort_aie_ep.running.writing import Timing, Writing
from ort_aie_ep.runtime.sessions import Options

Write = Callable[[str], None]
"""Called with pieces of text as they are generated."""


def run_in_session(
    folder: ModelFolder,
    options: Options,
    prompt: str,
    count: int,
    write: Write,
    progress: Progress | None = None,
    draft: int = 0,
    drafter: ModelFolder | None = None,
    chosen: Mapping[str, Any] = {},
) -> Timing:
    """Completes `prompt` with up to `count` tokens in an InferenceSession.

    `progress` counts tokens of the prompt once the session is open. Up to `draft` tokens at a time
    are guessed by `drafter`, a smaller model with the same tokens, or else from repetitions in the
    text. `chosen` has fields of `Sampling` in place of what the model's publisher says.

    Raises:
        AieError: the model or its tokenizer is unfit, or the prompt is empty or too long.
    """
    prompts = Prompts(folder)
    tokens = prompts.of_text(prompt)
    count = _fitting(folder, len(tokens), count)
    room = len(tokens) + count
    slots = open_slots(folder, options, 1, room)
    drafts = open_drafts(slots, folder, options, draft, drafter, room) if draft else None
    asking = Asking(prompts, slots.vocabulary)
    loop = Loop(slots, asking, room, sampling_of(folder), CHUNK_ALONE, drafts)
    writing = Writing(loop, Turn(tokens, max_tokens=count, sampling=chosen), progress)
    for delta in writing:
        if delta:
            write(delta.content)
    return writing.timing


def run_in_genai(
    folder: ModelFolder,
    options: Options,
    prompt: str,
    count: int,
    write: Write,
    progress: Progress | None = None,
    chosen: Mapping[str, Any] = {},
) -> Timing:
    """The same in onnxruntime-genai; a compiled folder's genai_config.json names the library.

    Raises:
        AieError: genai is not installed, or refuses the folder.
    """
    genai = module()
    require_config(folder)
    try:
        model = open_model(folder, options)
        # genai's own would leave out the tokens that the model wants around a text, or add others.
        prompts = Prompts(folder)
        tokens = prompts.of_text(prompt)
        count = _fitting(folder, len(tokens), count)
        search = genai.GeneratorParams(model)
        length = max(len(tokens) + count, least_length(folder))
        search.set_search_options(max_length=length, **_search(folder, chosen))
        generator = genai.Generator(model, search)
        reading = Count(progress, len(tokens))
        reading.begin("")  # before the clock starts, too
        stream = prompts.stream(tokens)
        ids = islice(_genai_tokens(generator, tokens, prompts.ends, reading), count)
        timing = _timed(len(tokens), (stream.push(token) for token in ids), write)
        write(stream.finish())
        return timing
    except RuntimeError as error:
        raise refusal(error) from error


def _search(folder: ModelFolder, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The same choice of tokens in genai's words, which have none for min-p."""
    sampling = sampling_of(folder).with_fields(chosen)
    search: dict[str, Any] = {
        "do_sample": sampling.temperature > 0,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature > 0:
        search |= {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
    if sampling.seed is not None:
        search["random_seed"] = sampling.seed
    return search


def _genai_tokens(
    generator: Any, tokens: list[int], ends: Set[int], prompt: Count
) -> Iterator[int]:
    generator.append_tokens(tokens)
    prompt.step(len(tokens))
    while not generator.is_done():
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if token in ends:
            return
        yield token


def _fitting(folder: ModelFolder, prompt: int, count: int) -> int:
    room = context_length(folder) - prompt
    if room < 1:
        raise AieError(
            f"the prompt has {prompt} tokens and the model's context only {context_length(folder)}"
        )
    return min(count, room)


def _timed(prompt: int, pieces: Iterable[str], write: Write) -> Timing:
    start = first = shown = last = time.perf_counter()
    count = 0
    for piece in pieces:
        last = time.perf_counter()
        count += 1
        write(piece)
        if count == 1:  # this also ended the prompt's progress bar
            first, shown = last, time.perf_counter()
    end = time.perf_counter()
    # Without new tokens, all the time went into the prompt.
    return Timing(prompt, count, (first if count else end) - start, max(0.0, last - shown))
