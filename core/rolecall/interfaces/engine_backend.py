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

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from attrs import field, frozen

from rolecall.ids import EngineId, ModelId, RoleName


class MemoryTag(StrEnum):
    """Parts of an engine's memory that can leave the device on their own."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    CUDA_GRAPH = "cuda_graph"


class Capability(StrEnum):
    """What a backend's engines can do beyond serving, under given options."""

    SLEEP = "sleep"
    UPDATE_FROM_DISK = "update_from_disk"
    UPDATE_FROM_TENSORS = "update_from_tensors"
    UPDATE_FROM_GROUP = "update_from_group"
    SEVERAL_NODES = "several_nodes"
    DISAGGREGATION = "disaggregation"


@frozen(kw_only=True)
class EngineFeatures:
    """What engines with certain options can do; see :meth:`EngineBackend.features`.

    memory_tags: tags that its engines keep apart.
    no_sleep_because: why SLEEP is missing, and what to set instead; for the refusal.
    sleep_options: options that would bring SLEEP, each with its dotted key and value; None takes it out.
    attention_groups: data-parallel groups that the devices of tensor_parallel are divided into, be they
        of the attention alone or whole copies of the model; attention_groups_key: the option that says so.
    problems: why such an engine may not be started at all, e.g. weights that nobody can vouch for.
    """

    capabilities: frozenset[Capability]
    memory_tags: frozenset[MemoryTag]
    no_sleep_because: str = ""
    sleep_options: tuple[tuple[str, Any], ...] = ()
    attention_groups: int = 1
    attention_groups_key: str = ""
    problems: tuple[str, ...] = ()


class Disaggregation(StrEnum):
    """Half of a request that an engine of a prefill/decode pair does."""

    PREFILL = "prefill"
    DECODE = "decode"


@frozen(kw_only=True)
class EngineLaunch:
    """Everything a backend needs to start one engine process.

    host, port: where the engine must listen; the port is reserved for it on this node.
    collectives_port: reserved on this node for the collectives' own rendezvous (NCCL, Gloo).
    device_ids: devices of this worker as bound, physical ids as text.
    tensor_parallel, pipeline_parallel: how the replica's devices, on all of its nodes, are used.
    nodes, node_rank: nodes of the replica, and which of them this is. Rank 0 is the *head*, which
        answers requests; the others are *followers*.
    rendezvous: ``host:port`` on the head's node where the processes of all nodes meet; None for
        a replica on one node.
    disaggregation, bootstrap_port: for an engine of a prefill/decode pair.
    weight_version: the version the engine must report at first; None for static models.
    log_path: file that takes the engine's standard output and error.
    options: instance of the backend's ``options`` class.
    marks: environment variables that every process of the engine must carry, over all others of
        the same name. By them its processes are found when their owner is dead, so a backend hands
        them to the process that it starts, beside its own :meth:`EngineBackend.environment`.
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
    collectives_port: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    disaggregation: Disaggregation | None = None
    bootstrap_port: int | None = None
    marks: Mapping[str, str] = field(factory=dict)

    @property
    def is_static(self) -> bool:
        """Whether the model's weights never change."""
        return self.weight_version is None

    @property
    def is_head(self) -> bool:
        return self.node_rank == 0


@frozen(kw_only=True)
class FromDisk:
    """New weights from a checkpoint folder or file that the engine's nodes can read."""

    path: Path


@frozen(kw_only=True)
class FromTensors:
    """New weights by value or by device handle.

    serialized: one text for each tensor-parallel rank, as the engine's own serializer makes it.
    load_format: how the engine shall read them, in its own terms; None for its default.
    """

    serialized: Sequence[str]
    load_format: str | None = None


@frozen(kw_only=True)
class FromGroup:
    """New weights broadcast by the trainer, rank 0 of a group that the engine has joined.

    names, dtypes, shapes: one entry a tensor, in the order of the broadcasts.
    """

    group: str
    names: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[Sequence[int]]


