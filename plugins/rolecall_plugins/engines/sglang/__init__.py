"""The ``sglang`` backend: production serving, on GPUs or, for tests, on a CPU.

Importing this module imports neither SGLang nor torch; SGLang runs in the engine's own processes, which
may belong to another Python environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rolecall.api import ROLECALL_API, AttachedEngine, Engine, EngineFeatures, EngineLaunch, hookimpl

from .command import server_environment
from .features import features_of
from .options import SglangOptions


class SglangBackend:
    """Engine backend ``sglang``."""

    name: ClassVar[str] = "sglang"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Any]] = SglangOptions
    resource: ClassVar[str | None] = None

    def features(self, options: SglangOptions, *, static: bool) -> EngineFeatures:
        """What such engines can do, by their options alone: nothing of SGLang is looked at."""
        return features_of(options, static=static)

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        """The options' variables, and the devices that the engine may see."""
        return server_environment(launch)

    def create(self, launch: EngineLaunch) -> Engine:
        """Make the engine object; starts nothing."""
        # Whoever plans or lists has no use for an HTTP client.
        from .engine import SglangEngine

        return SglangEngine(launch, self.environment(launch))

    def attach(self, url: str, *, static: bool) -> AttachedEngine:
        """Make the object for an engine that somebody else runs."""
        from rolecall_plugins.engines.attached import AttachedHttpEngine
        from rolecall_plugins.engines.http_control import SglangControl

        return AttachedHttpEngine(url, static=static, running=SglangControl.running_requests)


@hookimpl
def rolecall_engine_backend() -> type[SglangBackend]:
    """Return the backend class."""
    return SglangBackend
