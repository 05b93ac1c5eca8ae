"""The bugs: each takes one guard away from the product."""

from __future__ import annotations

from mutation.mutant import Mutant

LEDGER = (
    Mutant(
        guard="a role is granted only while its rivals are SLEEPING",
        where="leases.ledger:Ledger._grant",
        old="if (rival := self._leases[role]).state is not LeaseState.SLEEPING",
        new="if (rival := self._leases[role]).state is None",
    ),
    Mutant(
        guard="a fenced rival counts as awake",
        where="leases.ledger:Ledger._grant",
        old="if (rival := self._leases[role]).state is not LeaseState.SLEEPING",
        new="if (rival := self._leases[role]).state not in (LeaseState.SLEEPING, LeaseState.BLOCKED)",
        other="tests/unit/test_leases_coordinator.py::"
        "test_whatever_does_not_prove_success_leaves_the_lease_blocked",
    ),
    Mutant(
        guard="a rival that is just going to sleep counts as awake",
        where="leases.ledger:Ledger._grant",
        old="if (rival := self._leases[role]).state is not LeaseState.SLEEPING",
        new="if (rival := self._leases[role]).state not in (LeaseState.SLEEPING, LeaseState.DRAINING)",
    ),
    Mutant(
        guard="a role is granted for an open batch of a healthy run only",
        where="leases.ledger:Ledger._grant",
        old="self._require_open(command)",
        new="pass",
    ),
    Mutant(
        guard="only the batch that holds a lease gives it back",
        where="leases.ledger:Ledger._recall",
        old="if lease.batch != command.batch:",
        new="if lease.batch is None:",
    ),
    Mutant(
        guard="a recall waits for the onload that is under way",
        where="leases.ledger:Ledger._recall",
        old="if lease.state in _IN_TRANSIT:",
        new="if lease.state is None:",
    ),
    Mutant(
        guard="no commit before an acknowledged put",
        where="leases.ledger:Ledger.commit_batch",
        old="if not acknowledged:",
        new="if acknowledged is None:",
    ),
    Mutant(
        guard="no commit while a role that shares devices is awake",
        where="leases.ledger:Ledger.commit_batch",
        old="if awake := self._not_asleep():",
        new="if (awake := self._not_asleep()) is None:",
    ),
    Mutant(
        guard="tokens grow",
        where="leases.ledger:Ledger._send",
        old="FencingToken(self._last_token + 1)",
        new="FencingToken(max(self._last_token, 1))",
    ),
    Mutant(
        guard="a role gives its lease back once: the next one waits for proof",
        where="leases.ledger:Ledger.block",
        old="LeaseState.BLOCKED, why",
        new="LeaseState.SLEEPING if command.method is Method.DEACTIVATE else LeaseState.BLOCKED, why",
    ),
    Mutant(
        guard="a run goes on only while every shared role sleeps",
        where="leases.ledger:Ledger._resume",
        old="if awake := self._not_asleep():",
        new="if (awake := self._not_asleep()) and False:",
    ),
    Mutant(
        guard="a run goes on with the lowest batch that is not committed",
        where="leases.history:History.next_batch",
        old="number += 1",
        new="number += 2",
    ),
    Mutant(
        guard="an id stands for one operation",
        where="leases.operation:OperationLog.open",
        old="elif operation.command != command:",
        new="elif operation.command is None:",
    ),
)

RESTART = (
    Mutant(
        guard="a restarted coordinator counts no role as asleep before it has proved that",
        where="leases.ledger:Ledger._take_over",
        old="evolve(was, state=LeaseState.BLOCKED, reason=reason)",
        new="evolve(was, state=LeaseState.SLEEPING, reason=reason)",
    ),
    Mutant(
        guard="a role that proves nothing after a restart stays fenced",
        where="leases.ledger:Ledger._standing",
        old="if stands is not ReplicaState.READY:",
        new="if stands is not ReplicaState.READY and stands is not None:",
    ),
    Mutant(
        guard="after a restart nothing is decided before the roles have accounted",
        where="leases.coordinator:LeaseCoordinator._carry_out",
        old="await self._accounted()",
        new="pass",
    ),
    Mutant(
        guard="a grant is written down before its command leaves",
        where="leases.ledger:Ledger._send",
        old="Kind.SENT, durable=True",
        new="Kind.SENT, durable=False",
    ),
    Mutant(
        guard="a commit is on the disk before anybody hears of it",
        where="leases.batch_book:BatchBook.commit",
        old="durable=True",
        new="durable=False",
        other="tests/unit/test_leases_restart.py::test_what_somebody_hears_of_survives_a_power_cut",
    ),
    Mutant(
        guard="a failure is on the disk before anybody hears of it",
        where="leases.batch_book:BatchBook.fail",
        old="durable=True",
        new="durable=False",
        other="tests/unit/test_leases_restart.py::test_what_somebody_hears_of_survives_a_power_cut",
    ),
    Mutant(
        guard="what could not be written down is not done",
        where="leases.recording:Recorder.decide",
        old='self._journal.append({"kind": kind.value, **fields}, durable=durable)',
        new="try:\n        self._journal.append({'kind': kind.value, **fields}, durable=durable)\n"
        "    except JournalError:\n        pass",
    ),
    Mutant(
        guard="news that could not be written down are owed",
        where="leases.recording:Recorder.learn",
        old="self._owing = True",
        new="pass",
        other="tests/unit/test_leases_restart.py::test_news_that_can_not_be_written_counts_and_is_written_before_the_next_decision",
    ),
)

