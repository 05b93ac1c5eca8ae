"""The search for the smallest changes that make a job feasible, held against trying every one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import Fix, Refusal
from rolecall.placement.suggest import Question, Suggestions, suggest

Job = Mapping[str, Any]


def refusal(code: str, *fixes: Mapping[str, Any]) -> Refusal:
    return Refusal(
        code=code,
        key="some.key",
        message="no",
        fix="yes",
        fixes=tuple(Fix(tuple(fix.items())) for fix in fixes),
    )


def ask(
    job: Job, judge: Callable[[Job], list[Refusal]], *, counts: tuple[str, ...] = (), **settings: Any
) -> Suggestions:
    def attempt(changes: Job) -> tuple[Refusal, ...]:
        return tuple(judge({**job, **changes}))

    return suggest(Question(attempt=attempt, now=job.get, counts=counts, **{"start": {}, **settings}))


def found(answer: Suggestions) -> list[dict[str, Any]]:
    return [dict(fix.assignments) for fix in answer.fixes]


def room(job: Job) -> list[Refusal]:
    """Two models beside each other in a pool; engines of ``b`` have two devices."""
    needed = job["a"] + 2 * job["b"]
    return [] if needed <= job["pool"] else [refusal("pool-too-small", {"pool": needed})]


COUNTS = ("a", "b")


def test_a_feasible_job_needs_nothing():
    answer = ask({"a": 2, "b": 3, "pool": 8}, room, counts=COUNTS)
    assert found(answer) == [{}]
    assert answer.refusals == ()


def test_one_key_is_better_than_two_and_a_little_better_than_much():
    answer = ask({"a": 8, "b": 4, "pool": 12}, room, counts=COUNTS)
    assert found(answer) == [{"pool": 16}, {"a": 4}, {"b": 2}]
    assert [refusal.code for refusal in answer.refusals or ()] == ["pool-too-small"]


def test_where_no_single_count_will_do_all_become_smaller_and_none_more_than_it_has_to():
    answer = ask({"a": 8, "b": 8, "pool": 6}, room, counts=COUNTS, kept=frozenset({"pool"}))
    assert found(answer) == [{"a": 2, "b": 2}]
    answer = ask({"a": 8, "b": 1, "pool": 5}, room, counts=COUNTS, kept=frozenset({"pool"}))
    assert found(answer) == [{"a": 3}]


def test_what_is_kept_is_not_touched():
    answer = ask({"a": 8, "b": 4, "pool": 12}, room, counts=COUNTS, kept=frozenset({"pool", "a"}))
    assert found(answer) == [{"b": 2}]
    answer = ask({"a": 8, "b": 4, "pool": 12}, room, kept=frozenset({"pool"}))
    assert found(answer) == []


def test_what_is_made_in_any_case_is_part_of_the_answer_and_costs_nothing():
    answer = ask({"a": 8, "b": 4, "pool": 8}, room, counts=COUNTS, start={"pool": 12, "layout": None})
    assert found(answer) == [
        {"pool": 16, "layout": None},
        {"pool": 12, "layout": None, "a": 4},
        {"pool": 12, "layout": None, "b": 2},
    ]


def test_a_fix_that_another_one_makes_needless_is_left_out():
    def judge(job: Job) -> list[Refusal]:
        found = [] if job.get("small") or job.get("mode") == "apart" else [refusal("large", {"small": True})]
        return found + ([] if job.get("mode") == "apart" else [refusal("mode", {"mode": "apart"})])

    assert found(ask({}, judge)) == [{"mode": "apart"}]


def test_a_refusal_that_nothing_lifts_is_the_answer():
    answer = ask({"a": 1, "b": 1, "pool": 1}, lambda job: [*room(job), refusal("never")], counts=COUNTS)
    assert found(answer) == []
    assert [refusal.code for refusal in answer.refusals or ()] == ["pool-too-small", "never"]


def test_fixes_that_undo_each_other_come_to_an_end():
    def judge(job: Job) -> list[Refusal]:
        return [refusal("on", {"x": False})] if job.get("x") else [refusal("off", {"x": True})]

    assert found(ask({}, judge)) == []


def test_a_job_that_makes_no_sense_has_no_answer():
    answer = suggest(Question(attempt=lambda changes: None, now={}.get, counts=(), start={}))
    assert answer == Suggestions(fixes=(), refusals=None)


def test_a_change_that_makes_no_sense_is_not_followed():
    def attempt(changes: Job) -> tuple[Refusal, ...] | None:
        if changes.get("x") == "broken":
            return None
        return () if changes.get("x") == "good" else (refusal("r", {"x": "broken"}, {"x": "good"}),)

    answer = suggest(Question(attempt=attempt, now={}.get, counts=(), start={}))
    assert found(answer) == [{"x": "good"}]


def test_many_refusals_at_once_are_all_lifted():
    keys = [f"k{number}" for number in range(14)]

    def judge(job: Job) -> list[Refusal]:
        return [refusal(key, {key: 1}, {key: 2}) for key in keys if not job.get(key)]

    (changes,) = found(ask({}, judge))
    assert changes.keys() == set(keys)


def test_no_further_plan_is_made_after_the_time_is_over():
    made: list[Job] = []

    def attempt(changes: Job) -> tuple[Refusal, ...]:
        made.append(changes)
        return (refusal("r", {f"k{len(made)}": True}),)

    def clock() -> float:
        return float(len(made))

    suggest(Question(attempt=attempt, now={}.get, counts=(), start={}, seconds=7.0, clock=clock))
    assert len(made) <= 8


CODES = "pqrs"
KEYS = "abcd"
FIXES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((1, 2)), min_size=1, max_size=2)


@settings(max_examples=60)
@given(st.lists(st.lists(FIXES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_no_smaller_set_of_fixes_would_do(rules):
    """Each rule is kept by a job that has one of its fixes; the fewest keys are found by trying all sets."""

    def judge(job: Job) -> list[Refusal]:
        return [
            refusal(code, *fixes)
            for code, fixes in zip(CODES, rules, strict=False)
            if not any(fix.items() <= job.items() for fix in fixes)
        ]

    every = [fix for fixes in rules for fix in fixes]
    sets = chain.from_iterable(combinations(every, size) for size in range(len(rules) + 1))
    merged = [dict(chain.from_iterable(fix.items() for fix in chosen)) for chosen in sets]
    fewest = min((len(job) for job in merged if not judge(job)), default=None)
    answers = found(ask({}, judge))
    assert bool(answers) == (fewest is not None)
    for answer in answers:
        assert judge(answer) == []
        assert all(judge({key: answer[key] for key in answer if key != one}) for one in answer)
    if answers:
        assert len(answers[0]) == fewest


@given(st.integers(1, 40), st.integers(1, 40), st.integers(3, 60))
def test_of_counts_as_much_is_left_as_there_is_room_for(a, b, pool):
    job = {"a": a, "b": b, "pool": pool}
    for answer in found(ask(job, room, counts=COUNTS, kept=frozenset({"pool"}))):
        assert room({**job, **answer}) == []
        for key, value in answer.items():
            assert value < job[key]
            assert room({**job, **answer, key: value + 1})


@pytest.mark.parametrize("replicas", [1_000_000])
def test_large_counts_take_few_plans(replicas):
    made: list[Job] = []

    def judge(job: Job) -> list[Refusal]:
        made.append(job)
        return room(job)

    ask({"a": replicas, "b": replicas, "pool": replicas}, judge, counts=COUNTS, kept=frozenset({"pool"}))
    assert len(made) < 100


def test_an_answer_says_whether_everything_was_tried():
    assert ask({"a": 8, "b": 4, "pool": 12}, room, counts=COUNTS).complete
    ticks = iter(range(1_000))
    late = ask(
        {"a": 8, "b": 4, "pool": 12}, room, counts=COUNTS, seconds=3.0, clock=lambda: float(next(ticks))
    )
    assert found(late)[0] == {"pool": 16}
    assert not late.complete
