"""The inference manager: all replicas of one model, commanded and kept well.

One class for every role; what differs between models is data (:class:`ModelSpec`). Pure asyncio:
it reaches workers only through :class:`~rolecall.engines.worker_handle.WorkerHandle`, and time
only through a clock. Called by the role service. It owns replicas, their states, incarnations and
generations. It owns no lease, no placement group, and no snapshot: it says what it knows
(:meth:`InferenceManager.view`) and calls ``publish`` when that has changed.

Invariants:

* Commands run one at a time and end by their deadline. A command with a lower fencing token than
  one seen is refused. Replica outcomes are reported one by one.
* A result that arrives for a replica which has meanwhile changed is dropped.
* FAILED means "not routable". A replica is started again only after there is evidence that no
  engine process is left: its workers give it, or the reaper does for dead ones, where an operator's
  word has to be added if their node is gone.
* A replica is opened only with the model's current weights (:mod:`rolecall.engines.model_weights`),
  whatever brought it up.
* On shared devices nothing is started or woken unless the role has the lease: between a start or
  an onload and the end of the next offload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import evolve

from rolecall.discovery.topology import ModelView
from rolecall.engines import vacating
from rolecall.engines.command_turns import CommandTurns
from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.elastic_replicas import ElasticReplicas, begin_stop, finish_stop
from rolecall.engines.fencing import TokenGate
from rolecall.engines.model_weights import ModelWeights
from rolecall.engines.proof import Proof
from rolecall.engines.reaping import Reaper
from rolecall.engines.replica import Replica, WorkerRecord
from rolecall.engines.replica_driver import Attempt, LifecycleTimes, ModelSpec, ReplicaDriver, check_nodes
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import Outcomes, ReplicaOutcome
from rolecall.engines.weight_operations import WeightOperation
from rolecall.engines.worker_handle import WorkerFactory, WorkerSlot
from rolecall.errors import CapabilityError, EngineError
from rolecall.events.event import Emit
from rolecall.ids import EngineId, FencingToken
from rolecall.interfaces.engine_backend import WeightsGroup, WeightUpdate
from rolecall.interfaces.role import WeightSource
from rolecall.routers.membership import DirectRoute, Member, Membership

logger = logging.getLogger(__name__)


class Wanted(Enum):
    """What the last command asked for; recovery leads back to it."""

    AWAKE = "awake"
    ASLEEP = "asleep"


class InferenceManager:
    """See the module's contract.

    Args:
        slots: engine → its worker slots, head first.
        reaper: looks for survivors of dead workers.
        publish: makes the present view visible; returns when it is, or when it gave up.
        membership: brings requests to READY replicas where discovery alone does not.

    Raises:
        CapabilityError: a replica spans nodes, and the backend's engines don't.
    """

    def __init__(
        self,
        spec: ModelSpec,
        slots: Mapping[EngineId, Sequence[WorkerSlot]],
        *,
        factory: WorkerFactory,
        reaper: Reaper,
        times: LifecycleTimes,
        clock: Clock,
        emit: Emit,
        publish: Callable[[], Awaitable[None]],
        membership: Membership | None = None,
    ) -> None:
        self._spec = spec
        self._name = spec.name
        self._times = times
        self._clock = clock
        self._tell = publish
        self._membership = membership or DirectRoute()
        self._gate = TokenGate()
        self._driver = ReplicaDriver(
            spec, factory=factory, reaper=reaper, times=times, clock=clock, gate=self._gate, emit=emit
        )
        self._weights = ModelWeights(spec, self._driver, publish=self._publish, emit=emit)
        self._turns = CommandTurns(
            spec.name, self._gate, afterwards=self._publish, lost=self._all_unconfirmed
        )
        self._wanted = Wanted.AWAKE

        def make(engine: EngineId, slots: Sequence[WorkerSlot]) -> Replica:
            check_nodes(spec, engine, slots)
            workers = tuple(WorkerRecord(slot=slot, handle=factory(slot)) for slot in slots)
            return Replica(role=spec.role, engine=engine, workers=workers, gate=self._gate, emit=emit)

        for engine, workers in slots.items():
            check_nodes(spec, engine, workers)
        self._replicas = {engine: make(engine, workers) for engine, workers in slots.items()}
        self.elastic = ElasticReplicas(
            self._replicas,
            make=make,
            driver=self._driver,
            weights=self._weights,
            turns=self._turns,
            times=times,
            clock=clock,
            publish=self._publish,
            awake=lambda: self._wanted is Wanted.AWAKE,
            unreached=self._unreached,
        )

    # --- what is known ------------------------------------------------------------------

    def view(self) -> ModelView:
        """The model as discovery shows it."""
        return ModelView(
            served_model_name=self._spec.served_model_name,
            weight_source=self._spec.weight_source,
            weight_version=self._weights.version,
            route_mode=self._membership.route_mode,
            router_url=self._membership.router_url,
            engines=tuple(
                replica.view(reached=self._membership.reaches(replica.engine)) for replica in self._everyone
            ),
        )

    def status(self) -> list[dict[str, Any]]:
        """Every replica as JSON values, for people. Asks no worker."""
        return [{"model": self._spec.model, **replica.status()} for replica in self._everyone]

    # --- commands -----------------------------------------------------------------------

    async def start(self) -> Outcomes:
        """Start every replica that isn't running, in parallel; each is READY as soon as it can be.

        Repeats do nothing for those that are READY or SLEEPING.
        """
        prepare = Deadline.after(self._clock, self._times.prepare_s)

        async def body() -> Outcomes:
            self._wanted = Wanted.AWAKE
            await asyncio.gather(
                *(self._driver.prepare(replica, prepare) for replica in self._in(ReplicaState.STARTING))
            )
            deadline = Deadline.after(self._clock, self._times.start_s)
            return await self._each(
                self._replicas.values(), lambda replica: self._start_one(replica, deadline)
            )

        return await self._turns.run("start", prepare, body)

    async def onload(self, token: FencingToken, deadline: Deadline) -> Outcomes:
        """Wake every replica, and rebuild those that failed; all of them become READY, or none.

        A replica that did come back when another did not is offloaded again if its weights are
        versioned, else stopped: the caller has no lease that it could serve under.
        """
        self._gate.admit(token, f"onload of {self._name}")
        return await self._turns.run("onload", deadline, lambda: self._onload(deadline), token)

    async def offload(self, token: FencingToken, deadline: Deadline) -> Outcomes:
        """Put every replica to sleep; a failed one is rebuilt first, so that it can sleep.

        Confirmed is a replica that proved its release; SLEEPING ones do nothing.
        """
        self._gate.admit(token, f"offload of {self._name}")
        if not self._spec.can_sleep:
            raise CapabilityError(f"{self._name}: its engine backend can't put engines to sleep")
        return await self._turns.run("offload", deadline, lambda: self._offload(deadline), token)

    async def retract(self, token: FencingToken, deadline: Deadline) -> Outcomes:
        """Undo an onload because another model of the role failed in it."""
        self._gate.admit(token, f"retraction of {self._name}")

        async def body() -> Outcomes:
            self._wanted = Wanted.ASLEEP
            awake = [r for r in self._replicas.values() if r.state is ReplicaState.READY or r.waits]
            return await self._take_back(awake, "another model of the role did not wake", deadline)

        return await self._turns.run("retract", deadline, body, token)

    async def account(self, token: FencingToken, deadline: Deadline) -> Outcomes:
        """Say where every replica stands once nothing runs any more; changes nothing.

        Confirmed is a replica that is READY, SLEEPING or awake without its weights, and that a look just now
        found so. From the call on, commands with lower tokens are refused, also those that wait.
        """
        self._gate.admit(token, f"account of {self._name}")
        return await self._turns.run(
            "account",
            deadline,
            lambda: self._each(self._replicas.values(), lambda replica: self._account(replica, deadline)),
            token,
        )

    async def vacate(self, token: FencingToken, deadline: Deadline, *, proof: Proof) -> Outcomes:
        """Free the devices of every replica, with proof; see :mod:`rolecall.engines.vacating`."""
        self._gate.admit(token, f"vacating of {self._name}")

        async def body() -> Outcomes:
            self._wanted = Wanted.ASLEEP
            for replica in self._replicas.values():
                vacating.begin(replica, can_sleep=self._spec.can_sleep)
            await self._publish()
            return await self._each(
                self._replicas.values(),
                lambda replica: vacating.finish(replica, self._driver, deadline, proof=proof),
            )

        return await self._turns.run("vacating", deadline, body, token)

    async def lift_fences(self, deadline: Deadline, *, proof: Proof) -> Outcomes:
        """Look for what dead workers left; confirmed are the replicas that are not fenced any more.

        Those are rebuilt like any other failed one, or end in a shutdown. Runs beside commands, and names
        no replica that was not fenced.
        """
        fenced = [replica for replica in self._everyone if replica.fence is not None]
        return await self._each(
            fenced, lambda replica: vacating.settle(replica, self._driver, deadline, proof=proof)
        )

    async def prepare(self, deadline: Deadline) -> None:
        """Do ahead what the next onload needs no device for, while another role has the devices.

        New workers come up for those that died, if nothing is left of their engines; the files of replicas
        that will be rebuilt are fetched; what a start, a resume or the model's current weights will be read
        from gets into the page cache. Runs beside commands, changes no state, and takes nothing from the
        role that is awake but processor time. What can't be done is logged, and left to the onload.
        """
        if self._turns.idle:
            for replica in self._in(ReplicaState.FAILED):
                if replica.vacant and replica.fence is None:
                    self._driver.replace_dead(replica)
        await asyncio.gather(
            *(
                self._driver.prepare_next(replica, self._weights.file_for(replica), deadline)
                for replica in self._in(ReplicaState.SLEEPING, ReplicaState.FAILED)
                if replica.fence is None
            )
        )

    def require(self, operation: WeightOperation) -> None:
        """Let an operation on the weights pass; every one asks here, whoever would carry it out.

        Raises:
            CapabilityError: the model's weights never change, or there is no such operation for it.
        """
        self._spec.rights.require(operation)

    async def update_weights(self, update: WeightUpdate, version: str, deadline: Deadline) -> Outcomes:
        """Give all replicas other weights; see :meth:`ModelWeights.update` for what that means.

        Raises:
            CapabilityError: the model does not take such updates.
            EngineError: the version is no name for new weights, or a replica is in no condition for
                this kind of update. Nothing has changed.
        """
        self._weights.admit(update, version)

        async def body() -> Outcomes:
            self._weights.admit(update, version)  # another update may have passed meanwhile
            return await self._weights.update(list(self._replicas.values()), update, version, deadline)

        return await self._turns.run("update of the weights", deadline, body)

    async def join_weights_group(self, group: WeightsGroup, deadline: Deadline) -> Outcomes:
        """Have all replicas join a group for updates by broadcast, each with ranks of its own.

        ``group.rank_offset`` is the rank of the first replica's first device; the others follow in the
        order of the replicas. Confirmed are those that have joined.

        Raises:
            CapabilityError: the model does not take updates from a group.
            EngineError: a replica is not awake. Nothing has changed.
        """
        self.require(WeightOperation.JOIN_GROUP)
        return await self._turns.run(
            "joining of a weight group",
            deadline,
            lambda: self._weights.join(list(self._replicas.values()), group, deadline),
        )

    async def leave_weights_group(self, name: str, deadline: Deadline) -> Outcomes:
        """Have all replicas leave a group. Those that never joined do nothing."""
        self.require(WeightOperation.LEAVE_GROUP)
        return await self._turns.run(
            "leaving of a weight group",
            deadline,
            lambda: self._weights.leave(list(self._replicas.values()), name, deadline),
        )

    def knows(self, selector: str) -> bool:
        """Whether an engine id or a URL, also an earlier one, is a replica's of this model."""
        return bool(self._find(selector))

    async def stop(self, selector: str, deadline: Deadline) -> Outcomes:
        """Stop one replica for good, by its engine id or any URL it has had.

        Raises:
            EngineError: there is no such replica.
        """
        found = self._find(selector)
        if not found:
            known = ", ".join(self._replicas) or "none"
            raise EngineError(f"{self._name}: no replica is or was {selector!r}; there is {known}")
        return await self._turns.run("stop", deadline, lambda: self._stop(found, deadline))

    async def shutdown(self, deadline: Deadline) -> Outcomes:
        """Stop every replica for good, interrupting whatever runs.

        A replica whose end is not confirmed stays as a pending record that the next call retries;
        one whose worker died is not called again.
        """
        self._turns.close()
        return await self._turns.run(
            "shutdown", deadline, lambda: self._stop(self._everyone, deadline), last=True
        )

    # --- recovery -----------------------------------------------------------------------

    async def reconcile_once(self) -> None:
        """Look at every replica, then repair what failed."""
        await self.look()
        await self.repair()

    async def look(self) -> None:
        """Look at every replica that should be well; a broken one becomes FAILED.

        Runs beside commands and repairs, and ends within one look's time.
        """
        if self._turns.closing:
            return
        before = [replica.ticket() for replica in self._replicas.values()]
        await asyncio.gather(
            *(
                self._driver.probe(replica)
                for replica in self._replicas.values()
                if replica.state in {ReplicaState.READY, ReplicaState.SLEEPING} or replica.waits
            )
        )
        if before != [replica.ticket() for replica in self._replicas.values()]:
            await self._publish()

    async def repair(self) -> None:
        """Repair failed replicas, as far as that is allowed now; may take as long as a start.

        Does nothing while a command or another repair runs.
        """
        broken = [replica for replica in self._replicas.values() if self._can_be_repaired(replica)]
        if not broken or not self._turns.idle:
            return

        async def body() -> Outcomes:
            await asyncio.gather(*(self._repair(replica) for replica in broken))
            return ()

        await self._turns.run("repair", Deadline.after(self._clock, self._times.start_s), body)

    def _can_be_repaired(self, replica: Replica) -> bool:
        if self._weights.can_catch_up(replica):
            return self._may_start(replica)
        if replica.state is not ReplicaState.FAILED:
            return False
        if replica.fence is not None:
            return self._clock.now_s() >= replica.reap_not_before_s
        return not replica.vacant or self._may_start(replica)

    def _may_start(self, replica: Replica) -> bool:
        has_devices = self._wanted is Wanted.AWAKE or not self._spec.shared
        return has_devices and self._clock.now_s() >= replica.rebuild_not_before_s

    async def _repair(self, replica: Replica) -> None:
        """Make certain that the old engine is gone; start a new one if that is allowed now."""
        if replica.waits:
            await self._open_current(replica, "caught up", Deadline.after(self._clock, self._times.start_s))
            return
        ended = await self._driver.end(replica, Deadline.after(self._clock, self._times.stop_s))
        if not ended or not self._may_start(replica):
            return
        asleep = self._wanted is Wanted.ASLEEP
        outcome = await self._start_one(
            replica, Deadline.after(self._clock, self._times.start_s), to_sleep=asleep
        )
        if outcome.confirmed and self._wanted is Wanted.ASLEEP:
            replica.enter_state(ReplicaState.DRAINING, "rebuilt while its role sleeps")
            await self._publish()
            outcome = await self._sleep_one(replica, Deadline.after(self._clock, self._times.stop_s))
        if not outcome.confirmed:
            logger.warning("%s was not rebuilt: %s", replica.engine, outcome.detail)

    # --- onload, offload ----------------------------------------------------------------

    async def _onload(self, deadline: Deadline) -> Outcomes:
        self._wanted = Wanted.AWAKE
        work = deadline.share(0.75)  # the rest is for taking back a part that succeeded
        attempts = await asyncio.gather(*(self._restore(r, work) for r in self._replicas.values()))
        failed = [attempt for attempt in attempts if not attempt.stands]
        restored = [attempt.replica for attempt in attempts if attempt.stands]
        if not failed:
            for replica in restored:
                self._weights.open(replica, "onloaded")
            await self._publish()
            if (problem := self._unreached(restored)) is not None:
                self._wanted = Wanted.ASLEEP
                return _unconfirmed(await self._take_back(restored, problem, deadline), problem)
            return tuple(replica.outcome(confirmed=True) for replica in restored)
        self._wanted = Wanted.ASLEEP
        names = ", ".join(attempt.replica.engine for attempt in failed)
        taken_back = await self._take_back(restored, f"{names} did not wake", deadline)
        return taken_back + tuple(
            attempt.replica.outcome(confirmed=False, detail=attempt.problem) for attempt in failed
        )

    async def _restore(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Bring one replica to where it can be opened, without opening it."""
        match replica.state:
            case ReplicaState.READY:
                return Attempt(replica=replica, ticket=replica.ticket())
            case ReplicaState.SLEEPING:
                attempt = await self._driver.wake(replica, deadline)
            case ReplicaState.FAILED | ReplicaState.STARTING:
                attempt = await self._driver.start(replica, deadline)
            case _ if replica.waits:
                return await self._weights.catch_up(replica, deadline)
            case _:
                return Attempt(replica=replica, ticket=replica.ticket(), problem=f"it is {replica.state}")
        return await self._weights.catch_up(replica, deadline) if attempt.stands else attempt

    async def _take_back(self, replicas: Sequence[Replica], why: str, deadline: Deadline) -> Outcomes:
        """Undo the part of an onload that succeeded: its replicas may not keep the devices."""
        if self._spec.weight_source is WeightSource.STATIC or not self._spec.can_sleep:
            for replica in replicas:
                replica.enter_state(ReplicaState.FAILED, f"taken back: {why}")
            await self._publish()
            return await self._each(replicas, lambda replica: self._end_one(replica, deadline))
        for replica in replicas:
            if replica.state is ReplicaState.STARTING:
                replica.enter_state(ReplicaState.ONLOADING, "started, but not opened")
            replica.enter_state(ReplicaState.DRAINING, f"taken back: {why}")
        await self._publish()
        return await self._each(replicas, lambda replica: self._sleep_one(replica, deadline))

    async def _end_one(self, replica: Replica, deadline: Deadline) -> ReplicaOutcome:
        ended = await self._driver.end(replica, deadline)
        return replica.outcome(confirmed=ended, detail=replica.evidence if ended else None)

    async def _offload(self, deadline: Deadline) -> Outcomes:
        # Until the offload has ended the role has the devices: a failed replica is restored now, so
        # that it can sleep like the others. Not by a copy that comes later: others have them then.
        if self._wanted is Wanted.AWAKE or not self._spec.shared:
            restart = deadline.share(0.6)
            await asyncio.gather(
                *(self._start_one(r, restart, to_sleep=True) for r in self._in(ReplicaState.FAILED))
            )
        self._wanted = Wanted.ASLEEP
        for replica in self._replicas.values():
            if replica.state is ReplicaState.READY or replica.waits:
                replica.enter_state(ReplicaState.DRAINING, "offload")
        # Discovery first: a request that is routed after the pause would be aborted.
        await self._publish()
        return await self._each(
            self._replicas.values(), lambda replica: self._settle_asleep(replica, deadline)
        )

    async def _settle_asleep(self, replica: Replica, deadline: Deadline) -> ReplicaOutcome:
        """Put one replica to sleep; one whose engine died over it is restored once, to sleep then."""
        if replica.state is ReplicaState.SLEEPING:
            return replica.outcome(confirmed=True)
        if replica.state is not ReplicaState.DRAINING:
            return replica.outcome(confirmed=False)
        attempt = await self._driver.sleep(replica, deadline)
        if attempt.succeeded or not attempt.proved_gone:
            return replica.outcome(confirmed=attempt.succeeded, detail=attempt.problem)
        restarted = await self._start_one(replica, deadline.share(0.6), to_sleep=True)
        if not restarted.confirmed:
            return restarted
        replica.enter_state(ReplicaState.DRAINING, "offload")
        await self._publish()
        return await self._sleep_one(replica, deadline)

    async def _sleep_one(self, replica: Replica, deadline: Deadline) -> ReplicaOutcome:
        attempt = await self._driver.sleep(replica, deadline)
        return replica.outcome(confirmed=attempt.succeeded, detail=attempt.problem)

    async def _account(self, replica: Replica, deadline: Deadline) -> ReplicaOutcome:
        if replica.state not in {ReplicaState.READY, ReplicaState.SLEEPING} and not replica.waits:
            return replica.outcome(confirmed=False)
        problem = await self._driver.doubt(replica, deadline)
        return replica.outcome(confirmed=problem is None, detail=problem)

    # --- start, stop --------------------------------------------------------------------

    async def _start_one(
        self, replica: Replica, deadline: Deadline, *, to_sleep: bool = False
    ) -> ReplicaOutcome:
        """Start one replica and open it. One that is to sleep next is only opened if it may be as it is:
        it gets its weights when it wakes."""
        if replica.state in {ReplicaState.READY, ReplicaState.SLEEPING} or replica.waits:
            return replica.outcome(confirmed=True)
        if replica.state not in {ReplicaState.STARTING, ReplicaState.FAILED}:
            return replica.outcome(confirmed=False)
        attempt = await self._driver.start(replica, deadline)
        if not attempt.succeeded:
            return replica.outcome(confirmed=False, detail=attempt.problem)
        if to_sleep and self._weights.lacks(replica):
            replica.enter_state(ReplicaState.ONLOADING, "started to sleep; it gets its weights on waking")
            replica.waits = True
            return replica.outcome(confirmed=True)
        opened = await self._open_current(replica, "started", deadline)
        if opened.confirmed and not to_sleep and (problem := self._unreached([replica])) is not None:
            return replica.outcome(confirmed=False, detail=problem)
        return opened

    async def _open_current(self, replica: Replica, reason: str, deadline: Deadline) -> ReplicaOutcome:
        """Open a replica that is awake, with the current weights; one that can't have them waits."""
        attempt = await self._weights.catch_up(replica, deadline)
        if attempt.succeeded:
            self._weights.open(replica, reason)
            await self._publish()
        return replica.outcome(confirmed=attempt.succeeded, detail=attempt.problem)

    async def _stop(self, replicas: Iterable[Replica], deadline: Deadline) -> Outcomes:
        chosen = list(replicas)
        for replica in chosen:
            begin_stop(replica)
        await self._publish()
        outcomes = await self._each(chosen, lambda replica: self._stop_one(replica, deadline))
        await self._publish()
        return outcomes

    async def _stop_one(self, replica: Replica, deadline: Deadline) -> ReplicaOutcome:
        outcome = await finish_stop(replica, self._driver, deadline)
        if outcome.confirmed:
            # The table has no state after STOPPING: a replica that is confirmed gone is forgotten.
            self._replicas.pop(replica.engine, None)
            self.elastic.apart.pop(replica.engine, None)
        return outcome

    # --- who is told --------------------------------------------------------------------

    async def _publish(self) -> None:
        """Tell first who brings requests here, then everybody: what is shown can be reached, and who is
        about to be drained, updated or stopped is out of reach when this returns."""
        await self._membership.settle(
            {
                replica.engine: Member(worker=replica.as_worker, generation=replica.generation)
                for replica in self._in(ReplicaState.READY)
            }
        )
        await self._tell()

    def _unreached(self, replicas: Iterable[Replica]) -> str | None:
        """Why one of these READY replicas gets no requests; None if all of them do."""
        for replica in replicas:
            if replica.state is ReplicaState.READY and not self._membership.reaches(replica.engine):
                why = self._membership.problem or "nobody brings requests to it yet"
                return f"{replica.engine} is ready, but not reached: {why}"
        return None

    # --- one command at a time ----------------------------------------------------------

    async def _each(
        self, replicas: Iterable[Replica], act: Callable[[Replica], Coroutine[Any, Any, ReplicaOutcome]]
    ) -> Outcomes:
        return tuple(await asyncio.gather(*(act(replica) for replica in list(replicas))))

    def _all_unconfirmed(self, why: str) -> Outcomes:
        return tuple(replica.outcome(confirmed=False, detail=why) for replica in self._replicas.values())

    def _find(self, selector: str) -> list[Replica]:
        return [r for r in self._everyone if selector == r.engine or selector in r.urls]

    def _in(self, *states: ReplicaState) -> list[Replica]:
        return [replica for replica in self._replicas.values() if replica.state in states]

    @property
    def _everyone(self) -> list[Replica]:
        return [*self._replicas.values(), *self.elastic.apart.values()]


def _unconfirmed(outcomes: Outcomes, why: str) -> Outcomes:
    """What was taken back is asleep or gone, which is not what was asked for."""
    return tuple(evolve(outcome, confirmed=False, detail=f"{why}; {outcome.detail}") for outcome in outcomes)
