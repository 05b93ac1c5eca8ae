"""One command at a time, each to its end or its deadline; the last one interrupts what runs.

Pure asyncio; a manager has one, and knows no lock of its own. A command that can't begin in time, or that was
interrupted, is lost: nothing of it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rolecall.engines.deadline import Deadline, DeadlineExceededError
from rolecall.engines.fencing import TokenGate
from rolecall.engines.results import Outcomes
from rolecall.errors import EngineError
from rolecall.ids import FencingToken

_LEISURE_S = 0.05
"""Until whoever waited for the outcomes has gone on."""


class CommandTurns:
    """See the module's contract.

    Args:
        name: whose commands they are, for messages.
        gate: commands with a token show it again when their turn has come.
        afterwards: done after every command.
        lost: the outcomes of a command that did not run, or not to its end; takes why.
    """

    def __init__(
        self,
        name: str,
        gate: TokenGate,
        *,
        afterwards: Callable[[], Awaitable[None]],
        lost: Callable[[str], Outcomes],
    ) -> None:
        self._name = name
        self._gate = gate
        self._afterwards = afterwards
        self._lost = lost
        self._lock = asyncio.Lock()
        self._active: asyncio.Task[Outcomes] | None = None
        self._telling: asyncio.Future[None] | None = None
        self._doing = ""
        self.closing = False

    @property
    def idle(self) -> bool:
        """Nothing runs, and something may."""
        return not self._lock.locked() and not self.closing

    def close(self) -> None:
        """Interrupt what runs and refuse what comes, but for the last command. Repeats interrupt again."""
        self.closing = True
        if self._active is not None:
            self._active.cancel()

    async def run(
        self,
        doing: str,
        deadline: Deadline,
        body: Callable[[], Coroutine[Any, Any, Outcomes]],
        token: FencingToken | None = None,
        *,
        last: bool = False,
    ) -> Outcomes:
        """Run a command's body as the only one; ``last`` ones run also after :meth:`close`.

        A command with a token is a step of a hand-over, and whoever takes the next one waits: if all of it is
        confirmed, what is done afterwards follows its outcomes.

        Raises:
            StaleTokenError: a command with a higher token has passed while it waited.
            EngineError: it may not run any more.
        """
        try:
            await deadline.bound(self._lock.acquire(), f"{doing} of {self._name}, waiting for {self._doing},")
        except DeadlineExceededError as error:
            return self._lost(str(error))
        try:
            if self.closing and not last:
                raise EngineError(f"{doing} of {self._name} refused: it is shutting down")
            if token is not None:
                # A later command may have passed while this one waited for its turn.
                self._gate.admit(token, f"{doing} of {self._name}")
            self._active, self._doing = asyncio.ensure_future(body()), doing
            try:
                outcomes = await self._active
            except asyncio.CancelledError:
                if self.closing and self._active.cancelled() and not _being_cancelled():
                    return self._lost(f"{doing} was interrupted by a shutdown")
                raise
            if token is not None and all(outcome.confirmed for outcome in outcomes):
                self._telling = asyncio.ensure_future(self._tell_at_leisure())
            else:
                await self._afterwards()
            return outcomes
        finally:
            self._active, self._doing = None, ""
            self._lock.release()

    async def _tell_at_leisure(self) -> None:
        await asyncio.sleep(_LEISURE_S)
        await self._afterwards()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
