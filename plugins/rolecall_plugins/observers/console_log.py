"""Observer ``console_log``: one readable line an event, on standard error."""

from __future__ import annotations

import sys
import time
from typing import ClassVar

from rolecall.api import ROLECALL_API, Event, Observer, hookimpl


class ConsoleLog:
    """Writes ``12:03:04.123 replica.state engine=policy/replica-0 from=STARTING to=READY``.

    Progress events are left out: a line a sample would bury the rest.
    """

    name: ClassVar[str] = "console_log"
    api_version: ClassVar[int] = ROLECALL_API

    def on_event(self, event: Event) -> None:
        if event.kind == "stage.progress":
            return
        clock = time.strftime("%H:%M:%S", time.localtime(event.time_s))
        fields = " ".join(f"{key}={value}" for key, value in event.fields.items())
        print(
            f"{clock}.{int(event.time_s % 1 * 1000):03d} {event.kind} {fields}", file=sys.stderr, flush=True
        )


@hookimpl
def rolecall_observer() -> type[Observer]:
    return ConsoleLog
