"""From an order of stages to what of it happens at the same time: turns of roles, and who waits for whom.

Pure. A *turn* is one stretch of a batch in which a role is awake. Turns of roles that share devices come
one after the other, in the order of their stages; all others overlap. Nothing waits for anything that is
not before it in that order, so whoever carries a schedule out, at whatever pace, gets to its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from rolecall.batches.schedule import needs_of
from rolecall.batches.sharing import Sharing
from rolecall.ids import RoleName
from rolecall.interfaces.role import Stage


@frozen(kw_only=True)
class PlannedStage:
    """A stage in its place. All stages wait for generation.

    needs: names of the stages that write what it reads; it starts when they have ended.
    before: names of all stages that have ended when it starts, however fast each of them is.
    """

    stage: Stage
    needs: frozenset[str]
    before: frozenset[str]

    @property
    def name(self) -> str:
        return self.stage.name


@frozen(kw_only=True)
class Turn:
    """One stretch in which a role is awake, for stages that run one after the other.

    after: turns whose roles must have been put to sleep before this one's is woken, by index.
    resident: the role is awake anyway; nothing is handed over.
    waits_for_work: it is woken only when its first stage can run. Others are woken as soon as their
        devices are free. One whose devices somebody outside the batch uses, too, takes them no earlier
        than it needs them.
    prepares: roles whose turns come next on its devices.
    """

    role: RoleName
    stages: tuple[PlannedStage, ...]
    after: frozenset[int]
    resident: bool
    waits_for_work: bool
    prepares: tuple[RoleName, ...] = ()


@frozen(kw_only=True)
class Schedule:
    """What a batch runs after its prompts are there.

    turns: the first is the one that generates, before its stages.
    alone: stages that need no role.
    """

    turns: tuple[Turn, ...]
    alone: tuple[PlannedStage, ...]


def make_schedule(stages: Sequence[Stage], *, generation_role: RoleName, sharing: Sharing) -> Schedule:
    """Divide stages, which stand in an order that can be run, into turns.

    A turn ends where the order has a role that shares devices with it; until then all stages of the role
    are of the same turn.
    """
    drafts = _divide(stages, generation_role, sharing)
    planned = _plan_stages(stages, drafts)
    scheduled = frozenset(draft.role for draft in drafts)
    turns = [
        Turn(
            role=draft.role,
            stages=tuple(planned[index] for index in draft.stages),
            after=draft.after,
            resident=sharing.is_resident(draft.role),
            waits_for_work=bool(draft.stages) and sharing.has_others(draft.role, scheduled),
            prepares=_prepared_in(number, drafts, sharing),
        )
        for number, draft in enumerate(drafts)
    ]
    return Schedule(
        turns=tuple(turns),
        alone=tuple(planned[index] for index, stage in enumerate(stages) if stage.role is None),
    )


@frozen
class _Draft:
    role: RoleName
    after: frozenset[int]
    stages: list[int] = field(factory=list)


def _divide(stages: Sequence[Stage], generation_role: RoleName, sharing: Sharing) -> list[_Draft]:
    drafts = [_Draft(generation_role, frozenset())]
    awake = {generation_role: 0}
    for index, stage in enumerate(stages):
        if stage.role is None:
            continue
        role = RoleName(stage.role)
        if role not in awake:
            rivals = frozenset(turn for turn, draft in enumerate(drafts) if sharing.clash(role, draft.role))
            awake = {other: turn for other, turn in awake.items() if turn not in rivals}
            awake[role] = len(drafts)
            drafts.append(_Draft(role, rivals))
        drafts[awake[role]].stages.append(index)
    return drafts


def _plan_stages(stages: Sequence[Stage], drafts: Sequence[_Draft]) -> list[PlannedStage]:
    needs = needs_of(stages)
    turn_of = {index: turn for turn, draft in enumerate(drafts) for index in draft.stages}
    before: list[frozenset[int]] = []
    for index in range(len(stages)):
        direct = set(needs[index])
        if index in turn_of:
            draft = drafts[turn_of[index]]
            direct.update(earlier for earlier in draft.stages if earlier < index)
            direct.update(earlier for turn in draft.after for earlier in drafts[turn].stages)
        before.append(frozenset(direct).union(*(before[earlier] for earlier in direct)))

    def names(indices: frozenset[int]) -> frozenset[str]:
        return frozenset(stages[index].name for index in indices)

    return [
        PlannedStage(stage=stage, needs=names(needs[index]), before=names(before[index]))
        for index, stage in enumerate(stages)
    ]


def _prepared_in(number: int, drafts: Sequence[_Draft], sharing: Sharing) -> tuple[RoleName, ...]:
    """Return whom to prepare in a turn: those who wait for it last and, in the last one, the next batch's."""
    nexts = [draft.role for draft in drafts if max(draft.after, default=None) == number]
    first = drafts[0].role
    if number == len(drafts) - 1 and number and sharing.clash(drafts[number].role, first):
        nexts.append(first)
    return tuple(nexts)
