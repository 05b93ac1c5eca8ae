"""The caller of one request: who leaves, who is late, and what no longer matters."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from rolecall.errors import DeadlineError
from rolecall.gateway.caller import Caller
from rolecall.gateway.errors import CallerGoneError

START = {"type": "http.response.start", "status": 200, "headers": []}


class Connection:
    """A server's end: ``leave`` makes ``receive`` say so; ``broken`` makes ``send`` fail."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.broken = False
        self.sent: list[MutableMapping[str, Any]] = []

    async def receive(self) -> MutableMapping[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.broken:
            raise OSError("broken pipe")
        self.sent.append(message)

    def leave(self) -> None:
        self.gone.set()


def soon(seconds: float = 0.05) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_caller_that_leaves_ends_the_block() -> None:
    connection = Connection()
    caller = Caller(connection.receive, connection.send)
    asyncio.get_running_loop().call_soon(connection.leave)
    with pytest.raises(CallerGoneError):
        async with caller.patience(soon(60)):
            await asyncio.Event().wait()


async def test_a_deadline_ends_the_block() -> None:
    connection = Connection()
    with pytest.raises(DeadlineError):
        async with Caller(connection.receive, connection.send).patience(soon()):
            await asyncio.Event().wait()


async def test_leaving_after_the_whole_answer_is_no_leaving() -> None:
    connection = Connection()
    caller = Caller(connection.receive, connection.send)
    async with caller.patience(soon(60)):
        await caller.send(START)
        assert caller.started
        await caller.send({"type": "http.response.body", "body": b"a", "more_body": True})
        assert not caller.answered
        await caller.send({"type": "http.response.body", "body": b"b"})
        assert caller.answered
        connection.leave()
        await asyncio.sleep(0.01)


async def test_a_connection_that_breaks_under_the_answer_is_a_caller_that_left() -> None:
    connection = Connection()
    connection.broken = True
    with pytest.raises(CallerGoneError):
        await Caller(connection.receive, connection.send).send(START)


async def test_another_time_out_inside_the_block_keeps_its_name() -> None:
    connection = Connection()
    with pytest.raises(TimeoutError):
        async with Caller(connection.receive, connection.send).patience(soon(60)):
            raise TimeoutError


async def test_a_cancelled_handler_stays_cancelled() -> None:
    connection = Connection()
    entered = asyncio.Event()

    async def handle() -> None:
        async with Caller(connection.receive, connection.send).patience(soon(60)):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handle())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
