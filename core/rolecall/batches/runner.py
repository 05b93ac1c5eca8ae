"""Runs one deferred batch from its prompts to its commit.

    begin → generate → stage → stage … → validate, write back → sink.put acknowledged
          → finalise → commit

Roles are woken and put to sleep through the coordinator, one hand-over at a time. Whatever goes
wrong, nothing is published: the partition is cleared if the sink may have it, the batch is failed
with the first reason, and the role that is awake is put to sleep. Cancelling (Ctrl-C) goes the
same way. Nothing is retried here; a stage that fails, fails the batch.

Called by the command line and by training loops, in their own process. Never owns engines,
clients, the sink's life or the coordinator's decisions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto

from rolecall.batches.plan import StagePlan
from rolecall.batches.report import BatchReport, Direction
from rolecall.batches.rewards import combine_rewards
from rolecall.batches.rows import to_rows
from rolecall.batches.sample import Prompt, Sample
from rolecall.batches.schedule import GENERATION_STAGE, PUBLISH_STAGE
from rolecall.batches.shielded import finish
from rolecall.batches.staging import StagingArea
from rolecall.batches.timeline import Timeline
from rolecall.batches.validation import check_generated, check_scores
from rolecall.config.specs import BatchSection
from rolecall.errors import (
    BatchFailedError,
    CommitTimeoutError,
    LeaseError,
    RolecallError,
    ScoringError,
)
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, OperationId, RoleName, partition_name
from rolecall.interfaces.batch_sink import BatchSink
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import GenerationContext, Stage, StageContext
from rolecall.leases.port import CoordinatorPort

_log = logging.getLogger(__name__)

Finalise = Callable[[BatchId, Sequence[Sample]], Awaitable[None]]
"""Called once the sink has acknowledged, before the commit (debug dump, metrics). If it raises,
the partition is cleared and the batch fails."""


class BatchRunner:
    """Runs the batches of one job, one after the other.

    Args:
        coordinator: grants leases and keeps the commit gate.
        clients: gives the client of a role; the caller owns and closes it.
        plan: what to run, see :func:`~rolecall.batches.plan.plan_stages`.
        sink: opened; its methods are called from a thread.
        settings: the job's ``[batch]``.
        emit: takes ``stage.state``, ``stage.progress`` and ``handover``.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        coordinator: CoordinatorPort,
        clients: Callable[[RoleName], ScoringClient],
        plan: StagePlan,
        sink: BatchSink,
        settings: BatchSection,
        emit: Emit = discard,
        finalise: Finalise | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._clients = clients
        self._plan = plan
        self._sink = sink
        self._settings = settings
        self._emit = emit
        self._finalise = finalise
        self._clock = clock

    async def run(self, batch: BatchId, prompts: Sequence[Prompt]) -> BatchReport:
        """Make, score, publish and commit one batch; returns when it is committed.

        Raises:
            BatchFailedError: something failed, with the first reason and with what could not be
                cleaned up; the cause is the error itself.
            ScoringError: the batch does not fit the staging area; nothing was begun.
            asyncio.CancelledError: the caller was cancelled; the batch has been failed, unless
                the commit had already gone through.
        """
        staging = StagingArea(self._settings.staging_samples)
        staging.reserve(len(prompts) * self._settings.samples_per_prompt)
        timeline = Timeline(batch, self._emit, self._clock)
        roles = _AwakeRole(self._coordinator, batch, timeline)
        publication = _Publication(self._coordinator, self._sink, batch, self._finalise)
        try:
            await publication.begin()
            await self._generate(prompts, staging, timeline, roles)
            for index, stage in enumerate(self._plan.stages):
                await roles.prepare(stage.role, stage.name, upcoming=self._upcoming(index))
                await self._score(stage, staging, timeline)
            await roles.sleep()
            with timeline.phase(PUBLISH_STAGE, None, len(staging.scored)) as progress:
                samples = self._write_back(staging)
                await publication.put(samples)
                progress(len(samples), 0)
            timeline.current = "commit"
            await publication.commit()
        except (Exception, asyncio.CancelledError) as error:
            if publication.state in (_State.NOT_BEGUN, _State.COMMITTED):
                raise
            reason = _reason(timeline.current, error)
            problems = await finish(_clean_up(publication, roles, reason))
            message = "; ".join([f"batch {batch} failed in {reason}", *problems])
            if isinstance(error, asyncio.CancelledError):
                _log.warning("%s", message)
                raise
            raise BatchFailedError(message) from error
        return BatchReport(
            batch=batch,
            samples=samples,
            dropped=staging.dropped,
            phases=tuple(timeline.phases),
            handovers=tuple(timeline.handovers),
            seconds=timeline.seconds,
        )

    async def _generate(
        self, prompts: Sequence[Prompt], staging: StagingArea, timeline: Timeline, roles: _AwakeRole
    ) -> None:
        role, wanted = self._plan.generation_role, self._settings.samples_per_prompt
        await roles.prepare(role, GENERATION_STAGE, upcoming=role)
        with timeline.phase(GENERATION_STAGE, role, len(prompts) * wanted) as progress:
            context = GenerationContext(
                client=self._clients(role),
                samples_per_prompt=wanted,
                sampling=self._settings.sampling,
                max_concurrency=self._settings.max_concurrency,
                progress=progress,
            )
            samples = await self._plan.generate(prompts, context)
            check_generated(samples, prompts, wanted, GENERATION_STAGE)
            staging.capture(samples)

    async def _score(self, stage: Stage, staging: StagingArea, timeline: Timeline) -> None:
        samples = staging.scored
        with timeline.phase(stage.name, stage.role, len(samples)) as progress:
            context = StageContext(
                client=None if stage.role is None else self._clients(RoleName(stage.role)),
                max_concurrency=self._settings.max_concurrency,
                progress=progress,
            )
            scores = await stage.run(samples, context)
            check_scores(stage, samples, scores)
            staging.add(stage.name, scores)
            if not staging.scored:
                raise ScoringError(f'stage "{stage.name}" dropped the last of {len(samples)} samples')

    def _write_back(self, staging: StagingArea) -> tuple[Sample, ...]:
        final = {
            sample.sample_id: combine_rewards(sample.scores, self._plan.rewards) for sample in staging.scored
        }
        return staging.write_back(final)

    def _upcoming(self, index: int) -> str | None:
        """The next role that is needed from stage ``index`` on."""
        return next((stage.role for stage in self._plan.stages[index:] if stage.role is not None), None)


