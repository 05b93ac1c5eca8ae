"""Placement modes that break a promise, and one that breaks none."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from rolecall.api import (
    ROLECALL_API,
    Arrangement,
    Fix,
    Nodes,
    Phase,
    PlacementJob,
    PlacementPlan,
    Pool,
    Refusal,
    place_role,
    place_training,
)
from rolecall.testing import PlacementModeContract


class SoundMode:
    """Roles side by side in one pool, in the order of the job file, all awake together; then the trainer."""

    name: ClassVar[str] = "sound_mode"
    api_version: ClassVar[int] = ROLECALL_API
    arrangement: ClassVar[Arrangement] = Arrangement.SIDE_BY_SIDE

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        trainer = place_training(job.training, pool_id="p", start=0)
        slices: list[Any] = []
        stop = 0
        for role in job.roles:
            laid = self.slice(role, stop, job)
            if laid is None:
                return self.refuse(job, stop + role.needed)
            slices.append(laid)
            stop = max(stop, laid.stop)
        if job.devices is None or max(stop, trainer.stop) > job.devices:
            return self.refuse(job, max(stop, trainer.stop))
        return PlacementPlan(
            mode=self.name,
            pools=(Pool(pool_id="p", resource=job.resource, nodes=self.nodes(job)),),
            replicas=tuple(replica for laid in slices for replica in laid.replicas),
            training=trainer.placements,
            phases=self.phases(job),
        )

    def nodes(self, job: PlacementJob) -> Nodes:
        return job.nodes

    def slice(self, role: Any, start: int, job: PlacementJob) -> Any:
        return place_role(role, pool_id="p", start=start, nodes=self.nodes(job))

    def phases(self, job: PlacementJob) -> tuple[Phase, ...]:
        inference = Phase(name="all", roles=tuple(role.role for role in job.roles))
        training = Phase(name="training", roles=tuple(role.role for role in job.training))
        return (inference, training) if job.training else (inference,)

    def refuse(self, job: PlacementJob, stop: int) -> tuple[Refusal, ...]:
        return (
            Refusal(
                code="pool-too-small",
                key="placement.devices",
                message=f"{stop} devices are needed, the pool has {job.devices}",
                fix=f"placement.devices = {stop}",
            ),
        )


class TestSoundMode(PlacementModeContract):
    plugin = SoundMode
    fails: ClassVar = {}


DEVICES = "test_a_look_at_every_device_finds_nothing"


class Overlapping(SoundMode):
    """All roles from the first bundle on, and all awake together."""

    name = "overlapping"

    def slice(self, role: Any, start: int, job: PlacementJob) -> Any:
        return super().slice(role, 0, job)


class TestOverlapping(PlacementModeContract):
    plugin = Overlapping
    fails: ClassVar = dict.fromkeys(
        (
            "test_no_two_roles_are_awake_on_one_bundle",
            "test_the_core_takes_its_plans",
            "test_ten_thousand_devices_are_no_different",
        ),
        "only roles in different phases may share devices",
    ) | {DEVICES: "are awake on .* together"}


class Forgetful(SoundMode):
    """Leaves a role's last replica out."""

    name = "forgetful"

    def slice(self, role: Any, start: int, job: PlacementJob) -> Any:
        laid = super().slice(role, start, job)
        return laid and evolve(laid, replicas=laid.replicas[: len(laid.replicas) - 1 or 1])


BREACHES = (
    "test_each_plan_is_a_layout_of_its_job",
    "test_no_two_roles_are_awake_on_one_bundle",
    "test_roles_that_never_sleep_are_no_reason_to_fail",
    "test_ten_thousand_devices_are_no_different",
    "test_the_core_takes_its_plans",
)
"""Tests that look at the whole layout before they look at anything else."""


class TestForgetful(PlacementModeContract):
    plugin = Forgetful
    fails: ClassVar = dict.fromkeys(BREACHES, "is placed 0 times, not once") | {
        DEVICES: "the job has engines"
    }


class Boundless(SoundMode):
    """Makes a pool that is as large as asked for, and goes beyond it."""

    name = "boundless"

    def slice(self, role: Any, start: int, job: PlacementJob) -> Any:
        laid = super().slice(role, start, job)
        return laid and evolve(laid, replicas=(*laid.replicas[:-1], _moved(laid.replicas[-1], by=100_000)))


def _moved(replica: Any, by: int) -> Any:
    return evolve(replica, bundles=tuple(bundle + by for bundle in replica.bundles))


class TestBoundless(PlacementModeContract):
    plugin = Boundless
    fails: ClassVar = dict.fromkeys(BREACHES, "bundle-outside-pool") | {
        DEVICES: "not all of them in its pool"
    }


class Straddling(SoundMode):
    """Packs engines without a look at the nodes."""

    name = "straddling"

    def slice(self, role: Any, start: int, job: PlacementJob) -> Any:
        laid = place_role(role, pool_id="p", start=0, nodes=Nodes.endless(1_000_000))
        assert laid is not None
        return evolve(
            laid,
            replicas=tuple(_moved(replica, by=start) for replica in laid.replicas),
            start=start,
            stop=start + laid.stop,
        )


