"""``weighted``: several reward adapters as one reward.

An error of one part is an error of the whole: a reward that is complete but for its judge would be a number
for an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

from attrs import Attribute, field, frozen, validators

from rolecall.api import (
    ROLECALL_API,
    PluginError,
    RewardAdapter,
    Sample,
    ScoringClient,
    ScoringError,
    hookimpl,
    make_reward_adapter,
)

Combine = Literal["mean", "sum"]


def _is_weight(_: object, attribute: Attribute[float], value: float) -> None:
    if not math.isfinite(value) or value == 0:
        raise ValueError(f"{attribute.name} must be a finite number other than 0, found {value}")


@frozen(kw_only=True)
class Part:
    """One adapter of several.

    adapter: name of a reward-adapter plugin.
    weight: how much its reward counts; below 0 it is a penalty.
    options: its own table.
    """

    adapter: str
    weight: float = field(default=1.0, validator=_is_weight)
    options: Mapping[str, Any] = field(factory=dict)


def _can_be_made(_: object, attribute: Attribute[tuple[Part, ...]], value: tuple[Part, ...]) -> None:
    if not value:
        raise ValueError(f"{attribute.name} is empty; give at least one table with adapter and weight")
    roles = {adapter.role for adapter in _made(value, attribute.name)} - {None}
    if len(roles) > 1:
        raise ValueError(
            f"{attribute.name} ask several roles, {', '.join(sorted(map(str, roles)))}; a reward is computed "
            "while one role is awake. Give each role a reward of its own"
        )


@frozen(kw_only=True)
class WeightedOptions:
    """``[rewards.<name>.options]`` of ``weighted``.

    parts: the adapters, in the order in which they are asked; cheap rules first.
    combine: ``mean``: the weighted mean, the weights' sum must be above 0. ``sum``: the weighted sum.
    """

    parts: tuple[Part, ...] = field(validator=_can_be_made)
    combine: Combine = field(default="mean", validator=validators.in_(("mean", "sum")))

    def __attrs_post_init__(self) -> None:
        total = math.fsum(part.weight for part in self.parts)
        if self.combine == "mean" and not total > 0:
            raise ValueError(f'the weights add up to {total:g}; a mean needs more than 0, or combine = "sum"')


class Weighted:
    """Has the role of its parts, of which there may be one; reads what they read; can be deferred if all
    of them can."""

    name: ClassVar[str] = "weighted"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[WeightedOptions]] = WeightedOptions
    supports_deferred: bool = True
    role: str | None = None
    reads: frozenset[str] = frozenset()

    def __init__(self, options: WeightedOptions) -> None:
        self._options = options
        self._adapters = _made(options.parts, "parts")
        self.supports_deferred = all(adapter.supports_deferred for adapter in self._adapters)
        self.role = next((adapter.role for adapter in self._adapters if adapter.role is not None), None)
        self.reads = frozenset(name for adapter in self._adapters for name in adapter.reads)

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return the weighted mean, or sum, of the parts' rewards.

        Raises:
            Exception: what a part raised, with a note that says which.
            ScoringError: a part returned what is no finite number.
        """
        worths: list[float] = []
        for part, adapter in zip(self._options.parts, self._adapters, strict=True):
            try:
                reward = await adapter.score(sample, None if adapter.role is None else client)
            except Exception as error:
                error.add_note(f"raised by the part {part.adapter} of {self.name}")
                raise
            worths.append(part.weight * _number(reward, part.adapter))
        total = math.fsum(worths)
        if self._options.combine == "sum":
            return total
        return total / math.fsum(part.weight for part in self._options.parts)


def _made(parts: tuple[Part, ...], where: str) -> tuple[RewardAdapter, ...]:
    made: list[RewardAdapter] = []
    for number, part in enumerate(parts):
        try:
            made.append(make_reward_adapter(part.adapter, part.options))
        except (ValueError, PluginError) as error:
            raise ValueError(f"{where}[{number}]: {error}") from error
    return tuple(made)


def _number(reward: object, adapter: str) -> float:
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ScoringError(f"the part {adapter} returned {reward!r}, not a finite number")
    return reward


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    # Attributes of an instance, where the interface has those of a class.
    return cast("type[RewardAdapter]", Weighted)