class _AwakeRole:
    """Which role of the batch is awake, and the one way to change that."""

    def __init__(self, coordinator: CoordinatorPort, batch: BatchId, timeline: Timeline) -> None:
        self._coordinator = coordinator
        self._batch = batch
        self._timeline = timeline
        self._role: RoleName | None = None
        self._phase = ""

    async def prepare(self, role: str | None, phase: str, *, upcoming: str | None) -> None:
        """Make ``role`` the awake one for ``phase``; ``upcoming`` is the role needed next.

        A role that is not needed next goes to sleep, also before a phase that needs no role.
        """
        if self._role is not None and self._role != upcoming:
            await self.sleep()
        if role is None:
            return
        if self._role != role:
            with self._timeline.handover(role, Direction.ONLOAD):
                await finish(self._activate(RoleName(role), phase))
        self._phase = phase

    async def sleep(self) -> None:
        """Put the awake role, if there is one, to sleep; returns when that is confirmed."""
        if self._role is not None:
            with self._timeline.handover(self._role, Direction.OFFLOAD):
                await finish(self._deactivate(self._role))

    async def _activate(self, role: RoleName, phase: str) -> None:
        try:
            await self._coordinator.activate(self._batch, role, self._operation(phase, "activate"))
        except LeaseError:
            raise  # the coordinator's own word: not granted, or fenced; there is nothing to put to sleep
        except Exception:
            # The answer was lost, the role may be awake: cleaning up must ask for its sleep.
            self._role, self._phase = role, phase
            raise
        self._role, self._phase = role, phase

    async def _deactivate(self, role: RoleName) -> None:
        # Asked once. A release that is not confirmed leaves a fence that only a person may lift.
        self._role = None
        try:
            await self._coordinator.deactivate(self._batch, role, self._operation(self._phase, "deactivate"))
        except Exception as error:
            raise LeaseError(
                f"role {role} was not confirmed asleep, its devices stay fenced until it is reconciled: "
                f"{_words(error)}"
            ) from error

    def _operation(self, phase: str, method: str) -> OperationId:
        return OperationId(f"batch-{self._batch}/{phase}/{method}")


class _State(Enum):
    """How far the batch's publication has come."""

    NOT_BEGUN = auto()
    BEGUN = auto()
    PUT = auto()
    COMMITTING = auto()
    COMMITTED = auto()


class _Publication:
    """The batch at the coordinator and in the sink: begun, put, committed, or taken back."""

    def __init__(
        self, coordinator: CoordinatorPort, sink: BatchSink, batch: BatchId, finalise: Finalise | None
    ) -> None:
        self._coordinator = coordinator
        self._sink = sink
        self._batch = batch
        self._partition = partition_name(batch)
        self._finalise = finalise
        self.state = _State.NOT_BEGUN

    async def begin(self) -> None:
        await finish(self._begin())

    async def _begin(self) -> None:
        await self._coordinator.begin_batch(self._batch)
        self.state = _State.BEGUN

    async def put(self, samples: Sequence[Sample]) -> None:
        """Store the rows and run the finaliser; a put that has begun is waited for."""
        self.state = _State.PUT
        await finish(asyncio.to_thread(self._sink.put, self._partition, to_rows(samples)))
        if self._finalise is not None:
            await self._finalise(self._batch, samples)

    async def commit(self) -> None:
        await finish(self._commit())

    async def _commit(self) -> None:
        self.state = _State.COMMITTING
        try:
            await self._coordinator.commit_batch(self._batch, acknowledged=True)
        except Exception as error:
            if not await self._is_committed():
                raise
            _log.warning("batch %s is committed although the answer was %s", self._batch, _words(error))
        self.state = _State.COMMITTED

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
        committing = self.state is _State.COMMITTING
        if self.state is _State.PUT:
            problems += await self._clear()
        try:
            await self._coordinator.fail_batch(self._batch, reason)
        except Exception as error:  # noqa: BLE001 (reported with the failure that is being handled)
            problems.append(f"the batch could not be failed: {_words(error)}")
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
            return [f"partition {self._partition} could not be cleared: {_words(error)}"]
        return []


async def _clean_up(publication: _Publication, roles: _AwakeRole, reason: str) -> list[str]:
    """Leave nothing published and nobody awake; returns what could not be done."""
    problems = await publication.take_back(reason)
    try:
        await roles.sleep()
    except Exception as error:  # noqa: BLE001 (reported with the failure that is being handled)
        problems.append(_words(error))
    return problems


def _reason(where: str, error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return f"{where}: cancelled"
    return f"{where}: {_words(error)}"


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, RolecallError) else f"{type(error).__name__}: {error}"
