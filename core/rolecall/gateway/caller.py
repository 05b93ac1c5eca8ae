"""The caller of one request: how long it may wait, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Any

from starlette.types import Message, Receive, Send

from rolecall.client.transport import Exchange
from rolecall.errors import DeadlineError, RequestError
from rolecall.gateway.errors import CallerGoneError
from rolecall.serving.call import Call

_LOOK_AFTER_S = 0.02
"""How long a request has to last before anybody looks whether its caller is still there. Most that end sooner
are refusals; looking takes a task."""


class Caller:
    """Takes the answer.

    newcomers: its gateway's.
    started: its head is out, so no other status can be told any more.
    answered: all of it is out; that the connection closes now means nothing.
    """

    def __init__(self, receive: Receive, send: Send, newcomers: Newcomers) -> None:
        self.newcomers = newcomers
        self._receive = receive
        self._send = send
        # The server of our own takes bytes without a message and a task's turn for each piece. Any other
        # server, and whoever stands between, gets what ASGI says.
        call = getattr(send, "__self__", None)
        self._call = call if isinstance(call, Call) else None
        self.started = False
        self.answered = False

    async def receive(self) -> Message:
        return await self._receive()

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Give a whole answer.

        Raises:
            CallerGoneError: the caller left.
        """
        if self._call is not None:
            await self._call.answer(status, headers, body)
            self.started = self.answered = True
        else:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def take_from(self, exchange: Exchange) -> None:
        """Pass the rest of an answer's body on as it comes, no faster than the caller takes it.

        Raises:
            CallerGoneError: the caller left.
            UpstreamError: the body broke off.
        """
        call = self._call
        if call is not None:
            while not await exchange.pour(call.pour):
                await call.room()
        else:
            while piece := await exchange.next_chunk():
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
        else:
            self.answered = not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError as error:
            raise CallerGoneError("the caller left while it was answered") from error

    def patience(self, deadline: float) -> Patience:
        """Return a block that ends when the deadline, on the event loop's clock, has passed, or when the
        caller leaves, which is looked for from :meth:`Patience.watch` on.

        Raises:
            CallerGoneError: the caller left.
            DeadlineError: the deadline passed.
        """
        return Patience(self, deadline)


class Patience:
    """See :meth:`Caller.patience`. Entered once, in the task that it interrupts.

    A request that ends soon gets no timer of its own, as the event loop's cost more than the rest of this;
    a lasting one gets one for its deadline, and a task that looks for its caller.
    """

    def __init__(self, caller: Caller, deadline: float) -> None:
        self._caller = caller
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._reason: RequestError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        self._lasting = False
        self._may_look = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Patience:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelled_before = self._task.cancelling()
        soon = self._loop.time() + _LOOK_AFTER_S
        if self._deadline <= soon:
            self._timer = self._loop.call_at(self._deadline, self._passed)
        self._caller.newcomers.add(soon, self)
        return self

    def watch(self) -> None:
        """From now on see whether the caller leaves; its body must have been read."""
        self._may_look = True
        if self._lasting:
            self._watcher = self._loop.create_task(self._until_gone())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is None or self._task is None:
            return
        # What asyncio.timeout does: an interruption of our own becomes an error, one from outside stays.
        if self._task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise self._reason from error

    def lasts(self) -> None:
        """The request has not ended soon; nothing if it has since."""
        if self.over:
            return
        self._lasting = True
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._passed)
        if self._may_look:
            self.watch()

    def _passed(self) -> None:
        self._interrupt(DeadlineError("the request's deadline passed"))

    async def _until_gone(self) -> None:
        while (await self._caller.receive())["type"] != "http.disconnect":
            pass
        if not self._caller.answered:
            self._interrupt(CallerGoneError("the caller left"))

    def _interrupt(self, reason: RequestError) -> None:
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()


class Newcomers:
    """The requests of one gateway that may still end soon, as they came: one timer for all of them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Patience]] = deque()

    def add(self, until: float, request: Patience) -> None:
        """Tell a request at ``until``, on the running loop's clock, that it lasts."""
        if not self._waiting:
            asyncio.get_running_loop().call_at(until, self._due)
        self._waiting.append((until, request))

    def _due(self) -> None:
        loop = asyncio.get_running_loop()
        # A loop may wake a little early; whose time comes within a moment is told now.
        soon = loop.time() + _LOOK_AFTER_S / 10
        while self._waiting and self._waiting[0][0] <= soon:
            request = self._waiting.popleft()[1]
            if not request.over:
                request.lasts()
        if self._waiting:
            loop.call_at(self._waiting[0][0], self._due)
