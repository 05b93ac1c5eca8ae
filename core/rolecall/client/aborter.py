"""Aborter: makes an engine stop a request whose caller has gone, and finds out that it did.

Called by gateways and direct clients when a deadline passes, a caller disconnects or is cancelled. For
each abandoned exchange it

1. posts ``/abort_request`` with the request's ids, again and again (the engine may not have known the
   id yet when the first one came), and reads the answer on: its end is the engine's confirmation. Behind
   a router, which knows no aborts, it asks every engine that may have the request;
2. after ``grace_s`` without that, cuts the connection (the only signal to an engine that knows no
   ``/abort_request``) and repeats the abort until the engine has taken it;
3. gives up only when the process is gone or its incarnation is no longer routable, which is then the
   lifecycle's affair.

Until then the request counts as in flight. An abort changes nothing when repeated, so it may be; the
request itself is never sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import cast

from attrs import frozen

from rolecall.client.transport import ConnectError, Exchange, Outgoing, Transport
from rolecall.errors import PayloadError, UpstreamError

_log = logging.getLogger(__name__)

ABORT_PATH = "/abort_request"

_ASK_S = 5.0
"""How long one abort call may take."""

_PAUSE_FIRST_S = 0.05
_PAUSE_MOST_S = 5.0


@frozen(kw_only=True)
class Abandoned:
    """An exchange nobody waits for any more.

    base_url: where it was sent.
    rids: the ids the engine knows the request by; none if a router dropped them.
    engines: URLs of the engines that may be at work on it, as known when it is called: where it was
        sent, or those behind a router, which itself knows no aborts.
    routable: whether the engine's incarnation is still shown by discovery.
    """

    exchange: Exchange
    base_url: str
    rids: tuple[str, ...]
    engines: Callable[[], Sequence[str]]
    routable: Callable[[], bool]


class Abort(Enum):
    """What came of asking an engine to abort: it took the call, its process is gone, or no answer."""

    TAKEN = auto()
    GONE = auto()
    UNKNOWN = auto()


class Aborter:
    """Settles abandoned exchanges in the background. Make, use and close it in one event loop.

    control: a transport of its own, so that an abort never waits behind the requests it is about.
    """

    def __init__(self, control: Transport, *, grace_s: float = 2.0) -> None:
        self._control = control
        self._grace_s = grace_s
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unsettled(self) -> int:
        """Abandoned exchanges whose engine has not confirmed yet."""
        return len(self._tasks)

    def abandon(self, abandoned: Abandoned, settled: Callable[[], None] | None = None) -> None:
        """Take over an exchange; ``settled`` is called once its engine is known to have stopped."""
        task = asyncio.create_task(self._settle(abandoned), name="rolecall-abort")
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if settled is not None:
                settled()
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("abort of %s failed", abandoned.rids, exc_info=error)

        task.add_done_callback(done)

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """Wait for what is unsettled, then cut the rest and close the transport. Repeats do nothing."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                _log.warning("closed with %d requests that their engines had not confirmed ended", len(late))
                await asyncio.wait(late)
        await self._control.aclose()

    # --- settling one -------------------------------------------------------------------

    async def _settle(self, abandoned: Abandoned) -> None:
        exchange = abandoned.exchange
        reading = asyncio.create_task(exchange.finish())
        try:
            await self._ask_while(abandoned, reading)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await exchange.aclose()
        if not exchange.ended:
            await self._ask_until_taken(abandoned)

    async def _ask_while(self, abandoned: Abandoned, reading: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        cut_at = loop.time() + self._grace_s
        pause_s = _PAUSE_FIRST_S
        # With nobody to ask, or nothing to ask by, the cut is the only thing that can stop it.
        can_ask = bool(abandoned.rids and abandoned.engines())
        while can_ask and not reading.done() and (left_s := cut_at - loop.time()) > 0:
            asking = asyncio.create_task(self._ask(abandoned))
            try:
                await asyncio.wait({asking, reading}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    asking.result()
            finally:
                asking.cancel()
            await asyncio.wait({reading}, timeout=min(pause_s, max(0.0, cut_at - loop.time())))
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _ask_until_taken(self, abandoned: Abandoned) -> None:
        pause_s = _PAUSE_FIRST_S
        while await self._ask(abandoned) is Abort.UNKNOWN:
            if not abandoned.routable():
                _log.warning("%s left discovery before it confirmed an abort", abandoned.base_url)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _ask(self, abandoned: Abandoned) -> Abort:
        asked = (ask_to_abort(self._control, url, abandoned.rids) for url in abandoned.engines())
        outcomes = await asyncio.gather(*asked)
        # An engine that is gone is at work on nothing, whichever of them had the request.
        return Abort.UNKNOWN if Abort.UNKNOWN in outcomes else Abort.TAKEN


async def ask_to_abort(control: Transport, base_url: str, rids: tuple[str, ...]) -> Abort:
    """Tell an engine once to stop the requests of these ids. Repeats change nothing."""
    outcomes = await asyncio.gather(*(_ask(control, base_url, rid) for rid in rids))
    return next((outcome for outcome in outcomes if outcome is not Abort.TAKEN), Abort.TAKEN)


async def _ask(control: Transport, base_url: str, rid: str) -> Abort:
    request = _abort_request(base_url, rid)
    try:
        async with asyncio.timeout(_ASK_S):
            answer = await control.send(request)
            await answer.aclose()
    except ConnectError as error:
        return Abort.GONE if error.refused else Abort.UNKNOWN
    except (UpstreamError, TimeoutError) as error:
        _log.info("abort of %s at %s got no answer: %s", rid, base_url, error)
        return Abort.UNKNOWN
    # 404 and 405 come from engines without aborts: the cut connection told them all there is to tell.
    return Abort.TAKEN if answer.status < 500 else Abort.UNKNOWN


def _abort_request(base_url: str, rid: str) -> Outgoing:
    return Outgoing(
        method="POST",
        url=base_url + ABORT_PATH,
        headers=[(b"content-type", b"application/json"), (b"accept-encoding", b"identity")],
        body=json.dumps({"rid": rid}).encode(),
    )


def rids_in(payload: Mapping[str, object]) -> tuple[str, ...]:
    """Return the ids in a payload's ``rid``: one, or a list with one for each part of a batch.

    Raises:
        PayloadError: it is neither. An empty id is refused: engines abort by prefix, so it means all.
    """
    rid = payload.get("rid")
    rids = cast("list[object]", rid) if isinstance(rid, list) else [rid]
    if not rids or not all(isinstance(one, str) and one.strip() for one in rids):
        raise PayloadError(f"rid: must be non-empty text or a list of it, found {rid!r:.80}", field="rid")
    return tuple(cast("list[str]", rids))
