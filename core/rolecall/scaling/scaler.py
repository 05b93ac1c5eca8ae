"""Scales the models of one role: one operation at a time, each with an id, a status and a cancel.

Pure asyncio over the fleets of the role's models; the role service has one. It owns the operations and their
order of steps, and decides what becomes of a part that succeeded. It starts and stops nothing itself.

An operation begins only if all of it is allowed and has room. It is a task of its own, so a caller that goes
away does not end it. Everything it has begun has an end: a replica that came is the model's, or is ended and
its devices are given back, or is named among what is left to clean, which every later operation tries first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from uuid import uuid4

from rolecall.engines.deadline import Clock, Deadline
from rolecall.errors import (
    EngineError,
    RolecallError,
    ScaleConflictError,
    ScaleRefused,
    UnknownScaleOperationError,
)
from rolecall.events.event import Emit
from rolecall.ids import ModelId, RoleName
from rolecall.placement.wording import counted
from rolecall.scaling.change import plan_in, plan_out
from rolecall.scaling.fleet import END_S, ModelFleet
from rolecall.scaling.operation import ScaleOperation, Step
from rolecall.scaling.request import OnPartial, ScaleIn, ScaleOut, ScaleRequest
from rolecall.scaling.scale_state import ScaleState

logger = logging.getLogger(__name__)

REMEMBERED = 64
"""Operations whose status can still be asked."""

_CANCELLED = "given up, since the operation was cancelled"


class RoleScaler:
    """See the module's contract."""

    def __init__(
        self, role: RoleName, fleets: Mapping[ModelId, ModelFleet], *, clock: Clock, emit: Emit
    ) -> None:
        self._role = role
        self._fleets = fleets
        self._clock = clock
        self._emit = emit
        self._operations: dict[str, ScaleOperation] = {}
        self._running: asyncio.Task[None] | None = None
        self._given_up_by_cancel: set[asyncio.Task[str | None]] = set()
        self._beginning = False
        self._closed = False

    async def begin(self, request: ScaleRequest) -> dict[str, Any]:
        """Begin an operation and return it as JSON values; a dry run is only planned, and has no id.

        Raises:
            ScaleConflictError: another one of the role is under way; names it.
            ScaleRefused: it is not allowed, or there is no room for all of it. Nothing has changed.
        """
        fleet = self._fleet(request.model)
        if request.dry_run:
            return (await self._planned(None, fleet, request)).to_json()
        self._require_open()
        if self._beginning or (self._running is not None and not self._running.done()):
            under_way = next((op.id for op in self._operations.values() if not op.final), "one that begins")
            raise ScaleConflictError(
                f"{self._role} is being scaled already, by operation {under_way}; wait for it, or cancel it"
            )
        self._beginning = True
        try:
            operation = await self._planned(uuid4().hex[:12], fleet, request)
        finally:
            self._beginning = False
        self._require_open()  # it may have been closed while room was looked for
        assert operation.id is not None
        self._operations[operation.id] = operation
        while len(self._operations) > REMEMBERED:
            self._operations.pop(next(iter(self._operations)))
        self._running = asyncio.create_task(self._run(operation, fleet), name=f"scaling {operation.id}")
        return operation.to_json()

    async def status(self, operation: str, wait_s: float = 0.0) -> dict[str, Any]:
        """Return an operation as JSON values, waiting up to ``wait_s`` for its end.

        Raises:
            UnknownScaleOperationError: there is none of that id, or no more.
        """
        found = self._operation(operation)
        if not found.final and self._running is not None and wait_s > 0:
            await asyncio.wait({self._running}, timeout=wait_s)
        return found.to_json()

    def operations(self) -> list[dict[str, Any]]:
        """All that are remembered, the last one last."""
        return [operation.to_json() for operation in self._operations.values()]

    async def cancel(self, operation: str) -> dict[str, Any]:
        """Ask an operation to end: starts are given up, and drains too. Repeats do nothing, as at its end.

        Raises:
            UnknownScaleOperationError: there is none of that id, or no more.
        """
        found = self._operation(operation)
        if found.state is ScaleState.RUNNING:
            found.enter_state(ScaleState.CANCELLING, "cancelled")
            for work in self._given_up_by_cancel:
                work.cancel()
        return found.to_json()

    async def close(self) -> None:
        """End what is under way; its replicas are left for the role's shutdown. Nothing begins any more."""
        self._closed = True
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=END_S)

    # --- what is to be done -------------------------------------------------------------

    async def _planned(
        self, operation_id: str | None, fleet: ModelFleet, request: ScaleRequest
    ) -> ScaleOperation:
        standing = fleet.standing
        if isinstance(request, ScaleOut):
            steps = plan_out(request, standing, fleet.bounds, first_index=fleet.next_index)
            await fleet.room(steps)
            if operation_id is not None:
                fleet.next_index += len(steps)
        else:
            steps = plan_in(request, standing, fleet.bounds)
        return ScaleOperation(
            id=operation_id,
            role=self._role,
            model=fleet.bounds.model,
            request=request,
            before=len(standing),
            steps=steps,
            emit=self._emit,
            clock=self._clock.now_s,
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ScaleRefused(f"{self._role} is shutting down")

    def _fleet(self, model: str | None) -> ModelFleet:
        if model is None and len(self._fleets) == 1:
            return next(iter(self._fleets.values()))
        if model is None or model not in self._fleets:
            known = ", ".join(self._fleets) or "none"
            raise ScaleRefused(f"{self._role} has no model {model!r}; it has: {known}")
        return self._fleets[ModelId(model)]

    def _operation(self, operation: str) -> ScaleOperation:
        if (found := self._operations.get(operation)) is None:
            known = ", ".join(self._operations) or "none"
            raise UnknownScaleOperationError(
                f"{self._role} has no scaling operation {operation!r}; it has: {known}"
            )
        return found

    # --- doing it -----------------------------------------------------------------------

    async def _run(self, operation: ScaleOperation, fleet: ModelFleet) -> None:
        deadline = Deadline.after(self._clock, operation.request.timeout_s)
        try:
            operation.left |= await fleet.clean()
            if isinstance(operation.request, ScaleOut):
                await self._scale_out(operation, operation.request, fleet, deadline)
            else:
                await self._scale_in(operation, operation.request, fleet, deadline)
        except asyncio.CancelledError:
            raise  # the role is shutting down, and stops every replica
        except Exception as error:  # a status that never ends would hide it
            logger.exception("scaling operation %s broke", operation.id)
            if not operation.final:
                await self._give_up(operation, fleet, error)

    async def _give_up(self, operation: ScaleOperation, fleet: ModelFleet, error: Exception) -> None:
        operation.left |= await fleet.clean()
        if operation.state is ScaleState.RUNNING:
            operation.enter_state(ScaleState.FAILED, f"broke: {error!r}")
        elif operation.state is ScaleState.CANCELLING:
            operation.enter_state(ScaleState.CANCELLED, f"broke: {error!r}")
        else:
            operation.enter_state(ScaleState.ROLLED_BACK, f"broke: {error!r}")

    async def _scale_out(
        self, operation: ScaleOperation, request: ScaleOut, fleet: ModelFleet, deadline: Deadline
    ) -> None:
        steps = operation.steps
        await asyncio.gather(*(self._bring(operation, request, fleet, step, deadline) for step in steps))
        came = [step for step in steps if step.done]
        if len(came) in (0, len(steps)) or request.on_partial is OnPartial.KEEP:
            _finish(operation)
            return
        operation.enter_state(ScaleState.ROLLING_BACK, f"{_missing(steps)}: by policy none shall come")
        work = Deadline.after(self._clock, max(END_S, deadline.remaining_s()))
        try:
            await fleet.part(came, work)
        except EngineError as error:
            operation.left |= {step.engine: f"still a replica, scale it in: {error}" for step in came}
        else:
            await asyncio.gather(*(self._take_back(operation, fleet, step, work) for step in came))
        operation.enter_state(ScaleState.ROLLED_BACK, _outcome(operation))

    async def _bring(
        self, operation: ScaleOperation, request: ScaleOut, fleet: ModelFleet, step: Step, deadline: Deadline
    ) -> None:
        """Have one replica come, or leave nothing of it."""
        try:
            problem = await self._unless_cancelled(
                operation, fleet.begin(step, request.model_path, deadline)
            ) or await fleet.join(step, deadline)
        except RolecallError as error:
            problem = str(error)
        if problem is None:
            step.done = True
            return
        step.detail = problem
        await self._end(operation, fleet, step)

    async def _take_back(
        self, operation: ScaleOperation, fleet: ModelFleet, step: Step, deadline: Deadline
    ) -> None:
        await fleet.drain(step, deadline, force=False)
        step.undone, step.detail = True, "taken back"
        await self._end(operation, fleet, step)

    async def _scale_in(
        self, operation: ScaleOperation, request: ScaleIn, fleet: ModelFleet, deadline: Deadline
    ) -> None:
        steps = operation.steps
        if steps:
            try:
                await fleet.part(steps, deadline)
            except EngineError as error:
                operation.enter_state(ScaleState.FAILED, str(error))
                return
        await asyncio.gather(*(self._drain(operation, request, fleet, step, deadline) for step in steps))
        busy = [step for step in steps if not step.done]
        if busy and len(busy) < len(steps) and request.on_partial is OnPartial.ROLL_BACK:
            operation.enter_state(ScaleState.ROLLING_BACK, f"{_missing(steps)}: by policy none shall go")
            busy = list(steps)
        await asyncio.gather(*(self._put_back(operation, fleet, step) for step in busy))
        gone = [step for step in steps if step not in busy]
        await asyncio.gather(*(self._end(operation, fleet, step) for step in gone))
        if operation.state is ScaleState.ROLLING_BACK:
            operation.enter_state(ScaleState.ROLLED_BACK, _outcome(operation))
        else:
            _finish(operation)

    async def _drain(
        self, operation: ScaleOperation, request: ScaleIn, fleet: ModelFleet, step: Step, deadline: Deadline
    ) -> None:
        """Wait until a parted replica may be ended; ``done`` says whether it may."""
        problem = await self._unless_cancelled(operation, fleet.drain(step, deadline, force=request.force))
        step.done, step.detail = problem is None, problem or "drained"

    async def _put_back(self, operation: ScaleOperation, fleet: ModelFleet, step: Step) -> None:
        step.undone, step.done = step.done, False
        if (problem := await fleet.put_back(step)) is not None:
            step.undone, step.done = False, True
            step.detail = f"could not stay: {problem}"
            await self._end(operation, fleet, step)

    async def _end(self, operation: ScaleOperation, fleet: ModelFleet, step: Step) -> None:
        """End a replica that is not the model's, or note what is left of it."""
        if (left := await fleet.end(step.engine)) is not None:
            operation.left[step.engine] = left

    async def _unless_cancelled(
        self, operation: ScaleOperation, work: Coroutine[Any, Any, str | None]
    ) -> str | None:
        """Do what a cancellation of the operation gives up; returns why it did not succeed, or None."""
        if operation.cancelling:
            work.close()
            return _CANCELLED
        task = asyncio.create_task(work)
        self._given_up_by_cancel.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if not operation.cancelling:
                raise  # the role is shutting down
            return _CANCELLED
        finally:
            self._given_up_by_cancel.discard(task)


def _finish(operation: ScaleOperation) -> None:
    done = [step for step in operation.steps if step.done]
    complete = len(done) == len(operation.steps)
    if operation.cancelling:
        wanted = ScaleState.DONE if complete else ScaleState.CANCELLED
    elif complete and not operation.left:
        wanted = ScaleState.DONE
    else:
        wanted = ScaleState.PARTIAL if done or complete else ScaleState.FAILED
    operation.enter_state(wanted, _outcome(operation))


def _missing(steps: Sequence[Step]) -> str:
    return "; ".join(f"{step.engine}: {step.detail}" for step in steps if not step.done)


def _outcome(operation: ScaleOperation) -> str:
    done = sum(step.done and not step.undone for step in operation.steps)
    said = (
        f"{done} of {counted(len(operation.steps), 'replica')}"
        if operation.steps
        else "nothing was to be done"
    )
    missing = _missing(operation.steps)
    left = "; ".join(f"{engine}: {what}" for engine, what in operation.left.items())
    return said + (f"; {missing}" if missing else "") + (f"; left to clean: {left}" if left else "")
