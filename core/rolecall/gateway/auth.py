"""Bearer-token access, in front of everything a gateway serves."""

from __future__ import annotations

from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.client.transport import header
from rolecall.gateway.errors import UnauthorizedError, error_response
from rolecall.gateway.paths import path_in


class BearerToken:
    """ASGI middleware: 401 for any HTTP request without the token, compared in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = b"Bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = header(scope["headers"], b"authorization") or b""
            if not compare_digest(given, self._expected):
                error = UnauthorizedError("a valid bearer token is needed: send Authorization: Bearer TOKEN")
                await error_response(error, path_in(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)
