"""Engine backends run one inference engine: start, health, drain, release, resume, weights.

The *backend* is the plugin: what it needs and what it can do. An *engine* is one running
process that it made, owned by one worker actor on one node. The order of calls, the deadlines
and the decision who may run belong to the core (``rolecall.engines.handover``); an engine only
does what it is told and reports what is true.

All engine methods are called from one event loop, never two at a time except the read-only
ones (``health``, ``running_requests``, ``memory``, ``exit_code``). Failures raise
:class:`~rolecall.errors.EngineError`; nothing is retried inside an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from attrs import frozen

from rolecall.ids import EngineId, ModelId, RoleName


class MemoryTag(StrEnum):
    """Parts of an engine's memory that can leave the device on their own."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    CUDA_GRAPH = "cuda_graph"


class Capability(StrEnum):
    """What a backend can do beyond serving."""

    SLEEP = "sleep"
    UPDATE_FROM_DISK = "update_from_disk"


@frozen(kw_only=True)
class EngineLaunch:
    """Everything a backend needs to start one engine.

    host, port: where the engine must listen; the port is reserved for it on this node.
    device_ids: devices of this worker as bound, physical ids as text.
    weight_version: the version the engine must report at first; None for static models.
    log_path: file that takes the engine's standard output and error.
    options: instance of the backend's ``options`` class.
    """

    engine_id: EngineId
    role: RoleName
    model: ModelId
    model_path: Path
    served_model_name: str
    host: str
    port: int
    device_ids: tuple[str, ...]
    weight_version: str | None
    log_path: Path
    options: Any


@frozen(kw_only=True)
class EngineHealth:
    """``alive`` false means dead or not serving; ``detail`` says what was seen."""

    alive: bool
    detail: str


@frozen(kw_only=True)
class MemoryReport:
    """Which tags are resident, and the bytes of device memory (or RSS, on a CPU) held now."""

    resident_tags: frozenset[MemoryTag]
    resident_bytes: int


class Engine(Protocol):
    """One engine process.

    ``base_url`` is where requests go; it is fixed at construction and valid once ``start``
    has returned.
    """

    base_url: str

    async def start(self, timeout_s: float) -> None:
        """Start the process and return when it can generate, all tags resident.

        Raises:
            EngineStartError: it ended or was not ready in time; the message has the log's
                tail, and no process is left.
        """
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the engine's process group leader; None before start."""
        ...

    def exit_code(self) -> int | None:
        """Exit code once the process has ended (negative: signal), None while it runs."""
        ...

    async def health(self, *, generate: bool, timeout_s: float) -> EngineHealth:
        """Look, change nothing. ``generate`` also runs one token through the scheduler."""
        ...

    async def running_requests(self) -> int:
        """Requests that the engine is working on or has queued."""
        ...

    async def pause(self) -> None:
        """Stop scheduling; running requests end with an abort."""
        ...

    async def abort_all(self) -> None:
        """Abort every request, also those queued."""
        ...

    async def flush(self) -> bool:
        """Drop the cache; False while something still runs."""
        ...

    async def release(self, tags: frozenset[MemoryTag]) -> None:
        """Give the tags' memory back. Releasing what is not resident does nothing."""
        ...

    async def resume(self, tags: frozenset[MemoryTag]) -> None:
        """Take the tags' memory again, weights with their content. Repeats do nothing."""
        ...

    async def continue_generation(self) -> None:
        """Undo ``pause``."""
        ...

    async def memory(self) -> MemoryReport:
        """Measure, don't remember."""
        ...

    async def canary(self) -> tuple[float, ...]:
        """Log-probabilities of a fixed prompt under the present weights."""
        ...

    async def weight_version(self) -> str | None:
        """The version the engine itself reports; None if it reports none."""
        ...

    async def update_weights_from_disk(self, path: Path, version: str) -> None:
        """Load other weights of the same shape; afterwards ``weight_version`` is ``version``."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """End the process group and wait for it. Repeats do nothing.

        Raises:
            EngineError: a process of the group is still there after ``timeout_s``.
        """
        ...


class EngineBackend(Protocol):
    """The plugin; constructed without arguments.

    Attributes:
        options: attrs class of the backend's table in the job file.
        resource: Ray resource that one device of this backend is, None if any will do.
        memory_tags: tags that its engines keep apart.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    options: ClassVar[type[Any]]
    resource: ClassVar[str | None]
    capabilities: ClassVar[frozenset[Capability]]
    memory_tags: ClassVar[frozenset[MemoryTag]]

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        """Extra environment variables of the engine process."""
        ...

    def create(self, launch: EngineLaunch) -> Engine:
        """Make the engine object; starts nothing."""
        ...
