"""Flight: one request that was let in, from its sending to the engine's end of it.

It runs in a task of its own, whose end is the end of the permit. The handler that serves the caller only
takes from it: a caller that reads slowly, leaves, or is cut does not end the flight, it abandons it. Then
the engine is told to abort the request, again and again (it may not have known the id yet when the first
call came), and the answer is read on, since its end is the engine's confirmation. A request without an id
can only be read to its end.

An answer that broke off is no confirmation: the engine may be at work on it behind an HTTP server that
gave up. It ends when the engine has taken an abort, or its process is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from attrs import frozen

from rolecall.client.aborter import Abort, ask_to_abort
from rolecall.client.transport import ConnectError, Incoming, Outgoing, Transport
from rolecall.errors import UpstreamError
from rolecall.guard.pipe import Pipe

logger = logging.getLogger(__name__)

_PAUSE_FIRST_S = 0.05
_PAUSE_MOST_S = 2.0
_CAPACITY = 2**16


@frozen(kw_only=True)
class Upstream:
    """The engine behind a door; ``control`` is apart, so that an abort never waits behind the work."""

    base_url: str
    served_model_name: str
    work: Transport
    control: Transport

    async def aclose(self) -> None:
        await self.work.aclose()
        await self.control.aclose()


class Flight:
    """See the module's contract. ``rids`` finds the ids in the request's body, if it should be aborted."""

    def __init__(self, upstream: Upstream, request: Outgoing, rids: Callable[[], tuple[str, ...]]) -> None:
        self.pipe = Pipe(_CAPACITY)
        self._upstream = upstream
        self._request = request
        self._rids = rids
        self._incoming: Incoming | None = None
        self._failure: UpstreamError | None = None
        self._begun = asyncio.Event()
        self._ended = False
        self._aborting: asyncio.Task[None] | None = None

    async def head(self) -> Incoming:
        """Return the answer's status and headers once they are there.

        Raises:
            UpstreamError: there is no answer.
        """
        await self._begun.wait()
        if self._incoming is None:
            raise self._failure or UpstreamError("the request was cut")
        return self._incoming

    def abandon(self) -> None:
        """The caller has left; see to it that the engine stops. Repeats do nothing."""
        self.pipe.drop()
        if not self._ended and self._aborting is None:
            self._aborting = asyncio.create_task(self._abort())

    async def run(self) -> None:
        """Carry the request; returns when the engine is known to be through with it."""
        try:
            broken = await self._carry()
            if broken:
                await self._make_sure()
        finally:
            if self._aborting is not None:
                self._aborting.cancel()

    async def _carry(self) -> bool:
        """Send, and read the answer into the pipe; True if it broke off after it was sent."""
        failure: UpstreamError | None = UpstreamError("the request was cut")
        try:
            self._incoming = await self._upstream.work.send(self._request)
            self._begun.set()
            async for chunk in self._incoming.chunks():
                await self.pipe.write(chunk)
            failure = None
        except UpstreamError as error:
            failure = error
            logger.warning("a request broke: %s", error)
        finally:
            self._ended, self._failure = True, failure
            self.pipe.end(failure)
            self._begun.set()
            if self._incoming is not None:
                await self._incoming.aclose()
        return failure is not None and not isinstance(failure, ConnectError)

    async def _abort(self) -> None:
        # Without end: the engine may not have known the id yet. The end of the answer cancels it.
        await self._ask_again(lambda _: False)

    async def _make_sure(self) -> None:
        if not self._rids():
            logger.warning("a request without an id broke; only the engine can say whether it goes on")
        await self._ask_again(lambda answer: answer is not Abort.UNKNOWN)

    async def _ask_again(self, enough: Callable[[Abort], bool]) -> None:
        """Ask the engine to abort, with growing pauses; a request without an id can't be named to it."""
        rids = self._rids()
        pause_s = _PAUSE_FIRST_S
        while rids and not enough(await ask_to_abort(self._upstream.control, self._upstream.base_url, rids)):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)
