"""A trainer's turn on devices that it shares with inference roles."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from rolecall.batches.shielded import finish
from rolecall.errors import LeaseError
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.leases.port import CoordinatorPort


@asynccontextmanager
async def training_turn(
    coordinator: CoordinatorPort, batch: BatchId, roles: Sequence[RoleName]
) -> AsyncGenerator[None]:
    """Hold the devices of training roles for the length of a block.

    A block that is left by an error does not give the turn back: nobody has said that the memory is free.
    Until another block for the same batch has ended well, no inference role on those devices is woken.

    Raises:
        LeaseError: a role on those devices is awake or fenced, or the batch is open; nothing is held.
        BatchFailedError: the run has failed.
    """
    mark = secrets.token_hex(4)

    def operation(role: RoleName, what: str) -> OperationId:
        return OperationId(f"training/{role}/batch-{batch}/{mark}/{what}")

    async def take() -> None:
        taken: list[RoleName] = []
        try:
            for role in roles:
                taken.append(role)
                await coordinator.activate(batch, role, operation(role, "activate"))
        except Exception as error:
            if isinstance(error, LeaseError):
                taken.pop()  # the coordinator's own word; after any other error the role may be held
            await give_back(taken)
            raise

    async def give_back(held: Sequence[RoleName]) -> None:
        for role in reversed(held):
            await coordinator.deactivate(batch, role, operation(role, "deactivate"))

    await finish(take())
    yield
    await finish(give_back(roles))
