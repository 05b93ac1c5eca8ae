"""An engine made of a script: speaks an engine's HTTP protocol as an ASGI app, well or badly.

For tests of whatever stands in front of engines. By default it answers ``/generate`` and
``/v1/chat/completions`` (unary and SSE) with tokens that depend on the prompt alone, so two ways to the
same engine give the same tokens. Attributes of :class:`Behaviour` make it slow, stuck or wrong, and
everything it is sent is kept. Serve it with ``httpx.ASGITransport`` or on a socket
(:mod:`rolecall.testing.asgi_server`); to be *dead* is a matter of sockets and not in here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

from attrs import define, field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VOCABULARY = 1000


@frozen(kw_only=True)
class Received:
    """One request as the engine got it."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def payload(self) -> dict[str, Any]:
        return json.loads(self.body)


@define
class Behaviour:
    """How the engine answers; a test may change it at any time.

    status, body, content_type: answer this instead of tokens.
    stuck: start no answer until the request is aborted.
    notices_cuts: a stuck unary request also ends when its connection is cut, as SGLang's do.
    ignores_aborts: answer aborts with 200 and go on.
    abort_status: what ``/abort_request`` answers.
    events: tokens of an answer, and events of a stream.
    gate: wait for it before every event after the first; a stream is cut to a test's time by it.
    """

    status: int = 200
    body: bytes | None = None
    content_type: str = "application/json"
    stuck: bool = False
    notices_cuts: bool = False
    ignores_aborts: bool = False
    abort_status: int = 200
    events: int = 4
    gate: asyncio.Event | None = None


@define
class ScriptedEngine:
    """The engine; ``app`` is what to serve.

    received: generation requests, in order. aborts: ids in abort requests, in order.
    running: ids it is at work on. cuts: ids of unary requests that ended with their connection.
    """

    name: str = "scripted"
    behaviour: Behaviour = field(factory=Behaviour)
    received: list[Received] = field(factory=list)
    aborts: list[str] = field(factory=list)
    running: dict[str, asyncio.Event] = field(factory=dict)
    cuts: list[str] = field(factory=list)
    app: Starlette = field(init=False)
    _news: asyncio.Event = field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.app = Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/abort_request", self._abort, methods=["POST"]),
                Route("/health", self._health),
            ]
        )

    async def until_running(self, count: int) -> None:
        """Return when that many requests are at work (0: when none is)."""
        while len(self.running) != count:
            await self._news.wait()

    async def until_aborted(self, count: int = 1) -> None:
        """Return when that many aborts have come."""
        while len(self.aborts) < count:
            await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- endpoints ----------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        del request
        return JSONResponse({"running": len(self.running)})

    async def _abort(self, request: Request) -> Response:
        rid = (await request.json())["rid"]
        self.aborts.append(rid)
        self._tell()
        if not self.behaviour.ignores_aborts:
            for running, aborted in self.running.items():
                if running.startswith(rid):
                    aborted.set()
        return Response(status_code=self.behaviour.abort_status)

    async def _generate(self, request: Request) -> Response:
        payload = await self._take(request)
        prompt = payload.get("text", payload.get("input_ids"))
        ids = tokens_of(prompt, self.behaviour.events)
        events = [_native(payload, ids[: n + 1]) for n in range(len(ids))]
        return await self._answer(request, payload, events, ids)

    async def _chat(self, request: Request) -> Response:
        payload = await self._take(request)
        ids = tokens_of(payload["messages"], self.behaviour.events)
        events = [_chat_event(payload, token) for token in ids]
        return await self._answer(request, payload, events, ids)

    async def _take(self, request: Request) -> dict[str, Any]:
        received = Received(
            path=request.url.path, headers=dict(request.headers.items()), body=await request.body()
        )
        self.received.append(received)
        return received.payload

    async def _answer(
        self, request: Request, payload: dict[str, Any], events: list[dict[str, Any]], ids: list[int]
    ) -> Response:
        behaviour = self.behaviour
        if behaviour.body is not None or behaviour.status != 200:
            body = b"{}" if behaviour.body is None else behaviour.body
            return Response(body, behaviour.status, media_type=behaviour.content_type)
        if payload.get("stream"):
            return StreamingResponse(self._events(payload, events), media_type="text/event-stream")
        async with self._running(payload) as aborted:
            if behaviour.stuck:
                await self._until_ended(request, payload, aborted)
        if "messages" in payload:
            return JSONResponse(_chat_answer(payload, ids))
        return JSONResponse(events[-1])

    async def _events(self, payload: dict[str, Any], events: list[dict[str, Any]]) -> AsyncGenerator[bytes]:
        async with self._running(payload) as aborted:
            if self.behaviour.stuck:
                await aborted.wait()
            for number, event in enumerate(events):
                if number and self.behaviour.gate is not None:
                    await _first_of(self.behaviour.gate, aborted)
                if aborted.is_set():
                    break
                yield b"data: " + json.dumps(event).encode() + b"\n\n"
            yield b"data: [DONE]\n\n"

    async def _until_ended(self, request: Request, payload: dict[str, Any], aborted: asyncio.Event) -> None:
        cut = asyncio.Event()
        watcher: asyncio.Task[None] | None = None
        if self.behaviour.notices_cuts:
            watcher = asyncio.create_task(_until_cut(request, cut))
        try:
            await _first_of(aborted, cut)
        finally:
            if watcher is not None:
                watcher.cancel()
        if cut.is_set():
            self.cuts.append(str(payload.get("rid")))

    @asynccontextmanager
    async def _running(self, payload: dict[str, Any]) -> AsyncGenerator[asyncio.Event]:
        rid = str(payload.get("rid"))
        aborted = asyncio.Event()
        self.running[rid] = aborted
        self._tell()
        try:
            yield aborted
        finally:
            del self.running[rid]
            self._tell()


def tokens_of(prompt: object, count: int) -> list[int]:
    """Return the tokens that any scripted engine answers a prompt with."""
    digest = blake2b(json.dumps(prompt).encode(), digest_size=64).digest()
    return [int.from_bytes(digest[2 * n : 2 * n + 2]) % VOCABULARY for n in range(count)]


def _native(payload: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    meta = {
        "id": payload.get("rid"),
        "finish_reason": {"type": "length", "length": len(ids)},
        "output_token_logprobs": [[-0.5, token, None] for token in ids],
        "weight_version": "default",
    }
    return {"text": "".join(f" {token}" for token in ids), "output_ids": ids, "meta_info": meta}


def _chat_event(payload: dict[str, Any], token: int) -> dict[str, Any]:
    delta = {"role": "assistant", "content": f" {token}"}
    return {
        "id": payload.get("rid"),
        "object": "chat.completion.chunk",
        "model": payload.get("model"),
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
    }


def _chat_answer(payload: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(f" {token}" for token in ids)}
    return {
        "id": payload.get("rid"),
        "object": "chat.completion",
        "model": payload.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


async def _until_cut(request: Request, cut: asyncio.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cut.set()


async def _first_of(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
