"""The process that runs the model, and its handle in the server.

A model that ends its process, by a driver's fault or for want of memory, does not end the server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import multiprocessing
import signal
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from typing import Any, Self

from ort_aie_ep.errors import AieError, as_error
from ort_aie_ep.running import loop as loop_module
from ort_aie_ep.running.loop import Event, Loop, Text
from ort_aie_ep.running.prefixes import Counts
from ort_aie_ep.running.turns import Accepted, Piece, Turn, Usage
from ort_aie_ep.serving.errors import BusyError, EngineError, StoppingError
from ort_aie_ep.serving.limits import FewLines

# The number of a request's turn, and what came of it; None where nothing came for `LOOK_SECONDS`.
NumberedEvent = tuple[int, Accepted | Piece | Usage | None]

# How often a turn checks that its client is still there, and how long the process may take to end.
LOOK_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
# How long to wait before a model that could not be opened again is tried once more.
_AGAIN_SECONDS = 5.0
STOPPING = "the server is stopping"
_DIED = "the process that runs the model has died"
_server_log = logging.getLogger("uvicorn.error")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """What the process says of its model when it is open.

    Attributes:
        context: tokens of a text with its prompt.
        chat: whether it has a chat template.
        slots: how many texts it writes at the same time.
        token_bytes: what the cache of a token takes; 0 if that is not known.
        note: what a user should know of how it runs; may be empty.
    """

    context: int
    chat: bool
    slots: int
    token_bytes: int
    note: str


def _work(pipe: Connection, opening: Callable[[], Loop], counts: Counts) -> None:
    """The process: sends what it says of its model, or why that is not open; then takes (number,
    turn), or (number, None) to cancel, and sends what each step has: (number, event or error)
    each. Number 0 ends the process. It counts what prefixes do in `counts`."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the group: the server ends this one
        signal.signal(ending, signal.SIG_IGN)
    for name in (__name__, loop_module.__name__):  # where faults of texts are told
        logging.getLogger(name).addFilter(FewLines())
    try:
        loop = opening()
    except AieError as error:
        with suppress(OSError):
            pipe.send(error)
        return
    if loop.prefixes is not None:
        loop.prefixes.count_in(counts)
    with suppress(EOFError, OSError):  # the server is gone
        slots, chat = loop.slots, loop.prompts.chat
        pipe.send(Facts(loop.context, chat, slots.count, slots.token_bytes, slots.note))
        _advance(pipe, loop)
    if loop.prefixes is not None:
        loop.prefixes.close()


def _advance(pipe: Connection, loop: Loop) -> None:
    """Runs turns until number 0 comes."""
    texts: dict[int, Text] = {}
    numbers: dict[Text, int] = {}

    def ended(text: Text) -> None:
        del texts[numbers.pop(text)]

    while True:
        while pipe.poll(0 if texts else None):
            number, turn = pipe.recv()
            if number == 0:
                return
            if turn is None:
                if (text := texts.get(number)) is not None:
                    loop.drop(text)
                    ended(text)
                continue
            try:
                if turn.max_tokens == 0:
                    count = len(loop.asking(turn).tokens)
                    pipe.send([(number, Usage("length", count, 0, 0))])
                    continue
                text = loop.add(turn)
            except Exception as error:  # of this turn alone
                _tell(error)
                pipe.send([(number, as_error(error))])
                continue
            texts[number], numbers[text] = text, number
            pipe.send([(number, Accepted(text.prompt, text.choosing.sampling))])
        events: list[tuple[Text, Event]]
        try:
            events = loop.step()
        except Exception as error:  # of no text alone: what the slots hold is not known
            _tell(error)
            loop.fail()
            events = [(text, as_error(error)) for text in texts.values()]
        if events:  # in one message, because each wakes the other process
            pipe.send([(numbers[text], event) for text, event in events])
        for text, event in events:
            if not isinstance(event, Piece):
                ended(text)


def _tell(error: Exception) -> None:
    if not isinstance(error, AieError):
        _log.error("a request ends by a fault", exc_info=error)


