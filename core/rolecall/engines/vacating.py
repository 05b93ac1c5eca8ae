"""Freeing a fenced role's devices, replica by replica: the manager's work for a reconciliation.

What is awake is put to sleep, what can't be is ended, what dead workers left is looked for and ended.
Nothing is started, and nothing is taken for granted: also a replica that is known to sleep is measured
again. Confirmed is a replica that is SLEEPING with that proof, or one with evidence that no process of
its engine is left. Called by the manager, as its only running command.
"""

from __future__ import annotations

from rolecall.engines.deadline import Deadline
from rolecall.engines.proof import Proof
from rolecall.engines.replica import Replica
from rolecall.engines.replica_driver import ReplicaDriver
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import ReplicaOutcome

_SLEEP_SHARE = 0.6
"""Share of the time for putting a replica to sleep; the rest is for ending one that does not."""


def begin(replica: Replica, *, can_sleep: bool) -> None:
    """Take a replica out of use: DRAINING if it may be put to sleep, FAILED if it has to be ended."""
    match replica.state:
        case ReplicaState.SLEEPING | ReplicaState.DRAINING | ReplicaState.FAILED | ReplicaState.STOPPING:
            pass
        case ReplicaState.READY if can_sleep:
            replica.enter_state(ReplicaState.DRAINING, "vacated")
        case ReplicaState.ONLOADING if can_sleep and replica.waits:
            replica.enter_state(ReplicaState.DRAINING, "vacated")
        case _:
            replica.enter_state(ReplicaState.FAILED, f"vacated; it was {replica.state}")


async def finish(
    replica: Replica, driver: ReplicaDriver, deadline: Deadline, *, proof: Proof
) -> ReplicaOutcome:
    """Put a replica to sleep that :func:`begin` took out of use, or end it; returns what is proved."""
    if replica.state is ReplicaState.SLEEPING:
        attempt = await driver.prove_asleep(replica, deadline.share(_SLEEP_SHARE))
    elif replica.state is ReplicaState.DRAINING:
        attempt = await driver.sleep(replica, deadline.share(_SLEEP_SHARE))
    else:
        attempt = None
    if attempt is not None and attempt.stands:
        return replica.outcome(confirmed=True)
    if replica.state not in {ReplicaState.FAILED, ReplicaState.STOPPING}:
        return replica.outcome(confirmed=False, detail=attempt.problem if attempt is not None else None)
    return await settle(replica, driver, deadline, proof=proof)


async def settle(
    replica: Replica, driver: ReplicaDriver, deadline: Deadline, *, proof: Proof
) -> ReplicaOutcome:
    """End what is left of a broken replica; its evidence, or what is missing to it."""
    ended = await driver.end(replica, deadline, proof=proof)
    return replica.outcome(confirmed=ended, detail=replica.evidence if ended else replica.missing)
