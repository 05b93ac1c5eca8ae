"""An engine made of a script: speaks SGLang's HTTP protocol as an ASGI app, well or badly.

For tests of whatever stands in front of engines or commands them. It answers ``/generate`` and
``/v1/chat/completions`` (unary and SSE) and the control calls that rolecall uses. :class:`Behaviour` makes it
slow, stuck or wrong, and everything it is sent is kept. What SGLang does not survive ends its scheduler here
too: releasing what is released, resuming what is resident, generating without its memory. Serve it with
``httpx.ASGITransport`` or on a socket (:mod:`rolecall.testing.asgi_server`); to be *dead* is a matter of
sockets, see :mod:`rolecall.testing.engine_server`.

Its answers have the keys and types of a real server's, as far as rolecall reads them; tests/sglang compares.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from attrs import define, evolve, field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rolecall.interfaces.engine_backend import MemoryTag
from rolecall.testing.scripted_answers import Weights, Work, chat, chat_event, native

TAG_BYTES = 2**20
"""What each resident tag holds of the memory that :attr:`ScriptedEngine.resident_bytes` tells."""


@frozen(kw_only=True)
class Received:
    """One request as the engine got it."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def payload(self) -> dict[str, Any]:
        return json.loads(self.body)


@frozen(kw_only=True)
class Answer:
    """What is answered in place of what the protocol says."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"


@define
class Behaviour:
    """How the engine answers; a test may change it at any time.

    status, body, content_type: answer this to generation requests instead of tokens.
    answers: answer this on these paths, whatever else is set.
    silent: paths that are never answered.
    delay_s: wait so long before any answer.
    stuck: start no answer to a generation request until it is aborted.
    notices_cuts: a stuck unary request also ends when its connection is cut, as SGLang's do.
    ignores_aborts: answer aborts with 200 and go on.
    abort_status: what ``/abort_request`` answers.
    events: tokens of an answer, and events of a stream; at most 32, and no more than the request allows.
    gate: wait for it before every event after the first; a stream is cut to a test's time by it.
    counted_wrong: added to the number of tokens that answers claim to have.
    rest_of_stream: bytes that follow a stream's first event in place of all that should.
    lies_about_release: answer releases with 200 and keep the memory.
    loses_weights: weights don't survive a release; what wakes takes all tokens for equally likely.
    """

    status: int = 200
    body: bytes | None = None
    content_type: str = "application/json"
    answers: dict[str, Answer] = field(factory=dict)
    silent: set[str] = field(factory=set)
    delay_s: float = 0.0
    stuck: bool = False
    notices_cuts: bool = False
    ignores_aborts: bool = False
    abort_status: int = 200
    events: int = 4
    gate: asyncio.Event | None = None
    counted_wrong: int = 0
    rest_of_stream: bytes | None = None
    lies_about_release: bool = False
    loses_weights: bool = False


@define
class ScriptedEngine:
    """The engine; ``app`` is what to serve.

    received: generation requests, in order. calls: all other requests, in order.
    aborts: ids in abort requests, in order; ``*`` stands for all.
    running: ids it is at work on. cuts: ids of unary requests that ended with their connection.
    weights: what it has now. resident: memory tags that it has not released.
    crashed: why its scheduler has ended, as SGLang's would have.
    """

    name: str = "scripted"
    behaviour: Behaviour = field(factory=Behaviour)
    received: list[Received] = field(factory=list)
    calls: list[Received] = field(factory=list)
    aborts: list[str] = field(factory=list)
    running: dict[str, asyncio.Event] = field(factory=dict)
    cuts: list[str] = field(factory=list)
    weights: Weights = field(factory=Weights)
    resident: frozenset[MemoryTag] = frozenset(MemoryTag)
    crashed: str | None = None
    app: Starlette = field(init=False)
    _groups: set[str] = field(factory=set, init=False)
    _paused: bool = field(default=False, init=False)
    _news: asyncio.Event = field(factory=asyncio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        generation = {"/generate": self._generate, "/v1/chat/completions": self._chat}
        posts = {
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/release_memory_occupation": self._release,
            "/resume_memory_occupation": self._resume,
            "/update_weights_from_disk": self._update,
            "/update_weights_from_tensor": self._update,
            "/update_weights_from_distributed": self._update,
            "/update_weight_version": self._set_version,
            "/begin_weight_update": _session,
            "/end_weight_update": _session,
            "/init_weights_update_group": self._join,
            "/destroy_weights_update_group": self._leave,
        }
        gets = {
            "/health": self._health,
            "/health_generate": self._health_generate,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/models": self._models,
            "/v1/loads": self._loads,
        }
        routes = [Route(path, self._told(call), methods=["POST"]) for path, call in generation.items()]
        routes += [
            Route(path, self._told(_kept(self, call)), methods=["POST"]) for path, call in posts.items()
        ]
        routes += [Route(path, self._told(_kept(self, call)), methods=["GET"]) for path, call in gets.items()]
        self.app = Starlette(routes=routes)

    @property
    def resident_bytes(self) -> int:
        return len(self.resident) * TAG_BYTES

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

    def _crash(self, reason: str) -> None:
        self.crashed = self.crashed or reason
        self._tell()

    def _told(self, call: _Call) -> _Call:
        """Put what the behaviour says of a path before its endpoint."""

        async def answer(request: Request) -> Response:
            behaviour, path = self.behaviour, request.url.path
            if behaviour.delay_s:
                await asyncio.sleep(behaviour.delay_s)
            if path in behaviour.silent:
                await asyncio.Event().wait()
            if (told := behaviour.answers.get(path)) is not None:
                return Response(told.body, told.status, media_type=told.content_type)
            return await call(request)

        return answer

    # --- generation ---------------------------------------------------------------------

    async def _generate(self, request: Request) -> Response:
        payload = await self._take(request)
        if payload.get("text") is None and payload.get("input_ids") is None:
            return _refused("Either text, input_ids or input_embeds should be provided.")
        work = self._work(payload)
        ids = work.ids
        events = [native(work, ids[: n + 1], ended=n + 1 == len(ids)) for n in range(len(ids))]
        events = events or [native(work, [])]  # only the prompt was asked for
        return await self._answer(request, work, events, native)

    async def _chat(self, request: Request) -> Response:
        work = self._work(await self._take(request))
        ids = work.ids
        events = [chat_event(work, ids[: n + 1], ended=n + 1 == len(ids)) for n in range(len(ids))]
        return await self._answer(request, work, events, chat)

    async def _take(self, request: Request) -> dict[str, Any]:
        received = await _received(request)
        self.received.append(received)
        payload = received.payload
        return payload | {"rid": payload.get("rid") or uuid4().hex}

    def _work(self, payload: dict[str, Any]) -> Work:
        behaviour = self.behaviour
        return Work(
            payload=payload,
            count=behaviour.events,
            weights=self.weights,
            counted_wrong=behaviour.counted_wrong,
        )

    async def _answer(
        self,
        request: Request,
        work: Work,
        events: list[dict[str, Any]],
        whole: Callable[..., dict[str, Any]],
    ) -> Response:
        behaviour = self.behaviour
        if behaviour.body is not None or behaviour.status != 200:
            body = b"{}" if behaviour.body is None else behaviour.body
            return Response(body, behaviour.status, media_type=behaviour.content_type)
        await self._until_scheduled()
        if work.payload.get("stream"):
            last = chat_event if whole is chat else native
            return StreamingResponse(self._events(work, events, last), media_type="text/event-stream")
        async with self._running(work.payload) as aborted:
            if behaviour.stuck:
                await self._until_ended(request, work.payload, aborted)
            ids = [] if aborted.is_set() else work.ids
            return JSONResponse(whole(work, ids, aborted=aborted.is_set()))

    async def _until_scheduled(self) -> None:
        """Return when the scheduler takes requests; never, once it has ended."""
        while self._paused:
            await self._news.wait()
        if self.resident != frozenset(MemoryTag):
            self._crash("it generated without its memory")
        if self.crashed is not None:
            await asyncio.Event().wait()

    async def _events(
        self, work: Work, events: list[dict[str, Any]], last: Callable[..., dict[str, Any]]
    ) -> AsyncGenerator[bytes]:
        behaviour = self.behaviour
        async with self._running(work.payload) as aborted:
            if behaviour.stuck:
                await aborted.wait()
            for number, event in enumerate(events):
                if number and behaviour.rest_of_stream is not None:
                    yield behaviour.rest_of_stream
                    return
                if number and behaviour.gate is not None:
                    await _first_of(behaviour.gate, aborted)
                if aborted.is_set():
                    yield _event(last(work, work.ids[:number], ended=True, aborted=True))
                    break
                yield _event(event)
            yield b"data: [DONE]\n\n"

    async def _until_ended(
        self, request: Request, payload: Mapping[str, Any], aborted: asyncio.Event
    ) -> None:
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
            self.cuts.append(str(payload["rid"]))

    @asynccontextmanager
    async def _running(self, payload: Mapping[str, Any]) -> AsyncGenerator[asyncio.Event]:
        rid = str(payload["rid"])
        aborted = asyncio.Event()
        self.running[rid] = aborted
        self._tell()
        try:
            yield aborted
        finally:
            del self.running[rid]
            self._tell()

    # --- control ------------------------------------------------------------------------

    async def _abort(self, request: Request) -> Response:
        asked = await request.json()
        rid = "" if asked.get("abort_all") else str(asked.get("rid", ""))
        self.aborts.append(rid or "*")
        self._tell()
        if not self.behaviour.ignores_aborts:
            self._abort_running(rid)
        return Response(status_code=self.behaviour.abort_status)

    def _abort_running(self, rid: str = "") -> None:
        for running, aborted in self.running.items():
            if running.startswith(rid):
                aborted.set()

    async def _pause(self, request: Request) -> Response:
        self._paused = True
        if (await request.json()).get("mode", "abort") == "abort":
            self._abort_running()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: Request) -> Response:
        del request
        self._paused = False
        self._tell()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, request: Request) -> Response:
        del request
        if self.running:
            return Response("Flush cache failed.\n", 400)
        return Response("Cache flushed.\n")

    async def _release(self, request: Request) -> Response:
        tags = _tags(await request.json())
        if not tags <= self.resident:
            self._crash("it released what was released")
        elif not self.behaviour.lies_about_release:
            self.resident -= tags
        if self.behaviour.loses_weights and MemoryTag.WEIGHTS in tags:
            self.weights = evolve(self.weights, lost=True)
        return JSONResponse(None)

    async def _resume(self, request: Request) -> Response:
        tags = _tags(await request.json())
        if tags & self.resident and not self.behaviour.lies_about_release:
            self._crash("it resumed what was resident")
        self.resident |= tags
        return JSONResponse(None)

    async def _update(self, request: Request) -> Response:
        asked = await request.json()
        group = asked.get("group_name")
        if group is not None and group not in self._groups:
            return _done(False, f"Group {group} is not joined.", num_paused_requests=0)
        path = asked.get("model_path", self.weights.path)
        version = asked.get("weight_version") or self.weights.version
        self.weights = Weights(path=path, version=version)
        return _done(True, "Succeeded to update model weights.", num_paused_requests=0)

    async def _set_version(self, request: Request) -> Response:
        version = (await request.json())["new_version"]
        self.weights = evolve(self.weights, version=version)
        return _done(True, f"Weight version updated to {version}", new_version=version)

    async def _join(self, request: Request) -> Response:
        self._groups.add((await request.json())["group_name"])
        return _done(True, "Succeeded to initialize custom process group.")

    async def _leave(self, request: Request) -> Response:
        name = (await request.json())["group_name"]
        if name not in self._groups:
            return _done(False, f"The group {name} to be destroyed does not exist.")
        self._groups.remove(name)
        return _done(True, "Succeeded to destroy custom process group.")

    # --- reports ------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        del request
        return Response()

    async def _health_generate(self, request: Request) -> Response:
        del request
        return Response(status_code=200 if self.crashed is None else 503)

    async def _model_info(self, request: Request) -> Response:
        del request
        return JSONResponse(
            {
                "model_path": self.weights.path,
                "tokenizer_path": self.weights.path,
                "is_generation": True,
                "weight_version": self.weights.version,
            }
        )

    async def _server_info(self, request: Request) -> Response:
        del request
        return JSONResponse(
            {
                "model_path": self.weights.path,
                "served_model_name": self.name,
                "weight_version": self.weights.version,
                "version": "scripted",
                "internal_states": [{}],
            }
        )

    async def _models(self, request: Request) -> Response:
        del request
        card = {"id": self.name, "object": "model", "owned_by": "scripted", "root": self.name}
        return JSONResponse({"object": "list", "data": [card]})

    async def _loads(self, request: Request) -> Response:
        del request
        load = {
            "dp_rank": 0,
            "timestamp": time.time(),
            "num_running_reqs": len(self.running),
            "num_waiting_reqs": 0,
        }
        return JSONResponse({"loads": [load]})


_Call = Callable[[Request], Awaitable[Response]]


def _kept(engine: ScriptedEngine, call: _Call) -> _Call:
    async def keep(request: Request) -> Response:
        engine.calls.append(await _received(request))
        return await call(request)

    return keep


async def _received(request: Request) -> Received:
    return Received(path=request.url.path, headers=dict(request.headers.items()), body=await request.body())


async def _session(request: Request) -> Response:
    del request
    return _done(True, "Success.")


def _tags(asked: Mapping[str, Any]) -> frozenset[MemoryTag]:
    return frozenset(MemoryTag(tag) for tag in asked.get("tags") or MemoryTag)


def _done(success: bool, message: str, **more: Any) -> Response:
    return JSONResponse({"success": success, "message": message, **more}, 200 if success else 400)


def _refused(message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, 400)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


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
