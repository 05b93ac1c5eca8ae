"""Fencing tokens: a command from the past is refused by whoever would execute it."""

from __future__ import annotations

from attrs import frozen

from rolecall.errors import StaleTokenError
from rolecall.ids import FencingToken

NO_TOKEN = FencingToken(0)
"""Token of commands that come before the first lease; every lease's token is higher."""


@frozen(kw_only=True)
class Stamp:
    """What every command to a worker carries.

    incarnation: number of the engine start that the command is meant for.
    token: the highest fencing token that the sender had seen.
    """

    incarnation: int
    token: FencingToken


class TokenGate:
    """Remembers the highest token seen and refuses lower ones. An equal one is a repeat."""

    def __init__(self) -> None:
        self._highest = NO_TOKEN

    @property
    def highest(self) -> FencingToken:
        return self._highest

    def admit(self, token: FencingToken, what: str) -> None:
        """Let a command pass and remember its token.

        Raises:
            StaleTokenError: a higher token has been seen; names both.
        """
        if token < self._highest:
            raise StaleTokenError(
                f"{what} carries fencing token {token}, but {self._highest} has been seen: "
                "the lease it acts for is over"
            )
        self._highest = token