COORDINATOR = (
    Mutant(
        guard="a repeat joins the operation that runs",
        where="leases.coordinator:LeaseCoordinator._fate",
        old="if not operation.ended and operation_id not in self._tasks:",
        new="if not operation.ended:",
    ),
    Mutant(
        guard="no answer in time is no success",
        where="leases.coordinator:LeaseCoordinator._command",
        old="answer = await self._answer(operation, command.method.value, work)",
        new="try:\n        answer = await self._answer(operation, command.method.value, work)\n"
        "    except _UnprovedError:\n        return",
    ),
    Mutant(
        guard="an answer is looked at",
        where="leases.coordinator:LeaseCoordinator._command",
        old="_require(doubt(answer, role=command.role, expected=_EXPECTED[command.method]))",
        new="pass",
    ),
    Mutant(
        guard="a command has a deadline",
        where="leases.coordinator:LeaseCoordinator._answer",
        old="timeout=self._timeout_s)",
        new="timeout=None)",
    ),
    Mutant(
        guard="a caller that gives up does not cancel the operation",
        where="leases.coordinator:LeaseCoordinator._fate",
        old="await asyncio.shield(task)",
        new="await task",
        other="tests/unit/test_leases_coordinator.py::test_a_caller_that_gives_up_does_not_cancel_the_operation",
    ),
    Mutant(
        guard="the commit wakes those who wait",
        where="leases.coordinator:LeaseCoordinator.commit_batch",
        old="self._tell_waiters()",
        new="pass",
    ),
    Mutant(
        guard="the first failure wakes those who wait",
        where="leases.coordinator:LeaseCoordinator.fail_batch",
        old="self._tell_waiters()",
        new="pass",
    ),
    Mutant(
        guard="a wait ends in its time",
        where="leases.coordinator:LeaseCoordinator.wait_committed",
        old="asyncio.timeout(timeout_s)",
        new="asyncio.timeout(None)",
    ),
    Mutant(
        guard="a fence is lifted only by proof",
        where="leases.coordinator:LeaseCoordinator._look",
        old="_require(vacancy_doubt(answer, role=role))",
        new="pass",
        other="tests/unit/test_leases_reconcile.py",
    ),
)

CONFIRMATION = (
    Mutant(
        guard="an answer has to be a result",
        where="leases.confirmation:fence_doubt",
        old="if not isinstance(answer, LifecycleResult):",
        new='if answer is None:\n        return ""\n    if not isinstance(answer, LifecycleResult):',
        other="tests/unit/test_leases_coordinator.py::test_whatever_does_not_prove_success_leaves_the_lease_blocked",
    ),
    Mutant(
        guard="an answer about another role proves nothing",
        where="leases.confirmation:fence_doubt",
        old="if answer.role != role:",
        new="if answer.role is None:",
        other="tests/unit/test_leases_coordinator.py::test_whatever_does_not_prove_success_leaves_the_lease_blocked",
    ),
    Mutant(
        guard="an answer that names no replica proves nothing",
        where="leases.confirmation:_unfit",
        old='return "" if answer.outcomes else',
        new='return "" if answer.outcomes is not None else',
        other="tests/unit/test_leases_coordinator.py::test_whatever_does_not_prove_success_leaves_the_lease_blocked",
    ),
    Mutant(
        guard="an unconfirmed replica is no proof",
        where="leases.confirmation:fence_doubt",
        old='return "" if answer.confirmed else',
        new='return "" if answer.confirmed is not None else',
    ),
    Mutant(
        guard="a replica in another state is no proof",
        where="leases.confirmation:doubt",
        old="if o.state not in reached]",
        new="if o.state is None]",
    ),
)

