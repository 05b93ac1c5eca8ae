"""``verified``: the reward for what the verifier's stage wrote. It runs nothing itself."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from rolecall.api import RewardAdapter, Sample, ScoringClient, ScoringError, hookimpl

_SHARE = "verifier_share"


@frozen(kw_only=True)
class VerifiedOptions:
    """``[rewards.<name>.options]`` of ``verified``.

    partial: pay the share of the tests that passed; else 1 for all of them and 0 for less.
    """

    partial: bool = False


class Verified:
    """Needs the role ``verifier`` in the job: its stage writes what is read here."""

    name: ClassVar[str] = "verified"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[VerifiedOptions]] = VerifiedOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset({_SHARE})

    def __init__(self, options: VerifiedOptions) -> None:
        self._partial = options.partial

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return 0 to 1."""
        del client
        share = sample.scores.get(_SHARE)
        if not isinstance(share, float):
            raise ScoringError(f"the verifier wrote no {_SHARE}, found {share!r:.60}")
        return share if self._partial else float(share == 1.0)


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    """Return the adapter's class."""
    return Verified
