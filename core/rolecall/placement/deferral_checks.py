"""Refusals about jobs whose roles take turns: what can't be done while the others sleep.

Pure; the plan has passed ``contract_checks``. A job is *deferred* if its inference roles are awake in
different phases: samples are scored after generation has ended, by roles that slept meanwhile. Whatever
needs a score while samples are made is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from rolecall.config.source import key_text
from rolecall.errors import Fix, Refusal
from rolecall.ids import RoleName
from rolecall.placement.demand import JobFacts
from rolecall.placement.occupancy import Occupancy
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.wording import either, quoted

USES_KEY = "loop.uses"

_NEEDS_SCORES: Mapping[str, tuple[str, str]] = {
    "partial_rollout": (
        "a sample that is cut off and continued in a later batch leaves its group incomplete when generation"
        " ends, and only complete groups are scored",
        "let every sample be finished in its batch",
    ),
    "dynamic_batch": (
        "how many samples are made can't depend on scores that are only there once all are made",
        "make batches of a fixed size and drop groups after they were scored",
    ),
    "streamed_scoring": (
        "no sample can be scored while others are made, as the roles that score them sleep",
        "score the whole batch after generation",
    ),
}
"""Word of ``loop.uses`` → why it is impossible in a deferred job, and what to do instead."""

_OVERLAPS = "async_training"


@frozen(kw_only=True)
class RewardNotDeferred(Refusal):
    """A reward adapter without ``supports_deferred`` in a job that scores after generation."""

    code: str = field(default="reward-not-deferred", init=False)
    reward: str
    adapter: str


def refuse_undeferred_rewards(plan: PlacementPlan, facts: JobFacts) -> Iterator[RewardNotDeferred]:
    """In a job whose roles take turns, rewards are computed after generation has ended."""
    if inference_phases(plan) < 2:
        return
    for reward in facts.rewards:
        if reward.supports_deferred:
            continue
        yield RewardNotDeferred(
            key=key_text(("rewards", reward.reward, "adapter")),
            message=f'mode "{plan.mode}" scores samples after generation has ended, but adapter'
            f' "{reward.adapter}" does not declare supports_deferred',
            fix="choose an adapter that declares supports_deferred, or a mode in which all roles are awake"
            " together",
            reward=reward.reward,
            adapter=reward.adapter,
        )


@frozen(kw_only=True)
class LoopNotDeferred(Refusal):
    """Something the training loop does that needs scores while samples are made, in a deferred job."""

    code: str = field(default="loop-not-deferred", init=False)
    uses: str


def refuse_undeferred_loop(plan: PlacementPlan, facts: JobFacts) -> Iterator[LoopNotDeferred]:
    """A deferred job's loop does nothing that needs the roles that score awake during generation."""
    if inference_phases(plan) < 2:
        return
    for word in facts.loop_uses:
        if word not in _NEEDS_SCORES:
            continue
        why, instead = _NEEDS_SCORES[word]
        fix = _without(word, facts)
        yield LoopNotDeferred(
            key=USES_KEY,
            message=f'the loop uses "{word}", but mode "{plan.mode}" scores samples after generation has'
            f" ended: {why}",
            fix=either(f"{instead}: {fix}", "a mode in which all roles are awake together"),
            fixes=(fix,),
            uses=word,
        )


@frozen(kw_only=True)
class TrainingNotOverlapped(Refusal):
    """A training loop that trains while samples are made, on devices that it shares with inference."""

    code: str = field(default="training-not-overlapped", init=False)
    training: tuple[RoleName, ...]


def refuse_overlapped_training(
    plan: PlacementPlan, occupancy: Occupancy, facts: JobFacts
) -> Iterator[TrainingNotOverlapped]:
    """Training that overlaps generation has devices of its own."""
    if _OVERLAPS not in facts.loop_uses:
        return
    training = {tenant.role for tenant in plan.training}
    shared = {
        role for pair in occupancy.shared_by() if len(training.intersection(pair)) == 1 for role in pair
    }
    if not shared:
        return
    fix = _without(_OVERLAPS, facts)
    roles = tuple(sorted(shared & training))
    yield TrainingNotOverlapped(
        key=USES_KEY,
        message=f'the loop uses "{_OVERLAPS}", but mode "{plan.mode}" lets {quoted(roles)} take turns with'
        f" {quoted(shared - training)}: no sample is made while it trains",
        fix=either(f"train between batches: {fix}", "a mode that gives the trainer devices of its own"),
        fixes=(fix,),
        training=roles,
    )


def inference_phases(plan: PlacementPlan) -> int:
    """Return in how many phases some inference role is awake; several: the job is deferred."""
    inference = {replica.role for replica in plan.replicas}
    return sum(1 for phase in plan.phases if not inference.isdisjoint(phase.roles))


def _without(word: str, facts: JobFacts) -> Fix:
    return Fix(((USES_KEY, [other for other in facts.loop_uses if other != word]),))
