"""``GET /engines``: discovery, conditional by ``If-None-Match`` or ``since``, a long poll by ``wait_s``.

A plain ASGI endpoint. A change is told to all who wait in one turn of the event loop, so the last of a
thousand waits for whatever is done for the others: an answer is made once a revision, and a question is read
once for all who ask the same. Never asks a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from urllib.parse import parse_qsl

from attrs import field, frozen
from starlette.types import Receive, Scope, Send

from rolecall.client.transport import Headers, header
from rolecall.discovery.registry import Published
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import PayloadError, RequestError
from rolecall.gateway.errors import error_response
from rolecall.gateway.paths import path_in
from rolecall.gateway.settings import GatewaySettings

ENGINES_PATH = "/engines"


@frozen(kw_only=True)
class _Asked:
    """What a query asks for."""

    wait_s: float
    known: frozenset[str]


@frozen
class _Answer:
    """A revision as it goes out."""

    published: Published
    body: bytes = field(init=False)
    fresh: Headers = field(init=False)
    unchanged: Headers = field(init=False)

    def __attrs_post_init__(self) -> None:
        body = self.published.body.encode()
        unchanged = [(b"etag", f'"{self.published.etag}"'.encode()), (b"cache-control", b"no-cache")]
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "fresh", [*unchanged, *kind])
        object.__setattr__(self, "unchanged", unchanged)


class Discovery:
    """ASGI endpoint; see the module's contract."""

    def __init__(self, source: SnapshotSource, settings: GatewaySettings) -> None:
        self._source = source
        self._settings = settings
        self._latest: _Answer | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except RequestError as error:
            await error_response(error, path_in(scope))(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _asked(scope["query_string"])
        known = asked.known | _tags((header(scope["headers"], b"if-none-match") or b"").decode("latin-1"))
        published = await self._source.published()
        if published.etag in known or "*" in known:
            wait_s = min(asked.wait_s, self._settings.max_wait_s)
            news = await self._source.news(published.etag, wait_s, lambda: _gone(receive)) if wait_s else None
        else:
            news = published
        answer = self._answer(news or published)
        headers = answer.unchanged if news is None else answer.fresh
        await send(
            {"type": "http.response.start", "status": 304 if news is None else 200, "headers": headers}
        )
        body = b"" if news is None else answer.body
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _answer(self, published: Published) -> _Answer:
        if self._latest is None or self._latest.published is not published:
            self._latest = _Answer(published)
        return self._latest


@lru_cache(maxsize=64)
def query_fields(query: bytes) -> Mapping[str, str]:
    """Return the fields of a query; of one that is repeated, the last."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


@lru_cache(maxsize=64)
def _asked(query: bytes) -> _Asked:
    fields = query_fields(query)
    schema = fields.get("schema", "2")
    if schema != "2":
        raise PayloadError(f"schema: this gateway serves schema 2, not {schema!r:.20}", field="schema")
    return _Asked(wait_s=_seconds(fields.get("wait_s", "0")), known=_tags(fields.get("since", "")))


def _seconds(text: str) -> float:
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not isfinite(wait_s) or wait_s < 0:
        raise PayloadError(f"wait_s: must be seconds from 0, found {text!r:.20}", field="wait_s")
    return wait_s


def _tags(text: str) -> frozenset[str]:
    """Return the tags of a list, without quotes and weakness marks."""
    tags = (tag.strip().removeprefix("W/").strip('"') for tag in text.split(","))
    return frozenset(tag for tag in tags if tag)


async def _gone(receive: Receive) -> None:
    """Return when the caller has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
