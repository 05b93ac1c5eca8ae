"""A test's engine backend ``gated``: the embedded engine with a gate before each release and resume.

The gates are called ``offload-<role>`` and ``onload-<role>``.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.api import Engine, EngineLaunch, MemoryTag, hookimpl
from rolecall_plugins.engines.embedded import EmbeddedBackend

from .gates import gate


class GatedBackend(EmbeddedBackend):
    """Engine backend ``gated``."""

    name: ClassVar[str] = "gated"

    def create(self, launch: EngineLaunch) -> Engine:
        from rolecall_plugins.engines.embedded.engine import EmbeddedEngine

        class GatedEngine(EmbeddedEngine):
            async def release(self, tags: frozenset[MemoryTag]) -> None:
                await gate(f"offload-{launch.role}")
                await super().release(tags)

            async def resume(self, tags: frozenset[MemoryTag]) -> None:
                await gate(f"onload-{launch.role}")
                await super().resume(tags)

        return GatedEngine(launch, self.environment(launch))


@hookimpl
def rolecall_engine_backend() -> type[GatedBackend]:
    return GatedBackend
