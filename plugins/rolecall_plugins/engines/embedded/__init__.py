"""The ``embedded`` backend: a small real language model on the CPU, for laptops and CI.

Importing this module imports no NumPy and no inference runtime; those live in the engine's own
process (``server``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import field, frozen, validators

from rolecall.api import (
    ROLECALL_API,
    AttachedEngine,
    Capability,
    Engine,
    EngineFeatures,
    EngineLaunch,
    MemoryTag,
    hookimpl,
)

_positive: Any = validators.gt(0)


@frozen(kw_only=True)
class EmbeddedOptions:
    """``engine_options`` of a model served by the embedded engine.

    context_tokens: prompt and answer of one request together.
    parallel_requests: requests decoded at the same time; each has a KV cache of its own, so memory
        grows with context_tokens × parallel_requests (about 23 KB a token for SmolLM2-135M).
    threads: CPU threads of this engine. Two engines that share two cores do best with one each:
        threads that spin for a core that another engine has cost more than they give.
    batch_tokens: prompt tokens computed in one step; an abort waits for one step at most.
    prefix_cache: reuse the start of an earlier prompt in the same slot.
    """

    context_tokens: int = field(default=2048, validator=validators.ge(256))
    parallel_requests: int = field(default=4, validator=_positive)
    threads: int = field(default=1, validator=_positive)
    batch_tokens: int = field(default=256, validator=validators.ge(32))
    prefix_cache: bool = True


class EmbeddedBackend:
    """Engine backend ``embedded``."""

    name: ClassVar[str] = "embedded"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Any]] = EmbeddedOptions
    resource: ClassVar[str | None] = None

    def features(self, options: EmbeddedOptions, *, static: bool) -> EngineFeatures:
        """Every engine sleeps, since it reads its weights again; versioned ones update from disk."""
        del options
        updates = frozenset[Capability]() if static else frozenset({Capability.UPDATE_FROM_DISK})
        return EngineFeatures(
            capabilities=updates | {Capability.SLEEP},
            memory_tags=frozenset({MemoryTag.WEIGHTS, MemoryTag.KV_CACHE}),
        )

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        """Threads for every numeric library that the process may load, and a frugal allocator.

        With the C library's default of one arena a thread, an engine that had worked hard kept
        151 MB while asleep; with two arenas 94 MB (measured).
        """
        threads = str(launch.options.threads)
        return {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "MALLOC_ARENA_MAX": "2",
            "PYTHONUNBUFFERED": "1",
        }

    def create(self, launch: EngineLaunch) -> Engine:
        """Make the engine object; starts nothing."""
        # The engine's own process imports this package too, and has no use for an HTTP client.
        from .engine import EmbeddedEngine

        return EmbeddedEngine(launch, self.environment(launch))

    def attach(self, url: str, *, static: bool) -> AttachedEngine:
        """Make the object for an engine that somebody else runs."""
        from rolecall_plugins.engines.attached import AttachedHttpEngine

        from .engine import running_requests

        return AttachedHttpEngine(url, static=static, running=running_requests)


@hookimpl
def rolecall_engine_backend() -> type[EmbeddedBackend]:
    """Return the backend class."""
    return EmbeddedBackend
