"""The routes: OpenAI's /v1, health, and a page for users without a client."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException as AnyHTTPException

from ort_aie_ep.errors import AieError, FieldError, UnexpectedError, as_error
from ort_aie_ep.running.turns import Accepted, PromptTooLongError, Turn
from ort_aie_ep.serving.answers import Answer
from ort_aie_ep.serving.engine import (
    BusyError,
    Engine,
    EngineError,
    NumberedEvent,
    StoppingError,
)
from ort_aie_ep.serving.limits import MAX_BODY, TOKEN_BYTES, Gate, Origins, error_body
from ort_aie_ep.serving.metrics import Metrics
from ort_aie_ep.serving.requests import Chat, Completion, StreamOptions

# Hosts that a server on loopback answers to. A page of another site whose name was made to resolve
# to this machine (DNS rebinding) sends its own name, and is refused.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
# Of OpenAI's interface, and not here: what to use.
_ELSEWHERE = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/embeddings": "this server only writes texts: use /v1/chat/completions or /v1/completions",
}
# The HTTP status and OpenAI's code for an error: those of the first class that it belongs to.
_REFUSALS: tuple[tuple[type[AieError], int, str | None], ...] = (
    (BusyError, 429, "rate_limit_exceeded"),
    (StoppingError, 503, None),
    (EngineError, 500, None),
    (UnexpectedError, 500, None),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (AieError, 400, None),
)

# A refusal that comes within so many seconds has its own status. Then a stream begins, because
# clients give up on a server that says nothing: a comment, and another one whenever nothing came
# for so many seconds, while a request waits or its prompt is read.
PATIENCE, QUIET = 1.0, 2.0
_COMMENT = ": the model is at work\n\n"


@dataclass(frozen=True)
class Server:
    """What the routes serve.

    Attributes:
        engine: runs the model.
        name: the model's name in requests.
        key: the API key that clients must send, or None if they need none.
        max_tokens: largest number of new tokens of a request, or None.
        started: when the server was started, in seconds since 1970.
        metrics: what it has done.
    """

    engine: Engine
    name: str
    key: str | None
    max_tokens: int | None
    started: int
    metrics: Metrics


def create_app(server: Server, hosts: Sequence[str], origins: Sequence[str] = ()) -> FastAPI:
    """The application, for clients that call this machine by one of `hosts`, and for pages of other
    sites from `origins`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.engine.listen(asyncio.get_running_loop())
        yield

    app = FastAPI(title="ort_aie_ep", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.server = server
    most = MAX_BODY + TOKEN_BYTES * server.engine.facts.context
    app.add_middleware(Gate, hosts=hosts, most=most)
    app.add_middleware(Origins, origins=origins)
    app.include_router(_public)
    app.include_router(_v1)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(AnyHTTPException)(_failed)
    app.exception_handler(AieError)(_refused)
    app.exception_handler(Exception)(_faulty)
    return app


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _allowed(request: Request, bearer: Bearer) -> None:
    key, shown = _server(request).key, bearer.credentials if bearer else ""
    if key is not None and not hmac.compare_digest(shown.encode(), key.encode()):
        raise HTTPException(401, "this server needs an API key: Authorization: Bearer KEY")


_public = APIRouter()
_v1 = APIRouter(prefix="/v1", dependencies=[Depends(_allowed)])


@_public.get("/", response_class=HTMLResponse)
async def _page() -> str:
    return files(__package__).joinpath("page.html").read_text("utf-8")


@_public.get("/health")
async def _health(request: Request) -> Response:
    engine = _server(request).engine
    state = {"status": "ok" if engine.alive else "the model is not open", "requests": engine.turns}
    return JSONResponse(state, 200 if engine.alive else 503)


@_public.get("/metrics")
async def _metrics(request: Request) -> Response:
    server = _server(request)
    body, kind = server.metrics.text(server.engine)
    return Response(body, media_type=kind)


@_v1.get("/models")
async def _models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(_server(request))]}


@_v1.get("/models/{name:path}")
async def _one_model(request: Request, name: str) -> dict[str, Any]:
    _known(request, name)
    return _model(_server(request))


