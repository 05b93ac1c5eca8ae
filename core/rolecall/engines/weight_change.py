"""Giving a running engine other weights, with proof that it has them.

Pure asyncio over the :class:`~rolecall.interfaces.engine_backend.Engine` protocol; called by the
engine host. It owns the order of steps. Which update comes when, and what a replica with old weights
may do, is the manager's business.

Close the door → grace for running requests → pause (abort) → abort and flush until the engine is
quiet and no permit is out → update → continue → the version that the engine itself reports → open
the door. No token is ever computed by two versions of the weights, and the update is attempted once:
after a failure nobody knows which weights the engine has.
"""

from __future__ import annotations

from rolecall.engines.admission import Admission
from rolecall.engines.deadline import Deadline
from rolecall.engines.handover import HandoverLimits, abort_until_quiet, close_and_wait
from rolecall.errors import CanaryMismatchError
from rolecall.interfaces.engine_backend import Engine, MemoryReport, WeightUpdate


async def change_weights(
    engine: Engine,
    update: WeightUpdate,
    version: str,
    deadline: Deadline,
    *,
    grace_s: float,
    limits: HandoverLimits,
    door: Admission | None,
) -> MemoryReport:
    """Drain the engine, load the update, and open the door once it reports ``version``.

    Raises:
        CanaryMismatchError: the update was answered, but the engine reports another version.
        DeadlineExceededError: a step, named in the message, used up the deadline.
    """
    await close_and_wait(engine, door, deadline, grace_s=grace_s, limits=limits)
    await deadline.bound(engine.pause(), "pause")
    await abort_until_quiet(engine, door, deadline, limits=limits)
    await deadline.bound(engine.update_weights(update, version), f"update of the weights to {version!r}")
    await deadline.bound(engine.continue_generation(), "continue_generation")
    found = await deadline.bound(engine.weight_version(), "weight version after the update")
    if found != version:
        raise CanaryMismatchError(
            f"the update to {version!r} was answered, but the engine reports version {found!r}"
        )
    memory = await deadline.bound(engine.memory(), "memory report after the update")
    if door is not None:
        door.open()
    return memory
