"""Reading discovery while its gateway is started again: waited for, within patience, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from attrs import frozen

from rolecall.client.http1_transport import Http1Transport
from rolecall.client.inference_client import InferenceClient
from rolecall.client.snapshot_reader import HttpSnapshotReader
from rolecall.client.transport import ConnectError, Headers, Incoming, Outgoing
from rolecall.errors import RegistryUnavailableError, UpstreamError
from rolecall.testing.plain_role import ByKey, PlainRole
from rolecall.testing.plane import plane

PATIENCE_S = 30.0
NOBODY = ConnectError("no connection")
SILENCE = UpstreamError("closed without an answer")


@frozen(kw_only=True)
class Answer:
    status: int
    body: bytes = b"{}"
    headers: Headers = ((b"etag", b'"e"'),)

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.body

    async def aclose(self) -> None:
        pass


OK = Answer(status=200)


class Front:
    """A transport to what stands before a gateway; gives the last answer for good."""

    def __init__(self, *answers: Answer | UpstreamError) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def send(self, request: Outgoing) -> Answer:
        assert request.url == "http://front/critic/engines"
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, UpstreamError):
            raise answer
        return answer

    def begin(self, request: Outgoing) -> Any:
        raise AssertionError(f"discovery is not sent so: {request}")

    async def aclose(self) -> None:
        pass


def reader(front: Front, *, patience_s: float = PATIENCE_S) -> HttpSnapshotReader:
    return HttpSnapshotReader(front, "http://front/critic", patience_s=patience_s)


@pytest.mark.parametrize("away", [NOBODY, SILENCE, *(Answer(status=s) for s in (502, 503, 504))], ids=str)
async def test_a_gateway_that_is_away_is_asked_again(away: Answer | UpstreamError) -> None:
    front = Front(away, away, OK)
    published = await reader(front).read(None, 0)
    assert published is not None
    assert published.etag == "e"
    assert front.asked == 3


async def test_a_front_that_has_no_route_yet_is_asked_again_only_if_it_had_one() -> None:
    unrouted = Answer(status=404)
    front = Front(OK, unrouted, OK)
    known = reader(front)
    await known.read(None, 0)
    await known.read("e", 0)
    assert front.asked == 3
    wrong_address = Front(unrouted)
    with pytest.raises(RegistryUnavailableError, match="answered 404"):
        await reader(wrong_address).read(None, 0)
    assert wrong_address.asked == 1


@pytest.mark.parametrize("status", [400, 401, 403, 500])
async def test_a_refusal_is_final(status: int) -> None:
    front = Front(Answer(status=status, body=b"why"))
    with pytest.raises(RegistryUnavailableError, match=f"answered {status}: why"):
        await reader(front).read(None, 0)
    assert front.asked == 1


async def test_patience_ends_and_says_how_long_it_was() -> None:
    front = Front(NOBODY)
    with pytest.raises(RegistryUnavailableError, match=r"can't be read: no connection; asked again for 0 s"):
        await reader(front, patience_s=0.4).read(None, 0)
    assert front.asked == 3
    with pytest.raises(RegistryUnavailableError, match=r"can't be read: no connection$"):
        await reader(front, patience_s=0).read(None, 0)
    assert front.asked == 4


class Counting(Http1Transport):
    """Says when the gateway has answered "not now" twice."""

    def __init__(self) -> None:
        super().__init__(max_concurrency=4)
        self.refusals = 0
        self.refused = asyncio.Event()

    async def send(self, request: Outgoing) -> Incoming:
        answer = await super().send(request)
        self.refusals += answer.status == 503
        if self.refusals >= 2:
            self.refused.set()
        return answer


async def test_a_client_rides_over_a_managers_restart() -> None:
    role, control = PlainRole(), Counting()
    async with (
        plane(role, engines=1) as world,
        InferenceClient(world.url, policy=ByKey, ttl_s=0, control=control) as client,
    ):
        await client.generate({"text": "x"})
        world.registry.invalidate(role.name)
        asking = asyncio.create_task(client.generate({"text": "x"}))
        async with asyncio.timeout(20):
            await control.refused.wait()
        assert not asking.done()
        world.publish(epoch="00000000-0000-4000-8000-000000000002")
        assert (await asking)["text"]
