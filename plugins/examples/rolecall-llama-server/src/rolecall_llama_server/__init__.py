"""Engine backend ``llama_server``: llama.cpp's own server, behind the protocol that rolecall speaks.

An engine is two processes: an adapter (:mod:`.server`), which speaks SGLang's native protocol and passes
OpenAI's on, and the llama.cpp server that it owns. Sleeping ends the latter. Importing this package imports
neither; a job is planned without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import field, frozen, validators

from rolecall.api import (
    ROLECALL_API,
    Capability,
    Engine,
    EngineBackend,
    EngineFeatures,
    EngineLaunch,
    MemoryTag,
    hookimpl,
)

_positive: Any = validators.gt(0)


@frozen(kw_only=True)
class LlamaServerOptions:
    """``engine_options`` of a model served by llama.cpp's server.

    binary: path or name of a ``llama-server`` of your own, for example one built for a GPU. None: the
        server in the package xllamacpp, on the CPU.
    arguments: further arguments for that binary, such as ``["--n-gpu-layers", "99"]``.
    context_tokens: prompt and answer of one request together.
    parallel_requests: requests decoded at the same time; each has a KV cache of its own.
    threads: CPU threads of this engine.
    """

    binary: str | None = None
    arguments: tuple[str, ...] = ()
    context_tokens: int = field(default=2048, validator=validators.ge(256))
    parallel_requests: int = field(default=4, validator=_positive)
    threads: int = field(default=1, validator=_positive)

    def __attrs_post_init__(self) -> None:
        if self.arguments and self.binary is None:
            raise ValueError("arguments are for a binary of your own, and binary is not set")


class LlamaServerBackend:
    """The backend; see ``rolecall.api.EngineBackend``."""

    name: ClassVar[str] = "llama_server"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[Any]] = LlamaServerOptions
    resource: ClassVar[str | None] = None

    def features(self, options: LlamaServerOptions, *, static: bool) -> EngineFeatures:
        """Every engine sleeps; versioned ones load another GGUF file of the same shape.

        Weights and KV cache belong to one process, so they come and go together, under one tag.
        """
        del options
        updates = frozenset[Capability]() if static else frozenset({Capability.UPDATE_FROM_DISK})
        return EngineFeatures(
            capabilities=updates | {Capability.SLEEP}, memory_tags=frozenset({MemoryTag.WEIGHTS})
        )

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        """A binary of the user's own may be for GPUs, and gets to see those that are bound to it."""
        visible = (
            {} if launch.options.binary is None else {"CUDA_VISIBLE_DEVICES": ",".join(launch.device_ids)}
        )
        return {**visible, "PYTHONUNBUFFERED": "1"}

    def create(self, launch: EngineLaunch) -> Engine:
        """Make the engine object; starts nothing."""
        # The engine's own processes import this package too, and have no use for an HTTP client.
        from .engine import LlamaServerEngine

        return LlamaServerEngine(launch, self.environment(launch))


@hookimpl
def rolecall_engine_backend() -> type[EngineBackend]:
    """Return the backend's class."""
    return LlamaServerBackend
