"""InferenceClient: asks a role's engines directly, past the role's gateway.

It learns from the gateway where the engines are (``{base_url}/engines``) and picks one with the same
resolver, so the same request meets the same engine either way. A model behind an external router is
asked through that router. It never calls the gateway's ``/generate``.

A POST is sent once: an answer that got lost may belong to work that was done. Every failure
(transport, HTTP error, deadline, cancellation) makes the client distrust its cached snapshot. Whoever
leaves before the end, by deadline or cancellation, leaves an engine that is told to abort and watched
until it has (:mod:`rolecall.client.aborter`).

One client serves all callers of an event loop; see :mod:`rolecall.client.shared`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypedDict, TypeVar

from attrs import frozen

from rolecall.client.aborter import Abandoned, Aborter, rids_in
from rolecall.client.codec import decode, encode
from rolecall.client.http1_transport import Http1Transport
from rolecall.client.request_ids import unique_id
from rolecall.client.retry_after import retry_after_s
from rolecall.client.snapshot_reader import HttpSnapshotReader
from rolecall.client.sse import DONE, SseParser
from rolecall.client.transport import Exchange, Head, Outgoing, Transport, header, media_type
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import DeadlineError, PayloadError, UpstreamError, UpstreamStatusError
from rolecall.interfaces.routing_policy import RoutingPolicy
from rolecall.plugins.blocking import entries_of_environment
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.plugins.trace import traced_by_environment
from rolecall.routing.admitted import admitted
from rolecall.routing.fresh import resolve_fresh
from rolecall.routing.replica_slots import ReplicaSlots
from rolecall.routing.resolver import AFFINITY_HEADER, RouteResolver, Target
from rolecall.routing.standing import is_routable
from rolecall.routing.through_router import check_fields, engines_behind

GENERATE_PATH = "/generate"
CHAT_PATH = "/v1/chat/completions"

_CONTROL_CONCURRENCY = 64

_OPENAI_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""Sampling parameters that the chat protocol calls otherwise."""

_T = TypeVar("_T")


class _Selectors(TypedDict):
    model: str | None
    route_key: str | None
    affinity_key: str | None


@frozen(kw_only=True)
class _Call:
    """One request under way; ``deadline`` is on the event loop's clock.

    settled: called once the engine has finished with it.
    """

    target: Target
    request_id: str
    rids: tuple[str, ...]
    exchange: Exchange
    deadline: float
    settled: Callable[[], None]

    async def wait(self, step: Awaitable[_T]) -> _T:
        limit = asyncio.timeout_at(self.deadline)
        try:
            async with limit:
                return await step
        except TimeoutError as error:
            raise (self.late() if limit.expired() else error) from error

    def late(self) -> DeadlineError:
        return DeadlineError(
            f"request {self.request_id} passed its deadline; {self.target.base_url} was told to abort it"
        )


@frozen
class _Guarded:
    """Whatever ends the block, the exchange is closed, or handed to the aborter if it still runs."""

    call: _Call
    source: SnapshotSource
    aborter: Aborter

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        call, source = self.call, self.source
        if kind is not None:
            source.drop()
        if call.exchange.ended:
            call.settled()
            await call.exchange.aclose()
            return
        abandoned = Abandoned(
            exchange=call.exchange,
            base_url=call.target.base_url,
            rids=call.rids,
            engines=lambda: engines_behind(source.known(), call.target),
            routable=lambda: is_routable(source.known(), call.target),
        )
        self.aborter.abandon(abandoned, settled=call.settled)


