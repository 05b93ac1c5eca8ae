"""A caller whom nobody needs: asks out of turn, and for what is not his."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from rolecall.engines.proof import Proof
from rolecall.errors import (
    BatchFailedError,
    JobError,
    JournalError,
    LeaseError,
    OperationReuseError,
    RolecallError,
    SinkError,
    TransitionError,
)
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.reconciliation import Claim
from simulation.actors import CoordinatorLink
from simulation.chance import Chance
from simulation.coordinator_host import CoordinatorHost
from simulation.layouts import TRAINER
from simulation.network import Endpoint, Network
from simulation.world import World

_CLAIM = Claim(proof=Proof.PROCESS_GONE, by="stranger@host")

_UNKNOWN = (JobError, JournalError)
"""The call may have been carried out, or not."""

_REFUSED = (LeaseError, BatchFailedError)
"""How a lease is refused; the transition tables are never the ones to do it."""


class Stranger:
    """Calls the coordinator as it likes. What it was granted it gives back."""

    def __init__(self, world: World, network: Network, host: CoordinatorHost, chance: Chance) -> None:
        self._world = world
        self._host = host
        self._network = network
        self._link = CoordinatorLink(network, Endpoint("stranger"), host)
        self._chance = chance
        self._acts = 0

    async def act(self) -> None:
        """Do one thing that nobody asked for."""
        if self._network.healthy:
            return
        acts = (
            self._grab,
            self._grab,
            self._change_mind,
            self._snatch,
            self._hurry,
            self._blame,
            self._reuse,
            self._resume,
            self._begin,
            self._reconcile,
        )
        try:
            await self._chance.pick(acts)()
        except Exception as error:
            self._world.violate("a refusal is of its kind", f"{type(error).__name__}: {error}")

    async def _grab(self) -> None:
        batch, role = self._batch(), self._role()
        try:
            await self._link.activate(batch, role, self._operation())
        except _REFUSED:
            return
        except _UNKNOWN:
            pass
        await self._give_back(batch, role)

    async def _change_mind(self) -> None:
        """Ask for a role, and at once for its sleep: one call cleans up, wherever the first one stands."""
        batch, role = self._batch(), self._role()
        asked = self._start(self._link.activate(batch, role, self._operation()))
        await asyncio.sleep(self._chance.delay())
        await self._give_back(batch, role)
        await asyncio.wait({asked})
        error = asked.exception()
        if error is None or isinstance(error, _UNKNOWN):
            await self._give_back(batch, role)
        elif not isinstance(error, _REFUSED):
            raise error

    async def _snatch(self) -> None:
        await self._give_back(self._batch(), self._role())

    async def _hurry(self) -> None:
        """Ask for a commit without the sink's word."""
        try:
            await self._link.commit_batch(self._batch(), acknowledged=False)
        except (*_REFUSED, *_UNKNOWN, SinkError, TransitionError) as error:
            self._world.note("stranger", f"refused: {error}")

    async def _blame(self) -> None:
        """Say that a batch has failed, most often one that is committed."""
        committed = sorted(self._world.committed)
        number = self._chance.pick(committed) if committed else self._batch()
        try:
            await self._link.fail_batch(number, "a stranger says so")
        except (TransitionError, *_UNKNOWN):
            return
        if number in committed:
            self._world.violate("a committed batch can't fail", f"batch {number} was said to have failed")

    async def _begin(self) -> None:
        try:
            await self._link.begin_batch(self._batch())
        except (BatchFailedError, TransitionError, *_UNKNOWN) as error:
            self._world.note("stranger", f"refused: {error}")

    async def _reconcile(self) -> None:
        """Claim of a role that nothing of it is left, whether that is so or not."""
        try:
            await self._link.reconcile(self._role(), self._operation(), claim=_CLAIM)
        except (LeaseError, *_UNKNOWN) as error:
            self._world.note("stranger", f"refused: {error}")

    async def _resume(self) -> None:
        """Have the run go on, whatever state it is in."""
        try:
            await self._link.resume(self._operation())
        except (LeaseError, *_UNKNOWN) as error:
            self._world.note("stranger", f"refused: {error}")

    async def _reuse(self) -> None:
        """Ask for something else under an id that is known."""
        life, asked = self._host.endpoint, self._world.evidence.asked
        if not asked:
            return
        known = self._chance.pick(asked)
        role = self._role()
        if role == known.role:
            return
        try:
            await self._link.activate(self._batch(), role, known.operation)
        except (OperationReuseError, *_UNKNOWN):
            return
        except RolecallError as error:
            found = str(error)
        else:
            found = "it was granted"
        if self._host.endpoint is life:
            self._world.violate(
                "an id stands for one operation", f"{known.operation}, asked again for {role}: {found}"
            )

    async def _give_back(self, batch: BatchId, role: RoleName) -> None:
        try:
            await self._link.deactivate(batch, role, self._operation())
        except (*_REFUSED, *_UNKNOWN) as error:
            self._world.note("stranger", f"refused: {error}")

    def _start(self, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._world.loop.create_task(call)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def _batch(self) -> BatchId:
        return BatchId(self._chance.pick((0, 0, 0, 1, 1, 2)))

    def _role(self) -> RoleName:
        # Not the trainer's: whoever gives its turn back speaks for it, and nobody else may.
        return self._chance.pick(sorted(self._world.conflicts.keys() - {TRAINER}))

    def _operation(self) -> OperationId:
        self._acts += 1
        return OperationId(f"stranger/{self._acts}")
