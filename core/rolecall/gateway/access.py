"""Access: who comes in at a gateway, in front of everything that it serves.

In this order, before anything of a body is read: the head must be within its limit (431), a token must be
right where tokens are set (401), and a caller may have only so many requests under way (429).

A caller is who holds a token where there are several of them, else an address: with one token or none, tokens
tell nobody apart.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest

from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.client.transport import Headers
from rolecall.errors import RequestError
from rolecall.gateway.errors import HeadTooLargeError, TooManyRequestsError, UnauthorizedError, error_response
from rolecall.gateway.paths import path_in
from rolecall.gateway.settings import GatewaySettings

_SCHEME = b"bearer "


class Access:
    """ASGI middleware; see the module's contract. Used from one event loop.

    ``refused`` is told the status of every refusal.
    """

    def __init__(
        self, app: ASGIApp, settings: GatewaySettings, refused: Callable[[int], None] | None = None
    ) -> None:
        self._app = app
        self._refused = refused
        self._digests = [sha256(token.encode()).digest() for token in settings.bearer_tokens]
        self._max_head_bytes = settings.max_head_bytes
        self._most = settings.max_requests_per_caller
        self._under_way: dict[object, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admitted(scope)
        except RequestError as error:
            if self._refused is not None:
                self._refused(error.status)
            await error_response(error, path_in(scope))(scope, receive, send)
            return
        if self._most is None:
            await self._app(scope, receive, send)
            return
        self._under_way[caller] = self._under_way.get(caller, 0) + 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]

    def _admitted(self, scope: Scope) -> object:
        """Return who the caller is.

        Raises:
            HeadTooLargeError, UnauthorizedError, TooManyRequestsError: it does not come in.
        """
        headers: Headers = scope["headers"]
        size = len(scope["path"]) + len(scope["query_string"])
        size += sum([len(name) + len(value) for name, value in headers])
        if size > self._max_head_bytes:
            limit = self._max_head_bytes
            raise HeadTooLargeError(f"path and headers are over {limit} bytes (gateway.max_head_bytes)")
        token = self._token(headers) if self._digests else 0
        caller = token if len(self._digests) > 1 else (scope.get("client") or ("",))[0]
        if self._most is not None and self._under_way.get(caller, 0) >= self._most:
            raise TooManyRequestsError(
                f"this caller has {self._most} requests under way, the most that it may have "
                "(gateway.max_requests_per_caller)"
            )
        return caller

    def _token(self, headers: Headers) -> int:
        """Return the place of the token that was sent; all are compared, each in constant time."""
        given = [value for name, value in headers if name == b"authorization"]
        value = given[0] if len(given) == 1 and given[0][: len(_SCHEME)].lower() == _SCHEME else b""
        digest = sha256(value[len(_SCHEME) :]).digest()
        found = [place for place, wanted in enumerate(self._digests) if compare_digest(digest, wanted)]
        if not found:
            raise UnauthorizedError("a valid bearer token is needed: send Authorization: Bearer TOKEN")
        return found[0]
