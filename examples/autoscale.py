"""Keep about four requests at each replica of a running job's policy.

    rolecall up my-job.toml            # its model has max_replicas
    python examples/autoscale.py my-job

Grows at once, shrinks only after five quiet minutes: a replica that comes costs the start of an engine.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from rolecall.job.connect import connect
from rolecall.scaling.autoscaler import Seen, autoscale

ROLE = "rollout"


class ByRequests:
    """Decides by the requests in flight; one object a model."""

    def __init__(
        self,
        *,
        fewest: int = 1,
        most: int = 8,
        per_replica: int = 4,
        patience_s: float = 300.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fewest, self._most, self._per_replica = fewest, most, per_replica
        self._patience_s = patience_s
        self._now_s = now_s
        self._busy_s = now_s()

    def __call__(self, seen: Seen) -> int | None:
        if seen.in_flight is None or seen.ready == 0:
            return None  # asleep, or just being updated: that says nothing of the load
        needed = max(self._fewest, min(self._most, -(-seen.in_flight // self._per_replica)))
        if needed >= seen.total:
            self._busy_s = self._now_s()
            return needed
        return needed if self._now_s() - self._busy_s > self._patience_s else None


async def main(name: str | None) -> None:
    with connect(name) as job:
        await autoscale(job, ROLE, ByRequests(), every_s=10.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
