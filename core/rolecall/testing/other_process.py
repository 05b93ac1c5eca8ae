"""Asks another process what a plugin answers there: one with another seed of Python's ``hash``.

What a plugin chooses by ``hash``, by the order of a set or by ``id`` is the same for as long as a process
lives, and another in the next: a gateway and a client then disagree, and only there it shows.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_SCRIPT = """
import os, pickle, sys, traceback
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what a plugin prints is no answer
while True:
    try:
        sys.path[:] = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    try:
        question, arguments = pickle.load(sys.stdin.buffer)
        answer = (question(*arguments), None)
    except Exception:
        answer = (None, traceback.format_exc())
    pickle.dump(answer, answers)
    answers.flush()
"""


def answer_elsewhere(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``question(*arguments)`` from another process; all of it has to be picklable.

    Raises:
        AssertionError: it raised there; the message is its traceback.
    """
    process = _other_process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(pickle.dumps(sys.path) + pickle.dumps((question, arguments)))
    process.stdin.flush()
    answer, trace = pickle.load(process.stdout)
    assert trace is None, f"another process can't use the plugin:\n{trace}"
    return answer


@functools.cache
def _other_process() -> subprocess.Popen[bytes]:
    """The process, started when it is first asked and kept: most of an answer's time is its start."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    atexit.register(process.communicate)
    return process
