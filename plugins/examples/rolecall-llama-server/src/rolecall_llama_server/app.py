"""The adapter's HTTP face: SGLang's native and control endpoints, and OpenAI's passed on to llama.cpp.

Faults become statuses: 400 names the field, 409 is a control call that needs an idle engine, 503 with
``Retry-After`` means released memory. A caller that goes away aborts its request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .chat import aborted_chunk, chat_body
from .fields import InvalidField, as_bool, as_object, as_text, as_texts
from .generation import GenerateRequest
from .llama import LlamaFault, LlamaRefusal
from .service import CHAT_PATH, MEMORY_TAG, Asleep, Busy, Service
from .tickets import Aborted, Ticket

_DONE = b"data: [DONE]\n\n"

_Handler = Callable[[Request], Awaitable[Response]]


def build_app(service: Service) -> Starlette:
    """Return the ASGI application; its end stops the llama.cpp server."""
    endpoints = _Endpoints(service)
    gets: dict[str, _Handler] = {
        "/health": endpoints.health,
        "/health_generate": endpoints.health_generate,
        "/server_info": endpoints.server_info,
        "/get_server_info": endpoints.server_info,
        "/model_info": endpoints.server_info,
        "/get_model_info": endpoints.server_info,
        "/v1/models": endpoints.models,
    }
    posts: dict[str, _Handler] = {
        "/generate": endpoints.generate,
        CHAT_PATH: endpoints.chat,
        "/abort_request": endpoints.abort,
        "/pause_generation": endpoints.pause,
        "/continue_generation": endpoints.go_on,
        "/flush_cache": endpoints.flush,
        "/release_memory_occupation": endpoints.release,
        "/resume_memory_occupation": endpoints.resume,
        "/update_weights_from_disk": endpoints.update_weights,
    }
    routes = [Route(path, _guarded(handler), methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, _guarded(handler), methods=["POST"]) for path, handler in posts.items()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await service.llama.stop()

    return Starlette(routes=routes, lifespan=lifespan)


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self._service = service

    # --- generation -----------------------------------------------------------------------

    async def generate(self, request: Request) -> Response:
        wanted = GenerateRequest.parse(await _body(request))
        ticket = Ticket(wanted.rid)
        if wanted.stream:
            return await _EventStream.begun(self._events(wanted, ticket), request, ticket)
        answer: dict[str, Any] = {}
        generations = self._service.generate(wanted, ticket)
        async with _gone(request.receive, ticket), aclosing(generations):
            async for generation in generations:
                answer = generation.answer()
        return JSONResponse(answer)

    async def _events(self, wanted: GenerateRequest, ticket: Ticket) -> AsyncGenerator[bytes]:
        async with aclosing(self._service.generate(wanted, ticket)) as generations:
            async for generation in generations:
                yield _event(generation.answer())
        yield _DONE

    async def chat(self, request: Request) -> Response:
        given = await _body(request)
        rid = given.get("rid")
        ticket = Ticket(None if rid is None else as_text(rid, "rid"))
        body = chat_body(given)
        if as_bool(body.get("stream", False), "stream"):
            return await _EventStream.begun(self._chat_chunks(body, ticket), request, ticket)
        async with _gone(request.receive, ticket):
            return JSONResponse((await self._service.chat(body, ticket)).answer())

    async def _chat_chunks(self, body: dict[str, Any], ticket: Ticket) -> AsyncGenerator[bytes]:
        """llama.cpp's own chunks; an abort ends them with one that says so."""
        try:
            async with aclosing(self._service.chat_stream(body, ticket)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Aborted:
            yield _event(aborted_chunk(ticket.rid, self._service.served_model_name)) + _DONE

    # --- control --------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        return Response(status_code=200)

    async def health_generate(self, _: Request) -> Response:
        self._service.check_awake()
        await self._service.llama.generates()
        return Response(status_code=200)

    async def server_info(self, _: Request) -> Response:
        return JSONResponse(await self._service.information())

    async def models(self, _: Request) -> Response:
        service = self._service
        card = {
            "id": service.served_model_name,
            "object": "model",
            "owned_by": "llama.cpp",
            "root": str(service.llama.model),
            "max_model_len": service.llama.settings.context_tokens,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def abort(self, request: Request) -> Response:
        body = await _body(request)
        if as_bool(body.get("abort_all", False), "abort_all"):
            self._service.door.abort_all()
        else:
            self._service.door.abort(as_text(body.get("rid"), "rid"))
        return JSONResponse({})

    async def pause(self, request: Request) -> Response:
        mode = (await _body(request)).get("mode", "abort")
        if mode != "abort":
            raise InvalidField("mode", f"must be 'abort', found {mode!r:.80}")
        self._service.door.pause()
        return JSONResponse({})

    async def go_on(self, _: Request) -> Response:
        self._service.door.go_on()
        return JSONResponse({})

    async def flush(self, _: Request) -> Response:
        await self._service.flush()
        return JSONResponse({})

    async def release(self, request: Request) -> Response:
        if MEMORY_TAG in _tags(await _body(request)):
            await self._service.release()
        return JSONResponse({})

    async def resume(self, request: Request) -> Response:
        if MEMORY_TAG in _tags(await _body(request)):
            await self._service.resume()
        return JSONResponse({})

    async def update_weights(self, request: Request) -> Response:
        body = await _body(request)
        path = Path(as_text(body.get("model_path"), "model_path"))
        await self._service.update_weights(path, as_text(body.get("weight_version"), "weight_version"))
        return JSONResponse({"success": True, "message": f"serving the weights of {path}"})


class _EventStream(Response):
    """An event stream whose first event is there, so that what fails before it still has a status."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes], ticket: Ticket) -> None:
        super().__init__(media_type=self.media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._ticket = ticket

    @classmethod
    async def begun(cls, events: AsyncGenerator[bytes], request: Request, ticket: Ticket) -> _EventStream:
        async with _gone(request.receive, ticket):
            return cls(await anext(events), events, ticket)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with aclosing(self._rest) as rest, _gone(receive, self._ticket):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            try:
                async for event in rest:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except (LlamaFault, LlamaRefusal) as error:
                body = _event({"error": {"message": str(error), "type": "server_error", "code": 502}})
                await send({"type": "http.response.body", "body": body + _DONE, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def _gone(receive: Receive, ticket: Ticket) -> AsyncGenerator[None]:
    """Abort the request when its caller leaves during the block. The body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        ticket.abort()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


def _guarded(handler: _Handler) -> _Handler:
    """Translate faults into answers."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidField as error:
            return _error(400, str(error), error.field)
        except LlamaRefusal as error:
            return Response(error.body, error.status, media_type="application/json")
        except Busy as error:
            return _error(409, str(error))
        except LlamaFault as error:
            return _error(502, str(error))
        except Asleep as error:
            response = _error(503, str(error))
            response.headers["Retry-After"] = "1"
            return response
        except Aborted:
            return _error(503, "the request was aborted before it began")

    return guarded


def _error(status: int, message: str, field: str | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": field, "code": status}}, status_code=status
    )


async def _body(request: Request) -> dict[str, Any]:
    try:
        return as_object(json.loads(await request.body() or b"{}"), "body")
    except ValueError as error:
        raise InvalidField("body", f"must be JSON: {error}") from error


def _tags(body: dict[str, Any]) -> list[str]:
    tags = body.get("tags")
    return [MEMORY_TAG] if tags is None else as_texts(tags, "tags")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
