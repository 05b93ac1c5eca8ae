"""No part of a request decides where it goes, and none becomes a header line that was not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane

PATHS = ("/generate", "/v1/chat/completions")


@pytest.fixture
async def world() -> AsyncIterator[Plane]:
    async with plane(PlainRole()) as running:
        yield running


class Trap:
    """An address that nobody is to connect to."""

    def __init__(self) -> None:
        self.port = 0
        self.caught = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.caught += 1
        writer.close()


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    trap = Trap()
    server = await asyncio.start_server(trap, "127.0.0.1", 0)
    trap.port = server.sockets[0].getsockname()[1]
    async with server:
        yield trap


async def raw(world: Plane, request: bytes) -> bytes:
    """Send bytes as they are and return all that comes back."""
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def post(target: str, *headers: bytes, **fields: Any) -> bytes:
    body = json.dumps({"text": "x", "messages": [{}], **fields}).encode()
    lines = [f"POST {target} HTTP/1.1".encode(), b"connection: close", b"content-length: %d" % len(body)]
    named = [] if any(line.lower().startswith(b"host:") for line in headers) else [b"host: gateway"]
    return b"\r\n".join([*lines, *named, *headers]) + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize("path", PATHS)
async def test_no_part_of_a_request_decides_where_it_goes(world: Plane, trap: Trap, path: str) -> None:
    there = f"127.0.0.1:{trap.port}"
    named = [b"%b: %b" % (name, there.encode()) for name in (b"host", b"x-forwarded-host", b"x-host")]
    named += [b"forwarded: host=" + there.encode(), b"x-original-url: http://" + there.encode()]
    named += [b"x-forwarded-for: " + there.encode(), b"x-rolecall-engine: " + there.encode()]
    fields = dict.fromkeys(("base_url", "url", "router_url", "engine", "host"), f"http://{there}")
    answers = [
        await raw(world, post(f"http://{there}{path}")),
        await raw(world, post(path, *named)),
        await raw(world, post(path, **fields)),
        await raw(world, post(f"{path}?base_url=http://{there}&url=//{there}")),
    ]
    assert [status_of(answer) for answer in answers] == [200] * 4
    assert len(world.engines[0].received) == 4
    hosts = {received.headers["host"] for received in world.engines[0].received}
    assert hosts == {world.urls[0].removeprefix("http://")}
    assert not any(there.encode() in answer.split(b"\r\n\r\n")[0] for answer in answers)
    assert trap.caught == 0


@pytest.mark.parametrize("target", ["//127.0.0.1:{port}/generate", "/generate/", "/%2e%2e//{port}/generate"])
async def test_a_path_that_looks_like_an_address_is_none(world: Plane, trap: Trap, target: str) -> None:
    answer = await raw(world, post(target.format(port=trap.port), b"host: 127.0.0.1:%d" % trap.port))
    assert status_of(answer) == 404
    assert b"\r\nlocation:" not in answer.lower()
    assert (world.engines[0].received, trap.caught) == ([], 0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_new"])
async def test_no_engine_is_told_where_another_is(world: Plane, path: str, field: str) -> None:
    answer = await raw(world, post(path, **{field: "10.0.0.1"}))
    assert status_of(answer) == 400
    assert field.encode() in answer
    assert world.engines[0].received == []


ODD_VALUES = [b"a\tb", b"\xe4", b"a\x01b", b"a\x7fb", b"x" * 200, b"a b", b'"', b"%0d%0aset-cookie: a=b"]


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize("name", [b"x-request-id", b"x-smg-routing-key", b"x-anything"])
async def test_odd_values_cross_as_they_are_or_not_at_all(world: Plane, name: bytes, value: bytes) -> None:
    answer = await raw(world, post("/generate", b"%b: %b" % (name, value)))
    if status_of(answer) == 400:
        assert world.engines[0].received == []
        return
    assert status_of(answer) == 200, answer
    (received,) = world.engines[0].received
    crossed = received.headers[name.decode()].encode("latin-1")
    if name == b"x-request-id":
        assert (b"\r\nx-request-id: %b\r\n" % crossed) in answer
        assert crossed == value or len(crossed) == 32
    else:
        assert crossed == value
    assert set(received.headers) <= {
        *("host", "content-length", "content-type", "accept-encoding", "x-request-id"),
        name.decode(),
    }


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\x00"])
async def test_a_line_end_within_a_value_makes_no_header(world: Plane, end: bytes) -> None:
    answer = await raw(world, post("/generate", b"x-anything: a" + end + b"x-made: up"))
    assert status_of(answer) == 400 or "x-made" not in world.engines[0].received[0].headers
    assert b"\r\nx-made" not in answer
