"""What callers are told: one table from error to HTTP status and body.

On OpenAI paths the body has OpenAI's shape, elsewhere ``{"error": {"type", "message", "field"?}}``.
Neither shows where an engine lives: an engine's address is in the log, its id in the answer.
"""

from __future__ import annotations

from math import ceil

from starlette.responses import JSONResponse, Response

from rolecall.errors import (
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    RegistryUnavailableError,
    RequestError,
    UpstreamError,
    UpstreamStatusError,
)

OPENAI_PATHS = ("/v1/", "/chat/")

ERROR_TYPES = {
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "body_too_large",
    429: "too_many_requests",
    431: "head_too_large",
    501: "not_here",
    502: "bad_upstream",
    503: "unavailable",
    504: "deadline",
}
"""HTTP status → what the error is called."""

OPENAI_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
"""Where OpenAI has a word of its own; else ``invalid_request_error`` or ``server_error``."""


class BodyTooLargeError(RequestError):
    """The request's body is over the limit (413)."""

    status = 413


class HeadTooLargeError(RequestError):
    """The request's path and headers are over the limit (431)."""

    status = 431


class TooManyRequestsError(RequestError):
    """The caller has as many requests under way as one may have (429)."""

    status = 429


class UnauthorizedError(RequestError):
    """No bearer token, or not the right one (401)."""

    status = 401


class CallerGoneError(RequestError):
    """The caller has left; nobody reads an answer. 499 is what the metrics call it."""

    status = 499


def is_openai_path(path: str) -> bool:
    """Whether errors on a path, without the gateway's mount point, have OpenAI's shape."""
    return path.startswith(OPENAI_PATHS)


def error_response(error: RequestError, path: str) -> Response:
    """Return the answer for an error on a path."""
    if isinstance(error, UpstreamStatusError):
        return Response(error.body, status_code=error.status, media_type="application/json")
    headers: dict[str, str] = {}
    if isinstance(error, ModelUnavailableError):
        headers["retry-after"] = str(max(1, ceil(error.retry_after_s)))
    if isinstance(error, TooManyRequestsError):
        headers["retry-after"] = "1"
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    field = error.field if isinstance(error, PayloadError) else None
    return plain_error(error.status, told(error), path, field=field, headers=headers)


def plain_error(
    status: int, message: str, path: str, *, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return an error answer in the path's shape."""
    kind = ERROR_TYPES.get(status, "internal_error" if status >= 500 else "bad_request")
    if is_openai_path(path):
        openai_type = OPENAI_ERROR_TYPES.get(
            status, "server_error" if status >= 500 else "invalid_request_error"
        )
        content = {"message": message, "type": openai_type, "param": field, "code": kind}
    else:
        content = {"type": kind, "message": message}
        if field is not None:
            content["field"] = field
    return JSONResponse({"error": content}, status_code=status, headers=headers)


def told(error: RequestError) -> str:
    """Return what callers are told of an error: nothing about where something runs."""
    # Messages of transport errors name URLs of engines, those of discovery also nodes and processes.
    if isinstance(error, UpstreamError):
        return "the engine could not be reached, or gave no valid answer; the request was not repeated"
    if isinstance(error, RegistryUnavailableError):
        return "discovery can't be read now, so nobody knows which engines may be asked"
    if isinstance(error, DeadlineError):
        return "the request's deadline passed; the engine was told to abort it"
    return str(error)
