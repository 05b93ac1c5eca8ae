"""What is known of a service's health, and whether it may be asked now. Pure: its caller tells the time.

Overload and death are different things. A service that answers 429 or 503 is alive and says when to come
back: everybody waits until then, and nobody takes it for dead. A service that refuses, resets or says nothing
may be dead: after some of those in a row nobody asks any more, errors come at once, and after a while one
request, the probe, finds out.

    CLOSED --deaths in a row--> OPEN --pause over--> PROBING --answer--> CLOSED
                                 ^----------- death ----|
"""

from __future__ import annotations

from enum import StrEnum

_LONGEST = 16
"""A circuit that opens again and again pauses up to so many times as long."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Circuit:
    """For one service.

    deaths: deaths in a row that open it.
    pause_s: how long it stays open at first; twice as long each time that a probe dies.
    """

    def __init__(self, deaths: int, pause_s: float) -> None:
        self._most_deaths = deaths
        self._pause_s = pause_s
        self._deaths = 0
        self._opened = 0
        self._open_until_s = 0.0
        self._busy_until_s = 0.0
        self.state = State.CLOSED

    def wait_s(self, now_s: float) -> float:
        """Return how long the service asked not to be asked."""
        return max(self._busy_until_s - now_s, 0.0)

    def admits(self, now_s: float) -> bool:
        """Return whether a request may be sent; what may be sent has to be told about afterwards."""
        if self.state is State.OPEN and now_s >= self._open_until_s:
            self.state = State.PROBING
            return True
        return self.state is State.CLOSED

    def open_for_s(self, now_s: float) -> float:
        """Return how long nobody will be admitted, as far as is known."""
        return max(self._open_until_s - now_s, 0.0)

    def answered(self) -> None:
        """It is alive."""
        self._deaths = self._opened = 0
        self.state = State.CLOSED

    def overloaded(self, now_s: float, retry_after_s: float) -> None:
        """It is alive, and asks to be left alone for a while."""
        self.answered()
        self._busy_until_s = max(self._busy_until_s, now_s + retry_after_s)

    def died(self, now_s: float) -> None:
        """It could not be reached, or gave no answer."""
        self._deaths += 1
        if self.state is State.PROBING or self._deaths >= self._most_deaths:
            self._opened += 1
            self._open_until_s = now_s + self._pause_s * min(2 ** (self._opened - 1), _LONGEST)
            self._deaths = 0
            self.state = State.OPEN

    def unknown(self, now_s: float) -> None:
        """Its caller left before an answer. If that was the probe, another has to find out."""
        if self.state is State.PROBING:
            self.state = State.OPEN
            self._open_until_s = now_s
