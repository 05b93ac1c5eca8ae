"""Runs one cell: a batch up to the cell's phase, the fault, the batch's end, the invariants, and on."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from attrs import define, field, frozen
from fault_matrix import invariants
from fault_matrix.cells import GATE, Cell, Fault, Subject
from fault_matrix.faults import Hit, victims
from fault_matrix.job import DEADLINE_S, NAME, ROWS, Job, until_none
from fault_matrix.joined import Gone, Joined, Refused

PAUSE_S = 3.0
"""How long a fault lasts that ends again."""

LIMIT_S = 4 * DEADLINE_S + 60.0
"""No batch may take longer, whatever happens: every wait in it has a deadline."""

WAITER_S = 15.0
"""How much longer than the batch one may have to wait who waits for its commit."""

LOGGED_S = 10.0
SETTLE_S = 60.0

SINK_ENDED = "its partitions end with the job"
"""Why a run is not resumed whose sink does not outlive its job."""

NO_CELL = "no cell"
"""Outcome of a cell whose phase was not reached."""


@frozen(kw_only=True)
class Result:
    """outcome: what became of the batch and of the job; problems: what must not be."""

    cell: Cell
    outcome: str
    detail: str
    seconds: float
    problems: tuple[str, ...]


@define
class Run:
    """The job, brought up when a cell needs it, with its two participants."""

    job: Job
    batch: int = 0
    starts: int = 0
    _runner: Joined | None = None
    _consumer: Joined | None = None
    _groups: list[str] = field(factory=list)

    def cell(self, cell: Cell) -> Result:
        """Run a cell; what it breaks is mended, or the next cell gets a new job."""
        started = time.monotonic()
        problems: list[str] = []
        try:
            self._ready()
        except RuntimeError as error:
            outcome, detail = NO_CELL, ""
            problems.append(str(error))
        else:
            started = time.monotonic()
            outcome, detail = self._hit(cell, problems)
        return Result(
            cell=cell,
            outcome=outcome,
            detail=detail,
            seconds=time.monotonic() - started,
            problems=tuple(problems),
        )

    def close(self) -> list[str]:
        """End the job, if it runs; return what that left."""
        return self._end() if self._runner is not None else []

    # --- one cell -----------------------------------------------------------------------

    def _hit(self, cell: Cell, problems: list[str]) -> tuple[str, str]:
        runner, consumer, gate = self._joined(), self._reader(), GATE[cell.phase]
        # Found out before, so that the fault comes at once; an engine that was replaced meanwhile is new.
        processes = runner.ask("processes")
        others = self.job.processes() if cell.fault is Fault.NETWORK else []
        self.job.gates.hold(gate)
        running = runner.begin("run", batch=self.batch)
        waiting = consumer.begin("consume", batch=self.batch, timeout_s=LIMIT_S)
        reached = until_none(lambda: [] if self.job.gates.reached(gate) or running.done() else ["no"], 90.0)
        if reached or running.done():
            self.job.gates.open(gate)
            problems.append(f"the batch did not reach {cell.phase}: {_end_of(running, LIMIT_S)}")
            problems += self._end()
            return NO_CELL, ""
        pids = victims(cell, self.job, processes, consumer) or victims(
            cell, self.job, runner.ask("processes"), consumer
        )
        if not pids:
            raise RuntimeError(f"{cell}: there is no such process; {processes}")
        hit = Hit(cell.fault, pids, [process.pid for process in others])
        try:
            self.job.gates.open(gate)
            if cell.fault is not Fault.KILL:
                _settled(running, LIMIT_S if cell.fault is Fault.LONG_STOP else PAUSE_S)
        finally:
            hit.end()
        failure = _end_of(running, LIMIT_S)
        if failure == _NEVER:
            problems.append(f"the batch had not ended after {LIMIT_S:g} s")
        problems += self._waiter(cell, waiting, failure)
        problems += self.job.memory.problems()
        if cell.subject is Subject.RAY_HEAD and cell.fault is Fault.KILL:
            return self._job_lost(problems, failure)
        return self._afterwards(failure, problems)

    def _waiter(self, cell: Cell, waiting: Future[Any], failure: str) -> list[str]:
        """Whoever waits for the commit hears of the batch's end, unless it was itself hit."""
        word = _end_of(waiting, WAITER_S)
        if word == _NEVER:
            return [f"who waits for the commit still waits {WAITER_S:g} s after the batch's end"]
        if cell.subject is Subject.CONSUMER and cell.fault is Fault.KILL:
            return []
        if not failure and word:
            return [f"the batch is committed, but who waited for it heard: {word}"]
        if failure and not word:
            return [f"the batch failed ({failure}), but who waited for it got its rows"]
        return []

    def _afterwards(self, failure: str, problems: list[str]) -> tuple[str, str]:
        """Check what the job is like, and go on in it if that is possible."""
        try:
            unsettled = until_none(lambda: invariants.unsettled(self._joined().ask("status")), SETTLE_S)
            problems += [f"not settled: {problem}" for problem in unsettled]
            problems += self._invariants()
        except (Refused, Gone, FutureTimeoutError) as error:
            return self._over(problems, failure, f"it does not tell its status: {error}")
        if not failure:
            self.batch += 1
            return "committed", ""
        return self._go_on(failure, problems)

    def _invariants(self) -> list[str]:
        runner = self._joined()
        # The log hears of a batch's end a moment later than the one who ran it.
        until_none(
            lambda: (
                ["open"] if invariants.batch_states(self.job.events()).get(self.batch) == "PENDING" else []
            ),
            LOGGED_S,
        )
        events = self.job.events()
        status = runner.ask("status")
        stored: dict[int, Any] = {}
        for batch in {self.batch - 1, self.batch} & invariants.batch_states(events).keys():
            try:
                stored[batch] = self._reader().ask("read", batch=batch)
            except Refused:
                stored[batch] = None
        problems = [
            *invariants.two_awake(events),
            *invariants.half_committed(events, stored, ROWS),
            *invariants.without_reason(events, status),
            *invariants.unknown_engines(status, self.job.memory.engines()),
        ]
        if (groups := runner.ask("groups")) != self._groups:
            problems.append(f"placement groups are {groups}; they were {self._groups}")
        return problems

    def _go_on(self, failure: str, problems: list[str]) -> tuple[str, str]:
        """Lift what is fenced, resume the run, and run the batch again, which must now be committed."""
        runner, outcome = self._joined(), "failed, resumed"
        try:
            if blocked := _blocked(runner.ask("status")):
                outcome = "fenced, reconciled, resumed"
                for role in blocked:
                    done = self.job.command("reconcile", role, "--job", NAME, "--proof", "process-gone")
                    if done.returncode != 0:
                        return self._over(problems, failure, f"not reconciled: {done.stderr.strip()}")
            runner.ask("resume")
            running = runner.begin("run", batch=self.batch)
            if again := _end_of(running, LIMIT_S):
                problems.append(f"the batch failed again after the resume: {again}")
                return self._over(problems, failure, "the batch failed again")
            problems += self._invariants()
        except (Refused, Gone, FutureTimeoutError) as error:
            return self._over(problems, failure, f"it can't be resumed: {error}")
        self.batch += 1
        return outcome, failure

    # --- the job's life -----------------------------------------------------------------

    def _over(self, problems: list[str], failure: str, why: str) -> tuple[str, str]:
        """The job can't go on: it is ended and must leave nothing, and the run is resumed in another."""
        problems += self._end()
        return self._in_another_job("job ended", problems, f"{failure}; {why}")

    def _job_lost(self, problems: list[str], failure: str) -> tuple[str, str]:
        """Nobody ends the job: it must end by itself, and leave nothing."""
        events = self.job.events()
        problems += invariants.two_awake(events)
        self._leave()
        problems += self.job.leftovers(120.0)
        return self._in_another_job("job lost", problems, failure)

    def _in_another_job(self, outcome: str, problems: list[str], detail: str) -> tuple[str, str]:
        wrong = self.job.resume(self.batch + 2)
        if wrong and SINK_ENDED in wrong[0]:
            return f"{outcome}, its sink with it", detail
        problems += wrong
        return f"{outcome}, resumed in another", detail

    def _ready(self) -> None:
        if self._runner is None:
            self.starts += 1
            self.batch = 0
            self.job.up()
            self._runner = self.job.join()
            self._groups = self._runner.ask("groups")
        self._reader()

    def _end(self) -> list[str]:
        self._leave()
        return self.job.down()

    def _leave(self) -> None:
        for joined in (self._runner, self._consumer):
            if joined is not None:
                joined.close()
        self._runner = self._consumer = None

    def _joined(self) -> Joined:
        if self._runner is None:
            raise Gone("no job")
        return self._runner

    def _reader(self) -> Joined:
        """Return the consumer; another one if it was killed."""
        if self._consumer is not None and not self._consumer.alive:
            self._consumer.close()
            self._consumer = None
        if self._consumer is None:
            self._consumer = self.job.join()
        return self._consumer


_NEVER = "no answer"


def _blocked(status: dict[str, Any]) -> list[str]:
    leases = status["coordinator"]["leases"]
    return [role for role, lease in leases.items() if lease["state"] == "BLOCKED"]


def _settled(answer: Future[Any], timeout_s: float) -> None:
    """Wait for an answer, whatever it is."""
    try:
        answer.exception(timeout_s)
    except FutureTimeoutError:
        return


def _end_of(answer: Future[Any], timeout_s: float) -> str:
    """Return why it failed, empty if it did not."""
    try:
        error = answer.exception(timeout_s)
    except FutureTimeoutError:
        return _NEVER
    return "" if error is None else str(error)