WeightUpdate = FromDisk | FromTensors | FromGroup

UPDATE_CAPABILITY: Mapping[type[Any], Capability] = {
    FromDisk: Capability.UPDATE_FROM_DISK,
    FromTensors: Capability.UPDATE_FROM_TENSORS,
    FromGroup: Capability.UPDATE_FROM_GROUP,
}
"""What a backend must be able to do for each kind of update."""


@frozen(kw_only=True)
class WeightsGroup:
    """A group of processes that weights are broadcast in; see :class:`FromGroup`.

    master: ``host:port`` of rank 0, the trainer.
    rank_offset: rank of this engine's first device; the others follow.
    world_size: ranks of the whole group.
    transport: collective library, ``nccl`` on GPUs or ``gloo``.
    """

    name: str
    master: str
    rank_offset: int
    world_size: int
    transport: str


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
    has returned. On a follower only ``start``, ``pid``, ``exit_code``, ``health`` without
    ``generate``, ``memory`` and ``stop`` are called; the head speaks for the others' requests.
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

    async def update_weights(self, update: WeightUpdate, version: str) -> None:
        """Load other weights of the same shape; afterwards ``weight_version`` is ``version``.

        Called while nothing runs; whether the engine is paused is the caller's business.

        Raises:
            CapabilityError: it has no such way; see ``UPDATE_CAPABILITY``.
            EngineError: refused or failed; what weights it has now is not known.
        """
        ...

    async def join_weights_group(self, group: WeightsGroup) -> None:
        """Join a group for later updates :class:`FromGroup`; returns when all ranks have joined."""
        ...

    async def leave_weights_group(self, name: str) -> None:
        """Leave the group. Leaving one that was never joined does nothing."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """End the process group and wait for it. Repeats do nothing.

        Raises:
            EngineError: a process of the group is still there after ``timeout_s``.
        """
        ...


@runtime_checkable
class ReloadsFiles(Protocol):
    """What an engine may have beside :class:`Engine`'s methods, if its ``resume`` reads files."""

    async def files_for_resume(self) -> Sequence[Path]:
        """Files that the next ``resume`` will read, or folders whose files it will.

        Asked while it sleeps and another role has its devices. The worker reads them ahead, into the
        node's page cache. May touch no device; an error costs the head start and nothing else.
        """
        ...


class AttachedEngine(Engine, Protocol):
    """An engine that somebody else runs: ``start`` and ``stop`` start and stop nothing.

    ``start`` waits until it generates, ``stop`` lets go of its connections. ``pid`` and ``exit_code`` are
    always None; ``pause``, ``release`` and ``resume`` are called only as far as an update needs them.
    """

    async def model_paths(self) -> frozenset[str]:
        """What it says it was made from: its checkpoint, its tokenizer. Engines of one model have one in
        common by its last part, whatever weights they have by now."""
        ...


@runtime_checkable
class AttachesEngines(Protocol):
    """What a backend may have beside :class:`EngineBackend`'s methods, if a model may get replicas that
    somebody else runs (``external_replicas``)."""

    def attach(self, url: str, *, static: bool) -> AttachedEngine:
        """Make the object for the engine at a base URL; asks nothing. ``static`` ones never change."""
        ...


class EngineBackend(Protocol):
    """The plugin; constructed without arguments.

    Attributes:
        options: attrs class of the backend's table in the job file.
        resource: Ray resource that one device of this backend is, None if any will do.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    options: ClassVar[type[Any]]
    resource: ClassVar[str | None]

    def features(self, options: Any, *, static: bool) -> EngineFeatures:
        """What engines with these options can do; ``static`` ones never change their weights.

        Pure and quick: called while a job is planned, on a machine that may lack the engine.
        """
        ...

    def environment(self, launch: EngineLaunch) -> Mapping[str, str]:
        """Extra environment variables of the engine process."""
        ...

    def create(self, launch: EngineLaunch) -> Engine:
        """Make the engine object; starts nothing."""
        ...
