"""Carries out a batch's schedule: turns of roles and stages, each as soon as what it waits for has ended.

One instance a batch, owned by its runner. The first failure cancels everything else that is under way; when
:meth:`StageFlow.run` has returned or raised, nothing runs any more. It puts roles to sleep only at the
regular end of their turns; after a failure that is its caller's to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from rolecall.batches.awake_roles import AwakeRoles
from rolecall.batches.schedule import GENERATION_STAGE
from rolecall.batches.turns import PlannedStage, Schedule, Turn
from rolecall.batches.words import in_words
from rolecall.errors import ScoringError


class StageFlow:
    """See the module's contract.

    generate: makes the samples, the role of the first turn being awake.
    score: runs one stage, its role being awake.
    """

    def __init__(
        self,
        schedule: Schedule,
        roles: AwakeRoles,
        *,
        generate: Callable[[], Awaitable[None]],
        score: Callable[[PlannedStage], Awaitable[None]],
    ) -> None:
        self._schedule = schedule
        self._roles = roles
        self._generate = generate
        self._score = score
        self._turn_ended = [asyncio.Event() for _ in schedule.turns]
        self._generated = asyncio.Event()
        self._scored: dict[str, asyncio.Event] = {
            planned.name: asyncio.Event()
            for planned in (*schedule.alone, *(one for turn in schedule.turns for one in turn.stages))
        }
        self.also_failed: list[str] = []
        """What failed after the first failure, while everything was being ended."""

    async def run(self) -> None:
        """Run everything; the first error is raised itself, not in a group."""
        failed: BaseExceptionGroup[BaseException] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for number, turn in enumerate(self._schedule.turns):
                    group.create_task(_uncancelled(self._take_turn(number, turn)))
                for planned in self._schedule.alone:
                    group.create_task(_uncancelled(self._run_alone(planned)))
        except BaseExceptionGroup as errors:
            failed = errors
        if failed is not None:
            first, *others = failed.exceptions
            self.also_failed = [in_words(error) for error in others]
            raise first

    async def _take_turn(self, number: int, turn: Turn) -> None:
        generates = number == 0
        phase = GENERATION_STAGE if generates else turn.stages[0].name
        await _all(self._turn_ended[before] for before in turn.after)
        if turn.waits_for_work and not generates:
            await self._until_ready(turn.stages[0])
        if turn.resident:
            await self._roles.require(turn.role, phase)
        else:
            await self._roles.wake(turn.role, phase)
        for role in turn.prepares:
            self._roles.prepare(role)
        if generates:
            await self._generate()
            self._generated.set()
        for planned in turn.stages:
            phase = planned.name
            await self._run_alone(planned)
        if not turn.resident:
            await self._roles.sleep(turn.role, phase)
        self._turn_ended[number].set()

    async def _run_alone(self, planned: PlannedStage) -> None:
        await self._until_ready(planned)
        await self._score(planned)
        self._scored[planned.name].set()

    async def _until_ready(self, planned: PlannedStage) -> None:
        await self._generated.wait()
        await _all(self._scored[name] for name in planned.needs)


async def _all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``; if it is cancelled although nobody cancels this task, that is its failure.

    Otherwise the group would take the task for ended, and whoever waits for its work would wait for ever.
    """
    try:
        await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ScoringError("it was cancelled from within") from error
