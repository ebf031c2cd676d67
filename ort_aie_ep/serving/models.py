"""Which models are loaded: each in a process of its own, a few at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ort_aie_ep.errors import AieError
from ort_aie_ep.hub.names import find_name
from ort_aie_ep.running.loop import Loop
from ort_aie_ep.running.turns import Accepted, Turn, Usage
from ort_aie_ep.serving.engine import LOOK_SECONDS, STOPPING, Engine, NumberedEvent
from ort_aie_ep.serving.errors import BusyError, EngineError, StoppingError, UnknownModelError
from ort_aie_ep.serving.offers import Offer

# Tokens that the body of a request may have where models differ.
_CONTEXT = 2**17


@dataclass
class Held:
    """A model that is loaded, or being loaded.

    Attributes:
        offer: the model.
        engine: its process.
        opening: done when the model is open.
        users: requests that use it or wait for it to be open.
        keep: seconds to keep it when it has none; None until another needs its place.
        timer: unloads it then.
    """

    offer: Offer
    engine: Engine
    opening: asyncio.Task[None] | None = None
    users: int = 0
    keep: float | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        return self.opening is None or self.opening.done()


class Models:
    """The models of a server. All but `__init__` and `close` is for its event loop.

    Attributes:
        stays: the model that is loaded all the time and alone, or None.
    """

    def __init__(
        self,
        find: Callable[[], Sequence[Offer]],
        opening: Callable[[Offer], Callable[[], Loop]],
        queue: int = 64,
        most: int = 1,
    ) -> None:
        """`find` says what there is, and `opening` what opens it in its process, which can be
        pickled. `most` models are loaded at a time; `queue` requests may wait for one that is not,
        and as many for each that is."""
        self._find, self._opening, self._queue, self._most = find, opening, queue, most
        self.stays: Held | None = None
        self._held: dict[str, Held] = {}  # the last used at the end
        # Requests for models that are not loaded go through here one after the other, and the
        # others behind them: so none waits for ever.
        self._door = asyncio.Lock()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting, self._draining, self._stopping = 0, False, False

    @classmethod
    def of_one(cls, offer: Offer, engine: Engine) -> Models:
        """With a model that is open, and the only one."""
        models = cls(lambda: (), lambda _: engine.opening)
        models.stays = models._held[offer.name] = Held(offer, engine)
        return models

    # --- what there is ---

    @property
    def loaded(self) -> list[Held]:
        """Models that are open, the last used first."""
        return [held for held in reversed(self._held.values()) if held.ready]

    def held(self, offer: Offer) -> Held | None:
        """A model, if it is open."""
        return next((held for held in self.loaded if held.offer == offer), None)

    @property
    def turns(self) -> int:
        """How many run or wait."""
        return self._waiting + sum(held.engine.turns for held in self.loaded)

    @property
    def slots(self) -> int:
        """How many texts are written at the same time."""
        return sum(held.engine.facts.slots for held in self.loaded)

    @property
    def context(self) -> int:
        """Tokens that the body of a request may have."""
        return self.stays.engine.facts.context if self.stays else _CONTEXT

    @property
    def alive(self) -> bool:
        """Whether requests can be answered."""
        return self.stays is None or self.stays.engine.alive

    async def offers(self) -> list[tuple[Offer, Held | None]]:
        """All models, those that are loaded first."""
        loaded = {held.offer.name: held for held in self.loaded}
        others = await self._others()
        return [
            *((held.offer, held) for held in loaded.values()),
            *((offer, None) for offer in others if offer.name not in loaded),
        ]

    async def _others(self) -> Sequence[Offer]:
        return () if self.stays else await asyncio.to_thread(self._find)

    async def known(self, name: str) -> Offer:
        """The model that a request means; the last used if it names none.

        Raises:
            UnknownModelError: there is no such model.
        """
        # Names as ollama's clients have them.
        plain = name.removesuffix(":latest")
        names = {name, plain, str(find_name(plain) or plain)} if name else {*self._held}
        for held in reversed(self._held.values()):
            if held.offer.name in names:
                return held.offer
        there = [offer for offer, _ in await self.offers()]
        for offer in there:
            if not name or offer.name in names:
                return offer
        only = ", ".join(repr(offer.name) for offer in there)
        raise UnknownModelError(
            f"there is no model {name!r} here, only {only}" if there
            else "there is no model here yet: ort-aie pull OWNER/REPO gets one"
        )  # fmt: skip

    # --- turns ---

    async def run(
        self,
        offer: Offer,
        turns: Sequence[Turn],
        gone: Callable[[], Awaitable[bool]],
        keep: float | None = None,
    ) -> AsyncGenerator[NumberedEvent]:
        """What `Engine.run` has, once the model is loaded; for no turns, that it is. With `keep`,
        it is unloaded when nobody has used it for so many seconds.

        Raises:
            BusyError: too many are waiting.
            StoppingError: `drain` or `stop` was called.
            AieError: the model cannot be loaded; as `Engine.run`.
        """
        if self._draining:
            raise StoppingError(STOPPING)
        if (held := self._at_hand(offer)) is None:
            async with aclosing(self._wait(offer, gone)) as waiting:
                async for held in waiting:
                    if held is None:
                        yield 0, None
        if held is None:
            return
        held.keep = keep
        try:
            async with aclosing(held.engine.run(turns, gone)) as events:
                async for event in events:
                    yield event
            if not turns:
                yield 0, Accepted(0)
                yield 0, Usage("stop", 0, 0, 0)
        finally:
            self._release(held)

    def progress(self, offer: Offer) -> str:
        """What a request for a model is waiting for."""
        held = self._held.get(offer.name)
        if held is None:
            return f"{offer.name} waits for requests for other models to end"
        return "the model is at work" if held.ready else f"{offer.name} is being loaded"

    def _at_hand(self, offer: Offer) -> Held | None:
        """A model that is open, unless requests for others wait."""
        held = self._held.get(offer.name)
        if held is None or not held.ready or self._door.locked():
            return None
        return self._taken(held)

    async def _wait(
        self, offer: Offer, gone: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[Held | None]:
        """A model, once it is open, unless the client is gone before; None each time it is not."""
        if self._waiting > self._queue:
            raise BusyError(f"the server is full: {self._waiting} requests wait for a model")
        self._waiting += 1
        holding, held = asyncio.create_task(self._hold(offer)), None
        try:
            while not holding.done() and not await gone():
                await asyncio.wait({holding}, timeout=LOOK_SECONDS)
                if self._stopping:
                    raise StoppingError(STOPPING)
                if not holding.done():
                    yield None
            if holding.done():
                held = holding.result()
                yield held
        finally:
            self._waiting -= 1
            if held is None and not (
                holding.cancel() or holding.cancelled() or holding.exception()
            ):
                self._release(holding.result())

    async def _hold(self, offer: Offer) -> Held:
        async with self._door:
            if (held := self._held.get(offer.name)) is None:
                await self._make_room(offer)
                held = Held(offer, Engine(self._opening(offer), self._queue))
                held.opening = self._task(self._open(held))
                self._held[offer.name] = held
            self._taken(held)
        try:
            if held.opening is not None:
                await asyncio.shield(held.opening)
        except BaseException:
            self._release(held)
            raise
        return held

    async def _open(self, held: Held) -> None:
        try:
            await asyncio.to_thread(held.engine.open)
        except (AieError, OSError) as error:
            self._forget(held)
            kind = EngineError if isinstance(error, EngineError) else AieError
            raise kind(f"{held.offer.name} cannot be loaded: {error}") from error
        held.engine.listen(asyncio.get_running_loop())

    async def _make_room(self, offer: Offer) -> None:
        """Unloads what was used last the longest ago, once it is not in use any more."""
        while self._held and (len(self._held) >= self._most or not offer.fit().fits):
            idle = next((held for held in self._held.values() if not held.users), None)
            if idle is None:
                self._freed.clear()
                await self._freed.wait()
            else:
                await self._unload(idle)
        if not (fit := offer.fit()).fits:
            raise AieError(f"{offer.name} {fit.line()}")

    # --- unloading ---

    async def unload(self, offer: Offer) -> None:
        """Unloads a model, when nobody uses it any more."""
        held = self._held.get(offer.name)
        if held is not None and held is not self.stays:
            held.keep = 0.0
            if not held.users:
                await self._expire(held)

    async def _expire(self, held: Held) -> None:
        async with self._door:
            if not held.users and self._held.get(held.offer.name) is held:
                await self._unload(held)

    async def _unload(self, held: Held) -> None:
        self._forget(held)
        await asyncio.to_thread(held.engine.close)

    def _forget(self, held: Held) -> None:
        if self._held.get(held.offer.name) is held:
            del self._held[held.offer.name]
        if held.timer is not None:
            held.timer.cancel()
        self._freed.set()

    def _taken(self, held: Held) -> Held:
        held.users += 1
        if held.timer is not None:
            held.timer.cancel()
        self._held[held.offer.name] = self._held.pop(held.offer.name)
        return held

    def _release(self, held: Held) -> None:
        held.users -= 1
        if held.users:
            return
        self._freed.set()
        if held.keep is not None and held is not self.stays:
            held.timer = asyncio.get_running_loop().call_later(
                held.keep, lambda: self._task(self._expire(held))
            )

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that nobody need wait for."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # told to those who wait

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    # --- the end ---

    def listen(self) -> None:
        """Begins, in the event loop."""
        if self.stays:
            self.stays.engine.listen(asyncio.get_running_loop())

    async def drain(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Takes no more turns, and waits for those that are there: `seconds`, or until `hurry`."""
        self._draining, end = True, time.monotonic() + seconds
        while self.turns and time.monotonic() < end and not hurry():
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """Ends all turns with an error, and takes no more; called in the event loop."""
        self._draining = self._stopping = True
        for held in self._held.values():
            held.engine.stop()

    def close(self) -> None:
        """Ends the processes."""
        for held in self._held.values():
            held.engine.close()
