"""The routes: OpenAI's /v1, health, and a page for users without a client."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import uuid
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

from ort_aie_ep.errors import AieError
from ort_aie_ep.running.turns import PromptTooLongError, Turn, Usage
from ort_aie_ep.serving.engine import BusyError, Engine, EngineError, StoppingError
from ort_aie_ep.serving.limits import Gate, error_body
from ort_aie_ep.serving.requests import Chat, Completion

# Hosts that a server on loopback answers to. A page of another site whose name was made to resolve
# to this machine (DNS rebinding) sends its own name, and is refused.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")
_OBJECTS = {
    "chat": "chat.completion", "chunk": "chat.completion.chunk", "text": "text_completion",
}  # fmt: skip
# The HTTP status and OpenAI's code for an error: those of the first class that it belongs to.
_REFUSALS: tuple[tuple[type[AieError], int, str | None], ...] = (
    (BusyError, 429, "rate_limit_exceeded"),
    (StoppingError, 503, None),
    (EngineError, 500, None),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (AieError, 400, None),
)


@dataclass(frozen=True)
class Server:
    """What the routes serve.

    Attributes:
        engine: runs the model.
        name: the model's name in requests.
        key: the API key that clients must send, or None if they need none.
        max_tokens: largest number of new tokens of a request, or None.
        started: when the server was started, in seconds since 1970.
    """

    engine: Engine
    name: str
    key: str | None
    max_tokens: int | None
    started: int


def create_app(server: Server, hosts: Sequence[str]) -> FastAPI:
    """The application, for clients that call this machine by one of `hosts`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.engine.listen(asyncio.get_running_loop())
        yield

    app = FastAPI(title="ort_aie_ep", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.server = server
    app.add_middleware(Gate, hosts=hosts)
    app.include_router(_public)
    app.include_router(_v1)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(AnyHTTPException)(_failed)
    app.exception_handler(AieError)(_refused)
    return app


def _server(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _allowed(request: Request, bearer: Bearer) -> None:
    key, shown = _server(request).key, bearer.credentials if bearer else ""
    if key is not None and not hmac.compare_digest(shown.encode(), key.encode()):
        raise HTTPException(401, "this server wants its API key: Authorization: Bearer KEY")


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
        "context_length": server.engine.context,
        "chat": server.engine.chat,
    }


def _known(request: Request, name: str) -> None:
    if name != (there := _server(request).name):
        raise HTTPException(404, f"there is no model {name!r} here, only {there!r}")


@_v1.post("/chat/completions")
async def _chat(request: Request, body: Chat) -> Response:
    return await _answer(request, body, "chat", body.turn(_server(request).max_tokens))


@_v1.post("/completions")
async def _completion(request: Request, body: Completion) -> Response:
    return await _answer(request, body, "text", body.turn(_server(request).max_tokens))


async def _answer(request: Request, body: Chat | Completion, kind: str, turn: Turn) -> Response:
    _known(request, body.model)
    events = _server(request).engine.run(turn, request.is_disconnected)
    about = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.model}
    if body.stream:
        # A refused turn needs its own status, so the headers wait for the first piece.
        first = await anext(events, None)
        counted = body.stream_options is not None and body.stream_options.include_usage
        lines = _stream(first, events, kind, about, counted)
        return StreamingResponse(lines, media_type="text/event-stream")
    text = ""
    async for event in events:
        if isinstance(event, Usage):
            said = {"message": {"role": "assistant", "content": text}}
            choice = said if kind == "chat" else {"text": text}
            answer = {**about, "object": _OBJECTS[kind], "usage": _counts(event)}
            return JSONResponse(answer | _choices(choice, event.finish_reason))
        text += event
    return Response(status_code=499)  # the client has left


async def _stream(
    event: str | Usage | None,
    events: AsyncIterator[str | Usage],
    kind: str,
    about: dict[str, Any],
    counted: bool,
) -> AsyncIterator[str]:
    """Server-sent events: `event`, then `events`."""
    about = {**about, "object": _OBJECTS["chunk" if kind == "chat" else kind]}
    role = {"role": "assistant"}
    try:
        while event is not None:
            text, reason = (event, None) if isinstance(event, str) else ("", event.finish_reason)
            choice = {"delta": {**role, "content": text}} if kind == "chat" else {"text": text}
            role = {}
            yield _data(about | _choices(choice, reason))
            if counted and isinstance(event, Usage):
                yield _data({**about, "choices": [], "usage": _counts(event)})
            event = await anext(events, None)
    except AieError as error:
        yield _data(error_body(500, str(error)))
    yield "data: [DONE]\n\n"


def _data(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _choices(choice: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice, "finish_reason": reason, "logprobs": None}]}


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


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
        said = (
            f"there is no {request.url.path} here: use /v1/chat/completions, or /v1/completions "
            "for a model that only continues a text"
        )
    return JSONResponse(error_body(status, said), status, error.headers)


async def _refused(_: Request, error: AieError) -> Response:
    for kind, status, code in _REFUSALS:
        if isinstance(error, kind):
            return JSONResponse(error_body(status, str(error), code), status)
    raise error
