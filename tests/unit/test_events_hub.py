"""The event hub: order, the log, late readers, observers that raise."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from rolecall.events.event import Event
from rolecall.events.hub import HISTORY, EventHub, SenderOrder, read_event_log
from rolecall.events.outbox import MOMENT_S, Outbox, flush_all
from rolecall.testing.virtual_time import run_virtual


def event(number: int) -> Event:
    return Event(kind="test", time_s=float(number), fields={"number": number})


class Recorder:
    name = "recorder"
    api_version = 1

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_event(self, event: Event) -> None:
        self.seen.append(event.fields["number"])


class Raiser(Recorder):
    def on_event(self, event: Event) -> None:
        super().on_event(event)
        raise ValueError("no")


async def test_events_are_logged_in_order(tmp_path: Path):
    hub = EventHub({}, tmp_path / "deep" / "events.jsonl")
    for number in range(3):
        hub.publish(event(number))
    hub.close()
    assert [e.fields["number"] for e in read_event_log(tmp_path / "deep" / "events.jsonl")] == [0, 1, 2]


async def test_a_torn_last_line_is_passed_over(tmp_path: Path):
    log = tmp_path / "events.jsonl"
    log.write_text(json.dumps({"kind": "a", "time_s": 1.0}) + "\n" + '{"kind": "b"')
    assert [e.kind for e in read_event_log(log)] == ["a"]


@pytest.mark.parametrize("append", [True, False])
async def test_a_resumed_run_goes_on_in_its_log_behind_the_last_whole_line(tmp_path: Path, append: bool):
    log = tmp_path / "events.jsonl"
    log.write_text(json.dumps({"kind": "a", "time_s": 1.0}) + "\n" + '{"kind": "b"')
    hub = EventHub({}, log, append=append)
    hub.publish(event(7))
    hub.close()
    assert [e.kind for e in read_event_log(log)] == (["a"] if append else []) + [event(7).kind]


async def test_a_resumed_run_without_a_log_begins_one(tmp_path: Path):
    hub = EventHub({}, tmp_path / "events.jsonl", append=True)
    hub.publish(event(0))
    hub.close()
    assert len(read_event_log(tmp_path / "events.jsonl")) == 1


async def test_a_raising_observer_keeps_being_called_and_disturbs_no_other(caplog):
    raiser, recorder = Raiser(), Recorder()
    hub = EventHub({"raiser (bad-dist 1.0)": raiser, "recorder (good 1.0)": recorder})
    hub.publish(event(1))
    hub.publish(event(2))
    hub.close()
    assert raiser.seen == recorder.seen == [1, 2]
    assert "raiser (bad-dist 1.0)" in caplog.text


async def test_that_an_observer_raises_is_an_event_once(tmp_path: Path):
    class Refuser(Recorder):
        def on_event(self, event: Event) -> None:
            raise ValueError("no")

    hub = EventHub({"refuser (bad-dist 1.0)": Refuser()})
    hub.publish(event(1))
    following, seen = await hub.tail(1, wait_s=30)
    hub.publish(event(2))
    assert [e.kind for e in seen] == ["observer.raised"]
    assert seen[0].fields == {
        "observer": "refuser (bad-dist 1.0)",
        "event": "test",
        "error": "ValueError: no",
    }
    hub.publish(event(3))
    hub.close()
    await asyncio.sleep(0)
    assert [e.kind for e in (await hub.tail(following, wait_s=0))[1]] == ["test", "test"]


async def test_an_observer_may_raise_while_the_hub_closes(tmp_path: Path):
    log = tmp_path / "events.jsonl"
    hub = EventHub({"raiser (bad-dist 1.0)": Raiser()}, log)
    hub.publish(event(1))
    hub.close()
    await asyncio.sleep(0)
    assert [e.kind for e in read_event_log(log)] == ["test"]


async def test_tail_returns_what_is_there_and_waits_for_what_is_not():
    hub = EventHub({})
    hub.publish(event(0))
    following, events = await hub.tail(0, wait_s=0)
    assert [e.fields["number"] for e in events] == [0]
    waiting = asyncio.create_task(hub.tail(following, wait_s=30))
    await asyncio.sleep(0)
    hub.publish(event(1))
    following, events = await waiting
    assert [e.fields["number"] for e in events] == [1]
    assert following == 2


async def test_tail_ends_after_its_wait():
    hub = EventHub({})
    assert await hub.tail(0, wait_s=0.01) == (0, [])


async def test_a_reader_that_fell_behind_gets_what_is_left():
    hub = EventHub({})
    for number in range(HISTORY + 5):
        hub.publish(event(number))
    following, events = await hub.tail(0, wait_s=0)
    assert following == HISTORY + 5
    assert events[0].fields["number"] == 5


def test_a_senders_events_keep_their_order_and_senders_do_not_wait_for_each_other():
    seen: list[int] = []
    order = SenderOrder(lambda event: seen.append(event.fields["number"]))
    order.take("a", 1, [event(11), event(12)])
    order.take("b", 0, [event(20)])
    order.take("a", 2, [event(13)])
    assert seen == [20]
    order.take("a", 0, [event(10)])
    assert seen == [20, 10, 11, 12, 13]


class Sent:
    """Takes groups of events; raises as often as it is told to."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, list[int]]] = []
        self.failures = 0

    def __call__(self, number: int, events: list[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no way out")
        self.groups.append((number, [event.fields["number"] for event in events]))


def test_events_of_a_moment_leave_together_and_nobody_waits_for_them():
    async def work(sent: Sent, emit: Outbox) -> None:
        emit("test", number=0)
        await asyncio.sleep(MOMENT_S / 2)
        emit("test", number=1)
        assert sent.groups == [], "the work goes first"
        await asyncio.sleep(MOMENT_S)
        emit("test", number=2)
        await asyncio.sleep(2 * MOMENT_S)

    sent = Sent()
    run_virtual(work(sent, Outbox(sent)))
    assert sent.groups == [(0, [0, 1]), (1, [2])]


async def test_a_thread_has_no_turn_so_its_events_leave_at_once_with_those_that_wait():
    sent = Sent()
    emit = Outbox(sent)
    emit("test", number=0)
    thread = threading.Thread(target=emit, args=["test"], kwargs={"number": 1})
    thread.start()
    thread.join()
    assert sent.groups == [(0, [0, 1])]


def test_events_that_a_loop_left_behind_leave_with_the_next_loops():
    sent = Sent()
    emit = Outbox(sent)
    ended = asyncio.new_event_loop()
    ended.call_soon(lambda: emit("test", number=0))
    ended.call_soon(ended.stop)
    ended.run_forever()
    ended.close()
    assert sent.groups == []

    async def emit_one() -> None:
        emit("test", number=1)
        await asyncio.sleep(2 * MOMENT_S)

    run_virtual(emit_one())
    assert sent.groups == [(0, [0, 1])]


async def test_what_waits_at_the_end_of_a_process_is_sent_then():
    sent = Sent()
    Outbox(sent)("test", number=0)
    assert sent.groups == []
    flush_all()
    assert sent.groups == [(0, [0])]
    flush_all()
    assert len(sent.groups) == 1


def test_without_a_loop_events_leave_at_once():
    sent = Sent()
    Outbox(sent)("test", number=0)
    assert sent.groups == [(0, [0])]


def test_events_that_can_not_be_sent_are_told_of_and_leave_no_gap(caplog):
    sent = Sent()
    sent.failures = 1
    emit = Outbox(sent)
    emit("test", number=0)
    emit("test", number=1)
    assert sent.groups == [(0, [1])]
    assert "1 events were not sent, the first is test" in caplog.text
