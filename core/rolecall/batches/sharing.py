"""Which roles share devices, as far as the order of a batch is concerned.

Pure. The truth is the plan's, and the coordinator's with it, which refuses what contradicts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from attrs import frozen

from rolecall.ids import RoleName


@frozen
class Sharing:
    """Who can't be awake beside whom.

    conflicts: role → roles that share a bundle with it, the trainer's among them; None while there
        is no plan: then no two roles may be awake at the same time.
    """

    conflicts: Mapping[RoleName, Set[RoleName]] | None = None

    def clash(self, one: str, other: str) -> bool:
        """Return whether two roles can't be awake at the same time."""
        if one == other:
            return False
        return self.conflicts is None or other in self.conflicts.get(RoleName(one), frozenset())

    def is_resident(self, role: str) -> bool:
        """Return whether the role is always awake, as it shares with nobody."""
        return self.conflicts is not None and not self.conflicts.get(RoleName(role))

    def has_others(self, role: str, known: Set[str]) -> bool:
        """Return whether the role shares devices with somebody who is not among ``known``."""
        return self.conflicts is not None and bool(self.conflicts.get(RoleName(role), frozenset()) - known)


EVERYBODY_SHARES = Sharing()
