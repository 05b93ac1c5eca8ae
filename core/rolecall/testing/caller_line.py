"""A caller's connection to an ASGI app without a socket: bytes go in, what is written is kept.

For tests of :class:`~rolecall.serving.protocol.Http1Protocol`: no kernel decides when and in which pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import uvicorn
from attrs import define, field, frozen
from uvicorn.server import ServerState

from rolecall.serving.protocol import Http1Protocol, Limits

App = Callable[[Any, Any, Any], Awaitable[None]]


@frozen
class Asked:
    """A request as an app gets it."""

    method: str
    target: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class Wire(asyncio.Transport):
    """The caller's end: keeps what was written; says how it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.paused = False
        self.ended = False
        self.closed = False
        self.cut = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def write(self, data: Any) -> None:
        assert not self.ended, "written after the end"
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.cut = True

    @property
    def over(self) -> bool:
        """Whether nothing more is taken from the caller."""
        return self.ended or self.closed or self.cut


@define
class CallerLine:
    """A connection to an app that records what it is asked and answers ``ok``."""

    asked: list[Asked] = field(factory=list)
    state: ServerState = field(factory=ServerState)
    wire: Wire = field(factory=Wire)
    app: App | None = None
    limits: Limits = field(factory=Limits)
    protocol: Http1Protocol = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.protocol = limited(self.limits)(configured(self.app or self._answer), self.state, {})
        self.protocol.connection_made(self.wire)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.asked.append(Asked(scope["method"], scope["raw_path"], scope["headers"], body))
        await answer(send)

    async def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not (self.wire.closed or self.wire.cut):  # else the transport delivers nothing
                self.protocol.data_received(piece)
            await quiet()
        await quiet()

    async def lose(self) -> None:
        self.protocol.connection_lost(None)
        await quiet()


def configured(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        cast(Any, app), interface="asgi3", http=Http1Protocol, ws="none", lifespan="off", log_config=None
    )


def limited(limits: Limits) -> type[Http1Protocol]:
    return type("Limited", (Http1Protocol,), {"limits": limits})


async def answer(send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


async def quiet() -> None:
    """Let the handlers run as far as they get."""
    for _ in range(4):
        await asyncio.sleep(0)
