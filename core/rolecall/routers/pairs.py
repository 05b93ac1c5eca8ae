"""Which half of each request a model's replicas do."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.interfaces.engine_backend import Disaggregation


def halves(replicas: int, prefill: int) -> Sequence[Disaggregation | None]:
    """Return what each replica does, in order: the first ``prefill`` ones the first half; 0: all do all.

    >>> [half.value for half in halves(3, 1)]
    ['prefill', 'decode', 'decode']
    >>> halves(2, 0)
    [None, None]
    """
    if not prefill:
        return [None] * replicas
    return [Disaggregation.PREFILL] * prefill + [Disaggregation.DECODE] * (replicas - prefill)
