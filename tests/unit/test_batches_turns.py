"""What of a batch happens at the same time: turns from the stages, their fields and who shares devices."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import Stage, StageContext
from rolecall.batches.sample import Sample, Scores
from rolecall.batches.schedule import order_stages
from rolecall.batches.sharing import EVERYBODY_SHARES, Sharing
from rolecall.batches.turns import Schedule, Turn, make_schedule
from rolecall.ids import RoleName

WRITER = RoleName("writer")


async def _never(samples: Sequence[Sample], context: StageContext) -> Scores:
    raise AssertionError("a schedule is made without running anything")


def stage(name: str, role: str | None, reads: Sequence[str] = ()) -> Stage:
    return Stage(
        name=name,
        role=role,
        reads=frozenset(f"by_{other}" for other in reads),
        writes=frozenset({f"by_{name}"}),
        run=_never,
    )


def sharing(*groups: str) -> Sharing:
    """Roles in one group (``"writer judge"``) share devices; roles in none share with nobody."""
    conflicts: dict[RoleName, set[RoleName]] = {}
    for group in groups:
        names = [RoleName(name) for name in group.split()]
        for name in names:
            conflicts.setdefault(name, set()).update(set(names) - {name})
    return Sharing(conflicts)


def schedule(stages: Sequence[Stage], shared: Sharing) -> Schedule:
    ordered = order_stages(stages, awake=WRITER, sharing=shared)
    return make_schedule(ordered, generation_role=WRITER, sharing=shared)


def turns(made: Schedule) -> list[tuple[str, list[str], list[int]]]:
    return [(turn.role, [one.name for one in turn.stages], sorted(turn.after)) for turn in made.turns]


def before(made: Schedule) -> dict[str, set[str]]:
    planned = [*made.alone, *(one for turn in made.turns for one in turn.stages)]
    return {one.name: set(one.before) for one in planned}


# --- one example each ---------------------------------------------------------------------


def test_roles_on_the_same_devices_take_turns() -> None:
    made = schedule([stage("judge", "judge"), stage("teach", "teacher")], sharing("writer judge teacher"))
    assert turns(made) == [("writer", [], []), ("judge", ["judge"], [0]), ("teacher", ["teach"], [0, 1])]
    assert [turn.prepares for turn in made.turns] == [("judge",), ("teacher",), ("writer",)]


def test_roles_on_disjoint_devices_do_not_wait_for_one_another() -> None:
    made = schedule(
        [stage("judge", "judge"), stage("teach", "teacher")], sharing("writer judge", "writer teacher")
    )
    assert turns(made) == [("writer", [], []), ("judge", ["judge"], [0]), ("teacher", ["teach"], [0])]
    assert before(made) == {"judge": set(), "teach": set()}


def test_a_role_between_others_does_not_keep_them_apart() -> None:
    # Listed second, the wide one would make two small turns wait for each other: 3 in a row, not 2.
    stages = [stage("a", "left"), stage("b", "wide"), stage("c", "right")]
    made = schedule(stages, sharing("writer left wide", "writer right wide"))
    assert turns(made) == [
        ("writer", [], []),
        ("left", ["a"], [0]),
        ("right", ["c"], [0]),
        ("wide", ["b"], [0, 1, 2]),
    ]


def test_a_resident_role_has_one_turn_and_hands_nothing_over() -> None:
    stages = [stage("a", "guest"), stage("b", "judge", ["a"]), stage("c", "guest", ["b"])]
    made = schedule(stages, sharing("writer judge"))
    assert turns(made) == [("writer", [], []), ("guest", ["a", "c"], []), ("judge", ["b"], [0])]
    assert [turn.resident for turn in made.turns] == [False, True, False]


def test_a_role_stays_awake_while_nobody_needs_its_devices() -> None:
    # Everybody sharing, this takes writer, judge, teacher, judge.
    stages = [stage("a", "judge"), stage("b", "teacher", ["a"]), stage("c", "judge", ["b"])]
    apart = schedule(stages, sharing("writer judge", "writer teacher"))
    assert [(role, names) for role, names, _ in turns(apart)] == [
        ("writer", []),
        ("judge", ["a", "c"]),
        ("teacher", ["b"]),
    ]
    assert [turn.role for turn in schedule(stages, EVERYBODY_SHARES).turns] == [
        "writer",
        "judge",
        "teacher",
        "judge",
    ]


def test_stages_without_a_role_wait_for_their_fields_only() -> None:
    stages = [stage("rules", None), stage("judge", "judge"), stage("mixed", None, ["judge", "rules"])]
    made = schedule(stages, sharing("writer judge"))
    assert {one.name: set(one.needs) for one in made.alone} == {"rules": set(), "mixed": {"judge", "rules"}}


def test_what_has_surely_ended_counts_devices_and_fields() -> None:
    stages = [stage("judge", "judge"), stage("rules", None), stage("teach", "teacher", ["rules"])]
    made = schedule(stages, sharing("writer judge teacher"))
    assert before(made) == {"judge": set(), "rules": set(), "teach": {"judge", "rules"}}


def test_who_shares_with_the_trainer_takes_the_devices_no_earlier_than_needed() -> None:
    stages = [stage("judge", "judge"), stage("teach", "teacher")]
    made = schedule(stages, sharing("judge actor", "teacher writer"))
    assert {turn.role: turn.waits_for_work for turn in made.turns} == {
        "writer": False,
        "judge": True,
        "teacher": False,
    }


def test_a_batch_of_one_turn_prepares_nobody() -> None:
    made = schedule([stage("student", "writer")], sharing("writer judge"))
    assert turns(made) == [("writer", ["student"], [])]
    assert made.turns[0].prepares == ()


def test_many_independent_roles_are_ordered_at_once() -> None:
    # Trying all orders of 40 roles would never end.
    stages = [stage(str(number), f"role-{number}") for number in range(40)]
    assert len(schedule(stages, EVERYBODY_SHARES).turns) == 41


# --- whatever the stages ------------------------------------------------------------------

ROLES = ("writer", "a", "b", "c")


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Stage], Sharing]:
    """Up to 5 stages of up to 4 roles, each reading from some before it, with any conflicts."""
    made: list[Stage] = []
    for index in range(draw(st.integers(1, 5))):
        reads = draw(st.sets(st.sampled_from([str(i) for i in range(index)]))) if index else set[str]()
        made.append(stage(str(index), draw(st.sampled_from([*ROLES, None])), sorted(reads)))
    pairs = [(one, other) for one in ROLES for other in ROLES if one < other]
    clashing = draw(st.sets(st.sampled_from(pairs)))
    conflicts: Mapping[RoleName, frozenset[RoleName]] = {
        RoleName(role): frozenset(
            RoleName(other) for other in ROLES if (role, other) in clashing or (other, role) in clashing
        )
        for role in ROLES
    }
    return draw(st.permutations(made)), Sharing(conflicts)


def wakes(order: Sequence[Stage], shared: Sharing) -> int:
    """Hand-overs of an order that is run one stage after the other."""
    awake, count = {"writer"}, 0
    for one in order:
        if one.role is None or one.role in awake or shared.is_resident(one.role):
            continue
        awake = {other for other in awake if not shared.clash(one.role, other)} | {one.role}
        count += 1
    return count


@settings(deadline=None)  # the brute force beside it is slow on a busy machine
@given(jobs())
def test_no_order_has_fewer_handovers(job: tuple[list[Stage], Sharing]) -> None:
    stages, shared = job

    def is_correct(order: Sequence[Stage]) -> bool:
        written: set[str] = set()
        for one in order:
            if not one.reads <= written:
                return False
            written |= one.writes
        return True

    made = schedule(stages, shared)
    handed_over = sum(not turn.resident for turn in made.turns[1:])
    assert handed_over == min(wakes(order, shared) for order in permutations(stages) if is_correct(order))


@settings(deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_at_any_pace_a_schedule_ends_and_keeps_its_promises(
    job: tuple[list[Stage], Sharing], pace: random.Random
) -> None:
    """Steps are taken one at a time, whichever may be taken, as a runner would at any speed."""
    stages, shared = job
    made = schedule(stages, shared)
    reads = {one.name: one.reads for one in stages}
    writes = {one.name: one.writes for one in stages}
    done: list[str] = []
    awake: set[int] = {0}
    slept: set[int] = set()

    def clash(one: Turn, other: Turn) -> bool:
        return shared.clash(one.role, other.role)

    def left(turn: int) -> list[str]:
        return [one.name for one in made.turns[turn].stages if one.name not in done]

    while True:
        steps: list[tuple[str, int | str]] = []
        for number, turn in enumerate(made.turns):
            if number not in awake | slept and turn.after <= slept:
                steps.append(("wake", number))
            if number in awake and not left(number):
                steps.append(("sleep", number))
            if number in awake and left(number):
                planned = next(one for one in turn.stages if one.name == left(number)[0])
                if planned.needs <= set(done):
                    steps.append(("run", planned.name))
        steps += [("run", one.name) for one in made.alone if one.name not in done and one.needs <= set(done)]
        if not steps:
            break
        what, which = pace.choice(steps)
        if isinstance(which, str):
            promised = next(
                one.before
                for one in [*made.alone, *(one for turn in made.turns for one in turn.stages)]
                if one.name == which
            )
            assert promised <= set(done)
            assert reads[which] <= {field for name in done for field in writes[name]}
            done.append(which)
        elif what == "wake":
            assert not any(clash(made.turns[which], made.turns[other]) for other in awake)
            awake.add(which)
        else:
            awake.discard(which)
            slept.add(which)
    assert sorted(done) == sorted(one.name for one in stages), "it ended before everything was done"
    assert not awake
