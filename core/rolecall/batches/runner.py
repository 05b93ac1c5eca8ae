"""Runs one deferred batch from its prompts to its commit.

    begin → generate → stages → validate, write back → sink.put acknowledged → finalise → commit

Stages run as their schedule says (:mod:`rolecall.batches.turns`): those of roles that share devices one
role after the other, all others at the same time. Whatever goes wrong, nothing is published: the first
failure ends what else is under way, the partition is cleared if the sink may have it, the batch is failed
with the first reason, and every role that is awake is put to sleep. Cancelling (Ctrl-C) goes the same way.
Nothing is retried here; a stage that fails, fails the batch.

Called by the command line and by training loops, in their own process. Never owns engines,
clients, the sink's life or the coordinator's decisions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from rolecall.batches.awake_roles import AwakeRoles
from rolecall.batches.plan import StagePlan
from rolecall.batches.publication import Finalise, Publication, Stand
from rolecall.batches.report import BatchReport
from rolecall.batches.rewards import combine_rewards
from rolecall.batches.sample import Prompt, Sample
from rolecall.batches.schedule import GENERATION_STAGE, PUBLISH_STAGE
from rolecall.batches.shielded import finish
from rolecall.batches.stage_flow import StageFlow
from rolecall.batches.staging import StagingArea
from rolecall.batches.timeline import Timeline
from rolecall.batches.turns import PlannedStage
from rolecall.batches.validation import check_generated, check_scores
from rolecall.batches.words import in_words
from rolecall.config.specs import BatchSection
from rolecall.errors import BatchFailedError, ScoringError
from rolecall.events.event import Emit, discard
from rolecall.ids import BatchId, RoleName
from rolecall.interfaces.batch_sink import BatchSink
from rolecall.interfaces.reward_adapter import ScoringClient
from rolecall.interfaces.role import GenerationContext, StageContext
from rolecall.leases.port import CoordinatorPort

_log = logging.getLogger(__name__)


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
        roles = AwakeRoles(self._coordinator, batch, timeline)
        publication = Publication(self._coordinator, self._sink, batch, self._finalise)
        flow = StageFlow(
            self._plan.schedule,
            roles,
            generate=lambda: self._generate(prompts, staging, timeline),
            score=lambda planned: self._score(planned, staging, timeline),
        )
        try:
            with timeline.step("begin"):
                roles.attempt = await publication.begin()
            await flow.run()
            with timeline.phase(PUBLISH_STAGE, None, len(staging.scored)) as progress:
                samples = self._write_back(staging)
                await publication.put(samples)
                progress(len(samples), 0)
            with timeline.step("commit"):
                await publication.commit()
        except (Exception, asyncio.CancelledError) as error:
            if publication.stand in (Stand.NOT_BEGUN, Stand.COMMITTED):
                raise
            reason = _reason(timeline.where, error)
            problems = [*flow.also_failed, *await finish(_clean_up(publication, roles, reason))]
            message = "; ".join([f"batch {batch} failed in {reason}", *problems])
            if isinstance(error, asyncio.CancelledError):
                _log.warning("%s", message)
                raise
            raise BatchFailedError(message) from error
        finally:
            await roles.stop_preparing()
        return BatchReport(
            batch=batch,
            samples=samples,
            dropped=staging.dropped,
            phases=tuple(timeline.phases),
            handovers=tuple(timeline.handovers),
            seconds=timeline.seconds,
        )

    async def _generate(self, prompts: Sequence[Prompt], staging: StagingArea, timeline: Timeline) -> None:
        role, wanted = self._plan.generation_role, self._settings.samples_per_prompt
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

    async def _score(self, planned: PlannedStage, staging: StagingArea, timeline: Timeline) -> None:
        stage = planned.stage
        samples = staging.shown_to(stage.reads, planned.before)
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


async def _clean_up(publication: Publication, roles: AwakeRoles, reason: str) -> list[str]:
    """Leave nothing published and nobody awake; returns what could not be done."""
    problems = await publication.take_back(reason)
    return [*problems, *await roles.all_to_sleep()]


def _reason(where: str, error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return f"{where}: cancelled"
    return f"{where}: {in_words(error)}"
