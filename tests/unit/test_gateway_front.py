"""The front's app, and the processes that share a port; the processes are small ones of this test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from rolecall.errors import JobError
from rolecall.gateway.front import Ending, Front, serve_front
from rolecall.gateway.processes import Processes, bind

SERVER = """
import os, signal, socket, sys
bound, pipe, enough = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
bound.settimeout(0.05)
os.write(pipe, b".")
os.close(pipe)
while len(asked) < enough:
    try:
        caller, _ = bound.accept()
    except TimeoutError:
        continue
    with caller:
        caller.sendall(b"%d" % os.getpid())
"""


async def role_app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it sees of the path; its lifespan does nothing."""
    if scope["type"] == "lifespan":
        for done in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{done}.complete"})
        return
    seen = f"{scope['root_path']} {scope['path']}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": seen})


async def test_each_role_is_found_at_its_name() -> None:
    front: Any = Front({"critic": role_app, "judge": role_app})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://front") as http:
        assert (await http.post("/critic/generate")).text == "/critic /critic/generate"
        assert (await http.get("/judge")).text == "/judge /judge"
        assert (await http.get("/-/healthz")).text == "success"
        for path in ("/", "/critics/generate", "//critic", "/-/critic"):
            missing = await http.get(f"http://front{path}")
            assert missing.status_code == 404
            assert "critic, judge" in missing.json()["error"]["message"]


async def test_a_front_serves_until_told_to_end() -> None:
    (bound,) = bind("127.0.0.1", 0, 1)
    port = bound.getsockname()[1]
    ending, ready = Ending(), asyncio.Event()
    served = asyncio.create_task(
        serve_front({"critic": role_app}, bound, drain_s=5, ending=ending, ready=ready.set)
    )
    await asyncio.wait_for(ready.wait(), 10)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/critic/x")).status_code == 200
        ending.ask()
        # This connection is still answered, and ends the wait for it.
        assert (await http.get("/critic/x")).headers["connection"] == "close"
        await asyncio.wait_for(served, 10)
        with pytest.raises(httpx.ConnectError):
            await http.get("/critic/x")


async def test_asked_twice_a_front_cuts_its_callers_off() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await role_app(scope, receive, send)
        asked.set()
        await asyncio.Event().wait()

    (bound,) = bind("127.0.0.1", 0, 1)
    ending, ready, asked = Ending(), asyncio.Event(), asyncio.Event()
    served = asyncio.create_task(
        serve_front({"critic": silent}, bound, drain_s=60, ending=ending, ready=ready.set)
    )
    await asyncio.wait_for(ready.wait(), 10)
    _, writer = await asyncio.open_connection(*bound.getsockname())
    writer.write(b"GET /critic/x HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(asked.wait(), 10)
    ending.ask()
    await asyncio.sleep(0.05)
    assert not served.done()
    ending.ask()
    await asyncio.wait_for(served, 10)
    writer.close()


def test_an_address_that_is_taken_is_an_error() -> None:
    (bound,) = bind("127.0.0.1", 0, 1)
    bound.listen()
    with bound, pytest.raises(JobError, match=r"can't listen on 127\.0\.0\.1, port \d+"):
        bind("127.0.0.1", bound.getsockname()[1], 2)


# --- processes ----------------------------------------------------------------------------


class Running:
    """Processes that run, and their port."""

    def __init__(self, count: int, script: Path, *, asks: int = 1, end_s: float = 20) -> None:
        sockets = bind("127.0.0.1", 0, count)
        self.address = sockets[0].getsockname()
        self.ending = Ending()
        self.ready = asyncio.Event()
        self.processes = Processes(
            lambda bound, pipe: [sys.executable, "-I", "-S", str(script), str(bound), str(pipe), str(asks)],
            sockets,
            end_s=end_s,
        )
        self.ended = asyncio.create_task(self.processes.run(ending=self.ending, ready=self.ready.set))

    async def ask(self) -> int:
        """Return the pid of the process that answers."""
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*self.address)
            try:
                return int(await reader.read())
            finally:
                writer.close()

    async def all_of(self, count: int) -> set[int]:
        """Return all pids that answer: the kernel chooses, so ask until there are so many."""
        found: set[int] = set()
        while len(found) < count:
            found.add(await self.ask())
        return found


def serves(pid: int) -> bool:
    """Whether a process may still accept."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")

    @asynccontextmanager
    async def running(count: int, **options: Any) -> AsyncIterator[Running]:
        made = Running(count, script, **options)
        await asyncio.wait(
            {asyncio.create_task(made.ready.wait()), made.ended}, return_when="FIRST_COMPLETED"
        )
        try:
            yield made
        finally:
            made.ending.ask()
            await asyncio.wait_for(asyncio.wait({made.ended}), 30)
            assert not psutil.Process().children(recursive=True)

    return running


async def test_processes_share_the_port_and_end_when_told(run: Run) -> None:
    async with run(2) as running:
        assert len(await running.all_of(2)) == 2
        running.ending.ask()
        await asyncio.wait_for(running.ended, 20)
        with pytest.raises(ConnectionRefusedError):
            await running.ask()


async def test_a_dead_process_is_replaced_and_who_came_meanwhile_is_answered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolecall.gateway.processes._PAUSE_FIRST_S", 0.05)
    async with run(1) as running:
        former = await running.ask()
        os.kill(former, signal.SIGKILL)
        while serves(former):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert {await running.ask() for _ in range(3)}.isdisjoint({former})


async def test_all_are_replaced_while_none_who_calls_is_failed(run: Run) -> None:
    async with run(2) as running:
        former = await running.all_of(2)
        running.processes.replace()
        answered: list[int] = []
        while former & set(answered[-20:] or former):
            answered.append(await running.ask())
        assert len(await running.all_of(2)) == 2


async def test_a_process_that_does_not_heed_the_first_signal_gets_the_second(run: Run) -> None:
    async with run(1, asks=2) as running:
        await running.ask()
        running.ending.ask()
        await asyncio.sleep(0.1)
        assert not running.ended.done()
        running.ending.ask()
        await asyncio.wait_for(running.ended, 20)


async def test_a_process_that_heeds_nothing_is_killed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async with run(1, asks=100, end_s=0.1) as running:
        running.ending.ask()
        await asyncio.wait_for(running.ended, 20)
    assert "did not end within 0.1 s" in caplog.text


async def test_a_process_that_does_not_come_to_serve_is_an_error(run: Run) -> None:
    async with run(2, asks="no number") as running:
        with pytest.raises(JobError, match="did not come to serve"):
            await running.ended
