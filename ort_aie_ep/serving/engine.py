"""The process that runs the model, and its handle in the server.

onnxruntime-genai holds Python's lock while it computes, so in the server's own process nothing else
would run meanwhile: neither other clients' pieces nor /health.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import Conversations, Turn, Usage

# How often a turn checks that its client is still there, and how long the process may take to end.
_LOOK_SECONDS = 0.5
_LEAVE_SECONDS = 2.0
# How long to wait before a model that could not be opened again is tried once more.
_AGAIN_SECONDS = 5.0
_STOPPING = "the server is stopping"
_DIED = "the process that runs the model has died"
_log = logging.getLogger("uvicorn.error")


class BusyError(AieError):
    """As many turns run or wait as the server takes."""


class EngineError(AieError):
    """The process has died, or a turn in it has failed with an unexpected exception."""


class StoppingError(AieError):
    """The server has been told to stop."""


def _work(pipe: Connection, parallel: int, opening: Callable[[], Conversations]) -> None:
    """The process: takes (number, turn), or (number, None) to cancel; sends (number, piece of text,
    usage or error). Sent from here, number 0 says that the model is open, or why not; sent to here,
    it ends the process."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the group: the server ends this one
        signal.signal(ending, signal.SIG_IGN)
    try:
        model = opening()
    except AieError as error:
        with suppress(OSError):
            pipe.send((0, error))
        return
    with suppress(EOFError, OSError):  # the server is gone
        pipe.send((0, (model.context, model.chat)))
        _advance(pipe, parallel, model)


def _advance(pipe: Connection, parallel: int, model: Conversations) -> None:
    """Runs turns until number 0 comes, a piece of each in turn."""
    waiting: deque[tuple[int, Turn]] = deque()
    active: dict[int, Generator[str, None, Usage]] = {}
    while True:
        while pipe.poll(0 if active or waiting else None):
            number, turn = pipe.recv()
            if number == 0:
                return
            if turn is not None:
                waiting.append((number, turn))
            elif number in active:
                active.pop(number).close()
            else:
                waiting = deque(item for item in waiting if item[0] != number)
        while waiting and len(active) < parallel:
            number, turn = waiting.popleft()
            active[number] = model.run(turn)
        for number, pieces in list(active.items()):
            try:
                sent: object = next(pieces)
            except StopIteration as end:
                sent = end.value
            except AieError as error:
                sent = error
            except Exception as error:  # an unexpected one ends this turn alone
                sent = EngineError(f"{type(error).__name__}: {error}")
            if not isinstance(sent, str):
                del active[number]
            if sent != "":
                pipe.send((number, sent))


class Engine:
    """The model's process, which ends with the context. Its turns are for one event loop."""

    def __init__(
        self, opening: Callable[[], Conversations], parallel: int = 4, queue: int = 64
    ) -> None:
        """Starts the process, and waits for the model to be open.

        `opening`, which can be pickled, opens a model that keeps `parallel` conversations. So many
        are advanced at the same time, a token each in turn, and `queue` turns may wait besides.

        Raises:
            AieError: the model cannot be opened.
        """
        self._opening, self._parallel, self._most = opening, parallel, parallel + queue
        self._numbers = itertools.count(1)
        self._turns: dict[int, asyncio.Queue[Any]] = {}
        # One thread, because a pipe is for one at a time and blocks while the process computes.
        self._sender = ThreadPoolExecutor(1, "engine")
        self._closing = threading.Event()
        self._process: BaseProcess | None = None
        self.alive = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(
            target=_work, args=(other, self._parallel, self._opening), daemon=True
        )
        process.start()
        self._process = process
        other.close()
        try:
            _, opened = pipe.recv()
        except (EOFError, OSError):
            opened = EngineError("the process that opens the model has died")
        if isinstance(opened, AieError):
            raise opened
        self.context, self.chat = opened
        self._pipe = pipe
        self.alive = True

    @property
    def turns(self) -> int:
        """How many run or wait."""
        return len(self._turns)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hands what the process sends to the turns that wait for it in `loop`, in a thread. If the
        process dies, another one is opened, again and again."""

        def deliver(number: int, what: object) -> None:
            if number in self._turns:
                self._turns[number].put_nowait(what)

        def read() -> None:
            with suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(deliver, *self._pipe.recv())

        def work() -> None:
            wait = 0.0
            while not self._closing.wait(wait):
                if self.alive:
                    read()
                    self.alive = False
                    if self._closing.is_set():
                        return
                    _log.error("%s; opening it again", _DIED)
                for number in list(self._turns):
                    loop.call_soon_threadsafe(deliver, number, EngineError(_DIED))
                wait = 0.0
                try:
                    self._open()
                except (AieError, OSError) as error:
                    _log.error("%s", error)
                    wait = _AGAIN_SECONDS

        def until_the_loop_ends() -> None:
            with suppress(RuntimeError):  # a piece came when the loop was closed
                work()

        self._reader = threading.Thread(target=until_the_loop_ends, daemon=True)
        self._reader.start()

    async def run(
        self, turn: Turn, gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str | Usage]:
        """The pieces of a turn's text, then its usage; ends without one when the client is `gone`.

        A caller that stops iterating cancels the turn.

        Raises:
            BusyError: too many are waiting.
            StoppingError: `stop` was called.
            AieError: what `Conversations.run` raises, or the process has died.
        """
        if self._closing.is_set():
            raise StoppingError(_STOPPING)
        if self.turns >= self._most:
            raise BusyError(
                f"{self.turns} requests are running or waiting, the most that this server takes"
            )
        number, events = next(self._numbers), asyncio.Queue[Any]()
        self._turns[number] = events
        what: object = ""
        try:
            await self._send(number, turn)
            while not isinstance(what, Usage) and not await gone():
                try:
                    what = await asyncio.wait_for(events.get(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
                if isinstance(what, AieError):
                    raise what
                yield what  # type: ignore[misc]
        finally:
            del self._turns[number]
            if not isinstance(what, Usage | AieError):
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
        for events in self._turns.values():
            events.put_nowait(StoppingError(_STOPPING))

    def close(self) -> None:
        """Ends the process."""
        self._closing.set()
        if self.alive:
            self._sender.submit(self._pipe.send, (0, None))
        if self._process is not None:
            self._process.join(_LEAVE_SECONDS)
            self._process.kill()
        self._sender.shutdown()
