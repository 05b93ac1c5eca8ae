"""The sink: partitions in TransferQueue, shared by every process of the Ray cluster.

A cluster has one queue, made by whoever opens it first and ended with that process. Every stored
row carries its job's name, so a partition of another job is never read, replaced or cleared.
TransferQueue keeps data in memory: it lasts as long as the queue, no longer.

torch, tensordict and TransferQueue are imported when the sink is opened, never before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from attrs import field, frozen, validators

from rolecall.api import ROLECALL_API, Row, SinkContext, SinkError

from .deadline import within

_CONTROLLER_CPUS = 1
_STORAGE_UNIT_CPUS = 1
"""Ray CPUs that the queue's actors ask for."""


@frozen(kw_only=True)
class TransferQueueOptions:
    """``[sink.options]`` of ``transferqueue``.

    storage_units: storage actors, if this process makes the queue; each takes one Ray CPU, and so
        does the controller.
    start_timeout_s: limit for making or finding the queue; its processes import torch, which takes a
        busy machine minutes.
    timeout_s: limit of any other call.
    """

    storage_units: int = field(default=1, validator=validators.gt(0))
    start_timeout_s: float = field(default=240.0, validator=validators.gt(0))
    timeout_s: float = field(default=120.0, validator=validators.gt(0))


class TransferQueueSink:
    """Several instances of a process share TransferQueue's client of that process."""

    name: ClassVar[str] = "transferqueue"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[TransferQueueOptions]] = TransferQueueOptions
    outlives_job: ClassVar[bool] = False

    _session: ClassVar[tuple[str, str] | None] = None
    """The Ray session that TransferQueue's client, one a process, belongs to."""

    def __init__(self, options: TransferQueueOptions, context: SinkContext) -> None:
        self._options = options
        self._job = context.job
        self._queue: Any = None

    def open(self) -> None:
        """Join the cluster's queue, or make it. Ray must have been joined before."""
        if self._queue is not None:
            return
        session = _ray_session()
        need = _CONTROLLER_CPUS + self._options.storage_units * _STORAGE_UNIT_CPUS
        self._queue = within(
            self._options.start_timeout_s,
            "start",
            lambda: self._connect(session),
            hint=f"Making the queue takes {need} free CPUs of the Ray cluster",
        )

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        queue = self._opened()
        if not rows:
            raise SinkError(f"partition {partition}: TransferQueue can't hold a partition without rows")

        def call() -> None:
            from .columns import to_columns

            table, kinds = to_columns(rows)
            self._clear(queue, partition)
            tags: list[dict[str, Any]] = [
                {"job": self._job, "row": index, "rows": len(rows)} for index in range(len(rows))
            ]
            tags[0]["columns"] = kinds
            try:
                queue.kv_batch_put(
                    keys=[f"{index:08d}" for index in range(len(rows))],
                    partition_id=partition,
                    fields=table,
                    tags=tags,
                )
            except Exception:
                self._clear(queue, partition)
                raise

        within(self._options.timeout_s, f"put of {partition}", call)

    def read(self, partition: str) -> Sequence[Row]:
        queue = self._opened()

        def call() -> list[dict[str, Any]]:
            from .columns import to_rows

            tags = self._tags(queue, partition)
            if not tags:
                raise SinkError(f"there is no partition {partition}")
            keys = sorted(tags, key=lambda key: tags[key]["row"])
            first = tags[keys[0]]
            if len(keys) != first["rows"] or "columns" not in first:
                raise SinkError(f"partition {partition} is incomplete: {len(keys)} of {first['rows']} rows")
            table = queue.kv_batch_get(keys=keys, partition_id=partition)
            return to_rows(table, first["columns"])

        return within(self._options.timeout_s, f"read of {partition}", call)

    def clear(self, partition: str) -> None:
        queue = self._opened()
        within(self._options.timeout_s, f"clear of {partition}", lambda: self._clear(queue, partition))

    def close(self) -> None:
        """Let go of the queue. It ends with the process that made it, not with this sink."""
        self._queue = None

    def _opened(self) -> Any:
        if self._queue is None:
            raise SinkError("the sink is not open")
        return self._queue

    def _connect(self, session: tuple[str, str]) -> Any:
        if importlib.util.find_spec("transfer_queue") is None:
            raise SinkError("TransferQueue is not installed; pip install 'rolecall[transferqueue]'")
        # Its own default asks for more threads than small machines have, and warns at each call.
        os.environ.setdefault("TQ_NUM_THREADS", str(min(8, os.cpu_count() or 1)))
        os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
        import transfer_queue  # pyright: ignore[reportMissingImports]
        from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]

        queue: Any = transfer_queue
        known = TransferQueueSink._session
        if known is not None and known != session:
            # Its client, one a process, still talks to the queue of a Ray that has ended.
            queue.close()
            # Its close gives up half-way when the actors it wants to kill are gone with their Ray,
            # and then it would take its record of them for storage of the new queue.
            queue.interface._TQ_STORAGE = None
        storage = {"SimpleStorage": {"num_data_storage_units": self._options.storage_units}}
        queue.init(OmegaConf.create({"backend": storage}))
        TransferQueueSink._session = session
        return queue

    def _clear(self, queue: Any, partition: str) -> None:
        if self._tags(queue, partition):
            queue.get_client().clear_partition(partition)

    def _tags(self, queue: Any, partition: str) -> Mapping[str, Mapping[str, Any]]:
        """Return key → tags of a partition, empty if it isn't there.

        Raises:
            SinkError: it is another job's.
        """
        found: Any = queue.kv_list(partition).get(partition, {})
        tags = cast("Mapping[str, Mapping[str, Any]]", found)
        owners = {tag.get("job") for tag in tags.values()} - {self._job}
        if owners:
            names = ", ".join(
                sorted("something else" if owner is None else f'job "{owner}"' for owner in owners)
            )
            raise SinkError(
                f"partition {partition} of this cluster's TransferQueue belongs to {names}; "
                f'run job "{self._job}" on a cluster of its own'
            )
        return tags


def _ray_session() -> tuple[str, str]:
    import ray

    if not ray.is_initialized():
        raise SinkError(
            "TransferQueue runs on Ray: join the job's cluster first (ray.init or rolecall.job.connect)"
        )
    context = ray.get_runtime_context()
    return str(context.gcs_address), str(context.get_job_id())