BATCHES = (
    Mutant(
        guard="the first failure wins",
        where="leases.batch_book:BatchBook.fail",
        old="if self.failure is not None:",
        new="if self.failure is None and number in self._batches and False:",
    ),
    Mutant(
        guard="a committed batch can't fail",
        where="leases.batch_book:BatchBook.fail",
        old="if self.knows_committed(number) or self._is_forgotten(number):",
        new="if self._is_forgotten(number):",
    ),
    Mutant(
        guard="a failed run begins nothing",
        where="leases.batch_book:BatchBook.begin",
        old="self.require_healthy(number)",
        new="pass",
    ),
    Mutant(
        guard="who waits for a batch of a failed run is told so",
        where="leases.batch_book:BatchBook.is_committed",
        old="self.require_healthy(number)",
        new="pass",
    ),
)

FENCING = (
    Mutant(
        guard="a role refuses commands from the past",
        where="engines.fencing:TokenGate.admit",
        old="if token < self._highest:",
        new="if token is None:",
    ),
    Mutant(
        guard="a command that waited for its turn is judged again",
        where="engines.command_turns:CommandTurns.run",
        old='self._gate.admit(token, f"{doing} of {self._name}")',
        new="pass",
        other="tests/unit/test_engines_manager.py::test_a_command_that_waits_is_refused_when_a_later_one_has_passed",
    ),
)

ENGINES = (
    Mutant(
        guard="a copy of an offload starts nothing",
        where="engines.manager:InferenceManager._offload",
        old="if self._wanted is Wanted.AWAKE or not self._spec.shared:",
        new="if True:",
        other="tests/unit/test_engines_manager.py::test_a_copy_of_an_offload_starts_nothing_when_others_have_the_devices",
    ),
    Mutant(
        guard="commands of a role run one at a time",
        where="engines.command_turns:CommandTurns.run",
        old="await deadline.bound(self._lock.acquire(), ",
        new="await deadline.bound(asyncio.sleep(0) if self._lock.locked() else self._lock.acquire(), ",
        other="tests/unit/test_engines_manager.py::test_a_command_that_does_not_get_its_turn_in_time_is_unconfirmed",
    ),
    Mutant(
        guard="nothing is started on shared devices without the lease",
        where="engines.manager:InferenceManager._may_start",
        old="has_devices = self._wanted is Wanted.AWAKE or not self._spec.shared",
        new="has_devices = True",
        other="tests/unit/test_engines_recovery.py::test_an_engine_that_dies_asleep_on_shared_devices_is_rebuilt_by_the_next_onload",
    ),
    Mutant(
        guard="an onload that failed in part is taken back",
        where="engines.manager:InferenceManager._onload",
        old='taken_back = await self._take_back(restored, f"{names} did not wake", deadline)',
        new="taken_back = ()",
        other="tests/failures/test_failing_engines.py::test_lifecycle_operation_partly_fails",
    ),
    Mutant(
        guard="an onload opens all replicas or none",
        where="engines.manager:InferenceManager._onload",
        old="failed = [attempt for attempt in attempts if not attempt.stands]",
        new="failed = []",
        other="tests/unit/test_engines_manager.py::test_lost_weights_fail_a_static_onload_and_the_other_replica_is_stopped",
    ),
    Mutant(
        guard="a sleep that failed is not confirmed",
        where="engines.manager:InferenceManager._settle_asleep",
        old="return replica.outcome(confirmed=attempt.succeeded, detail=attempt.problem)",
        new="return replica.outcome(confirmed=True, detail=attempt.problem)",
        other="tests/unit/test_engines_manager.py::test_a_release_that_lies_is_not_confirmed_and_not_repeated",
    ),
    Mutant(
        guard="a late answer counts for nothing",
        where="engines.replica:Replica.is_current",
        old="return ticket == self.ticket()",
        new="return True",
        other="tests/unit/test_engines_recovery.py::test_an_answer_of_an_old_incarnation_is_dropped",
    ),
    Mutant(
        guard="a replica is rebuilt only once its old engine is proved gone",
        where="engines.replica_driver:ReplicaDriver._make_way",
        old="if not ended or not replica.is_current(ticket):",
        new="if not replica.is_current(ticket):",
        other="tests/unit/test_engines_recovery.py::test_an_engine_whose_end_is_not_confirmed_is_not_replaced",
    ),
    Mutant(
        guard="a fenced slot is not built on",
        where="engines.replica_driver:ReplicaDriver._make_way",
        old="if replica.fence is not None:",
        new="if False:",
        other="tests/failures/test_failing_engines.py::test_engine_actor_confirmed_dead",
    ),
    Mutant(
        guard="a dead worker breaks its replica",
        where="engines.replica_driver:ReplicaDriver._look",
        old="return Verdict.BROKEN, _deaths(replica)",
        new="return Verdict.WELL, ''",
        other="tests/failures/test_failing_engines.py::test_engine_actor_confirmed_dead",
    ),
)

