"""How the ledger writes its journal: decisions before they are made, news even if the disk is full.

A *decision* that can't be written is not made. *News* (what a role has answered) has happened whether it
can be written or not, so it counts, and is owed: the next decision has to bring the whole of it to the disk
first. A coordinator that dies in between finds the operation still CALLING and asks the role.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from rolecall.errors import JournalError
from rolecall.leases.history import History, Kind
from rolecall.leases.journal import Journal

logger = logging.getLogger(__name__)


class Recorder:
    """The ledger's pen; ``history`` tells all that the ledger knows. Without a journal nothing is written."""

    def __init__(self, journal: Journal | None, history: Callable[[], History]) -> None:
        self._journal = journal
        self._history = history
        self._owing = False

    def decide(self, kind: Kind, *, durable: bool, **fields: Any) -> None:
        """Write down what the ledger is about to do.

        Raises:
            JournalError: it is not written; do nothing.
        """
        if self._journal is None:
            return
        if self._owing or self._journal.wants_rewriting:
            self._rewrite(self._journal)
        self._journal.append({"kind": kind.value, **fields}, durable=durable)

    def learn(self, kind: Kind, **fields: Any) -> None:
        """Write down what has happened, now or before the next decision."""
        try:
            self.decide(kind, durable=False, **fields)
        except JournalError:
            self._owing = True
            logger.exception("the journal does not know yet: %s %s", kind, fields)

    def _rewrite(self, journal: Journal) -> None:
        try:
            journal.rewrite([self._history().snapshot()])
        except JournalError:
            if self._owing:
                raise
            # It has only become long, or says itself that it takes nothing.
            logger.exception("the journal was not rewritten")
        else:
            self._owing = False
