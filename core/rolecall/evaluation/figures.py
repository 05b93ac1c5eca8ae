"""What an evaluation comes to. Pure; errors are in no figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from rolecall.evaluation.evaluate import Evaluated

EVERYTHING = ""
"""Data source of the figures over all prompts."""


@frozen(kw_only=True)
class Figures:
    """One reward over the prompts of one data source.

    samples: how many have the reward. failed: how many have an error instead.
    mean, deviation: of the samples' rewards. best: mean over the prompts of the best of their samples; both
    None if no sample has the reward.
    """

    reward: str
    data_source: str
    samples: int
    failed: int
    mean: float | None
    deviation: float | None
    best: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(evaluated: Sequence[Evaluated]) -> tuple[Figures, ...]:
    """Return the figures of each reward: over all prompts, and for each data source if there are several."""
    sources = dict.fromkeys(one.sample.prompt.data_source or "none" for one in evaluated)
    rewards = dict.fromkeys(name for one in evaluated for name in one.rewards)
    return tuple(
        _figures(reward, source, [one for one in evaluated if source in (EVERYTHING, _source(one))])
        for reward in rewards
        for source in (EVERYTHING, *(sources if len(sources) > 1 else ()))
    )


def errors(evaluated: Iterable[Evaluated]) -> Mapping[str, int]:
    """Return what was raised, and how often, the commonest first."""
    found = Counter(value for one in evaluated for value in one.rewards.values() if isinstance(value, str))
    return dict(found.most_common())


def _source(one: Evaluated) -> str:
    return one.sample.prompt.data_source or "none"


def _figures(reward: str, source: str, evaluated: Sequence[Evaluated]) -> Figures:
    best: dict[str, float] = {}
    values: list[float] = []
    for one in evaluated:
        value = one.rewards[reward]
        if isinstance(value, str):
            continue
        values.append(value)
        group = one.sample.group_id
        best[group] = max(value, best.get(group, -math.inf))
    mean = math.fsum(values) / len(values) if values else None
    return Figures(
        reward=reward,
        data_source=source,
        samples=len(values),
        failed=len(evaluated) - len(values),
        mean=mean,
        deviation=None
        if mean is None
        else math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)),
        best=math.fsum(best.values()) / len(best) if best else None,
    )
