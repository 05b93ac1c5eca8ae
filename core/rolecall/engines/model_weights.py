"""The weights that all replicas of a model shall have, and how a replica comes by them.

One per manager, which asks it before it opens a replica. A model has one *current* version: the
last one that any replica has proved, or that sleeping replicas were promised. A replica that has
another is not opened, whatever brought it up: it is given the current weights first where they can
be had again (they came with the source, or from disk), or waits for the next update where they
can't (tensors and broadcasts are gone once they were sent).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from attrs import evolve

from rolecall.engines.deadline import Deadline
from rolecall.engines.replica import Replica
from rolecall.engines.replica_driver import Attempt, ModelSpec, ReplicaDriver
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import ReplicaOutcome
from rolecall.engines.weight_operations import WeightOperation, operation_of
from rolecall.errors import EngineError, TransitionError
from rolecall.events.event import Emit
from rolecall.ids import EngineId
from rolecall.interfaces.engine_backend import FromDisk, FromGroup, WeightsGroup, WeightUpdate

Outcomes = tuple[ReplicaOutcome, ...]

RESERVED_VERSION = "default"
"""What engines report when nobody has told them a version: as a version it would prove nothing."""


class ModelWeights:
    """See the module's contract."""

    def __init__(
        self,
        spec: ModelSpec,
        driver: ReplicaDriver,
        *,
        publish: Callable[[], Awaitable[None]],
        emit: Emit,
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._publish = publish
        self._emit = emit
        self._version = spec.weight_version
        self._came = "with the model's source"
        self._files: FromDisk | None = None
        self._named: dict[str, FromDisk | None] = {}

    @property
    def version(self) -> str | None:
        """The current version; None for static weights."""
        return self._version

    def admit(self, update: WeightUpdate, version: str) -> None:
        """Judge an update by itself, before anything happens.

        A version names weights once and for all. A repeat passes only if it names the same files; of
        the present version it then serves those replicas that lack it.

        Raises:
            CapabilityError: the model does not take such updates.
            EngineError: the version is no name for these weights.
        """
        self._spec.rights.require(operation_of(update))
        if not version or version != version.strip() or version == RESERVED_VERSION:
            raise EngineError(
                f"{self._spec.name}: {version!r} is no weight version; give a text without spaces around it, "
                f"other than {RESERVED_VERSION!r}, which engines report when they were told none"
            )
        known = version == self._spec.weight_version or version in self._named
        if known and not (isinstance(update, FromDisk) and self._named.get(version) == update):
            present = "the version it has now" if version == self._version else "a version it has had"
            raise EngineError(
                f"{self._spec.name}: {version!r} is {present}; other weights need another name, or nobody "
                "could tell which ones an answer came from"
            )

    def open(self, replica: Replica, reason: str) -> None:
        """Make an awake replica routable, unless it waits; there is no other way to READY."""
        if replica.state is ReplicaState.READY or replica.waits:
            return
        if self.lacks(replica):
            raise TransitionError(
                f"{replica.engine} has weights {replica.weight_version!r}; only {self._version!r} may serve"
            )
        replica.enter_state(ReplicaState.READY, reason)

    async def update(
        self, replicas: Sequence[Replica], update: WeightUpdate, version: str, deadline: Deadline
    ) -> Outcomes:
        """Give the replicas other weights, all at once, and open those that have proved them.

        They are taken out of discovery first, drained, updated, and opened together, so that the model
        never serves two versions. A replica that fails is FAILED, and rebuilt by the reconciler; if
        none succeeds the version stays what it was. A sleeping or failed replica is confirmed
        without being touched where files bring the weights: it gets them before it is opened.

        Raises:
            EngineError: the update can't be kept for a replica that is not awake, or a replica is not
                in the group. Nothing has changed.
        """
        living = [replica for replica in replicas if replica.state is not ReplicaState.STOPPING]
        self._require_reachable(living, update)
        awake = [replica for replica in living if _is_awake(replica)]
        taking = [replica for replica in awake if replica.weight_version != version]
        for replica in taking:
            if replica.state is ReplicaState.READY:
                replica.enter_state(
                    ReplicaState.ONLOADING, f"update to weights {version!r} from {update_name(update)}"
                )
        await self._publish()
        attempts = await asyncio.gather(
            *(self._driver.update(replica, update, version, deadline) for replica in taking)
        )
        problems = {attempt.replica.engine: attempt.problem for attempt in attempts if not attempt.stands}
        if any(replica.weight_version == version for replica in awake) or not awake:
            self._take_over(update, version)
        for replica in taking:
            self._settle(replica, problems.get(replica.engine))
        self._emit(
            "weights.update",
            role=self._spec.role,
            model=self._spec.model,
            version=version,
            source=update_name(update),
            current=self._version,
            updated=[replica.engine for replica in awake if replica.weight_version == version],
            failed=list(problems),
        )
        return tuple(self._outcome(replica, version, problems) for replica in living)

    async def join(self, replicas: Sequence[Replica], group: WeightsGroup, deadline: Deadline) -> Outcomes:
        """Have all replicas join a group at once; while they do they are not routable.

        Raises:
            EngineError: a replica is not awake.
        """
        replicas = [replica for replica in replicas if replica.state is not ReplicaState.STOPPING]
        for replica in replicas:
            if not _is_awake(replica):
                raise EngineError(
                    f"{replica.engine} is {replica.state}; only engines that are awake can join group "
                    f"{group.name!r}, and all of a model's replicas join together"
                )
        ranks = accumulate((_devices(replica) for replica in replicas), initial=group.rank_offset)
        return await self._aside(
            replicas,
            f"joins weight group {group.name!r}",
            [
                self._driver.join_weights_group(replica, evolve(group, rank_offset=rank), deadline)
                for replica, rank in zip(replicas, ranks, strict=False)
            ],
        )

    async def leave(self, replicas: Sequence[Replica], name: str, deadline: Deadline) -> Outcomes:
        """Have those replicas that joined a group leave it; while they do they are not routable."""
        members = [replica for replica in replicas if name in replica.groups and _is_awake(replica)]
        return await self._aside(
            members,
            f"leaves weight group {name!r}",
            [self._driver.leave_weights_group(replica, name, deadline) for replica in members],
        )

    async def _aside(
        self, replicas: Sequence[Replica], why: str, works: Sequence[Coroutine[Any, Any, Attempt]]
    ) -> Outcomes:
        """Take replicas out of discovery, do something with each, and open them again."""
        for replica in replicas:
            replica.waits = False
            if replica.state is ReplicaState.READY:
                replica.enter_state(ReplicaState.ONLOADING, why)
        await self._publish()
        attempts = await asyncio.gather(*works)
        for attempt in attempts:
            if attempt.stands:
                self._settle(attempt.replica, None)
        return tuple(
            attempt.replica.outcome(confirmed=attempt.succeeded, detail=attempt.problem)
            for attempt in attempts
        )

    def _settle(self, replica: Replica, problem: str | None) -> None:
        """After an update: open a replica that has the current weights, hold one that has not."""
        if replica.state is not ReplicaState.ONLOADING:
            return
        if self.lacks(replica):
            self.hold(replica, problem)
        else:
            self.open(replica, problem or f"has weights {self._version!r}")

    def _outcome(
        self, replica: Replica, version: str, problems: Mapping[EngineId, str | None]
    ) -> ReplicaOutcome:
        if replica.engine in problems:
            return replica.outcome(confirmed=False, detail=problems[replica.engine])
        if replica.weight_version == version and replica.state is ReplicaState.READY:
            return replica.outcome(confirmed=True)
        now = f"it is {replica.state}"
        if self._version != version:
            why = f"{now}; the model keeps weights {self._version!r}, since no replica took {version!r}"
            return replica.outcome(confirmed=False, detail=why)
        outlook = (
            "stays unroutable until the update that follows its return"
            if self._files is None
            else f"gets weights {version!r} before it is opened"
        )
        return replica.outcome(confirmed=True, detail=f"{now}, and {outlook}")

    def _require_reachable(self, replicas: Sequence[Replica], update: WeightUpdate) -> None:
        if isinstance(update, FromDisk):
            return
        kind = operation_of(update)
        for replica in replicas:
            if replica.state is ReplicaState.SLEEPING:
                raise EngineError(
                    f"{replica.engine} sleeps, and a {kind} can't be kept until it wakes: wake the role "
                    "first, or update from disk"
                )
            if isinstance(update, FromGroup) and update.group not in replica.groups:
                raise EngineError(
                    f"{replica.engine} ({replica.state}) is not in group {update.group!r}, so a broadcast "
                    "would wait for it for ever; have all replicas leave the group and join a new one"
                )
        if not any(_is_awake(replica) for replica in replicas):
            raise EngineError(f"{self._spec.name}: no replica is awake to take a {kind}")

    def _take_over(self, update: WeightUpdate, version: str) -> None:
        """Make an update's weights the current ones. Only files are kept: they can be read again."""
        self._version = version
        self._came = f"by {operation_of(update)}"
        self._files = update if isinstance(update, FromDisk) else None
        self._named[version] = self._files

    def lacks(self, replica: Replica) -> bool:
        """Whether the replica has other weights than the current ones."""
        return replica.weight_version != self._version

    def file_for(self, replica: Replica) -> Path | None:
        """What the replica will be given after it was started or woken; None if it lacks nothing."""
        return self._files.path if self._files is not None and self.lacks(replica) else None

    def can_catch_up(self, replica: Replica) -> bool:
        """Whether a waiting replica could be given the current weights without a new update."""
        return replica.waits and self._files is not None

    async def catch_up(self, replica: Replica, deadline: Deadline) -> Attempt:
        """Give a replica that was just started or woken the current weights, where it lacks them.

        Succeeds also if it can't have them now: then it is ONLOADING and waits.
        """
        if not self.lacks(replica):
            return Attempt(replica=replica, ticket=replica.ticket())
        if replica.state is not ReplicaState.ONLOADING:
            replica.enter_state(
                ReplicaState.ONLOADING, f"it has weights {replica.weight_version!r}, not {self.version!r}"
            )
        if self._files is None or self._version is None:
            self.hold(replica)
            return Attempt(replica=replica, ticket=replica.ticket())
        attempt = await self._driver.update(replica, self._files, self._version, deadline)
        if attempt.refused:
            self.hold(replica, attempt.problem)
            return Attempt(replica=replica, ticket=replica.ticket())
        return attempt

    def hold(self, replica: Replica, problem: str | None = None) -> None:
        """Have an awake replica that lacks the current weights wait, unroutable."""
        if self._files is None:
            outlook = "they can't be had again: the next update brings it back"
        else:
            outlook = problem or "they are loaded again shortly"
        replica.wait(
            f"it has weights {replica.weight_version!r}, the model's are {self._version!r}, which came "
            f"{self._came}; {outlook}"
        )


def _is_awake(replica: Replica) -> bool:
    return replica.state is ReplicaState.READY or replica.waits


def _devices(replica: Replica) -> int:
    return sum(len(worker.slot.device_ids) for worker in replica.workers)


def update_name(update: WeightUpdate) -> str:
    """Return how an update is called in events and reasons."""
    names = {
        WeightOperation.UPDATE_FROM_DISK: "disk",
        WeightOperation.UPDATE_FROM_TENSORS: "tensors",
        WeightOperation.UPDATE_FROM_GROUP: "group",
    }
    return names[operation_of(update)]
