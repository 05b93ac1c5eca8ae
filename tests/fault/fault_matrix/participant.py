"""A process that has joined the job, as a training loop would: runs batches, or reads them.

    python participant.py JOB

Takes requests as JSON lines, several at once, and answers each by its id. The batches that it runs stop at
the gates ``generate`` (requests are in the engine), ``judge``, ``put`` and ``commit``.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import ray
from attrs import evolve
from ray.exceptions import RayError
from rolecall_fault_gates.gates import gate, gate_of_a_thread

from rolecall.batches.prompts import load_prompts, pick_prompts
from rolecall.errors import RolecallError
from rolecall.ids import BatchId, OperationId, RoleName, partition_name
from rolecall.interfaces.batch_sink import BatchSink, Row
from rolecall.interfaces.role import Generate, Role, Stage, StageRequest
from rolecall.job.connect import connect
from rolecall.job.handle import JobHandle
from rolecall.train.consume import consume_async

_POLL_S = 0.02

# Ray has no public way to ask for actors' pids without its dashboard.
_actors: Any = importlib.import_module("ray._private.state").actors


class _Gated:
    """Something with its own methods before those of what it stands for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _GatedRole(_Gated):
    """A role plugin whose generation and scoring stop at gates."""

    def __init__(self, inner: Role, in_flight: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._in_flight = in_flight

    def generation(self) -> Generate | None:
        generate = self._inner.generation()
        if generate is None:
            return None

        async def held(prompts: Any, context: Any) -> Any:
            work = asyncio.ensure_future(generate(prompts, context))
            try:
                while not work.done() and not await self._in_flight():  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(_POLL_S)
                await gate("generate")
                return await work
            finally:
                work.cancel()

        return held

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        return [_held(stage) for stage in self._inner.scoring_stages(request)]


def _held(stage: Stage) -> Stage:
    async def run(samples: Any, context: Any) -> Any:
        await gate("judge")
        return await stage.run(samples, context)

    return evolve(stage, run=run)


class _GatedSink(_Gated):
    def put(self, partition: str, rows: Sequence[Row]) -> None:
        gate_of_a_thread("put")
        self._inner.put(partition, rows)


class _Participant:
    def __init__(self, job: JobHandle, sink: BatchSink) -> None:
        self._sink = sink
        roles = {
            name: evolve(role, plugin=_GatedRole(role.plugin, self._has_requests(name)))
            for name, role in job.resolved.roles.items()
        }
        self._job = evolve(job, resolved=evolve(job.resolved, roles=roles))
        settings = job.resolved.config.batch
        assert settings is not None
        self._settings = settings
        self._prompts = load_prompts(job.resolved.file.parent / settings.prompts)

    def _has_requests(self, role: str) -> Callable[[], Any]:
        async def asked() -> bool:
            status = await self._job.services[RoleName(role)].status.remote()
            return any(replica["permits"] for replica in status["replicas"])

        return asked

    async def run(self, batch: int) -> Any:
        async def finalise(_batch: Any, _samples: Any) -> None:
            await gate("commit")

        runner = await self._job.batch_runner(cast(Any, _GatedSink(self._sink)), finalise)
        prompts = pick_prompts(self._prompts, BatchId(batch), self._settings.prompts_per_batch)
        await runner.run(BatchId(batch), prompts)
        return {}

    async def resume(self) -> Any:
        """Let the failed run go on; return the batch that comes next."""
        return await self._job.coordinator.resume(OperationId(f"fault-matrix-{uuid4().hex}"))

    async def consume(self, batch: int, timeout_s: float) -> Any:
        async for committed in consume_async(self._job.coordinator, self._sink, [batch], timeout_s=timeout_s):
            return _account(committed.rows)
        raise AssertionError("consume_async ended without a batch")

    async def read(self, batch: int) -> Any:
        """What the sink has of a batch, committed or not."""
        return _account(await asyncio.to_thread(self._sink.read, partition_name(BatchId(batch))))

    async def status(self) -> Any:
        roles: dict[str, Any] = {}
        for name, service in self._job.services.items():
            try:
                roles[name] = await service.status.remote()
            except RayError as error:
                roles[name] = {"replicas": [], "gone": str(error).partition("\n")[0]}
        return {"coordinator": dict(await self._job.coordinator.status()), "roles": roles}

    async def processes(self) -> Any:
        """Pids of the job's actors by name, and of each role's engine."""
        actors: Any = await asyncio.to_thread(_actors)
        engines = {role: status["replicas"] for role, status in (await self.status())["roles"].items()}
        return {
            "actors": {a["Name"]: a["Pid"] for a in actors.values() if a["State"] == "ALIVE" and a["Name"]},
            "engines": {role: [r["pid"] for r in replicas] for role, replicas in engines.items()},
        }

    async def groups(self) -> Any:
        table: Any = await asyncio.to_thread(ray.util.placement_group_table)
        return sorted(group["name"] for group in table.values() if group["state"] != "REMOVED")

    async def answer(self, request: dict[str, Any]) -> None:
        number, what = request.pop("id"), request.pop("do")
        try:
            reply = {"id": number, "result": await getattr(self, what)(**request)}
        except (RolecallError, RayError) as error:
            reply = {"id": number, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


def _account(rows: Sequence[Row]) -> dict[str, Any]:
    """How many rows, those that are not scored as they should be, and a digest of all."""
    bad: list[str] = []
    digest = hashlib.sha256()
    for row in rows:
        scores = np.asarray(row["teacher_log_probs"])
        if scores.shape != (len(row["response_ids"]),) or not np.isfinite(scores).all():
            bad.append(f"{row['sample_id']}: teacher_log_probs {scores.shape}")
        digest.update(scores.tobytes())
    return {"rows": len(rows), "bad": bad, "digest": digest.hexdigest()}


async def _serve(job: JobHandle) -> None:
    sink = await job.open_sink()
    participant = _Participant(job, sink)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps({"id": 0, "result": None}), flush=True)
    running: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(participant.answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()
    sink.close()


def main() -> None:
    with connect(sys.argv[1]) as job:
        asyncio.run(_serve(job))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    main()
