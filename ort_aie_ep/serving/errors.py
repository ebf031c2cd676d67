"""Errors as bodies of answers: in OpenAI's form, or, by the path, in Anthropic's or ollama's."""

from __future__ import annotations

from typing import Any

from ort_aie_ep.errors import AieError, FieldError, UnexpectedError
from ort_aie_ep.running.turns import PromptTooLongError

MESSAGES, OLLAMA = "/v1/messages", "/api/"
# Anthropic's types of errors, by status.
_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


class BusyError(AieError):
    """As many turns run or wait as the server takes."""


class EngineError(AieError):
    """The process has died."""


class StoppingError(AieError):
    """The server has been told to stop."""


class UnknownModelError(AieError):
    """There is no model of that name."""


# The HTTP status and OpenAI's code for an error: those of the first class that it belongs to.
_REFUSALS: tuple[tuple[type[AieError], int, str | None], ...] = (
    (BusyError, 429, "rate_limit_exceeded"),
    (StoppingError, 503, None),
    (UnknownModelError, 404, None),
    (EngineError, 500, None),
    (UnexpectedError, 500, None),
    (PromptTooLongError, 400, "context_length_exceeded"),
    (AieError, 400, None),
)


def error_body(
    path: str, status: int, message: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error in the form of what is at `path`."""
    if path.startswith(OLLAMA):
        return {"error": message}
    if path.startswith(MESSAGES):
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_of(path: str, error: AieError) -> tuple[int, dict[str, Any]]:
    """The status of an error, and its body."""
    status, code = next((s, c) for kind, s, c in _REFUSALS if isinstance(error, kind))
    param = error.field if isinstance(error, FieldError) else None
    said = str(error)
    if isinstance(error, PromptTooLongError) and path.startswith(MESSAGES):
        # Claude Code looks for these words, and makes its conversation shorter.
        said = f"prompt is too long: {error.tokens} tokens > {error.context} maximum"
    return status, error_body(path, status, said, code, param)
