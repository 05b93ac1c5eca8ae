"""The caller of one request: how long it may wait, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Message, Receive, Send

from rolecall.errors import DeadlineError
from rolecall.gateway.errors import CallerGoneError


class Caller:
    """Takes the answer.

    started: its head is out, so no other status can be told any more.
    answered: all of it is out; that the connection closes now means nothing.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started = False
        self.answered = False

    async def receive(self) -> Message:
        return await self._receive()

    async def send(self, message: Message) -> None:
        self.started = self.started or message["type"] == "http.response.start"
        self.answered = message["type"] == "http.response.body" and not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError as error:
            raise CallerGoneError("the caller left while it was answered") from error

    @asynccontextmanager
    async def patience(self, deadline: float) -> AsyncGenerator[None]:
        """End the block when the caller leaves or the deadline passes. Its body must have been read.

        Raises:
            CallerGoneError: the caller left.
            DeadlineError: the deadline, on the event loop's clock, passed.
        """
        limit = asyncio.timeout_at(deadline)
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self.answered and not limit.expired():
                gone = True
                limit.reschedule(asyncio.get_running_loop().time())

        watcher: asyncio.Task[None] | None = None
        try:
            async with limit:
                watcher = asyncio.create_task(watch())
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if gone:
                raise CallerGoneError("the caller left") from error
            raise DeadlineError("the request's deadline passed") from error
        finally:
            if watcher is not None:
                watcher.cancel()
