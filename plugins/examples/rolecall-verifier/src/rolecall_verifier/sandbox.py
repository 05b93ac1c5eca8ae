"""Runs one program against its tests in a confined child process, and says what came of it.

Every run has a process of its own in a session of its own, an empty folder that is removed afterwards, no
environment, and an isolated interpreter (``-I -S``: no site-packages). Whatever happens to the caller, also
cancellation, the child has ended and its folder is gone when :meth:`Sandbox.run` is left.

What it does not isolate is told in the README; above all, tests run in the program's own interpreter.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import field, frozen

from rolecall.api import ScoringError

from .options import VerifierOptions

_PACKAGES = str(Path(__file__).parents[1])
_CHILD = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from rolecall_verifier.child import main; "
_COMMAND = (sys.executable, "-I", "-S", "-u", "-c", _CHILD + "del sys.path[0]; main()")
_VERDICT_BYTES = 1024**2
_CHUNK = 64 * 1024


class Outcome(StrEnum):
    """PASSED: every test ran and none raised. FAILED: some did. ERROR: the program itself raised.
    UNFINISHED: its process ended before the last test did. TIMEOUT: it was stopped. NO_CODE: there was
    nothing to run."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    UNFINISHED = "unfinished"
    TIMEOUT = "timeout"
    NO_CODE = "no_code"


@frozen(kw_only=True)
class Verdict:
    """What came of one program.

    passed, tests: how many tests passed, of how many; 0 if not all of them were run.
    detail: what the program raised, or how it ended; empty if it passed or failed its tests.
    failures: number of a test, from 0 → what it raised.
    output: the beginning of what it printed; ``truncated`` if there was more.
    """

    outcome: Outcome
    tests: int
    passed: int = 0
    detail: str = ""
    failures: Mapping[int, str] = field(factory=dict)
    output: str = ""
    truncated: bool = False
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Share of the tests that passed."""
        return self.passed / self.tests


class Sandbox:
    """Runs programs, at most ``options.concurrency`` at once; for one event loop."""

    def __init__(self, options: VerifierOptions) -> None:
        self._options = options
        self._free = asyncio.Semaphore(options.concurrency)

    async def run(self, program: str, tests: Sequence[str]) -> Verdict:
        """Return the verdict on a program; there must be a test.

        Raises:
            ScoringError: no child could be started, or this kernel can't confine it. That says
                nothing about the program.
        """
        assert tests, "a program without tests has no verdict"
        async with self._free:
            try:
                folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="rolecall-verifier-")
            except OSError as error:
                raise ScoringError(f"there is no folder to run a program in: {error}") from error
            try:
                return await self._run_in(folder, program, tests)
            finally:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder))

    async def _run_in(self, folder: str, program: str, tests: Sequence[str]) -> Verdict:
        options, started = self._options, time.monotonic()
        nonce = secrets.token_hex(16)
        order = {
            "nonce": nonce,
            "program": program,
            "tests": list(tests),
            "limits": {
                "cpu_s": options.cpu_s,
                "memory_bytes": options.memory_bytes,
                "file_bytes": options.file_bytes,
                "open_files": options.open_files,
            },
        }
        child = await _start(folder)
        talk = asyncio.gather(
            _send(child, json.dumps(order).encode()),
            _receive(child.stdout, _VERDICT_BYTES),
            _receive(child.stderr, options.output_bytes),
        )
        limit = asyncio.timeout(options.wall_s)
        try:
            async with limit:
                _, told, output = await talk
                await child.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            return Verdict(
                outcome=Outcome.TIMEOUT,
                tests=len(tests),
                detail=f"it was stopped after {options.wall_s:g} s",
                seconds=time.monotonic() - started,
            )
        finally:
            _kill(child)
            await asyncio.shield(child.wait())
        return _judged(
            told=told.text,
            nonce=nonce,
            tests=len(tests),
            code=child.returncode or 0,
            output=output,
            seconds=time.monotonic() - started,
        )


@frozen
class _Received:
    text: str
    truncated: bool


async def _start(folder: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
            env={"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        raise ScoringError(f"no process could be started for a program: {error}") from error


async def _send(child: asyncio.subprocess.Process, order: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(order)
        await child.stdin.drain()
        child.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        return  # it has ended; what it left tells why


async def _receive(stream: asyncio.StreamReader | None, most: int) -> _Received:
    """Read to the end, so that nobody waits for room, and keep the first ``most`` bytes."""
    assert stream is not None
    kept = bytearray()
    truncated = False
    while chunk := await stream.read(_CHUNK):
        room = most - len(kept)
        kept += chunk[:room]
        truncated = truncated or len(chunk) > room
    return _Received(kept.decode(errors="replace"), truncated)


def _kill(child: asyncio.subprocess.Process) -> None:
    """Kill the child's group; it can't have left it, nor have started anybody who did."""
    if child.returncode is None:
        with suppress(ProcessLookupError):  # it ended by itself a moment ago
            os.killpg(child.pid, signal.SIGKILL)


def _judged(*, told: str, nonce: str, tests: int, code: int, output: _Received, seconds: float) -> Verdict:
    common: dict[str, Any] = {
        "tests": tests,
        "output": output.text,
        "truncated": output.truncated,
        "seconds": seconds,
    }
    verdict = _told(told, nonce)
    if verdict is None:
        return Verdict(
            outcome=Outcome.UNFINISHED,
            detail=f"its process {_ending(code)} before its tests were done",
            **common,
        )
    if "refused" in verdict:
        raise ScoringError(f"programs can't be confined here: {verdict['refused']}")
    if verdict["error"] is not None:
        return Verdict(outcome=Outcome.ERROR, detail=verdict["error"], **common)
    failures = {int(index): str(problem) for index, problem in verdict["failures"]}
    return Verdict(
        outcome=Outcome.FAILED if failures else Outcome.PASSED,
        passed=tests - len(failures),
        failures=failures,
        **common,
    )


def _told(told: str, nonce: str) -> dict[str, Any] | None:
    """Return the child's verdict, None if it sent none that is its own."""
    head, _, rest = told.partition(" ")
    if not secrets.compare_digest(head.encode(), nonce.encode()):
        return None
    try:
        return json.loads(rest)
    except ValueError:
        return None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
