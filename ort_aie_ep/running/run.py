"""`ort-aie run`: completes a prompt in plain ONNX Runtime or in onnxruntime-genai."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.models.folder import ModelFolder, section
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.models.tokenizer import load_tokenizer
from ort_aie_ep.progress import Count, Progress
from ort_aie_ep.running.genai import (
    entries,
    least_length,
    module,
    open_model,
    refusal,
    require_config,
)
from ort_aie_ep.running.generate import Decoder, Tokens, greedy, stop_tokens
from ort_aie_ep.running.text import TextStream, encode
from ort_aie_ep.runtime.sessions import Options, open_session

# A draft is the tokens that followed the previous occurrence of the last two tokens.
_NGRAM = 3

Write = Callable[[str], None]
"""Called with pieces of text as they are generated."""


@dataclass(frozen=True)
class Timing:
    """The time of one completion, as a user sees it: including choosing and printing tokens.

    Attributes:
        prompt_tokens, new_tokens: how many.
        prefill_seconds: from the prompt to the first new token.
        decode_seconds: for all further tokens.
        drafted: (how many drafted tokens were right, how many were verified).
    """

    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    drafted: tuple[int, int] | None = None

    @property
    def prefill_speed(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds

    @property
    def decode_speed(self) -> float | None:
        """Further tokens per second; None if there were none."""
        return (self.new_tokens - 1) / self.decode_seconds if self.new_tokens > 1 else None


def run_in_session(
    folder: ModelFolder,
    options: Options,
    prompt: str,
    count: int,
    write: Write,
    progress: Progress | None = None,
) -> Timing:
    """Completes `prompt` with up to `count` tokens in an InferenceSession.

    `progress` counts tokens of the prompt once the session is open.

    Raises:
        AieError: the model or its tokenizer is unfit, or the prompt is empty or too long.
    """
    tokenizer = load_tokenizer(folder)
    tokens = encode(tokenizer, prompt)
    count = _fitting(folder, len(tokens), count)
    decoder = Decoder(open_session(folder.model, options), folder, len(tokens) + count)
    stream = TextStream(tokenizer, tokens)
    Count(progress, len(tokens)).begin("")  # before the clock starts: what shows it takes time
    ids = greedy(decoder, tokens, count, stop_tokens(folder), progress)
    pieces = (stream.push(token) for token in ids)
    timing = _timed(len(tokens), pieces, write)
    write(stream.finish())
    return timing


def run_in_genai(
    folder: ModelFolder,
    options: Options,
    prompt: str,
    count: int,
    write: Write,
    draft: int = 0,
    drafter: ModelFolder | None = None,
    progress: Progress | None = None,
) -> Timing:
    """The same in onnxruntime-genai; a compiled folder's genai_config.json names the library.

    `draft` tokens at a time are drafted by `drafter`, a smaller model with the same vocabulary, or
    else from repetitions in the text. They are verified in one call.

    Raises:
        AieError: genai is not installed, or refuses the folder, or refuses drafts for it.
    """
    genai = module()
    for given in (folder, drafter):
        if given is not None:
            require_config(given)
    try:
        overlay = "" if drafter is None else _drafting(folder, drafter, options)
        model = open_model(folder, options, overlay)
        # genai's own would leave out the tokens that the model wants around a text, or add others.
        tokenizer = load_tokenizer(folder)
        tokens = encode(tokenizer, prompt)
        count = _fitting(folder, len(tokens), count)
        search = genai.GeneratorParams(model)
        length = max(len(tokens) + count, least_length(folder))
        search.set_search_options(max_length=length, do_sample=False)
        if draft:
            ngram = 0 if drafter is not None else _NGRAM
            search.set_speculative_options(ngram_size=ngram, max_draft_tokens=draft)
        generator = genai.Generator(model, search)
        reading = Count(progress, len(tokens))
        reading.begin("")  # before the clock starts, too
        stream = TextStream(tokenizer, tokens)
        ids = islice(_genai_tokens(generator, tokens, stop_tokens(folder), reading), count)
        timing = _timed(len(tokens), (stream.push(token) for token in ids), write)
        write(stream.finish())
        if not draft:
            return timing
        told = generator.get_speculative_stats()
        counts = int(told["draft_tokens_accepted"]), int(told["draft_tokens_evaluated"])
        return replace(timing, drafted=counts)
    except RuntimeError as error:
        raise refusal(error) from error


def _genai_tokens(generator: Any, tokens: Tokens, ends: Set[int], prompt: Count) -> Iterator[int]:
    generator.append_tokens(tokens)
    prompt.step(len(tokens))
    while not generator.is_done():
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if token in ends:
            return
        yield token


def _drafting(folder: ModelFolder, drafter: ModelFolder, options: Options) -> str:
    """The part of genai_config.json that makes `drafter` draft tokens for `folder`.

    genai takes the name of the drafter's file as relative to `folder` (an absolute one is not
    found), and loads its custom_ops_library from there alone.

    Raises:
        AieError: `folder` does not have that library.
    """
    decoder = dict(section(drafter, "model", "decoder"))
    session = {**decoder.get("session_options", {}), **entries(drafter, options)}
    library = str(session.get("custom_ops_library", ""))
    if not (folder.path / library).exists():
        raise AieError(
            f"{drafter.path} is compiled and {folder.path} is not, so onnxruntime-genai does not "
            f"find {library}: compile {folder.path} too"
        )
    file = os.path.relpath(drafter.model.resolve(), folder.path.resolve())
    decoder |= {"filename": file, "session_options": session}
    return json.dumps({"model": {"draft": decoder}})


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
