"""What a client may hold: connections, time, the size of a body, lines of the log.

uvicorn ends connections that idle between two requests; here are those that stop within one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ort_aie_ep.serving.errors import error_body

if sys.platform != "win32":
    import resource

# Bytes of a body, and what each token of the context adds: eight characters that JSON may write as
# \\uXXXX, and some room.
MAX_BODY, TOKEN_BYTES = 2**20, 64
# How long an idle connection is kept: longer than clients keep it in their pools, or a request may
# meet its end.
KEEP_ALIVE = 120
# How long a client may take to send the headers of a request, to send its body, and to read what it
# was sent.
HEADER_SECONDS, BODY_SECONDS, READ_SECONDS = 10.0, 30.0, 30.0
# Connections at most, and descriptors that are left for the model and everything else.
CONNECTIONS, OTHER_DESCRIPTORS = 1000, 64
# Connections that asyncio accepts in one iteration of its loop. Under an attack, a connection that
# is closed keeps its descriptor for some iterations, so this is well below OTHER_DESCRIPTORS.
AT_ONCE = 8
# Connections that the kernel queues until they are accepted: uvicorn's default.
_BACKLOG = 2048
# Messages that a logger writes in a minute, at most.
LINES = 60
_log = logging.getLogger("uvicorn.error")


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _answer(scope: Scope, status: int, message: str) -> JSONResponse:
    return JSONResponse(error_body(scope["path"], status, message), status)


class Gate:
    """Lets in requests that name one of `hosts` ("*" stands for every host) and whose body is JSON
    of at most `most` bytes that arrives within BODY_SECONDS."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], most: int = MAX_BODY) -> None:
        self._app, self._hosts = app, tuple(dict.fromkeys(host.lower() for host in hosts))
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the application, or answers it with the reason for refusing it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, _replayed(await self._body(receive), receive), sending)
        except _RefusedError as error:
            await _answer(scope, error.status, str(error))(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and uvicorn would write a traceback
            if not started:
                await _answer(scope, 503, "the server is stopping")(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = re.sub(r":\d*$", "", headers.get("host", "")).lower()
        if not {*self._hosts} & {"*", host}:
            raise _RefusedError(
                400,
                f"this server is {', '.join(self._hosts)}, not {host!r}; "
                f"ort-aie serve --allowed-host {host or 'NAME'} adds a name",
            )
        if int(headers.get("content-length", 0)) > self._most:
            raise self._too_long()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another site can send forms, text and what has no type without a CORS preflight,
        # but not JSON. litellm sends ollama's bodies without a type and curl's -d calls all a form,
        # and not from a page.
        by_hand = not {*headers} & {"origin", "sec-fetch-site"}
        if kind in ("", "application/x-www-form-urlencoded") and by_hand:
            others = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope["headers"] = [*others, (b"content-type", b"application/json")]
        elif scope["method"] == "POST" and kind != "application/json":
            raise _RefusedError(
                415, f"the Content-Type must be application/json, got {kind or 'none'}"
            )

    def _too_long(self) -> _RefusedError:
        return _RefusedError(
            413, f"the body is larger than {self._most} bytes, the most for a context of this size"
        )

    async def _body(self, receive: Receive) -> bytes:
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":  # then nobody gets the answer
                        raise _RefusedError(400, "the client has left")
                    body += message.get("body", b"")
                    if len(body) > self._most:
                        raise self._too_long()
                    more = message.get("more_body", False)
        except TimeoutError:
            said = f"the body did not come within {BODY_SECONDS:g} seconds"
            raise _RefusedError(408, said) from None
        return bytes(body)


class Origins(CORSMiddleware):
    """Lets pages of `origins` use the server ("*" stands for all), and says to others how."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser that asks before it sends a page's request."""
        origin = request_headers["origin"]
        if self.is_allowed_origin(origin):
            return super().preflight_response(request_headers)
        said = (
            f"pages of {origin} may not use this server; ort-aie serve --cors-origin {origin} "
            "allows them"
        )
        _log.warning("%s", said)  # because a browser does not show it to the page
        return JSONResponse(error_body("", 403, said), 403)


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """A `receive` that gives a body that has been read, and then what follows."""
    first = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def next_message() -> Message:
        return next(first, None) or await receive()

    return next_message


def allow_descriptors() -> None:
    """Raises the limit of descriptors to what `CONNECTIONS` need, if this process may."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many connections may be open."""
    if sys.platform == "win32":
        return CONNECTIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(8, min(CONNECTIONS, descriptors - OTHER_DESCRIPTORS))


class Protocol(H11Protocol):
    """A connection, closed when headers do not come or nobody reads the answer.

    When there are `most_connections`, a new one replaces the one that has kept the server waiting
    the longest.
    """

    _since = 0.0
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes another connection if there are too many, or this one if all others are busy."""
        if len(self.connections) >= most_connections():
            others = [c for c in self.connections if isinstance(c, Protocol) and c.waits]
            if not others:
                self.transport = transport
                transport.abort()
                return
            oldest = min(others, key=lambda c: c._since)
            oldest.transport.abort()
            self.connections.discard(oldest)
        super().connection_made(transport)
        self._await_headers()

    @property
    def waits(self) -> bool:
        """Whether a request, or the rest of one, is to come."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def data_received(self, data: bytes) -> None:
        """Stops the timer of the headers once they are complete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._late)
            self._late = None
        elif self._late is None:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers of the connection."""
        _cancel(self._late)
        _cancel(self._stuck)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts a timer: the client has READ_SECONDS to read what it was sent."""
        super().pause_writing()
        self._stuck = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stops that timer, because the client has read."""
        super().resume_writing()
        _cancel(self._stuck)

    def _await_headers(self) -> None:
        self._since = self.loop.time()
        self._late = self.loop.call_later(HEADER_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Stopping(uvicorn.Server):
    """A server that calls `first` when it is told to stop, before it waits for its connections:
    with whether SIGTERM told it, and whether it is told once more."""

    def __init__(
        self,
        config: uvicorn.Config,
        first: Callable[[bool, Callable[[], bool]], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._first = first
        self._signals: list[int] = []

    async def startup(self, sockets: Any = None) -> None:
        """Starts, and restores the kernel's backlog, which asyncio sets to its own (`AT_ONCE`)."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Takes a signal."""
        self._signals.append(sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: Any = None) -> None:
        """Stops."""
        terminated = self._signals[:1] == [signal.SIGTERM]
        await self._first(terminated, lambda: len(self._signals) > 1)
        await super().shutdown(sockets)


class FewLines(logging.Filter):
    """Lets `LINES` messages of a logger through in a minute, and says when it leaves out more."""

    def __init__(self) -> None:
        super().__init__()
        self._since, self._count = -math.inf, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is written."""
        if time.monotonic() - self._since > 60:
            self._since, self._count = time.monotonic(), 0
        self._count += 1
        if self._count == LINES:
            record.msg, record.args = "more messages of this minute are left out", None
            record.exc_info = None
        return self._count <= LINES
