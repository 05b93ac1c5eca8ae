"""How placement writes for people: counts, runs of bundles, ways out."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Return the number with its noun.

    >>> counted(1, "device"), counted(3, "device")
    ('1 device', '3 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bundle_runs(bundles: Iterable[int]) -> str:
    """Return bundle numbers as ascending runs.

    >>> bundle_runs([6, 0, 1, 2, 3])
    '0-3, 6'
    """
    runs: list[list[int]] = []
    for bundle in sorted(set(bundles)):
        if runs and bundle == runs[-1][1] + 1:
            runs[-1][1] = bundle
        else:
            runs.append([bundle, bundle])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def either(*ways: object) -> str:
    """Return ways out of a refusal, the first one best.

    >>> either("devices = 8", "fewer replicas")
    'devices = 8, or fewer replicas'
    """
    return ", or ".join(str(way) for way in ways)


def quoted(names: Iterable[str]) -> str:
    """Return names in quotation marks, in their order.

    >>> quoted({"judge", "actor"})
    '"actor", "judge"'
    """
    return ", ".join(f'"{name}"' for name in sorted(names))
