"""Which roles of a batch are awake, and the one way to change that.

One instance a batch, owned by its runner. It asks the coordinator once for each change, under an id that
names batch, attempt and phase, and remembers what may be awake, so that cleaning up leaves nobody out. It
decides nothing: whether a role gets its devices is the coordinator's word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rolecall.batches.report import Direction
from rolecall.batches.shielded import finish
from rolecall.batches.timeline import Timeline
from rolecall.batches.words import in_words
from rolecall.errors import LeaseError
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.port import CoordinatorPort

_log = logging.getLogger(__name__)


class AwakeRoles:
    """See the module's contract. ``attempt`` says which try at the batch this is, from 1."""

    def __init__(self, coordinator: CoordinatorPort, batch: BatchId, timeline: Timeline) -> None:
        self._coordinator = coordinator
        self._batch = batch
        self._timeline = timeline
        self._awake: dict[RoleName, str] = {}
        self._preparing: list[asyncio.Task[None]] = []
        self.attempt = 1

    async def require(self, role: RoleName, phase: str) -> None:
        """Make sure that a role which shares no devices may be used; nothing is handed over.

        Raises:
            LeaseBlockedError: it is fenced.
        """
        with self._timeline.step(phase):
            await self._change(self._coordinator.activate, role, phase, "activate")

    async def wake(self, role: RoleName, phase: str) -> None:
        """Wake a role for ``phase``; one that has begun is waited for, also by a caller that is cancelled."""
        with self._timeline.handover(role, Direction.ONLOAD):
            await finish(self._activate(role, phase))

    async def sleep(self, role: RoleName, phase: str) -> None:
        """Put a role to sleep after ``phase``, its last one; returns when that is confirmed."""
        self._awake[role] = phase
        with self._timeline.handover(role, Direction.OFFLOAD):
            await finish(self._deactivate(role))

    def prepare(self, role: RoleName) -> None:
        """Have a role do ahead what its next wake needs no device for; returns at once.

        A head start and nothing else: it ends with the batch, and its failure is a line in the log.
        """
        self._preparing.append(asyncio.create_task(self._prepare(role), name=f"prepare {role}"))

    async def stop_preparing(self) -> None:
        """End what :meth:`prepare` began; nothing of it is left when this returns."""
        for task in self._preparing:
            task.cancel()
        await asyncio.gather(*self._preparing, return_exceptions=True)

    async def all_to_sleep(self) -> list[str]:
        """Put every role that may be awake to sleep, all at once; returns what went wrong."""
        roles = list(self._awake)
        ends = await asyncio.gather(
            *(self.sleep(role, self._awake[role]) for role in roles), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, Exception):
                raise end
        return [in_words(end) for end in ends if isinstance(end, Exception)]

    async def _activate(self, role: RoleName, phase: str) -> None:
        try:
            await self._change(self._coordinator.activate, role, phase, "activate")
        except LeaseError:
            raise  # the coordinator's own word: not granted, or fenced; there is nothing to put to sleep
        except Exception:
            # The answer was lost, the role may be awake: cleaning up must ask for its sleep.
            self._awake[role] = phase
            raise
        self._awake[role] = phase

    async def _deactivate(self, role: RoleName) -> None:
        # Asked once. A release that is not confirmed leaves a fence that only a person may lift.
        phase = self._awake.pop(role)
        try:
            await self._change(self._coordinator.deactivate, role, phase, "deactivate")
        except Exception as error:
            raise LeaseError(
                f"role {role} was not confirmed asleep, its devices stay fenced until it is reconciled: "
                f"{in_words(error)}"
            ) from error

    async def _prepare(self, role: RoleName) -> None:
        try:
            await self._coordinator.prepare(self._batch, role)
        except Exception as error:  # noqa: BLE001 (whatever it met, the wake that follows does it all itself)
            _log.warning("batch %s: %s was not prepared: %s", self._batch, role, in_words(error))

    async def _change(
        self, change: Callable[..., Awaitable[object]], role: RoleName, phase: str, method: str
    ) -> None:
        again = "" if self.attempt == 1 else f"#{self.attempt}"
        operation = OperationId(f"batch-{self._batch}{again}/{phase}/{method}")
        await change(self._batch, role, operation, attempt=self.attempt)
