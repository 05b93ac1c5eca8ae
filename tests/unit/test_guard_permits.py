"""The door's book: it opens only after a drain that was acknowledged, whatever comes in which order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rolecall.errors import EngineError
from rolecall.guard.permits import NEXT_STATES, DoorClosedError, DoorState, Permits


class AnyOrder(RuleBasedStateMachine):
    """The model: what is open, who is inside, and whether somebody was told that nobody is."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = Permits("door")
        self.is_open = self.stopped = False
        self.inside = 0
        self.told = True

    @rule()
    def take(self) -> None:
        if self.is_open:
            self.permits.take()
            self.inside += 1
        else:
            with pytest.raises(DoorClosedError):
                self.permits.take()

    @precondition(lambda self: self.inside)
    @rule()
    def give_back(self) -> None:
        self.permits.give_back()
        self.inside -= 1

    @precondition(lambda self: not self.inside)
    @rule()
    def give_back_what_nobody_has(self) -> None:
        with pytest.raises(ValueError, match="nobody had"):
            self.permits.give_back()

    @rule()
    def open(self) -> None:
        if self.stopped or (not self.is_open and (self.inside or not self.told)):
            with pytest.raises(EngineError, match="not opened"):
                self.permits.open()
        else:
            self.permits.open()
            self.is_open, self.told = True, False

    @rule()
    def close(self) -> None:
        self.permits.close()
        self.is_open = False

    @rule()
    def acknowledge(self) -> None:
        if self.inside or self.is_open:
            with pytest.raises(EngineError):
                self.permits.acknowledge()
        else:
            self.permits.acknowledge()
            self.told = True

    @rule()
    def stop(self) -> None:
        self.permits.stop()
        self.is_open, self.stopped = False, True

    @invariant()
    def agrees(self) -> None:
        assert self.permits.out == self.inside
        assert (self.permits.state is DoorState.OPEN) == self.is_open
        assert (self.permits.state is DoorState.STOPPED) == self.stopped
        if self.permits.state is DoorState.CLOSED:
            assert not self.inside, "a closed door has nobody inside"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_a_door_is_closed_when_made() -> None:
    permits = Permits("door")
    assert (permits.state, permits.out) == (DoorState.CLOSED, 0)
    with pytest.raises(DoorClosedError, match="door is closed"):
        permits.take()


def test_a_drain_that_nobody_waited_for_keeps_the_door_closed() -> None:
    permits = Permits("door")
    permits.open()
    permits.close()
    with pytest.raises(EngineError, match="its drain was not waited for"):
        permits.open()
    permits.acknowledge()
    permits.open()
    permits.take()
    permits.close()
    with pytest.raises(EngineError, match="1 permits are out"):
        permits.open()
    with pytest.raises(EngineError, match="1 permits are out"):
        permits.acknowledge()


def test_every_state_is_in_the_table_and_stopped_is_the_end() -> None:
    assert set(NEXT_STATES) == set(DoorState)
    assert NEXT_STATES[DoorState.STOPPED] == frozenset()
    assert all(DoorState.OPEN not in NEXT_STATES[s] for s in DoorState if s is not DoorState.CLOSED)


def test_the_log_tells_from_to_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    permits = Permits("the door at X")
    permits.open()
    permits.take()
    permits.close()
    permits.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the door at X: closed → open (opened)",
        "the door at X: open → draining (closed with 1 permits out)",
        "the door at X: draining → stopped (stopped with 1 permits out)",
    ]