class TestStraddling(PlacementModeContract):
    plugin = Straddling
    fails: ClassVar = dict.fromkeys(
        (name for name in BREACHES if name != "test_ten_thousand_devices_are_no_different"),
        "engine-straddles-nodes",
    ) | {DEVICES: "neither one node nor whole ones"}


class Levelling(SoundMode):
    """Takes all nodes to be as large as the largest."""

    name = "levelling"

    def nodes(self, job: PlacementJob) -> Nodes:
        devices = job.devices
        return job.nodes if devices is None else Nodes.equal(devices, per_node=job.nodes.largest)


class TestLevelling(PlacementModeContract):
    plugin = Levelling
    fails: ClassVar = dict.fromkeys(
        (name for name in BREACHES if name != "test_ten_thousand_devices_are_no_different"),
        "nodes of .* or more; the job has",
    ) | {DEVICES: "not so many nodes"}


class Counting(SoundMode):
    """Numbers its plans."""

    name = "counting"

    def __init__(self) -> None:
        self.made = 0

    def phases(self, job: PlacementJob) -> tuple[Phase, ...]:
        self.made += 1
        return tuple(evolve(phase, name=f"{phase.name}-{self.made}") for phase in super().phases(job))


class TestCounting(PlacementModeContract):
    plugin = Counting
    fails: ClassVar = {
        "test_the_same_job_gets_the_same_answer": "the second answer is another",
        "test_the_core_takes_its_plans": "all-1",
    }


class Unordered(SoundMode):
    """The order of a set, and so of Python's hash."""

    name = "unordered"

    def phases(self, job: PlacementJob) -> tuple[Phase, ...]:
        return tuple(evolve(phase, roles=tuple({*phase.roles})) for phase in super().phases(job))


class TestUnordered(PlacementModeContract):
    plugin = Unordered
    fails: ClassVar = {"test_another_process_gets_the_same_answer": "another process answers otherwise"}


class Rewriting(SoundMode):
    """Gives the job the pool that it should have had."""

    name = "rewriting"

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        if job.devices is not None:
            object.__setattr__(job, "nodes", Nodes.equal(job.devices + job.devices % 2, per_node=8))
        return super().plan(job)


class TestRewriting(PlacementModeContract):
    plugin = Rewriting
    fails: ClassVar = {"test_the_job_is_left_as_it_was": "it changed its job"}


class Backwards(SoundMode):
    """Lays the roles out in an order of its own."""

    name = "backwards"

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        return super().plan(evolve(job, roles=job.roles[::-1]))


class TestBackwards(PlacementModeContract):
    plugin = Backwards
    fails: ClassVar = {
        "test_each_plan_names_the_mode_and_keeps_the_order_of_roles": "not in the job file's order"
    }


class Misdeclared(SoundMode):
    """Lays roles side by side, and says that they take turns."""

    name = "misdeclared"
    arrangement = Arrangement.IN_TURN


class TestMisdeclared(PlacementModeContract):
    plugin = Misdeclared
    fails: ClassVar = {"test_each_plan_lies_as_the_arrangement_says": "a phase has several inference roles"}


class Unwritable(SoundMode):
    """Names its pool with what only looks like a name."""

    name = "unwritable"

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        answer = super().plan(job)
        if not isinstance(answer, PlacementPlan):
            return answer
        named: Any = ("p", 1)
        return evolve(
            answer,
            pools=tuple(evolve(pool, pool_id=named) for pool in answer.pools),
            replicas=tuple(evolve(replica, pool_id=named) for replica in answer.replicas),
            training=tuple(evolve(role, pool_id=named) for role in answer.training),
        )


class TestUnwritable(PlacementModeContract):
    plugin = Unwritable
    fails: ClassVar = {"test_each_plan_can_be_written_down": "JSON gives back other .*pools"}


class Silent(SoundMode):
    """Refuses without a word."""

    name = "silent"

    def refuse(self, job: PlacementJob, stop: int) -> tuple[Refusal, ...]:
        return ()


class TestSilent(PlacementModeContract):
    plugin = Silent
    fails: ClassVar = {"test_a_refusal_says_what_to_change": "it refused without a reason"}


class Curt(SoundMode):
    """Does not say what to do about it."""

    name = "curt"

    def refuse(self, job: PlacementJob, stop: int) -> tuple[Refusal, ...]:
        return tuple(evolve(refusal, fix="") for refusal in super().refuse(job, stop))


class TestCurt(PlacementModeContract):
    plugin = Curt
    fails: ClassVar = {"test_a_refusal_says_what_to_change": "a refusal has no fix"}


class Stingy(SoundMode):
    """Its fix is too few."""

    name: ClassVar[str] = "stingy"

    def refuse(self, job: PlacementJob, stop: int) -> tuple[Refusal, ...]:
        (refusal,) = super().refuse(job, stop)
        return (evolve(refusal, fixes=(Fix((("placement.devices", max(1, stop - 1)),)),)),)


class TestStingy(PlacementModeContract):
    plugin = Stingy
    fails: ClassVar = {"test_a_fix_gives_room": "is not enough"}


class Refusing(SoundMode):
    """Wants what no job has."""

    name = "refusing"

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        return self.refuse(job, 0)


class TestRefusing(PlacementModeContract):
    plugin = Refusing
    fails: ClassVar = {"test_it_places_some_jobs": "it refused each of its jobs"}
