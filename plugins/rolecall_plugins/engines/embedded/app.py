"""The HTTP face of the engine: SGLang's endpoints over an ``EngineService``.

Turns bodies into requests, generations into answers, and faults into statuses: 400 names the
field, 409 is a control call that needs an idle engine, 503 with ``Retry-After`` means released
memory. A caller that goes away aborts its request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .answers import generate_answer
from .chat import ChatRequest, chat_answer, chat_chunk, parse_chat, usage_chunk
from .fields import InvalidField, as_bool, as_text, as_text_list, nearest
from .generation import Generation
from .gguf_file import GgufError
from .llama_runtime import RuntimeFault
from .memory import Tag
from .requests import GenerateRequest, parse_generate
from .sampling import SamplingParams
from .scheduler import NotServing, PauseMode
from .service import Busy, EngineService

_DONE = b"data: [DONE]\n\n"
_CLIENT_CLOSED_REQUEST = 499

Handler = Callable[[Request], Awaitable[Response]]


def build_app(service: EngineService) -> Starlette:
    """The ASGI application."""
    endpoints = _Endpoints(service)
    gets: dict[str, Handler] = {
        "/health": endpoints.health,
        "/health_generate": endpoints.health_generate,
        "/model_info": endpoints.model_info,
        "/get_model_info": endpoints.model_info,
        "/server_info": endpoints.server_info,
        "/get_server_info": endpoints.server_info,
        "/v1/models": endpoints.models,
    }
    posts: dict[str, Handler] = {
        "/generate": endpoints.generate,
        "/v1/chat/completions": endpoints.chat,
        "/abort_request": endpoints.abort_request,
        "/pause_generation": endpoints.pause_generation,
        "/continue_generation": endpoints.continue_generation,
        "/flush_cache": endpoints.flush_cache,
        "/release_memory_occupation": endpoints.release_memory,
        "/resume_memory_occupation": endpoints.resume_memory,
        "/update_weights_from_disk": endpoints.update_weights,
        "/update_weight_version": endpoints.update_weight_version,
    }
    routes = [Route(path, _guarded(handler), methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, _guarded(handler), methods=["POST"]) for path, handler in posts.items()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await service.scheduler.close()  # threads that decode would hold up the interpreter's end

    return Starlette(routes=routes, lifespan=lifespan)


class _Endpoints:
    def __init__(self, service: EngineService) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        return Response(status_code=200)

    async def health_generate(self, request: Request) -> Response:
        """One token through the scheduler, in line with everything else."""
        probe = GenerateRequest(
            rid=None, prompt=(0,), sampling=SamplingParams(max_new_tokens=1, temperature=0)
        )
        await self._run(request, probe)
        return Response(status_code=200)

    async def model_info(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(self._service.model_information())

    async def server_info(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(self._service.information())

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        settings = self._service.settings
        card = {
            "id": settings.served_model_name,
            "object": "model",
            "owned_by": "rolecall",
            "root": self._service.model_path,
            "max_model_len": self._service.context_tokens,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def generate(self, request: Request) -> Response:
        parsed = parse_generate(await _body(request), self._service.tokenizer, self._service.context_tokens)
        if isinstance(parsed, list):
            return JSONResponse(
                [generate_answer(generation) for generation in await self._run_all(request, parsed)]
            )
        if not parsed.stream:
            return JSONResponse(generate_answer(await self._run(request, parsed)))
        return _stream(self._generate_events(self._submit(parsed)))

    async def chat(self, request: Request) -> Response:
        service = self._service
        chat = parse_chat(
            await _body(request), service.chat_template, service.tokenizer, service.context_tokens
        )
        if not chat.generate.stream:
            return JSONResponse(chat_answer(chat, await self._run(request, chat.generate)))
        return _stream(self._chat_events(chat, self._submit(chat.generate)))

    async def abort_request(self, request: Request) -> Response:
        body = await _body(request)
        if as_bool(body.get("abort_all", False), "abort_all"):
            self._service.scheduler.abort_all()
        else:
            self._service.scheduler.abort(as_text(body.get("rid"), "rid"))
        return Response(status_code=200)

    async def pause_generation(self, request: Request) -> Response:
        mode = (await _body(request)).get("mode", PauseMode.ABORT.value)
        if mode not in list(PauseMode):
            raise InvalidField("mode", f"is {mode!r}; one of {', '.join(PauseMode)} is expected")
        await self._service.scheduler.pause(PauseMode(mode))
        return JSONResponse({"status": "ok", "message": f"Generation paused ({mode})."})

    async def continue_generation(self, request: Request) -> Response:  # noqa: ARG002
        self._service.scheduler.continue_generation()
        return JSONResponse({"status": "ok", "message": "Generation continued."})

    async def flush_cache(self, request: Request) -> Response:  # noqa: ARG002
        if self._service.scheduler.flush():
            return Response("Cache flushed.\n", status_code=200)
        load = self._service.scheduler.load()
        return Response(
            f"Cache not flushed: {load.running} requests run, {load.queued} are queued.\n",
            status_code=400,
        )

    async def release_memory(self, request: Request) -> Response:
        await self._service.release(_tags(await _body(request)))
        return JSONResponse(None)

    async def resume_memory(self, request: Request) -> Response:
        await self._service.resume(_tags(await _body(request)))
        return JSONResponse(None)

    async def update_weights(self, request: Request) -> Response:
        body = await _body(request)
        version = body.get("weight_version")
        path = Path(as_text(body.get("model_path"), "model_path"))
        if version is not None:
            version = as_text(version, "weight_version")
        try:
            await self._service.update_weights(path, version)
        except (GgufError, RuntimeFault) as error:
            return JSONResponse({"success": False, "message": str(error)}, status_code=400)
        return JSONResponse({"success": True, "message": f"Serving the weights of {path}."})

    async def update_weight_version(self, request: Request) -> Response:
        version = as_text((await _body(request)).get("new_version"), "new_version")
        self._service.weight_version = version
        return JSONResponse({"success": True, "new_version": version})

    def _submit(self, wanted: GenerateRequest) -> Generation:
        try:
            return self._service.submit(wanted)
        except KeyError as error:
            raise InvalidField("rid", f"{wanted.rid!r} is in use by a request under way") from error

    async def _run(self, request: Request, wanted: GenerateRequest) -> Generation:
        """Generate to the end; aborted when the caller goes away."""
        generation = self._submit(wanted)
        work = asyncio.ensure_future(self._service.scheduler.result(generation))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise _CallerGone
            return work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _run_all(self, request: Request, wanted: list[GenerateRequest]) -> list[Generation]:
        """Generate for several inputs; the first failure aborts the others."""
        tasks = [asyncio.ensure_future(self._run(request, one)) for one in wanted]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_events(self, generation: Generation) -> AsyncIterator[bytes]:
        try:
            async for state in self._service.scheduler.updates(generation):
                yield _event(generate_answer(state))
        except (RuntimeFault, NotServing) as error:
            yield _event(_late_error(error))
        yield _DONE

    async def _chat_events(self, chat: ChatRequest, generation: Generation) -> AsyncIterator[bytes]:
        characters = tokens = 0
        first = True
        try:
            async for state in self._service.scheduler.updates(generation):
                chunk = chat_chunk(chat, state, text_from=characters, tokens_from=tokens, first=first)
                characters, tokens, first = len(state.text), len(state.tokens), False
                yield _event(chunk)
            if chat.include_usage:
                yield _event(usage_chunk(chat, generation))
        except (RuntimeFault, NotServing) as error:
            yield _event(_late_error(error))
        yield _DONE


class _CallerGone(Exception):
    """Nobody is left to answer."""


def _guarded(handler: Handler) -> Handler:
    """Translate faults into SGLang-shaped error answers."""

    async def guarded(request: Request) -> Response:
        openai = request.url.path.startswith("/v1/")
        try:
            return await handler(request)
        except InvalidField as error:
            return _error(400, str(error), error.field, openai)
        except Busy as error:
            return _error(409, str(error), None, openai)
        except NotServing as error:
            response = _error(503, str(error), None, openai)
            response.headers["Retry-After"] = "1"
            return response
        except (RuntimeFault, GgufError) as error:
            return _error(500, str(error), None, openai)
        except _CallerGone:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)

    return guarded


def _error(status: int, message: str, field: str | None, openai: bool) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": field, "code": status}
    body = {"error": error} if not openai else {"object": "error", **error, "error": error}
    return JSONResponse(body, status_code=status)


def _late_error(error: Exception) -> dict[str, Any]:
    """An error once the answer has begun: an event, since the status is gone."""
    return {"error": {"message": str(error), "type": "server_error", "param": None, "code": 503}}


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        value: Any = json.loads(raw or b"{}")
    except ValueError as error:
        raise InvalidField("body", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidField("body", f"is {type(value).__name__}, an object is expected")
    return value


def _tags(body: dict[str, Any]) -> list[Tag]:
    named = body.get("tags")
    if named is None:
        return list(Tag)
    known = list(Tag)
    for index, name in enumerate(as_text_list(named, "tags")):
        if name not in known:
            raise InvalidField(f"tags[{index}]", f"is {name!r}{nearest(name, known)}")
    return [Tag(name) for name in named]


def _stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
