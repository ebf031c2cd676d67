"""The routes: OpenAI's and Anthropic's /v1, health, and a page for users without a client."""

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

from ort_aie_ep.errors import AieError, as_error
from ort_aie_ep.running.turns import Accepted, Turn, Usage
from ort_aie_ep.serving.answers import Answer, CompletionAnswer
from ort_aie_ep.serving.engine import Engine, NumberedEvent
from ort_aie_ep.serving.errors import error_body, error_of
from ort_aie_ep.serving.limits import MAX_BODY, TOKEN_BYTES, Gate, Origins
from ort_aie_ep.serving.messages import Count, MessageAnswer, Messages
from ort_aie_ep.serving.metrics import Metrics
from ort_aie_ep.serving.requests import Asked, Chat, Completion, StreamOptions
from ort_aie_ep.serving.responses import ResponseAnswer, Responses

# Hosts that a server on loopback answers to. A page of another site whose name was made to resolve
# to this machine (DNS rebinding) sends its own name, and is refused.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
# Of OpenAI's interface, and not here: what to use.
_ELSEWHERE = {
    "/v1/embeddings": "this server only writes texts: use /v1/chat/completions or /v1/completions",
}
# A refusal that comes within so many seconds has its own status. Then a stream begins, because
# clients give up on a server that says nothing: a comment or an event, and another one whenever
# nothing came for so many seconds, while a request waits or its prompt is read.
PATIENCE, QUIET = 1.0, 2.0


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
    key = _server(request).key
    shown = (bearer.credentials if bearer else "", request.headers.get("x-api-key", ""))
    if key is not None and not any(hmac.compare_digest(s.encode(), key.encode()) for s in shown):
        raise HTTPException(
            401, "this server needs an API key: Authorization: Bearer KEY, or X-Api-Key: KEY"
        )


_public = APIRouter()
_v1 = APIRouter(prefix="/v1", dependencies=[Depends(_allowed)])


@_public.api_route("/", methods=["GET", "HEAD"], response_class=HTMLResponse)
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


def _known(request: Request, name: str) -> str:
    """The model's name, which may be left out."""
    if name not in ("", there := _server(request).name):
        raise HTTPException(404, f"there is no model {name!r} here, only {there!r}")
    return there


@_v1.post("/chat/completions")
async def _chat(request: Request, body: Chat) -> Response:
    return await _completed(request, body, chat=True)


@_v1.post("/completions")
async def _completion(request: Request, body: Completion) -> Response:
    return await _completed(request, body, chat=False)


async def _completed(request: Request, body: Chat | Completion, chat: bool) -> Response:
    body.model = _known(request, body.model)
    turns = body.turns(body.turn(_server(request).max_tokens))
    options = body.stream_options or StreamOptions()
    return await _answer(
        request, body, turns, CompletionAnswer(body.model, chat, len(turns), options)
    )


@_v1.post("/responses")
async def _responses(request: Request, body: Responses) -> Response:
    body.model = _known(request, body.model)
    turn = body.turn(_server(request).max_tokens)
    return await _answer(request, body, [turn] if turn.messages else [], ResponseAnswer(body))


@_v1.post("/messages")
async def _messages(request: Request, body: Messages) -> Response:
    body.model = _known(request, body.model)
    turn = body.turn(_server(request).max_tokens)
    return await _answer(request, body, [turn], MessageAnswer(body.model))


@_v1.post("/messages/count_tokens")
async def _count(request: Request, body: Count) -> dict[str, int]:
    _known(request, body.model)
    events = _server(request).engine.run([body.turn(0)], request.is_disconnected)
    return {"input_tokens": sum([e.prompt_tokens async for _, e in events if isinstance(e, Usage)])}


async def _answer(request: Request, body: Asked, turns: list[Turn], answer: Answer) -> Response:
    server = _server(request)
    events = server.metrics.watched(server.engine.run(turns, request.is_disconnected))
    if not turns:
        events = _nothing()
    if body.stream:
        first = _next(events)
        await asyncio.wait({first}, timeout=PATIENCE)
        if first.done() and (error := first.exception()) is not None:
            raise error
        return StreamingResponse(_stream(first, events, answer), media_type="text/event-stream")
    async for event in events:
        answer.add(*event)
    if not answer.whole:
        return Response(status_code=499)  # the client has left
    return JSONResponse(answer.body())


async def _nothing() -> AsyncIterator[NumberedEvent]:
    """What comes of a request that only asks for the model to be there."""
    for event in (Accepted(0), Usage("stop", 0, 0, 0)):
        yield 0, event


def _next(events: AsyncIterator[NumberedEvent]) -> asyncio.Future[NumberedEvent | None]:
    return asyncio.ensure_future(anext(events, None))


async def _stream(
    coming: asyncio.Future[NumberedEvent | None],
    events: AsyncIterator[NumberedEvent],
    answer: Answer,
) -> AsyncIterator[str]:
    """Server-sent events: the one that is `coming`, then `events`."""
    yield _waiting(answer)
    try:
        while True:
            await asyncio.wait({coming}, timeout=QUIET)
            if not coming.done():
                yield _waiting(answer)
                continue
            if (event := coming.result()) is None:
                break
            coming = _next(events)
            for content in answer.take(*event):
                yield _data(content)
        for content in answer.closing() if answer.whole else ():
            yield _data(content)
    except AieError as error:
        yield _data(answer.failed(error))
    finally:
        coming.cancel()
    if answer.ending:
        yield answer.ending


def _waiting(answer: Answer) -> str:
    event = answer.waiting()
    return _data(event) if event else ": the model is at work\n\n"


def _data(content: dict[str, Any]) -> str:
    """An event, which has a name if it says its type."""
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {json.dumps(content)}\n\n"


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    faults = []
    for fault in error.errors():
        field = fault.get("ctx", {}).get("field")
        loc = () if fault["type"] == "json_invalid" else fault["loc"][1:]
        place = ".".join(map(str, (*loc, *([field] if field else ()))))
        faults.append((place, fault["msg"].removeprefix("Value error, ")))
    said = "; ".join(f"{place}: {message}" if place else message for place, message in faults)
    body = error_body(request.url.path, 400, said, param=faults[0][0] or None)
    return JSONResponse(body, 400)


async def _failed(request: Request, error: AnyHTTPException) -> Response:
    said, status = str(error.detail), error.status_code
    path = request.url.path
    if "endpoint" not in request.scope and status == 404:
        use = "use /v1/chat/completions, or /v1/completions for a model that only continues a text"
        said = f"there is no {path} here: {_ELSEWHERE.get(path, use)}"
    return JSONResponse(error_body(path, status, said), status, error.headers)


async def _refused(request: Request, error: AieError) -> Response:
    status, body = error_of(request.url.path, error)
    return JSONResponse(body, status)


async def _faulty(request: Request, error: Exception) -> Response:
    """Of this program: uvicorn writes the rest to the log."""
    return await _refused(request, as_error(error))
