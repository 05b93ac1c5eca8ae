"""Exchanges outlive their caller, and the aborter makes sure that the engine has stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from attrs import define, evolve, field

from rolecall.client.aborter import Abandoned, Aborter, rids_in
from rolecall.client.exchange import SentExchange
from rolecall.client.transport import ConnectError, Headers, Incoming, Outgoing
from rolecall.errors import PayloadError, UpstreamError

REQUEST = Outgoing(method="POST", url="http://engine:1/generate", headers=[], body=b"{}")


@define
class Answer:
    """An answer in pieces, each given out when the test says so."""

    pieces: asyncio.Queue[bytes | UpstreamError] = field(factory=asyncio.Queue)
    status: int = 200
    headers: Headers = ()
    closed: int = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        while piece := await self.pieces.get():
            if isinstance(piece, UpstreamError):
                raise piece
            yield piece

    async def aclose(self) -> None:
        self.closed += 1


@define
class ScriptedTransport:
    """Answers one request when the test says so."""

    answer: Answer = field(factory=Answer)
    head: asyncio.Event = field(factory=asyncio.Event)
    sent: int = 0

    async def send(self, request: Outgoing) -> Incoming:
        self.sent += 1
        await self.head.wait()
        return self.answer

    async def aclose(self) -> None: ...


@define
class Aborts:
    """A control transport; ``script`` is what the next aborts get, then 200 for ever."""

    script: list[int | Exception] = field(factory=list)
    rids: list[str] = field(factory=list)
    came: asyncio.Event = field(factory=asyncio.Event)
    closed: bool = False

    def begin(self, request: Outgoing) -> SentExchange:
        raise AssertionError("an abort is one call")

    async def send(self, request: Outgoing) -> Incoming:
        assert request.url == "http://engine:1/abort_request"
        self.rids.append(json.loads(request.body)["rid"])
        self.came.set()
        outcome = self.script.pop(0) if self.script else 200
        if isinstance(outcome, Exception):
            raise outcome
        return Answer(status=outcome)

    async def aclose(self) -> None:
        self.closed = True


@define
class Settled:
    event: asyncio.Event = field(factory=asyncio.Event)

    def __call__(self) -> None:
        self.event.set()

    async def soon(self) -> None:
        await asyncio.wait_for(self.event.wait(), 5)


def abandoned(exchange: SentExchange, routable: bool = True) -> Abandoned:
    return Abandoned(
        exchange=exchange,
        base_url="http://engine:1",
        rids=("r1",),
        engines=lambda: ["http://engine:1"],
        routable=lambda: routable,
    )


def refused() -> ConnectError:
    error = ConnectError("refused")
    error.refused = True
    return error


# --- exchange ---------------------------------------------------------------------------


async def test_an_exchange_is_read_piece_by_piece_to_its_end() -> None:
    transport = ScriptedTransport()
    transport.head.set()
    for piece in (b"a", b"b", b""):
        transport.answer.pieces.put_nowait(piece)
    exchange = SentExchange(transport, REQUEST)
    assert (await exchange.open()).status == 200
    assert await exchange.next_chunk() == b"a"
    assert not exchange.ended
    assert await exchange.read() == b"b"
    assert exchange.ended
    await exchange.aclose()
    assert transport.answer.closed == 1


async def test_an_exchange_is_handed_over_while_there_is_room() -> None:
    transport, taken = ScriptedTransport(), list[bytes]()
    transport.head.set()
    for piece in (b"a", b"b", b"c", b""):
        transport.answer.pieces.put_nowait(piece)
    exchange = SentExchange(transport, REQUEST)
    await exchange.open()

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return piece != b"b"

    assert not await exchange.pour(take)
    assert taken == [b"a", b"b"]
    assert await exchange.pour(take)
    assert (taken, exchange.ended) == ([b"a", b"b", b"c"], True)


async def test_a_caller_that_leaves_cuts_nothing() -> None:
    transport = ScriptedTransport()
    exchange = SentExchange(transport, REQUEST)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(exchange.open(), 0.01)
    transport.head.set()
    for piece in (b"a", b""):
        transport.answer.pieces.put_nowait(piece)
    await exchange.finish()
    assert exchange.ended
    assert transport.sent == 1


async def test_a_connection_that_breaks_in_the_body_is_the_end() -> None:
    transport = ScriptedTransport()
    transport.head.set()
    transport.answer.pieces.put_nowait(UpstreamError("reset"))
    exchange = SentExchange(transport, REQUEST)
    await exchange.open()
    with pytest.raises(UpstreamError):
        await exchange.read()
    assert exchange.ended
    await exchange.finish()


async def test_a_connection_that_breaks_at_the_head_is_the_end() -> None:
    exchange = SentExchange(
        Aborts([UpstreamError("reset")]),
        evolve(REQUEST, url="http://engine:1/abort_request", body=b'{"rid": "x"}'),
    )
    with pytest.raises(UpstreamError):
        await exchange.open()
    assert exchange.ended
    await exchange.finish()


async def test_closing_cuts_a_request_that_has_no_answer_yet() -> None:
    transport = ScriptedTransport()
    exchange = SentExchange(transport, REQUEST)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(exchange.open(), 0.01)
    await exchange.aclose()
    await exchange.aclose()
    assert not exchange.ended


# --- aborter ----------------------------------------------------------------------------


async def left_waiting(transport: ScriptedTransport) -> SentExchange:
    """An exchange whose caller gave up while it waited for the head."""
    exchange = SentExchange(transport, REQUEST)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(exchange.open(), 0.01)
    return exchange


async def test_the_end_of_the_answer_is_the_confirmation() -> None:
    transport, aborts, settled = ScriptedTransport(), Aborts(), Settled()
    aborter = Aborter(aborts, grace_s=60)
    aborter.abandon(abandoned(await left_waiting(transport)), settled)
    await asyncio.wait_for(aborts.came.wait(), 1)
    transport.head.set()
    transport.answer.pieces.put_nowait(b"rest")
    await asyncio.sleep(0.02)
    assert not settled.event.is_set(), "an abort that was answered is not yet one that was done"
    assert aborter.unsettled == 1
    transport.answer.pieces.put_nowait(b"")
    await settled.soon()
    assert transport.answer.closed == 1
    assert set(aborts.rids) == {"r1"}
    assert aborter.unsettled == 0


async def test_an_abort_that_came_before_the_engine_knew_the_request_is_repeated() -> None:
    transport, aborts, settled = ScriptedTransport(), Aborts([404]), Settled()
    aborter = Aborter(aborts, grace_s=60)
    aborter.abandon(abandoned(await left_waiting(transport)), settled)
    while len(aborts.rids) < 3:
        aborts.came.clear()
        await asyncio.wait_for(aborts.came.wait(), 5)
    transport.head.set()
    transport.answer.pieces.put_nowait(b"")
    await settled.soon()


async def test_an_engine_that_does_not_stop_is_cut_and_asked_until_it_takes_the_abort() -> None:
    aborts = Aborts([500, UpstreamError("reset"), 503, 200])
    transport, settled = ScriptedTransport(), Settled()
    transport.head.set()
    exchange = SentExchange(transport, REQUEST)
    await exchange.open()
    Aborter(aborts, grace_s=0).abandon(abandoned(exchange), settled)
    await settled.soon()
    assert transport.answer.closed == 1
    assert len(aborts.rids) == 4


async def test_a_process_that_is_gone_needs_no_confirmation() -> None:
    aborts, settled = Aborts([refused()]), Settled()
    Aborter(aborts, grace_s=0).abandon(abandoned(await left_waiting(ScriptedTransport())), settled)
    await settled.soon()
    assert len(aborts.rids) == 1


async def test_an_unreachable_engine_counts_until_discovery_has_dropped_it() -> None:
    transport, settled = ScriptedTransport(), Settled()
    aborts = Aborts([ConnectError("unreachable")] * 1000)
    shown = True
    aborter = Aborter(aborts, grace_s=0)
    aborter.abandon(
        Abandoned(
            exchange=await left_waiting(transport),
            base_url="http://engine:1",
            rids=("r1",),
            engines=lambda: ["http://engine:1"],
            routable=lambda: shown,
        ),
        settled,
    )
    await asyncio.sleep(0.2)
    assert not settled.event.is_set()
    shown = False
    await settled.soon()


async def test_behind_a_router_every_engine_is_asked_until_all_have_answered() -> None:
    """Pitfall 19: the router would answer 404 to an abort, and the old decode would run on."""
    asked: list[str] = []

    class Heads:
        async def send(self, request: Outgoing) -> Incoming:
            asked.append(request.url)
            if request.url.startswith("http://b") and asked.count(request.url) < 3:
                raise ConnectError("unreachable")
            if request.url.startswith("http://c"):
                raise refused()
            return Answer()

        async def aclose(self) -> None: ...

    settled = Settled()
    urls = [f"http://{name}:1" for name in "abc"]
    Aborter(Heads(), grace_s=0).abandon(
        Abandoned(
            exchange=await left_waiting(ScriptedTransport()),
            base_url="http://router:1",
            rids=("r1",),
            engines=lambda: urls,
            routable=lambda: True,
        ),
        settled,
    )
    await settled.soon()
    assert set(asked) == {f"{url}/abort_request" for url in urls}
    assert asked.count("http://b:1/abort_request") == 3


@pytest.mark.parametrize(("rids", "engines"), [((), ["http://engine:1"]), (("r1",), [])])
async def test_with_nobody_to_ask_the_connection_is_cut_at_once(
    rids: tuple[str, ...], engines: list[str]
) -> None:
    transport, aborts, settled = ScriptedTransport(), Aborts(), Settled()
    transport.head.set()
    exchange = SentExchange(transport, REQUEST)
    await exchange.open()
    Aborter(aborts, grace_s=60).abandon(
        Abandoned(
            exchange=exchange,
            base_url="http://router:1",
            rids=rids,
            engines=lambda: engines,
            routable=lambda: True,
        ),
        settled,
    )
    await settled.soon()
    assert transport.answer.closed == 1
    assert aborts.rids == []


async def test_closing_waits_for_a_while_and_then_cuts() -> None:
    transport, aborts, settled = ScriptedTransport(), Aborts(), Settled()
    transport.head.set()
    exchange = SentExchange(transport, REQUEST)
    await exchange.open()
    aborter = Aborter(aborts, grace_s=60)
    aborter.abandon(abandoned(exchange), settled)
    await aborter.aclose(timeout_s=0.05)
    assert transport.answer.closed == 1
    assert settled.event.is_set()
    assert aborts.closed


@pytest.mark.parametrize(("payload", "rids"), [({"rid": "a"}, ("a",)), ({"rid": ["a", "b"]}, ("a", "b"))])
def test_ids_are_found(payload: dict[str, object], rids: tuple[str, ...]) -> None:
    assert rids_in(payload) == rids


@pytest.mark.parametrize("rid", ["", " ", [], [""], None, 5, ["a", 5]])
def test_an_id_that_would_abort_others_is_refused(rid: object) -> None:
    with pytest.raises(PayloadError) as refusal:
        rids_in({"rid": rid})
    assert refusal.value.field == "rid"
