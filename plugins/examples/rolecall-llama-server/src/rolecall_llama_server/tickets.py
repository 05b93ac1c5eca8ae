"""Requests under way: who is let in, who has to wait, who has to go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import uuid4

from .fields import InvalidField

_T = TypeVar("_T")


class Aborted(Exception):
    """The request was aborted, or its caller has left."""


class Ticket:
    """One request; ``abort`` ends it at its next step."""

    def __init__(self, rid: str | None) -> None:
        self.rid = rid or uuid4().hex
        self._aborted = asyncio.Event()

    def abort(self) -> None:
        """Repeats do nothing."""
        self._aborted.set()

    async def step(self, work: Awaitable[_T]) -> _T:
        """Await ``work`` and return what it gives.

        Raises:
            Aborted: the request was aborted first; the work is cancelled.
        """
        step = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._aborted.wait())
        try:
            await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
            if self._aborted.is_set():
                raise Aborted
            return step.result()
        finally:
            step.cancel()
            gone.cancel()
            await asyncio.gather(step, gone, return_exceptions=True)


class Door:
    """Lets requests in while open. Those that wait outside are no work of the engine yet."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._tickets: dict[str, Ticket] = {}
        self._inside: set[str] = set()

    @property
    def running(self) -> int:
        """Requests that were let in and have not ended."""
        return len(self._inside)

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    @asynccontextmanager
    async def admitted(self, ticket: Ticket) -> AsyncGenerator[None]:
        """Wait for the door and count the request for the length of the block.

        Raises:
            InvalidField: the request's id is in use.
            Aborted: it was aborted while it waited.
        """
        if ticket.rid in self._tickets:
            raise InvalidField("rid", f"{ticket.rid!r} is in use by a request under way")
        self._tickets[ticket.rid] = ticket
        try:
            while self.paused:
                await ticket.step(self._open.wait())
            self._inside.add(ticket.rid)
            yield
        finally:
            self._inside.discard(ticket.rid)
            del self._tickets[ticket.rid]

    def pause(self) -> None:
        """Let nobody in, and abort who is in. Repeats do nothing."""
        self._open.clear()
        for rid in self._inside:
            self._tickets[rid].abort()

    def go_on(self) -> None:
        """Undo ``pause``."""
        self._open.set()

    def abort(self, rid: str) -> None:
        """Abort one request; an unknown id does nothing."""
        if rid in self._tickets:
            self._tickets[rid].abort()

    def abort_all(self) -> None:
        """Abort every request, also those that wait."""
        for ticket in self._tickets.values():
            ticket.abort()
