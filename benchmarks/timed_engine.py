"""The embedded backend with a watch: every call of an engine is written down with its beginning and its end.

An engine backend plugin of ``benchmarks/handover.py``, which registers it in a folder of its own and says in
``TIMED_ENGINE_CALLS`` where to write: a line of JSON a call, times as Unix seconds.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

from rolecall.api import Engine, EngineLaunch, hookimpl
from rolecall_plugins.engines.embedded import EmbeddedBackend

CALLS_VARIABLE = "TIMED_ENGINE_CALLS"


class TimedEngine:
    """An engine; looks and whatever isn't a coroutine pass by untimed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls = Path(os.environ[CALLS_VARIABLE])

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)
        if name == "health" or not inspect.iscoroutinefunction(method):
            return method

        @wraps(method)
        async def timed(*arguments: Any, **options: Any) -> Any:
            began_s = time.time()
            try:
                return await method(*arguments, **options)
            finally:
                line = json.dumps({"call": name, "began_s": began_s, "ended_s": time.time()})
                with self._calls.open("a", encoding="utf-8") as calls:
                    calls.write(f"{line}\n")

        return timed


class TimedBackend(EmbeddedBackend):
    """Engine backend ``timed``."""

    name: ClassVar[str] = "timed"

    def create(self, launch: EngineLaunch) -> Engine:
        return TimedEngine(super().create(launch))  # pyright: ignore[reportReturnType] (by __getattr__)


@hookimpl
def rolecall_engine_backend() -> type[TimedBackend]:
    return TimedBackend
