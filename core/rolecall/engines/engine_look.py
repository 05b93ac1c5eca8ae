"""One look at an engine, as its worker sees it. Changes nothing.

Called by the engine host beside whatever command runs. What the look means for the replica is the
health policy's to say.
"""

from __future__ import annotations

from attrs import frozen

from rolecall.engines.deadline import Deadline
from rolecall.errors import EngineError
from rolecall.interfaces.engine_backend import Engine, MemoryTag


@frozen(kw_only=True)
class EngineLook:
    """What was seen; see :class:`~rolecall.engines.worker_handle.WorkerHealth` for the words."""

    exit_code: int | None = None
    alive: bool = False
    running: int | None = None
    detail: str


async def look_at(
    engine: Engine,
    deadline: Deadline,
    *,
    counts: bool,
    generate: bool,
    should_be_away: frozenset[MemoryTag],
) -> EngineLook:
    """Ask the engine how it is, within the deadline.

    counts: it answers requests, so it can be asked how many run; a follower can't.
    generate: also run one token through it; only if it is known to be awake.
    should_be_away: tags that must not be resident, since it sleeps.
    """
    if (code := engine.exit_code()) is not None:
        return _ended(engine, code)
    running: int | None = None
    alive, notes = False, list[str]()
    if counts:
        try:
            running = await deadline.share(0.3).bound(engine.running_requests(), "running-request count")
        except EngineError as error:
            notes.append(str(error))
    try:
        limit = deadline.leaving(0.5)
        found = await limit.bound(
            engine.health(generate=generate, timeout_s=limit.remaining_s()), "health answer"
        )
        alive = found.alive
        notes.append(found.detail)
        if should_be_away:
            memory = await limit.bound(engine.memory(), "memory report")
            if resident := memory.resident_tags & should_be_away:
                # Somebody else woke it: it may be in the way of whoever has the devices now.
                alive = False
                notes.append(f"should be asleep, but holds {', '.join(sorted(resident))}")
    except EngineError as error:
        alive = False
        notes.append(str(error))
    # The process may have ended while it was asked; then that is the news.
    if (code := engine.exit_code()) is not None:
        return _ended(engine, code)
    return EngineLook(alive=alive, running=running, detail="; ".join(note for note in notes if note))


def _ended(engine: Engine, code: int) -> EngineLook:
    return EngineLook(exit_code=code, detail=f"engine process {engine.pid} ended, exit code {code}")
