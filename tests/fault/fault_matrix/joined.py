"""This process's side of a participant: a process that has joined the job."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("participant.py")


class Refused(Exception):
    """The participant's own word: what it was asked raised, and this is its error."""


class Gone(Exception):
    """The participant ended before it answered."""


class Joined:
    """A participant, from its start until it is closed or killed."""

    def __init__(self, job: str, environment: Mapping[str, str], log: Path) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {0: Future()}
        self._writing = threading.Lock()
        self._log = log
        ready = self._waiting[0]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), job],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name="participant", daemon=True)
        self._reader.start()
        ready.result(90.0)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, do: str, **arguments: Any) -> Future[Any]:
        """Ask without waiting; the future raises :class:`Refused` or :class:`Gone`."""
        number = next(self._numbers)
        answer: Future[Any] = Future()
        self._waiting[number] = answer
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        try:
            with self._writing:
                os.write(self._stdin, line.encode())
        except OSError:
            self._waiting.pop(number, None)
            answer.set_exception(Gone("it has ended"))
        return answer

    def ask(self, do: str, timeout_s: float = 60.0, **arguments: Any) -> Any:
        return self.begin(do, **arguments).result(timeout_s)

    def close(self, timeout_s: float = 20.0) -> None:
        """Let it end by itself, then end it. Repeats do nothing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    @property
    def _stdin(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.startswith(b'{"id"'):
                    continue  # a library's own word
                reply = json.loads(line)
                answer = self._waiting.pop(reply["id"])
                if "error" in reply:
                    answer.set_exception(Refused(reply["error"]))
                else:
                    answer.set_result(reply["result"])
        code = self._process.wait()
        said = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
        for answer in list(self._waiting.values()):
            answer.set_exception(Gone(f"it ended with code {code}:\n{said}"))
        self._waiting.clear()
