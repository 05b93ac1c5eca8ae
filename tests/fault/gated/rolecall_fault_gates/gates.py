"""Gates: points of a job at which a test holds it, by files in one folder that all its processes see.

``hold-<name>`` is put there by who wants the next process that comes to the gate to stop. That process
renames it to ``reached-<name>``, which is also the sign that it is there, and goes on when the file is
removed. A gate that nobody holds costs one system call. Needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

FOLDER_VARIABLE = "ROLECALL_FAULT_GATES"

_POLL_S = 0.01


def _take(name: str) -> Path | None:
    """Take the held gate, as the only one; None if it is open."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    reached = folder / f"reached-{name}"
    try:
        (folder / f"hold-{name}").rename(reached)
    except FileNotFoundError:
        return None
    return reached


async def gate(name: str) -> None:
    """Stop here while the gate is held."""
    if (reached := _take(name)) is not None:
        while reached.exists():  # noqa: ASYNC110 (another process's file)
            await asyncio.sleep(_POLL_S)


def gate_of_a_thread(name: str) -> None:
    """The same for code that blocks."""
    if (reached := _take(name)) is not None:
        while reached.exists():
            time.sleep(_POLL_S)


class Gates:
    """The test's side of a folder of gates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def hold(self, name: str) -> None:
        """Stop the next one that comes."""
        (self.folder / f"hold-{name}").touch()

    def reached(self, name: str) -> bool:
        """Whether someone stands at the gate."""
        return (self.folder / f"reached-{name}").exists()

    def open(self, name: str) -> None:
        """Let go on who stands there, and hold nobody any more."""
        for state in ("hold", "reached"):
            (self.folder / f"{state}-{name}").unlink(missing_ok=True)