JOURNAL = (
    Mutant(
        guard="a torn last line is cut off",
        where="leases.journal:decode",
        old="if record is None:",
        new="if record is None and not line.endswith(b'\\n'):",
        other="tests/unit/test_leases_journal.py::test_a_last_line_of_garbage_is_a_torn_one",
    ),
    Mutant(
        guard="what is durable is flushed",
        where="leases.journal:FileJournal.append",
        old="if durable:",
        new="if durable is None:",
        other="tests/unit/test_leases_journal.py::test_what_is_durable_is_flushed_and_the_rest_is_not",
    ),
    Mutant(
        guard="a write that failed is undone",
        where="leases.journal:FileJournal._undo",
        old="os.ftruncate(self._descriptor, self._size)",
        new="pass",
        other="tests/unit/test_leases_journal.py::test_a_write_that_fails_half_way_is_undone",
    ),
)

RUNNER = (
    Mutant(
        guard="a put that fails is no acknowledgement",
        where="batches.publication:Publication.put",
        old="await finish(asyncio.to_thread(self._sink.put, self._partition, to_rows(samples)))",
        new="await asyncio.gather(asyncio.to_thread(self._sink.put, self._partition, to_rows(samples)),"
        " return_exceptions=True)",
    ),
    Mutant(
        guard="nothing is committed before it is put",
        where="batches.publication:Publication.put",
        old="await finish(asyncio.to_thread(self._sink.put, self._partition, to_rows(samples)))",
        new="pass",
    ),
    Mutant(
        guard="after a commit of unknown result the batch is failed before its rows are cleared",
        where="batches.publication:Publication.take_back",
        old="if self.stand is Stand.PUT:",
        new="if self.stand in (Stand.PUT, Stand.COMMITTING):",
        other="tests/unit/test_batches_runner.py::test_a_commit_of_unknown_result_keeps_the_rows",
    ),
    Mutant(
        guard="a failed batch leaves no role awake",
        where="batches.runner:_clean_up",
        old="return [*problems, *await roles.all_to_sleep()]",
        new="return problems",
        other="tests/failures/test_failing_batches.py::test_scoring_or_validation_fails",
    ),
    Mutant(
        guard="a role whose answer was lost counts as awake",
        where="batches.awake_roles:AwakeRoles._activate",
        old="self._awake[role] = phase\n        raise",
        new="raise",
        other="tests/failures/test_failing_batches.py::test_student_restore_fails",
    ),
    Mutant(
        guard="roles that share devices take turns",
        where="batches.stage_flow:StageFlow._take_turn",
        old="await _all(self._turn_ended[before] for before in turn.after)",
        new="pass",
    ),
)

CONSUMER = (
    Mutant(
        guard="training reads nothing before its commit",
        where="train.consume:consume_async",
        old="await _wait_committed(coordinator, batch, timeout_s)",
        new="pass",
    ),
)

SCALING = (
    Mutant(
        guard="devices are given back only when nothing of their replica is left",
        where="scaling.fleet:ModelFleet.end",
        old="if not outcome.confirmed:",
        new="if outcome is None:",
    ),
    Mutant(
        guard="a replica's devices are noted before they are asked for",
        where="scaling.fleet:ModelFleet.begin",
        old="self._taken[step.engine] = None",
        new="pass",
    ),
    Mutant(
        guard="a replica that has gone takes no devices again",
        where="cluster.spare_devices:SpareDevices.take",
        old="if key in self._gone:",
        new="if key is None:",
    ),
    Mutant(
        guard="what looks for room while its role shuts down begins nothing",
        where="scaling.scaler:RoleScaler.begin",
        old="self._require_open()  # it may have been closed while room was looked for",
        new="pass",
    ),
)

MUTANTS = (
    *LEDGER,
    *RESTART,
    *JOURNAL,
    *COORDINATOR,
    *CONFIRMATION,
    *BATCHES,
    *FENCING,
    *ENGINES,
    *RUNNER,
    *CONSUMER,
    *SCALING,
)


def page_table() -> str:
    """The bugs as ``docs/reference/mutation-check.md`` shows them."""
    rows = [
        f"| `{mutant.part}` | {mutant.guard} | {_noticed_by(mutant)} |"
        for mutant in sorted(MUTANTS, key=lambda mutant: mutant.other is not None)
    ]
    return "\n".join(["| module | guard that is taken away | noticed by |", "|---|---|---|", *rows])


def _noticed_by(mutant: Mutant) -> str:
    if mutant.other is None:
        return "a schedule"
    file, _, test = mutant.other.rpartition("/")[2].partition("::")
    return f"`{test or file}`"