class Engine:
    """The model's process. Its turns are for one event loop."""

    def __init__(self, opening: Callable[[], Loop], queue: int = 64) -> None:
        """`opening`, which can be pickled, opens the model. `queue` turns may wait besides those
        that have a slot."""
        self.opening, self._queue = opening, queue
        self._numbers = itertools.count(1)
        self._turns: dict[int, asyncio.Queue[tuple[int, Any]]] = {}
        # One thread, because a pipe is for one at a time and blocks while the process computes.
        self._sender = ThreadPoolExecutor(1, "engine")
        self._closing = threading.Event()
        self._process: BaseProcess | None = None
        self.alive = False

    def open(self) -> Self:
        """Starts the process, and waits for the model to be open.

        Raises:
            AieError: the model cannot be opened, or `stop` was called meanwhile.
        """
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        self.counts = RawValue(Counts)
        arguments = (other, self.opening, self.counts)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        self._process = process
        other.close()
        if self._closing.is_set():
            process.kill()
        try:
            opened = pipe.recv()
        except (EOFError, OSError):
            opened = EngineError("the process that opens the model has died")
        if isinstance(opened, AieError):
            raise opened
        self.facts: Facts = opened
        self._pipe = pipe
        self.alive = True

    @property
    def turns(self) -> int:
        """How many run or wait."""
        return len(self._turns)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hands what the process sends to the turns that wait for it in `loop`, in a thread. If the
        process dies, another one is opened, again and again."""

        def deliver(events: Sequence[tuple[int, object]]) -> None:
            for number, what in events:
                if number in self._turns:
                    self._turns[number].put_nowait((number, what))

        def read() -> None:
            with suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(deliver, self._pipe.recv())

        def work() -> None:
            wait = 0.0
            while not self._closing.wait(wait):
                if self.alive:
                    read()
                    self.alive = False
                    if self._closing.is_set():
                        return
                    _server_log.error("%s; opening it again", _DIED)
                died = [(number, EngineError(_DIED)) for number in list(self._turns)]
                loop.call_soon_threadsafe(deliver, died)
                wait = 0.0
                try:
                    self._open()
                except (AieError, OSError) as error:
                    _server_log.error("%s", error)
                    wait = _AGAIN_SECONDS

        def until_the_loop_ends() -> None:
            with suppress(RuntimeError):  # a piece came when the loop was closed
                work()

        self._reader = threading.Thread(target=until_the_loop_ends, daemon=True)
        self._reader.start()

    async def run(
        self, turns: Sequence[Turn], gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[NumberedEvent]:
        """That each turn is accepted, the pieces of its text, then its usage, and that nothing came
        for a while; ends without them when the client is `gone`. The first error ends all turns.

        A caller that stops iterating cancels them.

        Raises:
            BusyError: too many are waiting.
            StoppingError: `stop` was called.
            AieError: what the loop says, or the process has died.
        """
        if self._closing.is_set():
            raise StoppingError(STOPPING)
        if self.turns + len(turns) > self.facts.slots + self._queue:
            raise BusyError(f"the server is full: {self.turns} requests are running or waiting")
        events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        numbers = {next(self._numbers): index for index in range(len(turns))}
        self._turns |= dict.fromkeys(numbers, events)
        left, looked = {*numbers}, -math.inf
        try:
            for number, turn in zip(numbers, turns, strict=True):
                await self._send(number, turn)
            while left:
                if (now := time.monotonic()) - looked >= LOOK_SECONDS:
                    looked = now
                    if await gone():
                        return
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        number, what = await events.get()
                except TimeoutError:
                    yield 0, None
                    continue
                if isinstance(what, Usage | AieError):
                    left.discard(number)
                if isinstance(what, AieError):
                    raise what
                yield numbers[number], what
        finally:
            for number in numbers:
                del self._turns[number]
            for number in left:
                self._sender.submit(self._pipe.send, (number, None))

    async def _send(self, number: int, turn: Turn) -> None:
        try:
            if not self.alive:
                raise BrokenPipeError
            await asyncio.wrap_future(self._sender.submit(self._pipe.send, (number, turn)))
        except OSError:
            raise EngineError(_DIED) from None

    def stop(self) -> None:
        """Ends all turns with an error, and takes no more; called in the event loop."""
        self._closing.set()
        if self._process is not None and not self.alive:
            self._process.kill()
        for number, events in self._turns.items():
            events.put_nowait((number, StoppingError(STOPPING)))

    def close(self) -> None:
        """Ends the process."""
        self._closing.set()
        if self.alive:
            self._sender.submit(self._pipe.send, (0, None))
        if self._process is not None:
            self._process.join(_LEAVE_SECONDS)
            self._process.kill()
        self._sender.shutdown()
