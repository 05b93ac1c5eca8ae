"""States of one scaling operation and the only allowed changes between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ScaleState(StrEnum):
    """RUNNING, CANCELLING and ROLLING_BACK go on; all others are final."""

    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    ROLLING_BACK = "ROLLING_BACK"
    DONE = "DONE"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    ROLLED_BACK = "ROLLED_BACK"


TRANSITIONS: Mapping[ScaleState, Mapping[ScaleState, str]] = {
    ScaleState.PLANNED: {},
    ScaleState.RUNNING: {
        ScaleState.DONE: "every replica came or went as planned",
        ScaleState.PARTIAL: "some did, and are kept by policy; or all did, and something is left to clean",
        ScaleState.FAILED: "none did",
        ScaleState.ROLLING_BACK: "some did not, and by policy none shall",
        ScaleState.CANCELLING: "cancelled: starts and drains are given up",
    },
    ScaleState.CANCELLING: {
        ScaleState.CANCELLED: "what was given up is ended, or put back; what had been reached is kept",
        ScaleState.DONE: "the cancellation came too late: every replica had come or gone",
        ScaleState.ROLLING_BACK: "some had come, and by policy none shall",
    },
    ScaleState.ROLLING_BACK: {
        ScaleState.ROLLED_BACK: "undone as far as that went; what is left to clean is named",
    },
    ScaleState.DONE: {},
    ScaleState.PARTIAL: {},
    ScaleState.FAILED: {},
    ScaleState.CANCELLED: {},
    ScaleState.ROLLED_BACK: {},
}

STARTS: Mapping[ScaleState, str] = {
    ScaleState.RUNNING: "begun",
    ScaleState.PLANNED: "a dry run: nothing is done",
}


def is_final(state: ScaleState) -> bool:
    """Whether nothing happens to such an operation any more."""
    return not TRANSITIONS[state]
