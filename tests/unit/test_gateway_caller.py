"""The caller of one request: who leaves, who is late, and what no longer matters."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from rolecall.errors import DeadlineError
from rolecall.gateway.caller import Caller, Newcomers
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
    caller = Caller(connection.receive, connection.send, Newcomers())
    asyncio.get_running_loop().call_soon(connection.leave)

    async def wait() -> None:
        with caller.patience(soon(60)) as patience:
            patience.watch()
            await asyncio.Event().wait()

    with pytest.raises(CallerGoneError):
        await wait()


async def test_a_deadline_ends_the_block() -> None:
    connection = Connection()
    with (
        pytest.raises(DeadlineError),
        Caller(connection.receive, connection.send, Newcomers()).patience(soon()),
    ):
        await asyncio.Event().wait()


async def test_a_caller_is_looked_after_only_when_a_request_lasts() -> None:
    """Looking takes a task; what is answered at once does without."""
    connection = Connection()
    before = len(asyncio.all_tasks())
    with Caller(connection.receive, connection.send, Newcomers()).patience(soon(60)) as patience:
        patience.watch()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == before + 1
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_a_deadline_that_passed_before_the_block_ends_it_at_its_first_wait() -> None:
    connection = Connection()
    with (
        pytest.raises(DeadlineError),
        Caller(connection.receive, connection.send, Newcomers()).patience(soon(-1)),
    ):
        await asyncio.Event().wait()


async def test_leaving_after_the_whole_answer_is_no_leaving() -> None:
    connection = Connection()
    caller = Caller(connection.receive, connection.send, Newcomers())
    with caller.patience(soon(60)) as patience:
        patience.watch()
        await caller.send(START)
        assert caller.started
        await caller.send({"type": "http.response.body", "body": b"a", "more_body": True})
        assert not caller.answered
        await caller.send({"type": "http.response.body", "body": b"b"})
        assert caller.answered
        connection.leave()
        await asyncio.sleep(0.1)


async def test_a_connection_that_breaks_under_the_answer_is_a_caller_that_left() -> None:
    connection = Connection()
    connection.broken = True
    with pytest.raises(CallerGoneError):
        await Caller(connection.receive, connection.send, Newcomers()).send(START)


async def test_another_time_out_inside_the_block_keeps_its_name() -> None:
    connection = Connection()
    with (
        pytest.raises(TimeoutError),
        Caller(connection.receive, connection.send, Newcomers()).patience(soon(60)),
    ):
        raise TimeoutError


async def test_a_cancelled_handler_stays_cancelled() -> None:
    connection = Connection()
    entered = asyncio.Event()

    async def handle() -> None:
        with Caller(connection.receive, connection.send, Newcomers()).patience(soon(60)):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handle())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_of_many_requests_on_one_timer_each_that_lasts_is_looked_after() -> None:
    """Also those that came after the timer was set, and behind ones that have ended meanwhile."""
    newcomers = Newcomers()
    connections = [Connection() for _ in range(5)]

    async def ask(connection: Connection, *, ends: bool) -> None:
        with Caller(connection.receive, connection.send, newcomers).patience(soon(60)) as patience:
            patience.watch()
            if not ends:
                await asyncio.Event().wait()

    asked: list[asyncio.Task[None]] = []
    for number, connection in enumerate(connections):
        asked.append(asyncio.create_task(ask(connection, ends=number % 2 == 0)))
        await asyncio.sleep(0.003)
        connection.leave()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), CallerGoneError] * 2 + [type(None)]
