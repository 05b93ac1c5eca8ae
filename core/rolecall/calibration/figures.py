"""How far rewards agree with labels: figures and the table behind them. Pure.

Labels are classes: a reward counts for the label that is nearest to it (of two as near, for the lower). What
could not be scored is counted apart, and in no other figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

MOST_CLASSES = 12
"""With more different labels than that they are a scale: no classes, no table."""


@frozen(kw_only=True)
class LabelRow:
    """What became of the verdicts with one label.

    chosen: label → how many rewards were nearest to it. errors: how many could not be scored.
    mean_reward: of those that could; None if none could.
    """

    label: float
    chosen: Mapping[float, int]
    errors: int
    mean_reward: float | None

    @property
    def scored(self) -> int:
        return sum(self.chosen.values())


@frozen(kw_only=True)
class Agreement:
    """What :func:`agreement` found; a figure that can't be had is None.

    share: of the scored, those whose reward is nearest to their own label.
    kappa: Cohen's: the share beyond what chance would give; 1 is all, 0 is chance.
    pearson, spearman: correlation of rewards and labels, of their values and of their ranks.
    errors: what was raised → how often.
    """

    scored: int
    errors: Mapping[str, int]
    share: float | None
    kappa: float | None
    pearson: float | None
    spearman: float | None
    rows: tuple[LabelRow, ...]

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    def to_json(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {
            "scored": self.scored,
            "failed": self.failed,
            "agreement": self.share,
            "kappa": self.kappa,
            "pearson": self.pearson,
            "spearman": self.spearman,
            "labels": [
                {
                    "label": row.label,
                    "scored": row.scored,
                    "chosen": [{"label": label, "count": count} for label, count in row.chosen.items()],
                    "errors": row.errors,
                    "mean_reward": row.mean_reward,
                }
                for row in self.rows
            ],
            "errors": [{"message": message, "count": count} for message, count in self.errors.items()],
        }


def agreement(labels: Sequence[float], rewards: Sequence[float | str]) -> Agreement:
    """Compare labels with rewards, in the same order; a reward that is text is the error there was."""
    scored = [
        (label, reward) for label, reward in zip(labels, rewards, strict=True) if not isinstance(reward, str)
    ]
    errors = Counter(reward for reward in rewards if isinstance(reward, str))
    classes = sorted(set(labels))
    known = [label for label, _ in scored]
    values = [reward for _, reward in scored]
    categorical = len(classes) <= MOST_CLASSES
    chosen = [nearest(reward, classes) for reward in values] if categorical else []
    return Agreement(
        scored=len(scored),
        errors=dict(errors.most_common()),
        share=_share(known, chosen) if chosen else None,
        kappa=_kappa(known, chosen) if chosen else None,
        pearson=correlation(known, values),
        spearman=correlation(_ranks(known), _ranks(values)),
        rows=tuple(_row(label, classes, labels, rewards) for label in classes) if categorical else (),
    )


def nearest(reward: float, classes: Sequence[float]) -> float:
    """Return the class, of some in ascending order, that is nearest to a reward."""
    return min(classes, key=lambda label: abs(label - reward))


def _row(
    label: float, classes: Sequence[float], labels: Sequence[float], rewards: Sequence[float | str]
) -> LabelRow:
    mine = [reward for known, reward in zip(labels, rewards, strict=True) if known == label]
    values = [reward for reward in mine if not isinstance(reward, str)]
    chosen = Counter(nearest(reward, classes) for reward in values)
    return LabelRow(
        label=label,
        chosen={other: chosen[other] for other in classes},
        errors=len(mine) - len(values),
        mean_reward=math.fsum(values) / len(values) if values else None,
    )


def _share(known: Sequence[float], chosen: Sequence[float]) -> float:
    return sum(a == b for a, b in zip(known, chosen, strict=True)) / len(known)


def _kappa(known: Sequence[float], chosen: Sequence[float]) -> float | None:
    """None if both always say the same one thing: chance would agree fully, too."""
    share, total = _share(known, chosen), len(known)
    left, right = Counter(known), Counter(chosen)
    chance = sum(left[label] * right[label] for label in left) / total**2
    return None if chance == 1 else (share - chance) / (1 - chance)


def correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None if one of them never varies."""
    if len(left) < 2:
        return None
    a = [value - math.fsum(left) / len(left) for value in left]
    b = [value - math.fsum(right) / len(right) for value in right]
    spread = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    if not spread or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(a, b, strict=True)) / spread))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the places of values when sorted; equal ones share the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [math.fsum(places[value]) / len(places[value]) for value in values]
