"""Who comes in at a gateway: tokens, the head's limit, requests under way; and nothing is read before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from rolecall.gateway.access import Access
from rolecall.gateway.settings import GatewaySettings


class Inside:
    """The app behind; its requests stay until they are let go."""

    def __init__(self, *, held: bool = False) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(
    app: Any,
    *headers: tuple[bytes, bytes],
    path: str = "/generate",
    query: bytes = b"",
    client: tuple[str, int] | None = ("10.0.0.1", 5),
) -> tuple[int, dict[bytes, bytes], dict[str, Any]]:
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Any:
        raise AssertionError("nothing of the body is read")

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": query, "headers": headers}
    await app({**scope, "client": client}, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])


def bearer(value: bytes) -> tuple[bytes, bytes]:
    return b"authorization", value


# --- tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"Bearer first", b"bearer first", b"BEARER second"], ids=["first", "lower", "second"]
)
async def test_any_of_the_tokens_opens(value: bytes) -> None:
    access = Access(Inside(), GatewaySettings(bearer_tokens=("first", "second")))
    assert (await ask(access, bearer(value)))[0] == 200


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Bearer firs"],
        [b"Bearer firstt"],
        [b"Bearer  first"],
        [b"Basic first"],
        [b"first"],
        [b"Bearer first,second"],
        [b"Bearer \xe4"],
        [b"Bearer first", b"Bearer second"],
    ],
)
async def test_anything_else_does_not(values: list[bytes]) -> None:
    inside = Inside()
    access = Access(inside, GatewaySettings(bearer_tokens=("first", "second")))
    status, headers, body = await ask(access, *map(bearer, values))
    assert (status, headers[b"www-authenticate"], body["error"]["type"]) == (401, b"Bearer", "unauthorized")
    assert inside.begun == 0
    assert "first" not in body["error"]["message"]


async def test_every_token_is_compared_as_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(given: bytes, wanted: bytes) -> bool:
        compared.append((len(given), len(wanted)))
        return given == wanted

    monkeypatch.setattr("rolecall.gateway.access.compare_digest", compare)
    access = Access(Inside(), GatewaySettings(bearer_tokens=("a", "bb", "ccc")))
    for value in (b"Bearer a", b"Bearer ccc", b"Bearer none", b"x" * 1000):
        compared.clear()
        await ask(access, bearer(value))
        assert compared == [(32, 32)] * 3


# --- limits -----------------------------------------------------------------------------


async def test_431_for_a_head_over_the_limit() -> None:
    inside = Inside()
    access = Access(inside, GatewaySettings(max_head_bytes=100))
    assert (await ask(access, (b"a", b"x" * 90)))[0] == 200
    for over in (
        ask(access, (b"a", b"x" * 91)),
        ask(access, *[(b"a", b"")] * 92),
        ask(access, path="/" + "x" * 100),
        ask(access, query=b"x" * 100),
    ):
        status, _, body = await over
        assert (status, body["error"]["type"]) == (431, "head_too_large")
        assert "100 bytes" in body["error"]["message"]
    assert inside.begun == 1


async def test_429_for_one_request_too_many_of_a_caller() -> None:
    inside = Inside(held=True)
    access = Access(inside, GatewaySettings(max_requests_per_caller=2))
    first = [asyncio.create_task(ask(access, client=("10.0.0.1", port))) for port in (1, 2)]
    other = asyncio.create_task(ask(access, client=("10.0.0.2", 1)))
    await asyncio.sleep(0)
    status, headers, body = await ask(access, client=("10.0.0.1", 3))
    assert (status, headers[b"retry-after"], body["error"]["type"]) == (429, b"1", "too_many_requests")
    assert inside.begun == 3, "another address is another caller"
    inside.go.set()
    assert [status for status, _, _ in await asyncio.gather(*first, other)] == [200] * 3
    assert (await ask(access, client=("10.0.0.1", 4)))[0] == 200


async def test_a_request_that_ends_badly_is_not_under_way_any_more() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError

    access = Access(broken, GatewaySettings(max_requests_per_caller=1))
    for _ in range(3):
        with pytest.raises(LookupError):
            await ask(access, client=None)
    held = Access(Inside(held=True), GatewaySettings(max_requests_per_caller=1))
    for _ in range(3):
        task = asyncio.create_task(ask(held))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_with_several_tokens_each_is_a_caller_wherever_it_calls_from() -> None:
    inside = Inside(held=True)
    settings = GatewaySettings(max_requests_per_caller=1, bearer_tokens=("one", "two"))
    access = Access(inside, settings)
    one, two = bearer(b"Bearer one"), bearer(b"Bearer two")
    running = [asyncio.create_task(ask(access, token)) for token in (one, two)]
    await asyncio.sleep(0)
    assert (await ask(access, one, client=("10.0.0.9", 1)))[0] == 429
    assert (await ask(access, bearer(b"Bearer none")))[0] == 401, "the token is asked for first"
    inside.go.set()
    assert [status for status, _, _ in await asyncio.gather(*running)] == [200, 200]


async def test_refusals_on_openai_paths_have_openais_shape() -> None:
    settings = GatewaySettings(max_requests_per_caller=1, bearer_tokens=("one",), max_head_bytes=200)
    access = Access(Inside(held=True), settings)
    right = bearer(b"Bearer one")
    running = asyncio.create_task(ask(access, right))
    await asyncio.sleep(0)
    chat = "/v1/chat/completions"
    refusals = [
        await ask(access, path=chat),
        await ask(access, right, path=chat),
        await ask(access, (b"a", b"x" * 200), path=chat),
    ]
    running.cancel()
    assert [(status, body["error"]["type"]) for status, _, body in refusals] == [
        (401, "authentication_error"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
    ]
    assert all(set(body["error"]) == {"message", "type", "param", "code"} for _, _, body in refusals)


async def test_what_is_no_request_passes() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    await Access(app, GatewaySettings(bearer_tokens=("one",)))({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan"]