def _model(server: Server) -> dict[str, Any]:
    facts = {"object": "model", "created": server.started, "owned_by": "ort_aie_ep"}
    return {
        "id": server.name,
        **facts,
        "context_length": server.engine.facts.context,
        "chat": server.engine.facts.chat,
    }


def _known(request: Request, name: str) -> None:
    if name != (there := _server(request).name):
        raise HTTPException(404, f"there is no model {name!r} here, only {there!r}")


@_v1.post("/chat/completions")
async def _chat(request: Request, body: Chat) -> Response:
    return await _answer(request, body, chat=True)


@_v1.post("/completions")
async def _completion(request: Request, body: Completion) -> Response:
    return await _answer(request, body, chat=False)


async def _answer(request: Request, body: Chat | Completion, chat: bool) -> Response:
    _known(request, body.model)
    server = _server(request)
    turns: list[Turn] = body.turns(body.turn(server.max_tokens))
    wanted = body.stream_options or StreamOptions()
    answer = Answer(body.model, chat, len(turns), wanted.continuous_usage_stats)
    events = server.metrics.watched(server.engine.run(turns, request.is_disconnected))
    if body.stream:
        first = _next(events)
        await asyncio.wait({first}, timeout=PATIENCE)
        if first.done() and (error := first.exception()) is not None:
            raise error
        return StreamingResponse(
            _stream(first, events, answer, wanted.include_usage), media_type="text/event-stream"
        )
    async for event in events:
        answer.add(*event)
    if not answer.whole:
        return Response(status_code=499)  # the client has left
    return JSONResponse(answer.body())


def _next(events: AsyncIterator[NumberedEvent]) -> asyncio.Future[NumberedEvent | None]:
    return asyncio.ensure_future(anext(events, None))


async def _stream(
    coming: asyncio.Future[NumberedEvent | None],
    events: AsyncIterator[NumberedEvent],
    answer: Answer,
    counted: bool,
) -> AsyncIterator[str]:
    """Server-sent events: the one that is `coming`, then `events`."""
    yield _COMMENT
    opened = False
    try:
        while True:
            await asyncio.wait({coming}, timeout=QUIET)
            if not coming.done():
                yield _COMMENT
                continue
            if (event := coming.result()) is None:
                break
            coming = _next(events)
            if isinstance(event[1], Accepted):
                answer.add(*event)
                continue
            for chunk in () if opened else answer.opening():
                yield _data(chunk)
            opened = True
            yield _data(answer.chunk(event[0], event[1]))
        if counted and answer.whole:
            yield _data(answer.counts())
    except AieError as error:
        yield _data(_error(error)[1])
    finally:
        coming.cancel()
    yield "data: [DONE]\n\n"


def _data(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    faults = []
    for fault in error.errors():
        field = fault.get("ctx", {}).get("field")
        loc = () if fault["type"] == "json_invalid" else fault["loc"][1:]
        place = ".".join(map(str, (*loc, *([field] if field else ()))))
        faults.append((place, fault["msg"].removeprefix("Value error, ")))
    said = "; ".join(f"{place}: {message}" if place else message for place, message in faults)
    return JSONResponse(error_body(400, said, param=faults[0][0] or None), 400)


async def _failed(request: Request, error: AnyHTTPException) -> Response:
    said, status = str(error.detail), error.status_code
    if "endpoint" not in request.scope and status == 404:
        path = request.url.path
        use = "use /v1/chat/completions, or /v1/completions for a model that only continues a text"
        said = f"there is no {path} here: {_ELSEWHERE.get(path, use)}"
    return JSONResponse(error_body(status, said), status, error.headers)


async def _refused(_: Request, error: AieError) -> Response:
    status, body = _error(error)
    return JSONResponse(body, status)


def _error(error: AieError) -> tuple[int, dict[str, Any]]:
    """The status of an error, and its body."""
    status, code = next((s, c) for kind, s, c in _REFUSALS if isinstance(error, kind))
    param = error.field if isinstance(error, FieldError) else None
    return status, error_body(status, str(error), code, param)


async def _faulty(_: Request, error: Exception) -> Response:
    """Of this program: uvicorn writes the rest to the log."""
    status, body = _error(as_error(error))
    return JSONResponse(body, status)
