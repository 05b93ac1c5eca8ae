"""Processes that share a port: one listening socket each, kept open while a process is replaced.

The kernel spreads connections over the sockets (``SO_REUSEPORT``). They are made here and handed down, so a
connection that arrives while its process is being replaced waits in the socket's queue; were each socket its
process's own, the kernel would reset it. A process that dies is started again. None outlives this one.

A process gets two file descriptors: the socket to serve, and a pipe that it writes a byte to once it serves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from attrs import define

from rolecall.errors import JobError
from rolecall.gateway.front import Ending
from rolecall.processes import bound_exec

_log = logging.getLogger(__name__)

_PAUSE_FIRST_S = 0.5
_PAUSE_MOST_S = 30.0

Command = Callable[[int, int], Sequence[str]]
"""Makes a process's command line of its socket's and its pipe's file descriptor."""


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Return sockets bound to one address, which no other user's process can share; port 0 picks a free one.

    Raises:
        JobError: the address can't be had.
    """
    sockets: list[socket.socket] = []
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        for _ in range(count):
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if count > 1:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
            address = bound.getsockname()
    except OSError as error:
        for bound in sockets:
            bound.close()
        raise JobError(f"can't listen on {host}, port {port}: {error}") from error
    return sockets


@define(eq=False)
class _Place:
    """A socket, and the process that serves it now."""

    number: int
    bound: socket.socket
    process: asyncio.subprocess.Process | None = None


class Processes:
    """Runs a process on each of ``sockets``, which it owns.

    end_s: how long a process may take to end once it is told to.
    """

    def __init__(self, command: Command, sockets: Sequence[socket.socket], *, end_s: float) -> None:
        self._command = command
        self._places = [_Place(number, bound) for number, bound in enumerate(sockets)]
        self._end_s = end_s
        self._alive: set[asyncio.subprocess.Process] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()

    async def run(self, *, ending: Ending, ready: Callable[[], None]) -> None:
        """Run until told to end; call ``ready`` once all of them serve. To be awaited in the main thread.

        Raises:
            JobError: a process did not come to serve; nothing is left.
        """
        for place in self._places:
            place.bound.listen()  # who comes early waits
        told = self._task(ending.drain.wait())
        starts = [self._task(self._start(place)) for place in self._places]
        try:
            started = self._task(asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION))
            await asyncio.wait({started, told}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                await asyncio.gather(*starts)
                for place in self._places:
                    self._task(self._keep(place))
                ready()
                await told
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Before the processes end: what the kernel still took in, nobody would answer.
            for place in self._places:
                place.bound.close()
            await asyncio.gather(*(self._end(process, ending.cut) for process in list(self._alive)))

    def replace(self) -> None:
        """Begin to replace each process by a new one, one after the other.

        None ends before its successor serves. One that doesn't come to serve leaves the rest as they are.
        """
        self._task(self._replace())

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _replace(self) -> None:
        async with self._changing:
            for place in self._places:
                former = place.process
                try:
                    await self._start(place)
                except JobError as error:
                    _log.error("process %d was not replaced: %s", place.number, error)
                    return
                if former is not None:
                    await self._end(former)

    async def _keep(self, place: _Place) -> None:
        """Start a new process whenever the one in a place ends by itself."""
        pause_s = _PAUSE_FIRST_S
        while True:
            process = place.process
            assert process is not None
            code = await process.wait()
            async with self._changing:
                if place.process is not process:
                    continue  # replaced
                _log.error("process %d (pid %d) ended with code %d", place.number, process.pid, code)
                self._alive.discard(process)
                await asyncio.sleep(pause_s)
                try:
                    await self._start(place)
                except JobError as error:
                    _log.error("%s", error)
                    pause_s = min(2 * pause_s, _PAUSE_MOST_S)
                else:
                    pause_s = _PAUSE_FIRST_S

    async def _start(self, place: _Place) -> None:
        """Put a new process in a place, and return when it serves."""
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb", buffering=0) as served:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", bound_exec.__file__, str(os.getpid())),
                    *self._command(place.bound.fileno(), writes),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(place.bound.fileno(), writes),
                    start_new_session=True,  # a terminal's Ctrl-C is for this process, which passes it on
                )
            finally:
                os.close(writes)
            self._alive.add(process)
            if await _one_byte(served):
                place.process = process
                return
        await self._kill(process)
        raise JobError(f"process {place.number} of the gateway did not come to serve; its log says why")

    async def _end(self, process: asyncio.subprocess.Process, cut: asyncio.Event | None = None) -> None:
        """Tell a process to end, and once more when ``cut`` is set; return when it has."""
        _signal(process)
        cutting = asyncio.create_task(cut.wait()) if cut is not None else None
        if cutting is not None:
            cutting.add_done_callback(lambda done: None if done.cancelled() else _signal(process))
        try:
            async with asyncio.timeout(self._end_s):
                await process.wait()
        except TimeoutError:
            _log.error("pid %d did not end within %g s and was killed", process.pid, self._end_s)
        finally:
            if cutting is not None:
                cutting.cancel()
            await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self._alive.discard(process)


async def _one_byte(pipe: Any) -> bytes:
    """Return a byte from a pipe, nothing if it was closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(pipe)
    return os.read(pipe.fileno(), 1)


def _signal(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
