"""The replicas of a model that come and go while it serves: how one joins, and how one leaves.

Belongs to the model's manager. A replica that comes or goes stands *apart*: it is shown, but commands do not
know it, so neither a start that takes minutes nor a drain holds up a hand-over or an update of the weights.
That is safe because such a replica has devices of its own, which no other role waits for.

* It joins in one of the manager's turns, and becomes what the model is then: awake with the current weights
  and routable, awake and waiting for weights that can't be had again, or asleep like the others.
* It leaves in a turn too, out of discovery first. Its door stays open until its requests have ended, so
  nobody who was on the way is turned away; whoever gives up waiting can put it back.
* It is forgotten once its end is confirmed. Until then it stands apart as STOPPING, and keeps its devices.

Which replica comes or goes, and where, is decided elsewhere (:mod:`rolecall.scaling`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from rolecall.engines.command_turns import CommandTurns
from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.model_weights import ModelWeights
from rolecall.engines.replica import Replica
from rolecall.engines.replica_driver import LifecycleTimes, ReplicaDriver
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import Outcomes, ReplicaOutcome
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import EngineError
from rolecall.ids import EngineId

logger = logging.getLogger(__name__)

QUIET_S = 2.0
"""How long a replica that left discovery must have been without a request before it is stopped. Gateways hear
of it at once; clients trust what they know for a second."""

_LOOK_S = 0.1


class ElasticReplicas:
    """See the module's contract. The arguments are the manager's own parts.

    Args:
        replicas: those that commands know; changed here only in a turn.
        make: makes a replica, and workers for its slots.
        awake: whether the model is to be awake now.
        unreached: why a READY replica gets no requests, None if it does.
    """

    def __init__(
        self,
        replicas: dict[EngineId, Replica],
        *,
        make: Callable[[EngineId, Sequence[WorkerSlot]], Replica],
        driver: ReplicaDriver,
        weights: ModelWeights,
        turns: CommandTurns,
        times: LifecycleTimes,
        clock: Clock,
        publish: Callable[[], Awaitable[None]],
        awake: Callable[[], bool],
        unreached: Callable[[Sequence[Replica]], str | None],
    ) -> None:
        self.apart: dict[EngineId, Replica] = {}
        self._replicas = replicas
        self._make = make
        self._driver = driver
        self._weights = weights
        self._turns = turns
        self._times = times
        self._clock = clock
        self._publish = publish
        self._awake = awake
        self._unreached = unreached

    @property
    def members(self) -> tuple[Replica, ...]:
        """The replicas that commands know, in the order in which they came."""
        return tuple(self._replicas.values())

    async def start(self, engine: EngineId, slots: Sequence[WorkerSlot], deadline: Deadline) -> str | None:
        """Start a new replica apart; returns why it did not start, None if it did. May be cancelled.

        Raises:
            CapabilityError: it spans nodes, and the backend's engines don't.
        """
        replica = self.apart[engine] = self._make(engine, slots)
        await self._publish()
        await self._driver.prepare(replica, deadline)
        return (await self._driver.start(replica, deadline.at_most(self._times.start_s))).problem

    async def join(self, engine: EngineId, deadline: Deadline) -> ReplicaOutcome:
        """Make a started replica one of the model's, as the model is now; one that can't stays apart.

        Raises:
            EngineError: the model is shutting down.
        """
        return await self._in(engine, "joined", deadline)

    async def take_apart(self, engines: Sequence[EngineId], deadline: Deadline) -> None:
        """Take replicas out of the model and, those that are awake, out of discovery.

        Raises:
            EngineError: a command ran until the deadline, or the model is shutting down. Nothing has changed.
        """

        async def body() -> Outcomes:
            for engine in engines:
                replica = self.apart[engine] = self._replicas.pop(engine)
                if replica.state is ReplicaState.READY or replica.waits:
                    replica.enter_state(ReplicaState.DRAINING, "leaves the model")
            await self._publish()
            return ()

        await self._turns.run(f"leaving of {', '.join(engines)}", deadline, body)
        if not all(engine in self.apart for engine in engines):
            raise EngineError("another command of the model ran all the time; nothing has changed")

    async def drain(self, engine: EngineId, deadline: Deadline) -> str | None:
        """Wait until a replica that left discovery works on no request; None if so, else what it still does.

        Aborts nothing, and closes no door.
        """
        replica = self.apart[engine]
        quiet_since_s: float | None = None
        count: int | None = None
        while replica.state is ReplicaState.DRAINING:
            if deadline.passed:
                works = "does not say whether it works on any" if count is None else f"works on {count}"
                return f"it was waited for its requests for {deadline.total_s:.3g} s, and it {works}"
            count = await self._driver.requests(replica, deadline)
            now_s = self._clock.now_s()
            if count != 0:
                quiet_since_s = None
            elif quiet_since_s is None:
                quiet_since_s = now_s
            elif now_s - quiet_since_s >= QUIET_S:
                return None
            await deadline.pause(_LOOK_S)
        return None

    async def put_back(self, engine: EngineId, deadline: Deadline) -> ReplicaOutcome:
        """Make a replica that was to leave one of the model's again; one that can't stays apart."""
        return await self._in(engine, "stays after all", deadline)

    async def end(self, engine: EngineId, deadline: Deadline) -> ReplicaOutcome:
        """Stop a replica that stands apart, and forget it once that is confirmed. Repeats try again."""
        replica = self.apart[engine]
        if replica.state is ReplicaState.DRAINING:
            replica.enter_state(ReplicaState.STOPPING, "leaves the model, drained")
        begin_stop(replica)
        await self._publish()
        outcome = await finish_stop(replica, self._driver, deadline)
        if outcome.confirmed:
            self.apart.pop(engine, None)
            await self._publish()
        return outcome

    async def _in(self, engine: EngineId, reason: str, deadline: Deadline) -> ReplicaOutcome:
        replica = self.apart[engine]

        async def body() -> Outcomes:
            if self.apart.pop(engine, None) is not replica:
                return (replica.outcome(confirmed=False, detail="it was stopped meanwhile"),)
            self._replicas[engine] = replica
            problem = await self._settle(replica, reason, deadline)
            if problem is not None:
                self.apart[engine] = replica
                self._replicas.pop(engine, None)
                await self._publish()
            return (replica.outcome(confirmed=problem is None, detail=problem),)

        outcomes = await self._turns.run(f"joining of {engine}", deadline, body)
        own = next((outcome for outcome in outcomes if outcome.engine == engine), None)
        return own or replica.outcome(confirmed=False, detail="another command of the model ran all the time")

    async def _settle(self, replica: Replica, reason: str, deadline: Deadline) -> str | None:
        """Bring a replica to where the model is; why it is not there, None if it is."""
        if replica.state is ReplicaState.FAILED:
            return None  # it is rebuilt like any other
        if not self._awake():
            if replica.state is ReplicaState.SLEEPING:
                return None
            if replica.state is ReplicaState.STARTING:
                replica.enter_state(ReplicaState.ONLOADING, f"{reason} while its role sleeps")
            if replica.state is ReplicaState.ONLOADING:
                replica.enter_state(ReplicaState.DRAINING, f"{reason} while its role sleeps")
            await self._publish()
            return (await self._driver.sleep(replica, deadline)).problem
        if replica.state is ReplicaState.DRAINING:
            replica.enter_state(ReplicaState.ONLOADING, reason)
        if replica.state is ReplicaState.SLEEPING:
            woken = await self._driver.wake(replica, deadline)
            if not woken.stands:
                return woken.problem or f"it is {replica.state}"
        attempt = await self._weights.catch_up(replica, deadline)
        if not attempt.succeeded:
            return attempt.problem
        self._weights.open(replica, reason)
        await self._publish()
        return self._unreached([replica])


def begin_stop(replica: Replica) -> None:
    """Let a replica be STOPPING, whatever it was doing."""
    if replica.state in {ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.ONLOADING}:
        replica.enter_state(ReplicaState.FAILED, "stopped before it had ended")
    if replica.state is not ReplicaState.STOPPING:
        replica.enter_state(ReplicaState.STOPPING, "stop")


async def finish_stop(replica: Replica, driver: ReplicaDriver, deadline: Deadline) -> ReplicaOutcome:
    """End a STOPPING replica's engine and let go of its workers; confirmed if nothing of it is left."""
    if not await driver.end(replica, deadline):
        return replica.outcome(confirmed=False, detail=f"its end is not confirmed: {replica.account}")
    for worker in replica.workers:
        await worker.handle.dispose()
    return replica.outcome(confirmed=True, detail=replica.evidence)
