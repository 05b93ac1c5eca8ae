"""Worker processes that may be killed: started when first needed, kept, replaced after a hostile question.

A question waits in a thread of this pool for its worker's answer, so that no event loop waits; whoever gives
up kills the worker, and so ends the thread's waiting. Workers end with this process: their stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolecall.api import ScoringError

_SCRIPT = str(Path(__file__).with_name("worker.py"))


def _environment() -> dict[str, str]:
    """Return what finding libraries takes, and nothing that a hostile expression should not see."""
    names = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in names if name in os.environ}}


class _Worker:
    """One process; used by one thread at a time, killed by any."""

    def __init__(self, memory_bytes: int) -> None:
        try:
            self.process = subprocess.Popen(
                (sys.executable, "-P", _SCRIPT, str(memory_bytes)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,
                env=_environment(),
            )
        except OSError as error:
            raise ScoringError(f"no worker process could be started: {error}") from error

    def ask(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self.kill()
            code = self.process.wait()
            raise ScoringError(
                f"the worker process ended with exit code {code}; is math-verify installed "
                "(rolecall[math-verify])?"
            )
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Kill it and wait for its end."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was not sent can't be any more
                pipe.close()


class Workers:
    """Up to ``count`` processes. For any number of event loops."""

    def __init__(self, count: int, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="math-verify")
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._threads, self._all)

    async def ask(self, question: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Return a worker's answer; the time for which it waits for a free worker does not count.

        Raises:
            ScoringError: no worker could be started, it died, or the time was up.
        """
        job = _Job(self, question, timeout_s)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, job.run)
        finally:
            job.give_up()  # does nothing if it is done

    def take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker(self._memory_bytes)
        with self._lock:
            self._all.add(worker)
        return worker

    def put_back(self, worker: _Worker, *, sound: bool) -> None:
        if not sound:
            worker.close()
        with self._lock:
            (self._idle.append if sound else self._all.discard)(worker)


class _Job:
    """One question on its way; given up by its asker or by its timer."""

    def __init__(self, workers: Workers, question: Mapping[str, Any], timeout_s: float) -> None:
        self._workers = workers
        self._question = question
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._given_up = self._late = False

    def run(self) -> Mapping[str, Any]:
        with self._lock:
            if self._given_up:
                raise ScoringError("nobody waits for this any more")
            worker = self._worker = self._workers.take()
        timer = threading.Timer(self._timeout_s, self._be_late)
        timer.daemon = True
        timer.start()
        sound = False
        try:
            answer = worker.ask(self._question)
            sound = True
            return answer
        except ScoringError as error:
            if self._late:
                raise ScoringError(f"not compared within {self._timeout_s:g} s") from error
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._worker = None
                sound = sound and not self._given_up
            self._workers.put_back(worker, sound=sound)

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            if self._worker is not None:
                self._worker.kill()

    def _be_late(self) -> None:
        with self._lock:
            if self._worker is not None:
                self._late = True
                self._worker.kill()


def _close_all(threads: ThreadPoolExecutor, workers: set[_Worker]) -> None:
    for worker in tuple(workers):
        worker.close()
    threads.shutdown(wait=False, cancel_futures=True)
