"""The replicas of one model as scaling sees them: each with its place, brought and dismissed one by one.

Joins two owners: the devices' (:class:`DeviceOwner`) and the replicas'
(:class:`~rolecall.engines.elastic_replicas.ElasticReplicas`). A replica's devices are taken before anything
is started on them, and given back only when nothing of it is left. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.elastic_replicas import ElasticReplicas
from rolecall.engines.worker_handle import WorkerSlot
from rolecall.errors import RolecallError
from rolecall.ids import EngineId
from rolecall.scaling.change import Bounds, Standing
from rolecall.scaling.operation import Step

END_S = 60.0
"""For ending a replica, and for putting one back, when the operation's own time may be over."""


class DeviceOwner(Protocol):
    """Who has the devices that replicas may come on."""

    async def take(self, engine: EngineId) -> Sequence[WorkerSlot]:
        """Take a replica's devices.

        Raises:
            ScaleRefused: there are none.
            RolecallError: they could not be had; nothing is kept.
        """
        ...

    async def room(self, engines: Sequence[EngineId]) -> None:
        """Return if all of these would find devices now.

        Raises:
            ScaleRefused: one would not.
        """
        ...

    async def give_back(self, engine: EngineId) -> None:
        """Give devices back on which nothing runs any more. Repeats do nothing.

        Raises:
            RolecallError: it is not confirmed; calling again tries again.
        """
        ...


class ModelFleet:
    """See the module's contract.

    Args:
        at_url: makes the slot of an engine run elsewhere; takes the checkpoint that it has to report.
        drain_grace_s: how long requests of a replica may end by themselves if it is forced out.
    """

    def __init__(
        self,
        bounds: Bounds,
        elastic: ElasticReplicas,
        *,
        devices: DeviceOwner,
        at_url: Callable[[EngineId, str, str | None], WorkerSlot],
        drain_grace_s: float,
        clock: Clock,
    ) -> None:
        self.bounds = bounds
        self.next_index = len(elastic.members)
        self._initial = frozenset(replica.engine for replica in elastic.members)
        self._elastic = elastic
        self._devices = devices
        self._at_url = at_url
        self._drain_grace_s = drain_grace_s
        self._clock = clock
        self._taken: dict[EngineId, None] = {}  # in the order in which they were taken

    @property
    def standing(self) -> list[Standing]:
        """The model's replicas in the order in which they came, without those that come or go just now."""
        return [
            Standing(engine=replica.engine, initial=replica.engine in self._initial, url=replica.url)
            for replica in self._elastic.members
        ]

    async def room(self, steps: Sequence[Step]) -> None:
        """Return if every new replica of these would find devices.

        Raises:
            ScaleRefused: one would not.
        """
        if wanting := [step.engine for step in steps if step.url is None]:
            await self._devices.room(wanting)

    async def begin(self, step: Step, model_path: str | None, deadline: Deadline) -> str | None:
        """Start a new replica, apart from the model; why it did not start, or None. May be cancelled."""
        step.detail = "starting"
        if step.url is not None:
            slots: Sequence[WorkerSlot] = [self._at_url(step.engine, step.url, model_path)]
        else:
            # Noted first: whoever cancels this can't know whether they were taken, and gives them back.
            self._taken[step.engine] = None
            slots = await self._devices.take(step.engine)
        return await self._elastic.start(step.engine, slots, deadline)

    async def join(self, step: Step, deadline: Deadline) -> str | None:
        """Make a started replica one of the model's; why it is not, None if it is."""
        outcome = await self._elastic.join(step.engine, deadline)
        step.detail = f"{outcome.state}: {outcome.detail}"
        return None if outcome.confirmed else outcome.detail

    async def part(self, steps: Sequence[Step], deadline: Deadline) -> None:
        """Take replicas out of the model and out of discovery.

        Raises:
            EngineError: it could not be done in time; nothing has changed.
        """
        await self._elastic.take_apart([step.engine for step in steps], deadline)

    async def drain(self, step: Step, deadline: Deadline, *, force: bool) -> str | None:
        """Wait for a parted replica's requests; None if it may be ended now, else why not."""
        step.detail = "waiting for its requests"
        limit = deadline.at_most(self._drain_grace_s) if force else deadline
        problem = await self._elastic.drain(step.engine, limit)
        return None if force else problem

    async def put_back(self, step: Step) -> str | None:
        """Make a parted replica one of the model's again; why it is not, None if it is."""
        outcome = await self._elastic.put_back(step.engine, self._time())
        step.detail = f"{outcome.state}: {outcome.detail}"
        return None if outcome.confirmed else outcome.detail

    async def end(self, engine: EngineId) -> str | None:
        """End a replica that is not the model's, and give its devices back; what is left of it, or None.

        Repeats try again.
        """
        try:
            if engine in self._elastic.apart:
                outcome = await self._elastic.end(engine, self._time())
                if not outcome.confirmed:
                    return f"{outcome.state}, and keeps its devices: {outcome.detail}"
            if engine in self._taken:
                await self._devices.give_back(engine)
                self._taken.pop(engine, None)
        except RolecallError as error:
            return str(error)
        return None

    async def clean(self) -> dict[EngineId, str]:
        """Try again what earlier changes left to clean; what is still left, by replica."""
        members = {replica.engine for replica in self._elastic.members}
        waiting = [engine for engine in {**self._elastic.apart, **self._taken} if engine not in members]
        left = {engine: await self.end(engine) for engine in waiting}
        return {engine: what for engine, what in left.items() if what is not None}

    def _time(self) -> Deadline:
        return Deadline.after(self._clock, END_S)
