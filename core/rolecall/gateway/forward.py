"""Forward: one POST from a caller to one engine and back.

Both generation endpoints are this class; they differ in how a body becomes an
:class:`~rolecall.api.UpstreamCall`. It is a plain ASGI endpoint. In order:

1. the body is read and parsed, its selectors are taken out, the role checks the rest (400, 413);
2. a target is resolved from the snapshot of that moment, so nothing goes to an engine that discovery
   does not show as READY (400, 503);
3. the request is sent, once. A failure before the first byte of the answer, or the end of a stream's first
   event, is an HTTP error (502, 504); later nothing can be told, so the connection is cut and never looks
   like a complete answer;
4. a unary answer is checked to be JSON and passed on in one piece; a long one and a stream pass as they come.

However it ends, the exchange is closed, or handed to the aborter while the engine may still be at work.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from starlette.types import Receive, Scope, Send

from rolecall.client.aborter import Abandoned, Aborter, rids_in
from rolecall.client.codec import decode, encode
from rolecall.client.inference_client import CHAT_PATH
from rolecall.client.request_ids import unique_id
from rolecall.client.transport import (
    Exchange,
    Head,
    Headers,
    Outgoing,
    Transport,
    end_to_end,
    header,
    media_type,
)
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import (
    DeadlineError,
    ModelUnavailableError,
    PayloadError,
    RegistryUnavailableError,
    RequestError,
    UpstreamError,
)
from rolecall.gateway.body import JsonBody, check_names_no_host, is_json, may_be_json, read_body
from rolecall.gateway.caller import Caller, Newcomers
from rolecall.gateway.errors import CallerGoneError, error_response
from rolecall.gateway.metrics import UNRESOLVED, GatewayMetrics
from rolecall.gateway.paths import path_in
from rolecall.gateway.settings import GatewaySettings
from rolecall.interfaces.role import UpstreamCall
from rolecall.routing.admitted import admitted
from rolecall.routing.fresh import resolve_fresh
from rolecall.routing.replica_slots import ReplicaSlots
from rolecall.routing.resolver import AFFINITY_HEADER, RouteResolver, Target
from rolecall.routing.standing import is_routable
from rolecall.routing.through_router import check_fields, engines_behind

_log = logging.getLogger(__name__)

ENGINE_HEADER = b"x-rolecall-engine"
REQUEST_ID_HEADER = b"x-request-id"

_NOT_FOR_ENGINES = frozenset(
    {
        b"accept-encoding",  # answers are looked into, so they come uncompressed
        b"authorization",  # the gateway's own token
        b"content-length",
        b"content-type",
        b"cookie",
        b"expect",
        b"host",
        REQUEST_ID_HEADER,
    }
)
_NOT_FOR_CALLERS = frozenset(
    {
        b"alt-svc",  # names another address
        b"content-length",
        b"content-location",
        b"date",
        b"location",
        b"server",
        b"set-cookie",
        REQUEST_ID_HEADER,
        ENGINE_HEADER,
    }
)

_LONG = 2**16
"""Bytes from which on an answer, or a stream's first event, is passed as it comes, so that it is nowhere kept
whole."""

_EVENT_END = re.compile(rb"\n[\r\n]|\r\r")
"""An empty line: the second of two line ends."""

Adapt = Callable[[dict[str, Any]], UpstreamCall]
"""Checks a body without its selectors and says what to send; raises ``PayloadError``."""


@frozen(kw_only=True)
class Upstream:
    """What all forwards of one gateway share."""

    source: SnapshotSource
    resolver: RouteResolver
    transport: Transport
    aborter: Aborter
    metrics: GatewayMetrics
    settings: GatewaySettings
    slots: ReplicaSlots = field(factory=ReplicaSlots)
    newcomers: Newcomers = field(factory=Newcomers, init=False)


@frozen(kw_only=True)
class _Prepared:
    """A request as it goes to the engine."""

    target: Target
    call: UpstreamCall
    request: Outgoing
    rids: tuple[str, ...]
    request_id: str

    @property
    def streams(self) -> bool:
        return self.call.payload.get("stream") is True


class Forward:
    """ASGI endpoint of one generation path."""

    def __init__(self, upstream: Upstream, adapt: Adapt) -> None:
        self._upstream = upstream
        self._adapt = adapt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller(receive, send, self._upstream.newcomers)
        await _Handling(self._upstream, self._adapt, scope, caller).run()


class _Handling:
    """One request."""

    def __init__(self, upstream: Upstream, adapt: Adapt, scope: Scope, caller: Caller) -> None:
        self._upstream = upstream
        self._adapt = adapt
        self._scope = scope
        self._caller = caller
        self._headers: Headers = scope["headers"]
        self._model = UNRESOLVED
        self._status = 500
        self._request_id = _request_id(self._headers)

    async def run(self) -> None:
        began = time.perf_counter()
        try:
            await self._serve()
        except RequestError as error:
            self._status = error.status
            if isinstance(error, ModelUnavailableError) and error.model is not None:
                self._model = error.model
            await self._fail(error)
        except Exception:
            # The server logs it with its traceback; its caller gets an answer if none has begun.
            await self._fail(RequestError("the gateway failed; its log has the reason"))
            raise
        except asyncio.CancelledError:
            # A server that cancels a handler does so because its caller has left.
            self._status = CallerGoneError.status
            raise
        finally:
            self._upstream.metrics.ended(self._model, self._status, time.perf_counter() - began)

    async def _serve(self) -> None:
        settings = self._upstream.settings
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_s
        with self._caller.patience(deadline) as patience:
            text = await read_body(self._caller.receive, self._headers, settings.max_body_bytes)
            patience.watch()
            prepared = await self._prepare(JsonBody(text))
            await self._exchange(prepared)

    async def _fail(self, error: RequestError) -> None:
        if isinstance(error, UpstreamError | DeadlineError | RegistryUnavailableError):
            _log.warning("request %s of model %r failed: %s", self._request_id, self._model, error)
        if isinstance(error, CallerGoneError):
            return
        if self._caller.started:
            # No end of the body is sent: the server cuts the connection, and the caller sees it.
            return
        response = error_response(error, path_in(self._scope))
        response.headers[REQUEST_ID_HEADER.decode()] = self._request_id
        try:
            await response(self._scope, self._caller.receive, self._caller.send)
        except CallerGoneError:
            self._status = CallerGoneError.status

    # --- to the engine ------------------------------------------------------------------

    async def _prepare(self, body: JsonBody) -> _Prepared:
        fields = dict(body.fields)
        model = fields.pop("model", None)
        route_key = fields.pop("route_key", None)
        if not isinstance(fields.get("stream", False), bool):
            raise PayloadError(
                f"stream: must be true or false, found {fields['stream']!r:.80}", field="stream"
            )
        call = self._adapt(fields)
        check_names_no_host(call.payload)
        target = await resolve_fresh(
            self._upstream.resolver,
            self._upstream.source,
            model=model,
            route_key=route_key,
            affinity_key=_affinity_key(self._headers),
            payload=call.payload,
        )
        self._model = target.model
        # Unique even if the caller repeats its request id, and no prefix of another: engines abort by prefix.
        payload = {"rid": f"{self._request_id}.{unique_id()}", **call.payload}
        if call.path == CHAT_PATH:
            payload["model"] = target.served_model_name
        rids = rids_in(payload)
        passes_rid = check_fields(self._upstream.resolver.policy, target, call.path, payload)
        prepared = _Prepared(
            target=target,
            call=call,
            rids=rids if passes_rid else (),
            request_id=self._request_id,
            request=Outgoing(
                method="POST",
                url=target.base_url + call.path,
                headers=self._engine_headers(),
                body=body.encode(payload),
            ),
        )
        if prepared.streams and call.reply is not None:
            raise PayloadError("stream: answers of this kind can't be streamed", field="stream")
        return prepared

    def _engine_headers(self) -> Headers:
        return [
            *end_to_end(self._headers, without=_NOT_FOR_ENGINES),
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
            (REQUEST_ID_HEADER, self._request_id.encode()),
        ]

    async def _exchange(self, prepared: _Prepared) -> None:
        upstream = self._upstream
        settled = await self._admit(prepared.target)
        exchange = upstream.transport.begin(prepared.request)
        try:
            incoming = await exchange.open()
            self._status = incoming.status
            if prepared.streams and incoming.status == 200:
                await self._pass_stream(prepared, exchange, incoming)
            else:
                await self._pass_answer(prepared, exchange, incoming)
        except UpstreamError:
            upstream.source.drop()
            raise
        finally:
            if exchange.ended:
                settled()
                await exchange.aclose()
            else:
                abandoned = Abandoned(
                    exchange=exchange,
                    base_url=prepared.target.base_url,
                    rids=prepared.rids,
                    engines=lambda: engines_behind(upstream.source.known(), prepared.target),
                    routable=lambda: is_routable(upstream.source.known(), prepared.target),
                )
                upstream.aborter.abandon(abandoned, settled=settled)

    async def _admit(self, target: Target) -> Callable[[], None]:
        """Wait for a slot at the replica and count the request as in flight; call what is returned when its
        engine has finished with it.

        Raises:
            ModelUnavailableError: too many wait, or the replica is not routable any more.
        """
        metrics = self._upstream.metrics
        left_engine = await admitted(
            self._upstream.slots, self._upstream.resolver.in_flight, self._upstream.source, target
        )
        metrics.sent()

        def settled() -> None:
            left_engine()
            metrics.settled()

        return settled

    # --- back to the caller -------------------------------------------------------------

    async def _pass_answer(self, prepared: _Prepared, exchange: Exchange, incoming: Head) -> None:
        """Pass a unary answer: a short one whole, after a look whether it is JSON, a long one as it comes."""
        url = prepared.request.url
        if incoming.status != 200 and incoming.status < 400:
            raise UpstreamError(f"{url} answered {incoming.status}, which is no answer to a POST")
        if incoming.status == 200 and media_type(incoming.headers) != "application/json":
            raise UpstreamError(f"{url} answered 200 with a body that is no JSON")
        reply = prepared.call.reply if incoming.status == 200 else None
        body, ended = (await exchange.read(), True) if reply else await _short(exchange, incoming.headers)
        if incoming.status == 200 and not (is_json(body) if ended else may_be_json(body)):
            raise UpstreamError(f"{url} answered 200 with a body that is no JSON")
        if reply:
            body = _mapped(prepared, body)
        headers = self._caller_headers(prepared, incoming)
        length = str(len(body)).encode() if ended else header(incoming.headers, b"content-length")
        if length is not None:
            headers.append((b"content-length", length))
        if ended:
            await self._caller.answer(incoming.status, headers, body)
        else:
            await self._start(incoming.status, headers, body)
            await self._caller.take_from(exchange)

    async def _pass_stream(self, prepared: _Prepared, exchange: Exchange, incoming: Head) -> None:
        url = prepared.request.url
        if media_type(incoming.headers) != "text/event-stream":
            raise UpstreamError(f"{url} answered a stream with no event stream")
        chunk = await _first_event(exchange)
        await self._start(incoming.status, self._caller_headers(prepared, incoming), chunk)
        await self._caller.take_from(exchange)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        await self._caller.send({"type": "http.response.start", "status": status, "headers": headers})
        await self._caller.send({"type": "http.response.body", "body": body, "more_body": True})

    def _caller_headers(self, prepared: _Prepared, incoming: Head) -> list[tuple[bytes, bytes]]:
        headers = end_to_end(incoming.headers, without=_NOT_FOR_CALLERS)
        headers.append((REQUEST_ID_HEADER, self._request_id.encode()))
        if prepared.target.engine_id is not None:
            headers.append((ENGINE_HEADER, prepared.target.engine_id.encode()))
        return headers


async def _first_event(exchange: Exchange) -> bytes:
    """Return a stream's bytes up to the end of its first event, or more: until then a failure can be told as
    an error. A long one is not waited for.

    Raises:
        UpstreamError: there is no event.
    """
    found = bytearray()
    while piece := await exchange.next_chunk():
        before = max(0, len(found) - 1)
        found += piece
        if len(found) > _LONG or _EVENT_END.search(found, before):
            return bytes(found)
    raise UpstreamError(f"{exchange.url} ended its stream without an event")


async def _short(exchange: Exchange, headers: Headers) -> tuple[bytes, bool]:
    """Return the answer's body and True, or what has come of a long one and False: its beginning if its
    length was said, else as soon as it is long."""
    said = header(headers, b"content-length") or b""
    is_long = said.isdigit() and int(said) > _LONG
    body = b""
    while len(body) <= _LONG and not (is_long and body.strip()):
        piece = await exchange.next_chunk()
        if not piece:
            return body, True
        body = body + piece if body else piece
    return body, False


def _mapped(prepared: _Prepared, body: bytes) -> bytes:
    assert prepared.call.reply is not None
    try:
        return encode(prepared.call.reply(decode(body)))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UpstreamError(
            f"{prepared.request.url} answered JSON that the role can't read: {error!r}"
        ) from error


def _request_id(headers: Headers) -> str:
    raw = header(headers, REQUEST_ID_HEADER)
    if raw:
        given = raw.decode("latin-1")
        # Anything else could not be passed on as it is.
        if len(given) <= 128 and given.isascii() and given.isprintable() and " " not in given:
            return given
    return unique_id()


def _affinity_key(headers: Headers) -> str | None:
    name = AFFINITY_HEADER.lower().encode()
    values = [value for key, value in headers if key == name]
    if not values:
        return None
    key = values[0].decode("utf-8", "replace").strip(" \t")
    if len(values) > 1 or not key:
        raise PayloadError(f"{AFFINITY_HEADER}: must be one non-empty header", field=AFFINITY_HEADER)
    return key
