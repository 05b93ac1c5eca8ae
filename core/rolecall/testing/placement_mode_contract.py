"""Contract of placement modes, as a test class to inherit.

    class TestPacked(PlacementModeContract):
        plugin = Packed

A mode is tried on many jobs, always the same ones. It may refuse any of them, but not all.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import ClassVar

import pytest
from attrs import evolve

from rolecall.errors import Refusal
from rolecall.interfaces.placement_mode import Arrangement, PlacementMode
from rolecall.placement.contract_checks import contract_breaches
from rolecall.placement.enough import with_room
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.plan import PlacementJob, PlacementPlan, ReplicaPlacement
from rolecall.placement.preflight import check_plan, plan_placement
from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.testing import placement_oracle as oracle
from rolecall.testing.demands import any_job, placement_job, role_demand
from rolecall.testing.other_process import answer_elsewhere
from rolecall.testing.plugin_contract import PluginContract

_JOBS = 50
_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class PlacementModeContract(PluginContract):
    """What every placement mode has to do.

    Jobs are as the core hands them on: every engine fits into a node or fills whole nodes. There are equal,
    unequal and endless nodes, and jobs with a trainer.
    """

    kind: ClassVar[PluginKind] = PluginKind.PLACEMENT_MODE

    def fresh(self) -> PlacementMode:
        """Return the mode as the core makes it: without arguments."""
        return self.plugin()

    def jobs(self) -> Iterator[PlacementJob]:
        """Return the jobs that the mode is tried on; override to add what your mode is for."""
        chance = random.Random(1)
        for _ in range(_JOBS):
            yield any_job(chance.randrange)

    # --- the plan -------------------------------------------------------------------------

    def test_it_places_some_jobs(self) -> None:
        """A mode that refuses every job is of no use to anybody."""
        assert any(True for _ in self._plans()), "it refused each of its jobs"

    def test_each_plan_is_a_layout_of_its_job(self) -> None:
        """Every replica stands in it once, on as many bundles as its engine has devices, which follow one
        another inside a pool of the job's devices and on whole nodes; every role has a phase."""
        for job, plan in self._plans():
            _none(contract_breaches(job, plan), job)

    def test_no_two_roles_are_awake_on_one_bundle(self) -> None:
        """Roles that share a bundle are in different phases, and their shares of it sum to 1 at most."""
        for job, plan in self._plans():
            _none(check_plan(job, plan), job)

    def test_a_look_at_every_device_finds_nothing(self) -> None:
        """The same once more by another way, which knows nothing of the core's; and the pools are pieces of
        the job's nodes, each node of a pool of a different one."""
        for job, plan in self._plans():
            faults = oracle.faults(job, plan)
            assert not faults, f"{faults}, for {job}"
            if job.devices is not None:
                pools = [oracle.node_sizes(pool.nodes) for pool in plan.pools]
                sizes = oracle.node_sizes(job.nodes)
                assert oracle.can_be_cut(pools, sizes), f"{pools} can't be cut out of nodes of {sizes}"

    def test_each_plan_names_the_mode_and_keeps_the_order_of_roles(self) -> None:
        """Reports are read beside the job file, and say whose plan it is."""
        for job, plan in self._plans():
            assert plan.mode == self.plugin.name
            placed = list(dict.fromkeys(replica.role for replica in plan.replicas))
            assert placed == [role.role for role in job.roles], "roles are not in the job file's order"

    def test_each_plan_lies_as_the_arrangement_says(self) -> None:
        """Whoever writes ``a + b`` in ``placement.layout`` gets this mode for it, if it declares that."""
        for job, plan in self._plans():
            breach = _arrangement_breach(plan, self.plugin.arrangement)
            assert not breach, f"it declares {self.plugin.arrangement!s}, but {breach}; for {job}"

    def test_each_plan_can_be_written_down(self) -> None:
        """``rolecall plan --json`` gives back what was planned."""
        for _, plan in self._plans():
            written = plan_to_json(plan)
            read = json.loads(json.dumps(written))
            changed = [part for part in written if read[part] != written[part]]
            assert not changed, f"JSON gives back other {changed}: {read[changed[0]]}"

    def test_roles_that_never_sleep_are_no_reason_to_fail(self) -> None:
        """Whether a role may take turns is its plugin's word; the core refuses a plan that ignores it,
        the mode itself only has to answer."""
        for job in self.jobs():
            awake = evolve(job, roles=tuple(evolve(role, deferrable=False) for role in job.roles))
            plan = self.fresh().plan(awake)
            if isinstance(plan, PlacementPlan):
                _none(contract_breaches(awake, plan), awake)

    def test_ten_thousand_devices_are_no_different(self) -> None:
        """A large job gets a sound plan or a reason, like a small one."""
        roles = tuple(role_demand(name, (400, 8)) for name in ("writer", "judge", "scorer"))
        for pool in (None, 9_600):
            job = placement_job(*roles, devices=pool)
            answer = self.fresh().plan(job)
            if isinstance(answer, PlacementPlan):
                _none(check_plan(job, answer), job)

    # --- pure -----------------------------------------------------------------------------

    def test_the_same_job_gets_the_same_answer(self) -> None:
        """From the same instance again, from another one, and after other jobs."""
        used = self.fresh()
        answers = [used.plan(job) for job in self.jobs()]
        for job, answer in zip(self.jobs(), answers, strict=True):
            assert used.plan(job) == answer, f"the second answer is another, for {job}"
            assert self.fresh().plan(job) == answer, f"another instance answers otherwise, for {job}"

    def test_another_process_gets_the_same_answer(self) -> None:
        """Nothing depends on the order of a set: the planner and the job's start agree."""
        jobs = list(self.jobs())
        answers = [self.fresh().plan(job) for job in jobs]
        for job, here, there in zip(
            jobs, answers, answer_elsewhere(_answers, self.plugin.name, jobs), strict=True
        ):
            assert there == here, f"another process answers otherwise, for {job}"

    def test_the_job_is_left_as_it_was(self) -> None:
        """What the mode was given is checked against afterwards."""
        for job in self.jobs():
            before = deepcopy(job)
            self.fresh().plan(job)
            assert job == before, f"it changed its job, which was {before}"

    # --- refusals ---------------------------------------------------------------------------

    def test_a_refusal_says_what_to_change(self) -> None:
        """An answer without a plan is a tuple with every reason, at least one; each has a code for
        scripts, the config key, the rule with its numbers, and a fix."""
        for job in self.jobs():
            answer = self.fresh().plan(job)
            if isinstance(answer, PlacementPlan):
                continue
            assert isinstance(answer, tuple), f"it answered {answer!r}"
            assert answer, f"it refused without a reason: {job}"
            for refusal in answer:
                assert isinstance(refusal, Refusal), f"it answered {refusal!r} among its refusals"
                assert _CODE.fullmatch(refusal.code), f"code {refusal.code!r} is not kebab-case"
                for part in ("key", "message", "fix"):
                    assert getattr(refusal, part).strip(), f"a refusal has no {part}: {refusal!r}"

    def test_a_fix_gives_room(self) -> None:
        """With the devices that a refusal has as its fix, the mode does not say the same again."""
        mode = self.fresh()
        for job in self.jobs():
            answer = mode.plan(job)
            refused: tuple[Refusal, ...] = () if isinstance(answer, PlacementPlan) else answer
            roomier = with_room(job, refused)
            if roomier is None:
                continue
            again = mode.plan(roomier)
            left = () if isinstance(again, PlacementPlan) else again
            same = {refusal.code for refusal in refused if refusal.fixes} & {refusal.code for refusal in left}
            assert not same, f"its fix is not enough, for {roomier}: {left}"

    def test_the_core_takes_its_plans(self) -> None:
        """What the mode places, ``rolecall plan`` prints."""
        for job, plan in self._plans():
            assert plan_placement(job, self.fresh()) == plan

    # --- shared by the tests ------------------------------------------------------------------

    def _plans(self) -> Iterator[tuple[PlacementJob, PlacementPlan]]:
        mode = self.fresh()
        for job in self.jobs():
            if isinstance(plan := mode.plan(job), PlacementPlan):
                yield job, plan


