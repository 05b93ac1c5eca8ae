"""The publication of one batch, at the coordinator and in the sink: begun, put, committed, or taken back.

One instance a batch, owned by its runner. Nothing is committed that the sink has not acknowledged, and what
is not committed leaves no rows behind, as far as the sink can be reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto

from rolecall.batches.rows import to_rows
from rolecall.batches.sample import Sample
from rolecall.batches.shielded import finish
from rolecall.batches.words import in_words
from rolecall.errors import BatchFailedError, CommitTimeoutError
from rolecall.ids import BatchId, partition_name
from rolecall.interfaces.batch_sink import BatchSink
from rolecall.leases.port import CoordinatorPort

_log = logging.getLogger(__name__)

Finalise = Callable[[BatchId, Sequence[Sample]], Awaitable[None]]
"""Called once the sink has acknowledged, before the commit (debug dump, metrics). If it raises,
the partition is cleared and the batch fails."""


class Stand(Enum):
    """How far the batch's publication has come."""

    NOT_BEGUN = auto()
    BEGUN = auto()
    PUT = auto()
    COMMITTING = auto()
    COMMITTED = auto()


class Publication:
    """The batch at the coordinator and in the sink: begun, put, committed, or taken back."""

    def __init__(
        self, coordinator: CoordinatorPort, sink: BatchSink, batch: BatchId, finalise: Finalise | None
    ) -> None:
        self._coordinator = coordinator
        self._sink = sink
        self._batch = batch
        self._partition = partition_name(batch)
        self._finalise = finalise
        self._attempt: int | None = None
        self.stand = Stand.NOT_BEGUN

    async def begin(self) -> int:
        """Open the batch; returns which attempt at it this is."""
        return await finish(self._begin())

    async def _begin(self) -> int:
        self._attempt = await self._coordinator.begin_batch(self._batch)
        self.stand = Stand.BEGUN
        return self._attempt

    async def put(self, samples: Sequence[Sample]) -> None:
        """Store the rows and run the finaliser; a put that has begun is waited for."""
        self.stand = Stand.PUT
        await finish(asyncio.to_thread(self._sink.put, self._partition, to_rows(samples)))
        if self._finalise is not None:
            await self._finalise(self._batch, samples)

    async def commit(self) -> None:
        await finish(self._commit())

    async def _commit(self) -> None:
        self.stand = Stand.COMMITTING
        try:
            await self._coordinator.commit_batch(self._batch, acknowledged=True, attempt=self._attempt)
        except Exception as error:
            if not await self._is_committed():
                raise
            _log.warning("batch %s is committed although the answer was %s", self._batch, in_words(error))
        self.stand = Stand.COMMITTED

    async def _is_committed(self) -> bool:
        """Ask once whether a commit whose call failed went through."""
        try:
            await self._coordinator.wait_committed(self._batch, 0.0)
        except (BatchFailedError, CommitTimeoutError):
            return False
        except Exception:  # noqa: BLE001 (the call's own error is raised; failing the batch decides)
            _log.warning("can't find out whether batch %s is committed", self._batch, exc_info=True)
            return False
        return True

    async def take_back(self, reason: str) -> list[str]:
        """Clear what the sink may have and fail the batch; returns what went wrong doing so.

        Cleared before the failure wakes anyone; but after it if a commit was tried: only a batch
        that has been failed can't be committed by a late call, and a committed one keeps its rows.
        """
        problems: list[str] = []
        committing = self.stand is Stand.COMMITTING
        if self.stand is Stand.PUT:
            problems += await self._clear()
        try:
            await self._coordinator.fail_batch(self._batch, reason, attempt=self._attempt)
        except Exception as error:  # noqa: BLE001 (reported with the failure that is being handled)
            problems.append(f"the batch could not be failed: {in_words(error)}")
            if committing:
                problems.append(f"whether it is committed is unknown, so {self._partition} was not cleared")
        else:
            if committing:
                problems += await self._clear()
        return problems

    async def _clear(self) -> list[str]:
        try:
            await asyncio.to_thread(self._sink.clear, self._partition)
        except Exception as error:  # noqa: BLE001 (reported with the failure that is being handled)
            return [f"partition {self._partition} could not be cleared: {in_words(error)}"]
        return []
