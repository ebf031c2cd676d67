"""The routes: OpenAI's and Anthropic's /v1, ollama's /api, health, and a page for users without a
client."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException as AnyHTTPException

from ort_aie_ep.errors import AieError, as_error
from ort_aie_ep.running.turns import Turn, Usage
from ort_aie_ep.serving import ollama
from ort_aie_ep.serving.answers import Answer, CompletionAnswer
from ort_aie_ep.serving.engine import LOOK_SECONDS, NumberedEvent
from ort_aie_ep.serving.errors import error_body, error_of
from ort_aie_ep.serving.limits import MAX_BODY, TOKEN_BYTES, Gate, Origins
from ort_aie_ep.serving.messages import Count, MessageAnswer, Messages
from ort_aie_ep.serving.metrics import Metrics
from ort_aie_ep.serving.models import Held, Models
from ort_aie_ep.serving.offers import Offer
from ort_aie_ep.serving.requests import Asked, Chat, Completion, StreamOptions
from ort_aie_ep.serving.responses import ResponseAnswer, Responses

# Hosts that a server on loopback answers to. A page of another site whose name was made to resolve
# to this machine (DNS rebinding) sends its own name, and is refused.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
# Of the interfaces, and not here: what to use.
_TEXTS = "this server only writes texts: use /v1/chat/completions or /v1/completions"
_ELSEWHERE = {
    **dict.fromkeys(("/v1/embeddings", "/api/embed", "/api/embeddings"), _TEXTS),
    "/api/pull": "ort-aie pull OWNER/REPO gets a model",
    "/api/delete": "ort-aie rm MODEL removes one",
}
# A refusal that comes within so many seconds has its own status. Then a stream begins, because
# clients give up on a server that says nothing: a comment or an event, and another one whenever
# nothing came for so many seconds, while a request waits or its prompt is read.
PATIENCE, QUIET = 1.0, 2.0


@dataclass(frozen=True)
class Server:
    """What the routes serve.

    Attributes:
        models: what there is, and what is loaded.
        key: the API key that clients must send, or None if they need none.
        max_tokens: largest number of new tokens of a request, or None.
        started: when the server was started, in seconds since 1970.
        metrics: what it has done.
    """

    models: Models
    key: str | None
    max_tokens: int | None
    started: int
    metrics: Metrics


def create_app(server: Server, hosts: Sequence[str], origins: Sequence[str] = ()) -> FastAPI:
    """The application, for clients that call this machine by one of `hosts`, and for pages of other
    sites from `origins`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.models.listen()
        yield

    app = FastAPI(title="ort_aie_ep", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.server = server
    most = MAX_BODY + TOKEN_BYTES * server.models.context
    app.add_middleware(Gate, hosts=hosts, most=most)
    app.add_middleware(Origins, origins=origins)
    app.include_router(_public)
    app.include_router(_v1)
    app.include_router(_api)
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
_api = APIRouter(prefix="/api", dependencies=[Depends(_allowed)])


@_public.api_route("/", methods=["GET", "HEAD"], response_class=HTMLResponse)
async def _page() -> str:
    return files(__package__).joinpath("page.html").read_text("utf-8")


@_public.get("/health")
async def _health(request: Request) -> Response:
    models = _server(request).models
    state = {"status": "ok" if models.alive else "the model is not open", "requests": models.turns}
    return JSONResponse(state, 200 if models.alive else 503)


@_public.get("/metrics")
async def _metrics(request: Request) -> Response:
    body, kind = _server(request).metrics.text()
    return Response(body, media_type=kind)


@_v1.get("/models")
async def _models(request: Request) -> dict[str, Any]:
    server = _server(request)
    return {
        "object": "list",
        "data": [_model(server, *each) for each in await server.models.offers()],
    }


@_v1.get("/models/{name:path}")
async def _one_model(request: Request, name: str) -> dict[str, Any]:
    server = _server(request)
    offer = await server.models.known(name)
    return _model(server, offer, server.models.held(offer))


def _model(server: Server, offer: Offer, held: Held | None) -> dict[str, Any]:
    facts = held.engine.facts if held else None
    about = {"context_length": facts.context, "chat": facts.chat} if facts else offer.about()
    fixed = {"object": "model", "created": server.started, "owned_by": "ort_aie_ep"}
    return {"id": offer.name, **fixed, **about, "loaded": held is not None}


@_v1.post("/chat/completions")
async def _chat(request: Request, body: Chat) -> Response:
    return await _completed(request, body, chat=True)


@_v1.post("/completions")
async def _completion(request: Request, body: Completion) -> Response:
    return await _completed(request, body, chat=False)


async def _completed(request: Request, body: Chat | Completion, chat: bool) -> Response:
    offer = await _named(request, body)
    turns = body.turns(body.turn(_server(request).max_tokens))
    options = body.stream_options or StreamOptions()
    answer = CompletionAnswer(body.model, chat, len(turns), options)
    return await _answer(request, offer, turns, answer, body.stream)


@_v1.post("/responses")
async def _responses(request: Request, body: Responses) -> Response:
    offer = await _named(request, body)
    turn = body.turn(_server(request).max_tokens)
    turns = [turn] if turn.messages else []
    return await _answer(request, offer, turns, ResponseAnswer(body), body.stream)


@_v1.post("/messages")
async def _messages(request: Request, body: Messages) -> Response:
    offer = await _named(request, body)
    turn = body.turn(_server(request).max_tokens)
    return await _answer(request, offer, [turn], MessageAnswer(body.model), body.stream)


@_v1.post("/messages/count_tokens")
async def _count(request: Request, body: Count) -> dict[str, int]:
    offer = await _named(request, body)
    events = _server(request).models.run(offer, [body.turn(0)], request.is_disconnected)
    return {"input_tokens": sum([e.prompt_tokens async for _, e in events if isinstance(e, Usage)])}


@_api.get("/version")
async def _version() -> dict[str, str]:
    return {"version": ollama.VERSION}


@_api.get("/tags")
async def _tags(request: Request) -> dict[str, Any]:
    offers = await _server(request).models.offers()
    return {"models": [ollama.listed(offer) for offer, _ in offers]}


@_api.get("/ps")
async def _loaded(request: Request) -> dict[str, Any]:
    return {"models": [ollama.loaded(held) for held in _server(request).models.loaded]}


@_api.post("/show")
async def _show(request: Request, body: ollama.Show) -> dict[str, Any]:
    offer = await _server(request).models.known(body.model)
    return await asyncio.to_thread(ollama.shown, offer)


@_api.post("/chat")
async def _api_chat(request: Request, body: ollama.Chat) -> Response:
    return await _of_ollama(request, body)


@_api.post("/generate")
async def _generate(request: Request, body: ollama.Generate) -> Response:
    return await _of_ollama(request, body)


async def _of_ollama(request: Request, body: ollama.Chat | ollama.Generate) -> Response:
    server = _server(request)
    offer = await server.models.known(body.model)
    body.model = body.model or offer.name
    answer = ollama.OllamaAnswer(body)
    turns = [body.turn(server.max_tokens)] if body.asks else []
    if body.keep_alive == 0 and not turns:
        await server.models.unload(offer)
        return Response(answer.line(answer.loaded("unload")), media_type=answer.media_type)
    return await _answer(request, offer, turns, answer, body.stream, body.keep_alive)


async def _named(request: Request, body: Asked) -> Offer:
    """The model that a body means, whose name it gets."""
    offer = await _server(request).models.known(body.model)
    body.model = offer.name
    return offer


async def _answer(
    request: Request, offer: Offer, turns: list[Turn], answer: Answer, stream: bool,
    keep: float | None = None,
) -> Response:  # fmt: skip
    server = _server(request)
    events = server.models.run(offer, turns, request.is_disconnected, keep)
    if turns:
        events = server.metrics.watched(events)
    if stream:
        start, first = time.monotonic(), await anext(events, None)
        while first and first[1] is None and not _passed(start, PATIENCE):
            first = await anext(events, None)
        progress = partial(server.models.progress, offer)
        content = _stream(first, events, answer, progress)
        return StreamingResponse(content, media_type=answer.media_type)
    async for number, event in events:
        if event is not None:
            answer.add(number, event)
    if not answer.whole:
        return Response(status_code=499)  # the client has left
    return JSONResponse(answer.body())


def _passed(start: float, seconds: float) -> bool:
    """Whether so many seconds have, of which `events` tell a part at a time."""
    return time.monotonic() - start > seconds - LOOK_SECONDS / 2


async def _stream(
    coming: NumberedEvent | None,
    events: AsyncGenerator[NumberedEvent],
    answer: Answer,
    progress: Callable[[], str],
) -> AsyncIterator[str]:
    """A stream of the event that is `coming`, then `events`; until one comes, of the `progress`."""
    yield answer.quiet(progress())
    last = time.monotonic()
    try:
        async with aclosing(events):
            while coming is not None:
                number, event = coming
                if event is not None:
                    for content in answer.take(number, event):
                        yield answer.line(content)
                    last = time.monotonic()
                elif _passed(last, QUIET):
                    yield answer.quiet(progress())
                    last = time.monotonic()
                coming = await anext(events, None)
        for content in answer.closing() if answer.whole else ():
            yield answer.line(content)
    except AieError as error:
        yield answer.line(answer.failed(error))
    if answer.ending:
        yield answer.ending


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
