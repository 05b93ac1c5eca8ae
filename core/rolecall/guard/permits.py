"""Permits: whether requests may come in, and how many are inside. Pure.

A permit is taken before a request is sent to the engine and given back when the engine's end of it is
confirmed. The state changes in one place, by the table below:

* CLOSED: nobody comes in, nobody is inside, and whoever closed the door was told so;
* OPEN: requests come in;
* DRAINING: nobody comes in; some may be inside, or nobody was told yet that none is;
* STOPPED: for good.

So a door opens only from CLOSED: after a drain that was acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum

from rolecall.errors import EngineError, TransitionError

logger = logging.getLogger(__name__)


class DoorState(StrEnum):
    """See the module's contract."""

    CLOSED = "closed"
    OPEN = "open"
    DRAINING = "draining"
    STOPPED = "stopped"


NEXT_STATES: Mapping[DoorState, frozenset[DoorState]] = {
    DoorState.CLOSED: frozenset({DoorState.OPEN, DoorState.STOPPED}),
    DoorState.OPEN: frozenset({DoorState.DRAINING, DoorState.STOPPED}),
    DoorState.DRAINING: frozenset({DoorState.CLOSED, DoorState.STOPPED}),
    DoorState.STOPPED: frozenset(),
}
"""Every change of state there is."""


class DoorClosedError(EngineError):
    """Nobody is let in now."""


class Permits:
    """The book of one door. ``name`` is for the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = DoorState.CLOSED
        self._out = 0

    @property
    def state(self) -> DoorState:
        return self._state

    @property
    def out(self) -> int:
        """Permits that were taken and not given back."""
        return self._out

    def take(self) -> None:
        """Take a permit.

        Raises:
            DoorClosedError: the door is not open.
        """
        if self._state is not DoorState.OPEN:
            raise DoorClosedError(f"{self._name} is {self._state}")
        self._out += 1

    def give_back(self) -> None:
        """Give a permit back; the engine's end of its request is confirmed."""
        if self._out == 0:
            raise ValueError(f"{self._name}: a permit was given back that nobody had")
        self._out -= 1

    def open(self) -> None:
        """Let requests in. Repeats do nothing.

        Raises:
            EngineError: the last drain has not been acknowledged, or the door was stopped.
        """
        match self._state:
            case DoorState.OPEN:
                return
            case DoorState.CLOSED:
                self._enter(DoorState.OPEN, "opened")
            case DoorState.DRAINING:
                raise EngineError(
                    f"{self._name} is not opened: {self._out} permits are out"
                    if self._out
                    else f"{self._name} is not opened: its drain was not waited for"
                )
            case DoorState.STOPPED:
                raise EngineError(f"{self._name} is not opened: it was stopped")

    def close(self) -> None:
        """Let nobody in. Repeats do nothing."""
        if self._state is DoorState.OPEN:
            self._enter(DoorState.DRAINING, f"closed with {self._out} permits out")

    def acknowledge(self) -> None:
        """Take note that somebody was told that no permit is out. Repeats do nothing.

        Raises:
            EngineError: a permit is out, or the door is open.
        """
        if self._out:
            raise EngineError(f"{self._name} is not drained: {self._out} permits are out")
        if self._state is DoorState.OPEN:
            raise EngineError(f"{self._name} is open, so it can't be drained; close it first")
        if self._state is DoorState.DRAINING:
            self._enter(DoorState.CLOSED, "drained")

    def stop(self) -> None:
        """Let nobody in any more. Repeats do nothing."""
        if self._state is not DoorState.STOPPED:
            self._enter(DoorState.STOPPED, f"stopped with {self._out} permits out")

    def _enter(self, wanted: DoorState, reason: str) -> None:
        if wanted not in NEXT_STATES[self._state]:
            raise TransitionError(f"{self._name}: no way from {self._state} to {wanted} ({reason})")
        before, self._state = self._state, wanted
        logger.info("%s: %s → %s (%s)", self._name, before, wanted, reason)
