"""In which order the stages of a deferred batch run.

Pure. Stages are ordered by the fields they read and write, and among all such orders one with
the fewest hand-overs between roles is taken: a hand-over drains and wakes engines and costs
seconds. The order depends on nothing but the stages, how they are listed, and which roles share
devices. What of it happens at the same time is for :mod:`rolecall.batches.turns` to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from attrs import fields_dict

from rolecall.batches.fewest_handovers import fewest_handovers
from rolecall.batches.sample import Prompt, Sample
from rolecall.batches.sharing import EVERYBODY_SHARES, Sharing
from rolecall.errors import JobError
from rolecall.interfaces.role import Stage

REWARD_FIELD = "reward"
"""The field that holds a sample's reward, combined by the core when scores are written back."""

GENERATION_STAGE = "generate"
PUBLISH_STAGE = "publish"
RESERVED_STAGE_NAMES = frozenset({GENERATION_STAGE, PUBLISH_STAGE})
"""Names of the core's own phases, which no stage may take."""

_SAMPLE_FIELDS = frozenset(fields_dict(Sample)) - {"scores"}
_PROMPT_FIELDS = frozenset(f"prompt.{name}" for name in fields_dict(Prompt))
_METADATA = "prompt.metadata."


def is_generated(field: str) -> bool:
    """Return whether generation provides the field: ``response``, ``prompt.answer``,
    ``prompt.metadata.difficulty`` …"""
    return field in _SAMPLE_FIELDS or field in _PROMPT_FIELDS or field.startswith(_METADATA)


def order_stages(
    stages: Sequence[Stage], *, awake: str | None, sharing: Sharing = EVERYBODY_SHARES
) -> tuple[Stage, ...]:
    """Return the stages in an order in which they can run one after the other.

    ``awake`` is the role that is awake before the first stage. Stages without a role, and those of
    a role that shares no devices, need no hand-over; a role stays awake until one that shares
    devices with it is woken. Among roles that may come next, the one that has to wait for the
    fewest hand-overs is preferred, then the one that is listed first.

    Raises:
        JobError: with every problem: a name twice, a field that nobody writes, that two stages
            write, or that generation makes, and stages that wait for each other.
    """
    problems = [*_name_problems(stages), *_write_problems(stages), *_read_problems(stages)]
    if problems:
        raise JobError("\n".join(problems))
    needs = needs_of(stages)
    loop = _loop(needs)
    if loop:
        raise JobError(_loop_problem(stages, loop))
    return tuple(stages[index] for index in fewest_handovers(stages, needs, awake=awake, sharing=sharing))


# --- what is wrong with a set of stages -------------------------------------------------


def _name_problems(stages: Sequence[Stage]) -> list[str]:
    names = [stage.name for stage in stages]
    twice = sorted({name for name in names if names.count(name) > 1})
    reserved = sorted(RESERVED_STAGE_NAMES.intersection(names))
    return [
        *(f'stage "{name}" is declared {names.count(name)} times; names must be unique' for name in twice),
        *(f'stage "{name}" has the name of a phase of every batch; choose another name' for name in reserved),
    ]


def _write_problems(stages: Sequence[Stage]) -> list[str]:
    problems: list[str] = []
    writers: dict[str, str] = {}
    for stage in stages:
        for field in sorted(stage.writes):
            if is_generated(field) or field == "scores":
                problems.append(f'stage "{stage.name}" writes "{field}", which generation provides')
            elif field == REWARD_FIELD:
                problems.append(
                    f'stage "{stage.name}" writes "{field}", which the core combines from the rewards; '
                    f'write "{REWARD_FIELD}:<name>" for a configured reward'
                )
            elif field in writers:
                problems.append(f'field "{field}" is written by "{writers[field]}" and by "{stage.name}"')
            else:
                writers[field] = stage.name
    return problems


def _read_problems(stages: Sequence[Stage]) -> list[str]:
    written = sorted({field for stage in stages for field in stage.writes})
    return [
        f'stage "{stage.name}" reads "{field}", which no stage writes and generation does not provide. '
        f"Written: {', '.join(written) or 'nothing'}"
        for stage in stages
        for field in sorted(stage.reads)
        if field not in written and not is_generated(field)
    ]


def needs_of(stages: Sequence[Stage]) -> Mapping[int, frozenset[int]]:
    """Stage index → indices of the stages that write what it reads."""
    writer = {field: index for index, stage in enumerate(stages) for field in stage.writes}
    return {
        index: frozenset(writer[field] for field in stage.reads if field in writer)
        for index, stage in enumerate(stages)
    }


def _loop(needs: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """Return one chain of stages that ends where it began, empty if there is none."""
    free: set[int] = set()
    while ready := {index for index, before in needs.items() if index not in free and before <= free}:
        free |= ready
    stuck = sorted(needs.keys() - free)
    if not stuck:
        return ()
    path = [stuck[0]]
    while path.count(path[-1]) == 1:
        path.append(min(needs[path[-1]] - free))
    return tuple(path[path.index(path[-1]) :])


def _loop_problem(stages: Sequence[Stage], loop: tuple[int, ...]) -> str:
    steps = [
        f'"{stages[reader].name}" reads "{min(stages[reader].reads & stages[writer].writes)}" '
        f'from "{stages[writer].name}"'
        for reader, writer in pairwise(loop)
    ]
    return f"stages wait for each other: {', '.join(steps)}"