class InferenceClient:
    """A :class:`~rolecall.api.ScoringClient` that goes to the engines themselves.

    Make, use and close it in one event loop.

    base_url: the role's gateway, ``http://host:port/{role}``.
    policy: the role's routing policy; a request fails if the role turns out to use another one. None
        loads the installed one that the role's snapshot names.
    role: if given, a snapshot of any other role is refused.
    token: bearer token of the gateway.
    max_concurrency: requests under way at once; more wait, without using up any connect time.
    timeout_s: deadline of calls that give none.
    ttl_s: how long a snapshot is trusted without asking.
    max_in_flight_per_replica: requests of this client at one replica; more wait within their deadline.
    discovery_patience_s: how long the gateway may be away, e.g. because it is started again, before a request
        that needs discovery fails; its deadline may end it earlier.
    """

    def __init__(
        self,
        base_url: str,
        *,
        policy: type[RoutingPolicy] | None = None,
        role: str | None = None,
        token: str | None = None,
        max_concurrency: int = 1024,
        timeout_s: float = 600.0,
        ttl_s: float = 1.0,
        max_in_flight_per_replica: int | None = None,
        discovery_patience_s: float = 60.0,
        transport: Transport | None = None,
        control: Transport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._given = policy
        self._resolver = None if policy is None else RouteResolver(policy)
        self._transport = transport or Http1Transport(max_concurrency=max_concurrency)
        control = control or Http1Transport(max_concurrency=_CONTROL_CONCURRENCY)
        self._source = SnapshotSource(
            HttpSnapshotReader(control, self.base_url, token=token, patience_s=discovery_patience_s),
            role=role,
            ttl_s=ttl_s,
        )
        self._aborter = Aborter(control)
        self._slots = ReplicaSlots(max_in_flight_per_replica)

    async def __aenter__(self) -> InferenceClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def resolve(
        self,
        *,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Target:
        """Return where a request with these selectors would go now. Without a key it takes a turn.

        ``payload`` is what would be sent, for policies that look at the prompt.

        Raises:
            PayloadError, ModelUnavailableError: see :meth:`RouteResolver.resolve`.
            RegistryUnavailableError: no valid snapshot can be read.
            UnknownPluginError: the role's routing policy is not installed here.
        """
        if self._resolver is None or self._given is None:
            self._resolver = self._resolver_for((await self._source.current()).routing.policy)
        return await resolve_fresh(
            self._resolver,
            self._source,
            model=model,
            route_key=route_key,
            affinity_key=affinity_key,
            payload=payload,
        )

    def _resolver_for(self, policy: str) -> RouteResolver:
        if self._resolver is not None and self._resolver.policy.name == policy:
            return self._resolver
        host = PluginHost.from_environment(block=entries_of_environment(), trace=traced_by_environment())
        return RouteResolver(host.load(PluginKind.ROUTING_POLICY, policy))

    async def generate(
        self,
        payload: Mapping[str, Any],
        *,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """POST an engine's ``/generate`` and return the parsed answer. See :class:`ScoringClient`."""
        if payload.get("stream"):
            raise PayloadError("stream: use generate_stream", field="stream")
        selectors = _Selectors(model=model, route_key=route_key, affinity_key=affinity_key)
        answer = await self._ask(GENERATE_PATH, payload, selectors, timeout_s)
        if not isinstance(answer, dict):
            raise UpstreamError(f"{GENERATE_PATH} answered {type(answer).__name__}, not an object")
        return answer

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        sampling: Mapping[str, Any] | None = None,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """POST an engine's chat endpoint and return the answer's text. See :class:`ScoringClient`.

        ``sampling`` uses the native names (``max_new_tokens``); the chat protocol's are put for them.
        """
        selectors = _Selectors(model=model, route_key=route_key, affinity_key=affinity_key)
        renamed = {_OPENAI_NAMES.get(name, name): value for name, value in (sampling or {}).items()}
        answer = await self._ask(CHAT_PATH, {**renamed, "messages": messages}, selectors, timeout_s)
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise UpstreamError(f"{CHAT_PATH} answered without choices[0].message.content") from error
        if not isinstance(content, str):
            raise UpstreamError(f"{CHAT_PATH} answered content of type {type(content).__name__}, not text")
        return content

    async def generate_stream(
        self,
        payload: Mapping[str, Any],
        *,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[dict[str, Any]]:
        """POST an engine's ``/generate`` as a stream and yield each event's object.

        The deadline is for the whole stream. Closing the generator early aborts the request; do it
        explicitly (``contextlib.aclosing``) rather than by breaking out of a loop.

        Raises:
            RequestError: as the unary call, also in the middle; what was yielded stays valid.
        """
        selectors = _Selectors(model=model, route_key=route_key, affinity_key=affinity_key)
        deadline = self._deadline(timeout_s)
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                call = await self._begin(GENERATE_PATH, {**payload, "stream": True}, selectors, deadline)
        except TimeoutError as error:
            raise (self._late(None) if limit.expired() else error) from error
        async with _Guarded(call, self._source, self._aborter):
            incoming = await call.wait(call.exchange.open())
            if incoming.status != 200:
                raise _status_error(call, incoming, await call.wait(call.exchange.read()))
            if media_type(incoming.headers) != "text/event-stream":
                raise UpstreamError(f"{call.exchange.url} answered a stream with no event stream")
            parser = SseParser()
            done = False
            while chunk := await call.wait(call.exchange.next_chunk()):
                for data in parser.feed(chunk):
                    if data == DONE:
                        done = True
                    elif not done:
                        yield _event(call, data)
            if not done:
                raise UpstreamError(f"{call.exchange.url} broke its stream off")

    @property
    def queued(self) -> int:
        """Requests that wait because their replica has as many of this client's as it may have."""
        return sum(self._slots.queued.values())

    async def aclose(self) -> None:
        """Settle abandoned requests for a moment, then close all connections. Repeats do nothing."""
        await self._aborter.aclose()
        await self._source.aclose()
        await self._transport.aclose()

    # --- one request --------------------------------------------------------------------

    async def _ask(
        self, path: str, payload: Mapping[str, Any], selectors: _Selectors, timeout_s: float | None
    ) -> Any:
        deadline = self._deadline(timeout_s)
        limit = asyncio.timeout_at(deadline)
        call = None
        try:
            async with limit:
                call = await self._begin(path, payload, selectors, deadline)
                async with _Guarded(call, self._source, self._aborter):
                    incoming = await call.exchange.open()
                    body = await call.exchange.read()
                    return _answer(call, incoming, body)
        except TimeoutError as error:
            raise (self._late(call) if limit.expired() else error) from error

    def _deadline(self, timeout_s: float | None) -> float:
        return asyncio.get_running_loop().time() + (self._timeout_s if timeout_s is None else timeout_s)

    def _late(self, call: _Call | None) -> DeadlineError:
        if call is not None:
            return call.late()
        self._source.drop()
        return DeadlineError("a request passed its deadline before it was sent: discovery gave no answer")

    async def _begin(
        self, path: str, payload: Mapping[str, Any], selectors: _Selectors, deadline: float
    ) -> _Call:
        request_id = unique_id()
        body = {"rid": request_id, **payload}
        rids = rids_in(body) if "rid" in payload else (request_id,)
        headers = [
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
            (b"x-request-id", request_id.encode()),
        ]
        if (key := selectors["affinity_key"]) is not None:
            headers.append((AFFINITY_HEADER.lower().encode(), encode_affinity(key)))
        target = await self.resolve(**selectors, payload=payload)
        if path == CHAT_PATH:
            body["model"] = target.served_model_name
        resolver = self._resolver
        assert resolver is not None
        if not check_fields(resolver.policy, target, path, body):
            rids = ()
        request = Outgoing(method="POST", url=target.base_url + path, headers=headers, body=_encoded(body))
        settled = await admitted(self._slots, resolver.in_flight, self._source, target)
        return _Call(
            target=target,
            request_id=request_id,
            rids=rids,
            exchange=self._transport.begin(request),
            deadline=deadline,
            settled=settled,
        )


def encode_affinity(key: str) -> bytes:
    """Return an affinity key as the header's bytes: UTF-8.

    Raises:
        PayloadError: empty, with blanks around it, or with characters a header can't carry.
    """
    if not key or key != key.strip() or not key.isprintable():
        raise PayloadError(
            f"affinity_key: must be printable text without blanks around it, found {key!r:.80}",
            field="affinity_key",
        )
    return key.encode()


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return encode(body)
    except TypeError as error:
        raise PayloadError(f"payload: {error}", field="payload") from error


def _answer(call: _Call, incoming: Head, body: bytes) -> Any:
    if incoming.status != 200:
        raise _status_error(call, incoming, body)
    try:
        return decode(body)
    except ValueError as error:
        raise UpstreamError(f"{call.exchange.url} answered no JSON: {error}") from error


def _status_error(call: _Call, incoming: Head, body: bytes) -> UpstreamStatusError:
    shown = body[:200].decode("utf-8", "replace")
    return UpstreamStatusError(
        incoming.status,
        body,
        f"{call.exchange.url} answered {incoming.status}: {shown}",
        retry_after_s=retry_after_s(header(incoming.headers, b"retry-after")),
    )


def _event(call: _Call, data: bytes) -> dict[str, Any]:
    try:
        event = decode(data)
    except ValueError as error:
        raise UpstreamError(f"{call.exchange.url} sent an event that is no JSON: {error}") from error
    if not isinstance(event, dict):
        raise UpstreamError(f"{call.exchange.url} sent an event that is no object")
    if "error" in event:
        raise UpstreamError(f"{call.exchange.url} failed in mid-stream: {event['error']!r:.200}")
    return event