def _arrangement_breach(plan: PlacementPlan, arrangement: Arrangement) -> str:
    """Say in what a plan is not of an arrangement; no words if in nothing."""
    inference = {replica.role for replica in plan.replicas}
    users: dict[str, set[str]] = {}
    for tenant in plan.everybody:
        user = tenant.role if isinstance(tenant, ReplicaPlacement) else tenant.process
        users.setdefault(tenant.pool_id, set()).add(user)
    awake = [inference.intersection(phase.roles) for phase in plan.phases]
    with_trainer = [not inference.issuperset(phase.roles) for phase in plan.phases]
    match arrangement:
        case Arrangement.OTHER:
            return ""
        case Arrangement.APART:
            together = [sorted(names) for names in users.values() if len(names) > 1]
            return f"one pool has {' and '.join(together[0])}" if together else ""
        case Arrangement.SIDE_BY_SIDE | Arrangement.IN_TURN:
            if len(users) > 1:
                return f"it has {len(users)} pools"
            if any(roles and trainer for roles, trainer in zip(awake, with_trainer, strict=True)):
                return "the trainer is in a phase of inference roles"
            if arrangement is Arrangement.SIDE_BY_SIDE:
                return "" if inference in awake else "no phase has all inference roles"
            return "a phase has several inference roles" if any(len(roles) > 1 for roles in awake) else ""


def _none(problems: list[Refusal], job: PlacementJob) -> None:
    if problems:
        lines = "\n".join(str(problem) for problem in problems)
        pytest.fail(f"the core refuses its plan:\n{lines}\nof the job {job}")


def _answers(name: str, jobs: list[PlacementJob]) -> list[PlacementPlan | tuple[Refusal, ...]]:
    """What the installed mode of that name answers; runs in another process."""
    mode = PluginHost.from_environment().load(PluginKind.PLACEMENT_MODE, name)
    return [mode().plan(job) for job in jobs]
