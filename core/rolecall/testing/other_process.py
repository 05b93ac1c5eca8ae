"""Asks another process what a plugin answers there: one with another seed of Python's ``hash``.

What a plugin chooses by ``hash``, by the order of a set or by ``id`` is the same for as long as a process
lives, and another in the next: a gateway and a client then disagree, and only there it shows.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_SCRIPT = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
question, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(question(*arguments), sys.stdout.buffer)
"""


def answer_elsewhere(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``question(*arguments)`` from a new process; all of it has to be picklable.

    Raises:
        AssertionError: the process failed; the message is what it wrote.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=pickle.dumps(sys.path) + pickle.dumps((question, arguments)),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"another process can't use the plugin:\n{done.stderr.decode()}"
    return pickle.loads(done.stdout)
