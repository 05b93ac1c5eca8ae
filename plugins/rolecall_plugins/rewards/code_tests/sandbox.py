"""Runs one program against its tests in a supervisor process, and says what came of each test.

Whatever happens to the caller, also cancellation, the supervisor and its children have ended and their
folder is gone when :meth:`Sandbox.run` is left. For one event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolecall.api import ScoringError

from .options import CodeTestsOptions

_ROOT = str(Path(__file__).parents[3])
_CHILD = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from rolecall_plugins.rewards.code_tests.supervisor import main; del sys.path[0]; main()"
)
_COMMAND = (sys.executable, "-I", "-S", "-u", "-c", _CHILD)
_SLACK_S = 10.0
"""For starting and ending processes; a supervisor that takes longer than its tests and this is stuck."""

_ANSWER_BYTES = 16 * 1024**2

Test = Mapping[str, str]
Result = tuple[str, str]


class Sandbox:
    """Runs programs, at most ``options.concurrency`` at once."""

    def __init__(self, options: CodeTestsOptions) -> None:
        self._options = options
        self._free = asyncio.Semaphore(options.concurrency)

    async def run(self, program: str, tests: Sequence[Test]) -> list[Result]:
        """Return outcome and detail of each test; with ``pays = "all"`` up to the first that failed.

        Raises:
            ScoringError: the sandbox can't work here, or broke. That says nothing about the program.
        """
        async with self._free:
            try:
                folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="rolecall-code-")
            except OSError as error:
                raise ScoringError(f"there is no folder to run a program in: {error}") from error
            try:
                return await self._run_in(folder, program, tests)
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder))

    async def _run_in(self, folder: str, program: str, tests: Sequence[Test]) -> list[Result]:
        options = self._options
        order = json.dumps(
            {
                "program": program,
                "tests": [dict(test) for test in tests],
                "stop_at_first": options.pays == "all",
                "limits": options.limits(),
            }
        )
        child = await _start(folder)
        answer = b""
        try:
            async with asyncio.timeout(options.wall_s * len(tests) + _SLACK_S):
                answer = await _ask(child, order.encode() + b"\n")
        except TimeoutError as error:
            raise ScoringError("the sandbox gave no answer in time, and was stopped") from error
        finally:
            # With an answer it has ended its children itself, and its number may be another's by now.
            if child.returncode is None or not answer:
                _kill(child)
            await asyncio.shield(child.wait())
        return _results(answer, child.returncode)


async def _start(folder: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            env={"LC_ALL": "C.UTF-8"},
            start_new_session=True,
            limit=_ANSWER_BYTES,
        )
    except OSError as error:
        raise ScoringError(f"no process could be started for a program: {error}") from error


async def _ask(child: asyncio.subprocess.Process, order: bytes) -> bytes:
    """Send the order and return the answer. The supervisor's input stays open: its end would end it."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; its silence tells
        child.stdin.write(order)
        await child.stdin.drain()
    return await child.stdout.readline()


def _kill(child: asyncio.subprocess.Process) -> None:
    """Kill the supervisor's group; its children can't have left it, nor have started anybody who did."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _results(answer: bytes, code: int | None) -> list[Result]:
    try:
        told: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        raise ScoringError(f"the sandbox ended with exit code {code} and no answer") from error
    if "refused" in told:
        raise ScoringError(str(told["refused"]))
    return [(str(outcome), str(detail)) for outcome, detail in told["results"]]
