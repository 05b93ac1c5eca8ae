"""A teacher that follows the policy: the moving average of its weights, and a version for each.

Kept by the trainer. rolecall sees a model of the teacher role with ``weight_source = "ACTOR"`` that gets new
weights under a new name, as a policy does, and every sample says which of them scored it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MovingAverage:
    """``average ← decay × average + (1 − decay) × policy``, tensor by tensor; NumPy or detached PyTorch.

    Averages are kept in the precision they are given in. At a decay near 1 a step is smaller than what
    float16 or bfloat16 can tell from nothing: give float32.

    Attributes:
        weights: the average by tensor name. Hold no reference across an update: it is changed in place.
        updates: how many updates it has seen.
    """

    def __init__(self, weights: Mapping[str, Any], *, decay: float, name: str = "ema") -> None:
        """Begin with a copy of ``weights``, the policy's or a teacher's own.

        Raises:
            ValueError: the decay is not between 0 and 1.
        """
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be from 0 to below 1, found {decay!r}")
        self.weights = {key: value * 1 for key, value in weights.items()}
        self.updates = 0
        self._decay = decay
        self._name = name

    @property
    def version(self) -> str:
        """A name for the present weights, for ``update_weights``: it never comes twice, and ``0`` is none."""
        return f"{self._name}-{self.updates}"

    def update(self, policy: Mapping[str, Any]) -> str:
        """Take the policy's weights in and return the new version.

        Raises:
            ValueError: the policy has other tensors, or one of another shape; nothing was changed.
        """
        if policy.keys() != self.weights.keys():
            strange = sorted(policy.keys() ^ self.weights.keys())
            raise ValueError(
                f"the policy and its average differ in {len(strange)} tensors, e.g. {strange[0]}"
            )
        for key, value in policy.items():
            if tuple(value.shape) != tuple(self.weights[key].shape):
                raise ValueError(
                    f"{key}: the policy has the shape {tuple(value.shape)}, "
                    f"its average {tuple(self.weights[key].shape)}"
                )
        for key, value in policy.items():
            average = self.weights[key]
            average += (value - average) * (1 - self._decay)
        self.updates += 1
        return self.version
