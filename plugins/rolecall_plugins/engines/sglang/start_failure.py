"""What a log says about a start that failed, beyond its last lines.

SGLang's server ends with a traceback of its own when a scheduler dies, so the cause, which the scheduler
has written before, is often out of sight of the log's tail.
"""

from __future__ import annotations

import re
from pathlib import Path

_BYTES = 256 * 1024
_MOST = 5
_RAISED = re.compile(rb"^(?:[\w.]+\.)?\w*(?:Error|Exception): \S.*$", re.MULTILINE)


def raised_in(log: Path) -> list[str]:
    """Return the first exceptions in the last part of the log, one line each, without repeats."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _BYTES))
            found = _RAISED.findall(file.read())
    except OSError:  # the tail says that the log can't be read
        return []
    return list(dict.fromkeys(line.decode(errors="replace")[:500] for line in found))[:_MOST]
