"""The generation loop: texts come and go between the steps of one model.

A step of the loop is one call of the model, so that its tokens reach clients at once, and who comes
meanwhile is seen before the next one. By turns, it computes the next token of all texts that are
being written, which reads the weights once for all of them, and a chunk of a prompt; several short
prompts follow one another, as many as a chunk has tokens, so that no text waits longer than a
chunk. Texts that are written lie side by side in the slots from 0 on.

A prompt that begins like what a slot holds is not read again: the slot goes on. What the slot lacks
and other texts had comes from `running.prefixes`, also between two chunks, when one of them is
ahead. What is read of a prompt is at least `LEAST_READ` tokens or all of it, and its chunks are no
shorter, so that each token is computed as a prompt's is, whatever was there before: by a GEMM,
whose rows do not depend on each other.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ort_aie_ep.errors import AieError, FieldError, UnexpectedError, as_error
from ort_aie_ep.models.checked_json import Field, read_json
from ort_aie_ep.models.files import is_regular
from ort_aie_ep.models.folder import GENAI_CONFIG, GENERATION_CONFIG, ModelFolder, section
from ort_aie_ep.models.interface import context_length
from ort_aie_ep.running.answers import AnswerReader, Delta
from ort_aie_ep.running.asked import Asking
from ort_aie_ep.running.chunks import CHUNK_BESIDE_TEXTS
from ort_aie_ep.running.drafts import Drafted, Drafting, Drafts, open_drafts
from ort_aie_ep.running.guidance import Guide
from ort_aie_ep.running.logprobs import Telling
from ort_aie_ep.running.prefixes import AT_ONCE, BLOCK, Keeping, Prefixes, open_prefixes
from ort_aie_ep.running.prompts import Prompts
from ort_aie_ep.running.sampling import Choosing, Row, choose, log_probabilities
from ort_aie_ep.running.slots import Slots, open_slots
from ort_aie_ep.running.text import Stops, TextStream
from ort_aie_ep.running.turns import Logprob, Piece, PromptTooLongError, Sampling, Turn, Usage
from ort_aie_ep.runtime.sessions import Options

# More than the rows that a product computes as single ones (`most_rows` of the host's kernels).
LEAST_READ = 64
# Tokens that are computed again with the next one, after guesses of a model with states were wrong:
# more end guessing for a step.
_MOST_AGAIN = 6

Event = Piece | Usage | AieError

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Text:
    """A text that is to be written after a prompt.

    Attributes:
        tokens: of the prompt, then those that were written.
        prompt: how many of them are the prompt.
        limit: the most that may be written.
        cached: tokens of the prompt that are not read again.
        read: tokens of the prompt that are in a cache.
        telling: what is to be told of its tokens' probabilities; None if nothing is.
        drafting: what is known of guesses for it; None if there are none.
        chain: keys of its blocks, as far as they were needed.
        kept: how many of them were kept.
        first: the first token that was computed for it.
    """

    turn: Turn
    tokens: list[int]
    limit: int
    choosing: Choosing
    stream: TextStream
    stops: Stops
    reader: AnswerReader
    guide: Guide | None
    telling: Telling | None = None
    drafting: Drafting | None = None
    prompt: int = field(init=False)
    cached: int = 0
    read: int = 0
    chain: list[bytes] = field(default_factory=list)
    kept: int = 0
    first: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.first = len(self.tokens)

    @property
    def written(self) -> int:
        """How many tokens were."""
        return len(self.tokens) - self.prompt


@dataclass(eq=False)
class _Slot:
    """What a slot holds, and of whom.

    Attributes:
        tokens: those whose keys and values are in the cache.
        text: who uses it now.
        used: when it was used last, by the loop's clock.
    """

    tokens: list[int] = field(default_factory=list)
    text: Text | None = None
    used: int = 0

    def common(self, tokens: list[int]) -> int:
        """How many tokens at the start are the same."""
        both = min(len(self.tokens), len(tokens))
        if self.tokens[:both] == tokens[:both]:
            return both
        return next(i for i in range(both) if self.tokens[i] != tokens[i])


class Loop:
    """A model, and the texts that it writes.

    Attributes:
        context: tokens of a text with its prompt.
        asking: makes turns ready.
        prompts: the model's tokenizer and template.
        slots: how many texts are written at the same time.
        waiting: texts that have no slot yet.
        drafts: guesses for texts, or None.
        prefixes: what outlives a slot, or None.
    """

    def __init__(
        self,
        slots: Slots,
        asking: Asking,
        context: int,
        sampling: Sampling | None = None,
        chunk: int = CHUNK_BESIDE_TEXTS,
        drafts: Drafts | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.asking, self.context, self.slots = asking, context, slots
        self.prompts = asking.prompts
        self.waiting: deque[Text] = deque()
        self.sampling = sampling or Sampling()
        self._chunk, self.drafts, self.prefixes = chunk, drafts, prefixes
        self._places = [_Slot() for _ in range(slots.count)]
        self._writing = 0  # so many slots from 0 on are being written
        self._clock = 0
        self._room = chunk  # tokens that may be read before the next ones are written
        self._first_next = True

    @property
    def texts(self) -> list[Text]:
        """Those that have a slot."""
        return [place.text for place in self._places if place.text is not None]

    def add(self, turn: Turn) -> Text:
        """A text that `step` will write.

        Raises:
            PromptTooLongError: the context has no room for the prompt and one token.
            AieError: the prompt is empty, a field of the turn cannot be, or the model has no
                template or format for what the turn asks.
        """
        for token in turn.sampling.get("bias", ()):
            if not 0 <= token < self.slots.vocabulary:
                raise FieldError(
                    "logit_bias",
                    f"token {token} is not in the vocabulary of {self.slots.vocabulary}",
                )
        prompt = self.asking(turn)
        room = self.context - len(prompt.tokens)
        if room < 1:
            raise PromptTooLongError(len(prompt.tokens), self.context)
        sampling = self.sampling.with_fields(turn.sampling)
        choosing = Choosing(
            sampling,
            np.random.default_rng(sampling.seed),
            prompt=frozenset(prompt.tokens) if sampling.repetition_penalty != 1 else frozenset(),
            ends=frozenset(t for t in self.prompts.ends if t < self.slots.vocabulary),
            least=turn.min_tokens,
        )
        text = Text(
            turn,
            prompt.tokens,
            room if turn.max_tokens is None else min(room, turn.max_tokens),
            choosing,
            prompt.stream,
            Stops(turn.stop),
            prompt.reader,
            prompt.guide,
            None if turn.logprobs is None else Telling(),
        )
        # How many tokens are guessed depends on time, and with it the use of random numbers, which
        # a seed is to repeat.
        repeats = sampling.temperature > 0 and sampling.seed is not None
        if self.drafts is not None and prompt.guide is None and not repeats:
            text.drafting = self.drafts.begin(text.tokens, choosing)
        self.waiting.append(text)
        return text

    def drop(self, text: Text) -> None:
        """Ends a text that nobody waits for."""
        if text in self.waiting:
            self.waiting.remove(text)
        if text in self.texts:
            self._end(text)

    def fail(self) -> None:
        """Ends all texts, and forgets what slots hold: after a step that raised an exception."""
        self.waiting.clear()
        self._writing = 0
        for index, place in enumerate(self._places):
            self.slots.keep(index, 0, len(place.tokens))
            place.tokens, place.text = [], None

    def step(self) -> list[tuple[Text, Event]]:
        """One token of each text that is being written, or a chunk of a prompt. A text's last event
        is its usage or an error."""
        self._admit()
        if (index := self._next_prompt()) is not None:
            size = self._part(index)
            if size <= self._room or self._room == self._chunk or not self._writing:
                self._room -= size
                return self._read(index, size)
        self._room = self._chunk
        return self._write()

    # --- slots -------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Gives free slots to texts that wait: to each the one that holds most of its prompt, if
        that is at least half of the prompt or half of what the slot holds, or else the one that was
        used longest ago."""
        while self.waiting and (free := [p for p in self._places if p.text is None]):
            text = self.waiting.popleft()
            best = max(free, key=lambda place: (place.common(text.tokens), -place.used))
            if 2 * best.common(text.tokens) < min(len(best.tokens), len(text.tokens)):
                best = min(free, key=lambda place: place.used)
            self._clock += 1
            best.text, best.used = text, self._clock
            self._begin(self._places.index(best))

    def _begin(self, index: int) -> None:
        """Makes a slot hold no more than what it has of the prompt that it is to read."""
        place, text = self._places[index], self._text(index)
        held, most = len(place.tokens), max(text.prompt - LEAST_READ, 0)
        own = place.common(text.tokens)
        if self.slots.rewinds:
            own = min(own, most)
        elif own < held or held == text.prompt:
            own = 0
        kept = self.slots.keep(index, own, held)
        place.tokens = text.tokens[:kept]
        text.cached = text.read = kept

    def _fill(self, index: int) -> bool:
        """Adds what other texts have of it: whether there may be more than fits into a step."""
        place, text = self._places[index], self._text(index)
        if self.prefixes is None or text.read >= (most := text.prompt - LEAST_READ):
            return False
        before = text.read
        text.read = self.prefixes.fill(index, text.tokens, text.chain, before, most)
        place.tokens += text.tokens[before : text.read]
        text.cached += text.read - before
        return before // BLOCK + AT_ONCE == text.read // BLOCK

    def _keep(self, place: _Slot, text: Text) -> None:
        """Keeps the blocks of a text that are complete."""
        if self.prefixes is not None:
            index = self._places.index(place)
            text.kept = self.prefixes.keep(index, place.tokens, text.chain, text.kept)

    def _text(self, index: int) -> Text:
        text = self._places[index].text
        assert text is not None
        return text

    def _end(self, text: Text, forget: bool = False) -> None:
        """Takes a text out of its slot, which keeps what it holds unless that is not known."""
        index = next(i for i, place in enumerate(self._places) if place.text is text)
        place = self._places[index]
        if forget:
            self.slots.keep(index, 0, len(place.tokens))
            place.tokens = []
            if self.prefixes is not None:
                self.prefixes.forget(text.chain[text.first // BLOCK : text.kept])
        self._clock += 1
        place.text, place.used = None, self._clock
        if index < self._writing:
            self._writing -= 1
            self._swap(index, self._writing)

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            places = self._places
            held = max(len(places[one].tokens), len(places[other].tokens))
            self.slots.swap(one, other, held)
            if self.drafts is not None:
                self.drafts.swap(one, other)
            places[one], places[other] = places[other], places[one]

    # --- prompts -----------------------------------------------------------------------------

    def _next_prompt(self) -> int | None:
        """The slot that reads: by turns the text that came first and the one with least to read, so
        that a short prompt does not wait for a long one, nor the long one for ever. None while
        slots are filled, which takes less time."""
        reading = [i for i, p in enumerate(self._places) if i >= self._writing and p.text]
        if not reading or any([self._fill(index) for index in reading]):
            return None
        if self._first_next:
            return min(reading, key=lambda index: self._places[index].used)
        return min(reading, key=self._left)

    def _left(self, index: int) -> int:
        """Tokens of its prompt that a slot has not read."""
        text = self._text(index)
        return text.prompt - text.read

    def _part(self, index: int) -> int:
        """How many tokens of its prompt a slot reads at once, now."""
        left = self._left(index)
        return left if left < self._chunk + LEAST_READ else self._chunk

    def _read(self, index: int, size: int) -> list[tuple[Text, Event]]:
        """The next tokens of a prompt, and with the last ones the first new token."""
        place, text = self._places[index], self._text(index)
        before, left = len(place.tokens), self._left(index)
        self._first_next = not self._first_next
        part = text.tokens[before : before + size]
        try:
            logits = self._run([text], [part], [before], index, 1)[0, -1]
        except Exception as error:
            return self._fail(text, error)
        place.tokens += part
        text.first = min(text.first, before)
        text.read += size
        if self.prefixes is not None:
            self.prefixes.counts.miss_tokens += size
        self._keep(place, text)
        if size < left:
            return []
        self._swap(index, self._writing)
        self._writing += 1
        return self._choose([text], [logits])

    # --- new tokens --------------------------------------------------------------------------

    def _write(self) -> list[tuple[Text, Event]]:
        """The next token of all texts that are being written, and those that were guessed right."""
        texts = [self._text(index) for index in range(self._writing)]
        parts = [texts] if texts and self.slots.together else [[text] for text in texts]
        return [event for part in parts for event in self._write_part(part)]

    def _write_part(self, texts: list[Text]) -> list[tuple[Text, Event]]:
        """The same of texts in neighbouring slots, in one call."""
        first = next(i for i, place in enumerate(self._places) if place.text is texts[0])
        places = self._places[first : first + len(texts)]
        before = [len(place.tokens) for place in places]
        # The last token that was written; and others, of texts alone, where a call was undone.
        new = [text.tokens[held:] for text, held in zip(texts, before, strict=True)]
        last = max(map(len, new)) - 1
        room = self.context - 1 - max(before) - last if last < _MOST_AGAIN else 0
        drafted = self._drafted(first, texts, room)
        # Guesses that a text lacks are computed too: what comes next is written over them.
        count = 1 + last + max(len(guesses.tokens) for guesses in drafted)
        rows = [tokens + guesses.tokens for tokens, guesses in zip(new, drafted, strict=True)]
        rows = [row + [row[-1]] * (count - len(row)) for row in rows]
        events: list[tuple[Text, Event]] = []
        drafts = self.drafts
        with drafts.timed(len(texts), count) if drafts else nullcontext():
            try:
                logits = self._run(texts, rows, before, first)[:, last:]
            except Exception as error:
                return [event for text in texts for event in self._fail(text, error)]
            for place, row in zip(places, rows, strict=True):
                place.tokens += row  # also what may be taken back: slots change places meanwhile
            alone = [i for i, guesses in enumerate(drafted) if not guesses.tokens]
            events += self._choose([texts[i] for i in alone], [logits[i, 0] for i in alone])
            for text, place, guesses, values, held in zip(
                texts, places, drafted, logits, before, strict=True
            ):
                taken = 0
                if guesses.tokens:
                    more, taken = self._verify(text, place, guesses, values)
                    events += more
                self._take_back(place, held + last + 1 + taken)
                self._keep(place, text)
        return events

    def _run(
        self, texts: list[Text], rows: list[list[int]], before: list[int], first: int,
        wanted: int = 0,
    ) -> npt.NDArray[np.float32]:  # fmt: skip
        logits = self.slots.run(np.array(rows), np.array(before), first, wanted)
        if self.drafts is not None:
            self.drafts.saw(first, [text.tokens for text in texts], before, self.slots.hidden)
        return logits

    def _take_back(self, place: _Slot, length: int) -> None:
        if length < len(place.tokens):
            kept = self.slots.keep(self._places.index(place), length, len(place.tokens))
            del place.tokens[kept:]

    def _drafted(self, first: int, texts: list[Text], room: int) -> list[Drafted]:
        """Guesses for each text, of which there is `room` for so many in the cache."""
        if self.drafts is None:
            return [Drafted([]) for _ in texts]
        rooms = [text.limit - text.written - 1 for text in texts]
        try:
            return self.drafts.propose(first, [text.drafting for text in texts], rooms, room)
        except Exception:  # texts do without
            _log.exception("there are no guesses any more")
            self.drafts = None
            return [Drafted([]) for _ in texts]

    def _verify(
        self, text: Text, place: _Slot, guesses: Drafted, logits: npt.NDArray[np.float32]
    ) -> tuple[list[tuple[Text, Event]], int]:
        """The guesses that the model agrees with, by its logits (positions, vocabulary), and one
        token more; and how many guesses that are."""
        assert self.drafts is not None
        assert text.drafting is not None
        events: list[tuple[Text, Event]] = []
        taken = 0
        for index in range(len(guesses.tokens) + 1):
            try:
                adjusted = text.choosing.adjusted(logits[index])
                token, right = guesses.verify(index, adjusted, text.choosing)
            except Exception as error:
                return events + self._fail(text, error), 0
            events += self._push(text, token, logits[index])
            if not right or place.text is not text:
                break
            taken += 1
        self.drafts.judge(text.drafting, guesses, taken)
        return events, taken

    def _choose(self, texts: list[Text], logits: list[Row]) -> list[tuple[Text, Event]]:
        """The next token of each text, by its logits (vocabulary). A text whose logits are no
        numbers, or whose grammar takes too long, ends alone."""
        events: list[tuple[Text, Event]] = []
        rows, able = [], []
        for text, row in zip(texts, logits, strict=True):
            try:
                adjusted = text.choosing.adjusted(row)
                rows.append(adjusted if text.guide is None else _masked(adjusted, row, text.guide))
                able.append((text, row))
            except Exception as error:
                events += self._fail(text, error)
        chosen = _chosen(rows, [text.choosing for text, _ in able])
        for (text, row), token in zip(able, chosen, strict=True):
            if isinstance(token, Exception):
                events += self._fail(text, token)
            else:
                events += self._push(text, token, row)
        return events

    def _fail(self, text: Text, error: Exception) -> list[tuple[Text, Event]]:
        """A fault of one text, which ends that text."""
        said = as_error(error)
        if isinstance(said, UnexpectedError):
            _log.error("a text ends by a fault", exc_info=error)
        self._end(text, forget=True)
        return [(text, said)]

    def _push(self, text: Text, token: int, logits: Row) -> list[tuple[Text, Event]]:
        """What a new token adds to a text, and its end."""
        try:
            pieces, reason = self._written(text, token, logits)
        except Exception as error:
            return self._fail(text, error)
        events: list[tuple[Text, Event]] = [(text, p) for p in pieces if p.delta or p.logprobs]
        if not reason:
            return events
        if text.reader.called and reason == "stop":
            reason = "tool_calls"
        self._end(text)
        usage = Usage(reason, text.prompt, text.cached, text.written, text.stops.found)
        return [*events, (text, usage)]

    def _written(self, text: Text, token: int, logits: Row) -> tuple[list[Piece], str]:
        """What a new token adds to a text, and why that ends with it; empty if it does not."""
        if token in self.prompts.ends and not text.turn.ignore_end:
            return self._rest(text, "stop")
        text.tokens.append(token)
        text.choosing.written[token] += 1
        if text.guide is not None:
            text.guide.take(token)
        added = text.stream.push(token)
        told = None if text.telling is None else self._logprob(text, token, logits)
        piece, stopped = _shown(text, text.reader.push(token, added), told, added)
        if stopped:
            return [piece, *_last(text)], "stop"
        reason = "stop" if text.guide is not None and text.guide.ended else ""
        if not reason and text.written == text.limit:
            reason = "length"
        if not reason:
            return [piece], ""
        more, reason = self._rest(text, reason)
        return [piece, *more], reason

    def _rest(self, text: Text, reason: str) -> tuple[list[Piece], str]:
        """What was held back at the end of a text, and why it ended: also a stop string may be in
        that."""
        pieces = []
        added = text.stream.finish()
        for last in (False, True):
            delta = text.reader.finish() if last else text.reader.push(-1, added)
            piece, stopped = _shown(text, delta, None, "" if last else added)
            pieces.append(piece)
            if stopped:
                return [*pieces, *_last(text)], "stop"
        if rest := text.stops.rest():
            told = text.telling.shown(len(rest)) if text.telling else ()
            pieces.append(Piece(Delta(rest), told, text.written))
        return [*pieces, *_last(text)], reason

    def _logprob(self, text: Text, token: int, logits: Row) -> Logprob:
        told = [
            Logprob(token, self.prompts.bytes_of(token), value)
            for token, value in log_probabilities(logits, token, text.turn.logprobs or 0)
        ]
        return replace(told[0], top=tuple(told[1:]))


def _shown(text: Text, delta: Delta, token: Logprob | None, added: str) -> tuple[Piece, bool]:
    """What may be shown of a delta, by a new token that added so much, and whether a stop string
    ended the text."""
    content, stopped = text.stops.push(delta.content, text.reader.held)
    told: tuple[Logprob, ...] = ()
    if text.telling is not None:
        reader = text.reader
        kept = token if reader.added == added else None
        text.telling.written(kept, reader.end, reader.added, reader.spans)
        told = text.telling.shown(len(content))
    return Piece(replace(delta, content=content), told, text.written), stopped


def _last(text: Text) -> list[Piece]:
    """The tokens of which a part was shown, when the text is over."""
    return [Piece(Delta(), text.telling.rest(), text.written)] if text.telling else []


def _chosen(rows: list[Row], texts: list[Choosing]) -> list[int | Exception]:
    """A token for each text, or why there is none."""
    try:
        return list(choose(rows, texts))
    except Exception as error:  # before anything was drawn
        if len(rows) == 1:
            return [error]
        return [
            found for row, text in zip(rows, texts, strict=True) for found in _chosen([row], [text])
        ]


def _masked(adjusted: Row, logits: Row, guide: Guide) -> Row:
    """Adjusted logits (vocabulary) of the tokens that a grammar allows; where it allows only those
    that may not come for other reasons (`min_tokens`), the model's own of them."""
    words = np.empty((len(logits) + 31) // 32, np.uint32)
    guide.mask(words)
    allowed = np.unpackbits(words.view(np.uint8), count=len(logits), bitorder="little")
    masked = np.where(allowed, adjusted, -np.inf).astype(np.float32)
    if np.isneginf(masked).all():
        masked = np.where(allowed, logits, -np.inf).astype(np.float32)
    return masked


def open_loop(
    folder: ModelFolder,
    options: Options,
    slots: int = 1,
    context: int | None = None,
    chunk: int = CHUNK_BESIDE_TEXTS,
    draft: int = 0,
    drafter: ModelFolder | None = None,
    keeping: Keeping | None = None,
) -> Loop:
    """Opens a model that writes up to `slots` texts of `context` tokens at the same time; as many
    as the model and memory have (`open_slots`) if it is None. With `draft`, up to so many tokens
    are guessed by `drafter`, a smaller model, or else from the text (`running.drafts`). What
    `keeping` says outlives the slots (`running.prefixes`).

    Raises:
        AieError: the model cannot be opened, `context` exceeds the model's, or the model cannot do
            what is asked for.
    """
    longest = context_length(folder)
    if context is not None and context > longest:
        raise AieError(f"a context of {context} tokens: the model's has {longest}")
    prompts = Prompts(folder)
    opened = open_slots(folder, options, slots, context, genai=True)
    context = opened.context
    asking = Asking(prompts, opened.vocabulary)
    drafts = open_drafts(opened, folder, options, draft, drafter, context) if draft else None
    prefixes = open_prefixes(opened, folder, options, keeping, (draft, drafter))
    return Loop(opened, asking, context, sampling_of(folder), chunk, drafts, prefixes)


def sampling_of(folder: ModelFolder) -> Sampling:
    """What genai_config.json says, and of what it does not, generation_config.json: it has no word
    for min_p.

    Raises:
        AieError: they say what cannot be.
    """
    parts = [Field(section(folder, "search"), GENAI_CONFIG, "search")]
    if is_regular(file := folder.path / GENERATION_CONFIG):
        parts.append(read_json(file))

    def find(name: str) -> Field | None:
        return next((found for part in parts if (found := part.find(name))), None)

    penalty, drawn = find("repetition_penalty"), find("do_sample")
    said = Sampling(repetition_penalty=penalty.positive() if penalty else 1.0)
    if drawn is None or not drawn.value:
        return said
    names = ("temperature", "top_p", "top_k", "min_p")
    temperature, top_p, top_k, min_p = map(find, names)
    return replace(
        said,
        temperature=temperature.number(0) if temperature else 1.0,
        top_p=top_p.positive() if top_p else 1.0,
        top_k=top_k.integer(0) if top_k else 0,
        min_p=min_p.number(0) if min_p else 0.0,
    )
