"""All models of one role, commanded as one: the part of a role service that knows no Ray.

Pure asyncio over one inference manager a model. It passes commands on by fencing token, publishes the
role's snapshot whenever something visible has changed, and looks after the engines again and again. It
knows no lease, only the token of the last command.

A command's answer means that its result is in the registry too, unless the registry was not to
be reached: then the next look publishes it, and readers know that they can't know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from rolecall.discovery.topology import RoleTopology
from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.fencing import TokenGate
from rolecall.engines.manager import InferenceManager
from rolecall.engines.proof import Proof
from rolecall.engines.results import LifecycleResult, Outcomes
from rolecall.engines.weight_operations import WeightOperation
from rolecall.errors import EngineError, RolecallError
from rolecall.ids import FencingToken, ModelId, RoleName
from rolecall.interfaces.engine_backend import WeightsGroup, WeightUpdate

logger = logging.getLogger(__name__)

_PUBLISH_S = 5.0
_ANSWER_S = 1.0
"""Kept back from a command's time-out, so that the answer is there before the caller gives up."""


class SnapshotTaker(Protocol):
    """Where a role's snapshot is put for its readers: the registry."""

    async def publish(self, role: str, snapshot_json: str) -> bool: ...


class RoleEngines:
    """See the module's contract. Implements :class:`~rolecall.leases.port.RoleLifecycle`.

    Args:
        topology: becomes the snapshots; its role and epoch are the role's.
        probe_interval_s: pause between two looks at the engines.
    """

    def __init__(
        self,
        role: RoleName,
        *,
        topology: RoleTopology,
        registry: SnapshotTaker,
        clock: Clock,
        probe_interval_s: float,
    ) -> None:
        self._role = role
        self._topology = topology
        self._registry = registry
        self._clock = clock
        self._probe_interval_s = probe_interval_s
        self._gate = TokenGate()
        self._managers: dict[ModelId, InferenceManager] = {}
        self._publishing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._unpublished = True
        self._caring: asyncio.Task[None] | None = None

    def add(self, model: ModelId, manager: InferenceManager) -> None:
        """Take a model's manager in, made with :meth:`publish`; before anything else happens."""
        self._managers[model] = manager

    async def start(self) -> LifecycleResult:
        """Start every engine that isn't running, publish, and begin to look after them."""
        outcomes = await self._across(lambda manager: manager.start())
        await self.publish()
        if self._caring is None:
            self._caring = asyncio.create_task(self._care_for_ever())
        return self._result(outcomes)

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Wake every model of the role, or none; returns within ``timeout_s``.

        Raises:
            StaleTokenError: a command with a higher token has come before.
        """
        self._gate.admit(token, f"onload of {self._role}")
        deadline = self._deadline(timeout_s)
        several = len(self._managers) > 1
        work = deadline.share(0.75) if several else deadline
        results = await self._each(lambda manager: manager.onload(token, work))
        awake = [model for model, outcomes in results.items() if all(o.confirmed for o in outcomes)]
        if len(awake) < len(results):
            for model in awake:
                results[model] = await self._managers[model].retract(token, deadline)
        return self._result(_joined(results))

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Put every model of the role to sleep, with proof; returns within ``timeout_s``.

        Raises:
            StaleTokenError: a command with a higher token has come before.
            CapabilityError: a backend of the role can't put engines to sleep.
        """
        self._gate.admit(token, f"offload of {self._role}")
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.offload(token, deadline)))

    async def account(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        """Say where every replica stands, once what runs has ended; changes nothing.

        Raises:
            StaleTokenError: a command with a higher token has come before.
        """
        self._gate.admit(token, f"account of {self._role}")
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.account(token, deadline)))

    async def vacate(self, token: FencingToken, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Free the devices of every model of the role, with proof; returns within ``timeout_s``.

        Raises:
            StaleTokenError: a command with a higher token has come before.
        """
        self._gate.admit(token, f"vacating of {self._role}")
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.vacate(token, deadline, proof=proof)))

    async def lift_fences(self, timeout_s: float, *, proof: Proof) -> LifecycleResult:
        """Look for what dead workers left; names the replicas that were fenced, and what was found."""
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.lift_fences(deadline, proof=proof)))

    async def prepare(self, timeout_s: float) -> None:
        """Do ahead what the next onload needs no device for; see :meth:`InferenceManager.prepare`."""
        deadline = self._deadline(timeout_s)
        await asyncio.gather(*(manager.prepare(deadline) for manager in self._managers.values()))

    async def update_weights(
        self, model: ModelId | None, update: WeightUpdate, version: str, timeout_s: float
    ) -> LifecycleResult:
        """Give all replicas of a versioned model other weights; returns within ``timeout_s``.

        ``model`` may be None for a role with one model. See the manager's method for what a repeat
        does, and for sleeping replicas.

        Raises:
            CapabilityError: the model's weights never change, or its backend has no such way.
            EngineError: the version is no name for new weights, or a replica can't take this kind now.
        """
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).update_weights(update, version, deadline))

    async def join_weights_group(
        self, model: ModelId | None, group: WeightsGroup, timeout_s: float
    ) -> LifecycleResult:
        """Have all replicas of a model join a group for updates by broadcast.

        Raises:
            CapabilityError: as above.
            EngineError: a replica is not awake.
        """
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).join_weights_group(group, deadline))

    async def leave_weights_group(
        self, model: ModelId | None, name: str, timeout_s: float
    ) -> LifecycleResult:
        """Have those replicas of a model that joined a group leave it."""
        deadline = self._deadline(timeout_s)
        return self._result(await self._manager(model).leave_weights_group(name, deadline))

    def require(self, model: ModelId | None, operation: WeightOperation) -> None:
        """Ask whether a model takes an operation on its weights at all.

        Raises:
            CapabilityError: it does not; names the operation and the reason.
        """
        self._manager(model).require(operation)

    async def reconcile_once(self) -> None:
        """Look at every replica and repair what may be repaired; returns when that is done."""
        await self._look()
        await asyncio.gather(*(manager.repair() for manager in self._managers.values()))

    def status(self) -> dict[str, Any]:
        """Everything known of the role as JSON values. Asks no worker."""
        return {
            "role": self._role,
            "epoch": self._topology.epoch,
            "revision": self._topology.snapshot.topology_revision if self._topology.snapshot else None,
            "token": self._gate.highest,
            "replicas": [entry for manager in self._managers.values() for entry in manager.status()],
        }

    async def stop_replica(self, selector: str, timeout_s: float) -> LifecycleResult:
        """Stop one replica for good, by its engine id or any URL it has had.

        Raises:
            EngineError: no model of the role has such a replica.
        """
        deadline = self._deadline(timeout_s)
        for manager in self._managers.values():
            if manager.knows(selector):
                return self._result(await manager.stop(selector, deadline))
        raise EngineError(f"{self._role}: no replica is or was {selector!r}")

    async def shutdown(self, timeout_s: float) -> LifecycleResult:
        """Stop every engine, with confirmation; what is not confirmed is tried again by a repeat."""
        if self._caring is not None:
            self._caring.cancel()
        deadline = self._deadline(timeout_s)
        return self._result(await self._across(lambda manager: manager.shutdown(deadline)))

    # --- publishing, caring -------------------------------------------------------------

    async def publish(self) -> None:
        """Put the present view into the registry, if it differs from what is there."""
        async with self._publishing:
            try:
                snapshot, changed = self._topology.update(
                    {model: manager.view() for model, manager in self._managers.items()}
                )
                if not changed and not self._unpublished:
                    return
                self._unpublished = True
                async with asyncio.timeout(_PUBLISH_S):
                    await self._registry.publish(self._role, snapshot.to_json())
                self._unpublished = False
            except (RolecallError, TimeoutError):
                # The engines' state is what it is, and commands must go on; the reconciler's next
                # round tries to tell it again.
                logger.exception("the snapshot of %s was not published", self._role)

    async def _look(self) -> None:
        # One at a time: two looks that fail together are not two failures in a row.
        async with self._looking:
            await asyncio.gather(*(manager.look() for manager in self._managers.values()))
            # Also when nothing changed: a registry that was restarted is empty until then.
            self._unpublished = True
            await self.publish()

    async def _care_for_ever(self) -> None:
        """Look again and again; repairs run beside, so that one that takes long blinds nobody."""
        repairs: dict[ModelId, asyncio.Task[None]] = {}
        try:
            while True:
                await self._clock.sleep(self._probe_interval_s)
                await self._guarded(self._look())
                for model, manager in self._managers.items():
                    if model not in repairs or repairs[model].done():
                        repairs[model] = asyncio.create_task(self._guarded(manager.repair()))
        finally:
            for repair in repairs.values():
                repair.cancel()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # one round that breaks may not end the care for all replicas
            logger.exception("reconciling %s broke; the next round tries again", self._role)

    def _manager(self, model: ModelId | None) -> InferenceManager:
        if model is None and len(self._managers) == 1:
            return next(iter(self._managers.values()))
        if model is None or model not in self._managers:
            known = ", ".join(self._managers) or "none, the role was not started"
            raise EngineError(f"{self._role} has no model {model!r}; it has: {known}")
        return self._managers[model]

    # --- over all managers --------------------------------------------------------------

    async def _each(self, act: Callable[[InferenceManager], Awaitable[Outcomes]]) -> dict[ModelId, Outcomes]:
        """Have every manager act, all at once; raise the first error only when all have ended."""
        answers = await asyncio.gather(
            *(act(manager) for manager in self._managers.values()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(
            zip(self._managers, (a for a in answers if not isinstance(a, BaseException)), strict=True)
        )

    async def _across(self, act: Callable[[InferenceManager], Awaitable[Outcomes]]) -> Outcomes:
        return _joined(await self._each(act))

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline.after(self._clock, timeout_s).leaving(_ANSWER_S)

    def _result(self, outcomes: Outcomes) -> LifecycleResult:
        return LifecycleResult(role=self._role, outcomes=outcomes)


def _joined(results: Mapping[ModelId, Outcomes]) -> Outcomes:
    return tuple(outcome for outcomes in results.values() for outcome in outcomes)
