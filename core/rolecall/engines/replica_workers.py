"""The workers of one replica, commanded as one.

Pure asyncio over :class:`~rolecall.engines.worker_handle.WorkerHandle`; used by the replica driver.
It knows which worker gets which call, adds up what they hold, notes which of them died, and has
the reaper look for what a dead one left. What an answer means for the replica is the driver's to
say.

A replica on several nodes has one *head*: it gets the commands, and the processes on the other
nodes follow it. Followers are started with it (none gets ready alone), looked at, measured before
and after a sleep, and stopped each by itself, so that one that is left over can be stopped later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from attrs import evolve

from rolecall.engines.deadline import Deadline
from rolecall.engines.fencing import Stamp
from rolecall.engines.handover import SleepProof
from rolecall.engines.proof import Proof
from rolecall.engines.reaping import NodeGoneError, Reaper, ReapReport
from rolecall.engines.replica import Replica, WorkerRecord
from rolecall.engines.worker_handle import Started, WorkerDiedError, WorkerFactory, WorkerHealth
from rolecall.errors import RolecallError
from rolecall.events.event import Emit
from rolecall.ids import RoleName
from rolecall.interfaces.engine_backend import MemoryReport, WeightsGroup, WeightUpdate

T = TypeVar("T")

logger = logging.getLogger(__name__)

_REAP_S = 30.0
"""A look for survivors takes a few seconds, and the process that looks may have to be started first."""


class ReplicaWorkers:
    """See the module's contract. ``factory`` makes the worker that takes a dead one's place."""

    def __init__(self, role: RoleName, *, factory: WorkerFactory, reaper: Reaper, emit: Emit) -> None:
        self._role = role
        self._factory = factory
        self._reaper = reaper
        self._emit = emit

    async def prepare(self, replica: Replica, deadline: Deadline) -> None:
        await _all(self._call(replica, w, w.handle.prepare(deadline)) for w in replica.workers)

    async def start(
        self, replica: Replica, stamp: Stamp, weight_version: str | None, deadline: Deadline
    ) -> Started:
        """Start all workers at once; the answer is the head's, with the memory of all nodes.

        The first that fails ends the waiting; the others' engines are then still to be stopped.
        """
        head = replica.workers[0]
        rendezvous = None
        if len(replica.workers) > 1:
            rendezvous = await self._call(replica, head, head.handle.meet(stamp, deadline))
        started, *_ = await _all(
            self._call(
                replica,
                worker,
                worker.handle.start(stamp, weight_version, deadline, rendezvous=rendezvous),
            )
            for worker in replica.workers
        )
        # Measured when all are ready: a follower that was there first may have held little then.
        followers = await self._measure_followers(replica, stamp, deadline)
        return evolve(started, memory=_sum(started.memory, followers))

    async def sleep(self, replica: Replica, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        """Put the head to sleep, and prove that its followers' memory has left with its own."""
        followers = replica.workers[1:]
        awake = await _all(self._call(replica, w, w.handle.measure(stamp, deadline)) for w in followers)
        head = replica.workers[0]
        proof = await self._call(replica, head, head.handle.sleep(stamp, grace_s, deadline))
        asleep = await _all(
            self._call(replica, worker, worker.handle.prove_released(stamp, before, deadline))
            for worker, before in zip(followers, awake, strict=True)
        )
        return evolve(
            proof,
            awake_bytes=proof.awake_bytes + sum(memory.resident_bytes for memory in awake),
            asleep_bytes=proof.asleep_bytes + sum(memory.resident_bytes for memory in asleep),
        )

    async def prove_asleep(self, replica: Replica, stamp: Stamp, deadline: Deadline) -> int:
        """Measure a sleeping replica again; returns the bytes that it holds on all nodes.

        Followers are asked for their memory only: they have proved its release, and get it back by a wake
        of the head alone, whose tags show that.
        """
        head = replica.workers[0]
        proof = await self._call(replica, head, head.handle.sleep(stamp, 0.0, deadline))
        followers = await self._measure_followers(replica, stamp, deadline)
        return proof.asleep_bytes + sum(memory.resident_bytes for memory in followers)

    async def wake(
        self, replica: Replica, stamp: Stamp, weight_version: str | None, deadline: Deadline
    ) -> MemoryReport:
        """Wake the head. Its canary runs through all nodes, so it is the followers' proof, too."""
        head = replica.workers[0]
        memory = await self._call(replica, head, head.handle.wake(stamp, weight_version, deadline))
        return _sum(memory, await self._measure_followers(replica, stamp, deadline))

    async def update_weights(
        self,
        replica: Replica,
        stamp: Stamp,
        update: WeightUpdate,
        version: str,
        *,
        grace_s: float,
        deadline: Deadline,
    ) -> MemoryReport:
        head = replica.workers[0]
        memory = await self._call(
            replica, head, head.handle.update_weights(stamp, update, version, grace_s, deadline)
        )
        return _sum(memory, await self._measure_followers(replica, stamp, deadline))

    async def join_weights_group(
        self, replica: Replica, stamp: Stamp, group: WeightsGroup, deadline: Deadline
    ) -> None:
        head = replica.workers[0]
        await self._call(replica, head, head.handle.join_weights_group(stamp, group, deadline))

    async def leave_weights_group(
        self, replica: Replica, stamp: Stamp, name: str, deadline: Deadline
    ) -> None:
        head = replica.workers[0]
        await self._call(replica, head, head.handle.leave_weights_group(stamp, name, deadline))

    async def look(self, replica: Replica, *, generate: bool, deadline: Deadline) -> list[WorkerHealth]:
        """Look at all workers' engines; only the head is asked to generate.

        Raises:
            WorkerDiedError: a worker is dead, whatever the others answered.
        """
        looks = await asyncio.gather(
            *(
                self._call(
                    replica,
                    worker,
                    worker.handle.health(generate=generate and worker.slot.is_head, deadline=deadline),
                )
                for worker in replica.workers
            ),
            return_exceptions=True,
        )
        errors = [look for look in looks if isinstance(look, BaseException)]
        for error in sorted(errors, key=lambda error: not isinstance(error, WorkerDiedError)):
            raise error
        return [look for look in looks if not isinstance(look, BaseException)]

    async def end(
        self, replica: Replica, stamp: Stamp, deadline: Deadline, *, proof: Proof | None = None
    ) -> None:
        """Have every worker end its engine, and the reaper look after the dead ones.

        What came of it is in the workers' records: evidence, a fence, or why a living one did not. That a
        dead worker's node has left the cluster is evidence only together with an operator's ``proof``.
        """
        open_ends = [worker for worker in replica.workers if worker.evidence is None]
        await asyncio.gather(
            *(self._end_one(replica, worker, stamp, deadline, proof) for worker in open_ends)
        )

    def replace_dead(self, replica: Replica) -> None:
        """Make new workers in the place of those that died; their ends have evidence."""
        for worker in replica.workers:
            if worker.died is not None:
                worker.handle = self._factory(worker.slot)
                worker.died = None

    async def _end_one(
        self,
        replica: Replica,
        worker: WorkerRecord,
        stamp: Stamp,
        deadline: Deadline,
        proof: Proof | None,
    ) -> None:
        if worker.died is None:
            try:
                evidence = await self._call(replica, worker, worker.handle.stop(stamp, deadline))
            except WorkerDiedError:
                pass  # noted; the reaper is asked instead
            except RolecallError as error:
                logger.warning("%s: the end of its engine is not confirmed: %s", replica.engine, error)
                if replica.incarnation == stamp.incarnation:
                    worker.unended = f"its worker on node {worker.slot.node_ip} did not end it: {error}"
                return
            else:
                if replica.incarnation == stamp.incarnation:
                    worker.evidence, worker.unended = evidence, None
                return
        await self._reap(replica, worker, stamp, deadline, proof)

    async def _reap(
        self,
        replica: Replica,
        worker: WorkerRecord,
        stamp: Stamp,
        deadline: Deadline,
        proof: Proof | None,
    ) -> None:
        report: ReapReport | None = None
        settled = False
        try:
            report = await self._reaper(worker.slot, stamp.incarnation, deadline.at_most(_REAP_S))
            finding, settled = str(report), report.vacant
        except NodeGoneError as error:
            finding, settled = str(error), proof is Proof.NODE_GONE
        except RolecallError as error:
            finding = str(error)
        if report is not None:
            self._emit(
                "engine.reaped",
                role=self._role,
                engine=replica.engine,
                incarnation=stamp.incarnation,
                node=worker.slot.node_ip,
                killed=list(report.killed),
                left=list(report.left),
                left_bytes=report.left_bytes,
                vacant=report.vacant,
            )
        if replica.incarnation != stamp.incarnation or worker.evidence is not None:
            return  # another look has settled it meanwhile
        if settled:
            word = "" if report is not None else ", and an operator says that its machine is gone"
            worker.evidence = f"the worker on node {worker.slot.node_ip} died; {finding}{word}"
            worker.fence = worker.unended = None
            return
        worker.fence = _fence(self._role, replica, worker, finding)
        logger.error("fenced: %s", worker.fence)

    async def _measure_followers(
        self, replica: Replica, stamp: Stamp, deadline: Deadline
    ) -> list[MemoryReport]:
        return await _all(
            self._call(replica, w, w.handle.measure(stamp, deadline)) for w in replica.workers[1:]
        )

    async def _call(self, replica: Replica, worker: WorkerRecord, work: Coroutine[Any, Any, T]) -> T:
        """Await a worker's answer, and note it if the worker is dead."""
        asked = worker.handle
        try:
            return await work
        except WorkerDiedError as error:
            if worker.handle is asked and worker.died is None:
                worker.died = str(error)
                worker.fence = _fence(
                    self._role, replica, worker, "nobody has looked yet what its engine did"
                )
                logger.error("%s: worker %d is dead: %s", replica.engine, worker.slot.node_rank, error)
            raise


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; the first error ends the waiting for the others and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _sum(head: MemoryReport, followers: Iterable[MemoryReport]) -> MemoryReport:
    return evolve(
        head, resident_bytes=head.resident_bytes + sum(memory.resident_bytes for memory in followers)
    )


def _fence(role: RoleName, replica: Replica, worker: WorkerRecord, finding: str) -> str:
    slot = worker.slot
    leader = ""
    if slot.is_head and replica.started is not None:
        leader = f" (process group {replica.started.pid})"
    devices = ", ".join(slot.device_ids) or "of that node"
    return (
        f"the worker of {replica.engine} on node {slot.node_ip} is dead ({worker.died}), and its engine"
        f"{leader} may hold devices {devices}: {finding}. Nothing is started there until a look finds "
        f"everything gone; if the node is gone: rolecall reconcile {role} --proof {Proof.NODE_GONE}"
    )
