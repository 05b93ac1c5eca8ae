"""Slots, pausing, aborting and flushing, over a runtime whose tokens the test lets through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rolecall_plugins.engines.embedded.generation import Generation
from rolecall_plugins.engines.embedded.llama_runtime import DecodeEnd, RuntimeFault, Token
from rolecall_plugins.engines.embedded.requests import GenerateRequest
from rolecall_plugins.engines.embedded.sampling import SamplingParams
from rolecall_plugins.engines.embedded.scheduler import NotServing, PauseMode, Scheduler
from rolecall_plugins.engines.embedded.slots import SlotPool

pytestmark = pytest.mark.timeout(60)

WAIT_S = 10
MANY = 1000


class Counting:
    """A tokenizer whose text is the ids."""

    end_ids: frozenset[int] = frozenset()

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


class GatedRuntime:
    """Each generated token is the length of its sequence, and takes a permit that the test gives."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self.calls: list[dict[str, Any]] = []
        self.fault: Exception | None = None
        self.early_end = False

    def allow(self, tokens: int) -> None:
        self._permits.release(tokens)

    def decode(self, prompt: tuple[int, ...], sampling: SamplingParams, **given: Any) -> DecodeEnd:
        self.calls.append({"prompt": prompt, **given})
        if self.fault is not None:
            raise self.fault
        length = len(prompt)
        for _ in range(1 if self.early_end else given["new_tokens"]):
            while not self._permits.acquire(timeout=0.002):
                if given["stop_now"]():
                    return DecodeEnd(cached_tokens=0)
            given["on_token"](Token(id=length, logprob=-1.0, top=()))
            length += 1
        return DecodeEnd(cached_tokens=3)


class Memory:
    def __init__(self) -> None:
        self.awake = True
        self.runtime = GatedRuntime()

    def numpy_model(self) -> Any:
        raise AssertionError("no prompt is scored here")


class Rig:
    def __init__(self, slots: int) -> None:
        self.memory: Any = Memory()
        self.runtime: GatedRuntime = self.memory.runtime
        tokenizer: Any = Counting()
        self.scheduler = Scheduler(self.memory, tokenizer, slots=slots, reuse_prefixes=True)

    def submit(self, *prompt: int, tokens: int = 5, rid: str | None = None) -> Generation:
        request = GenerateRequest(
            rid=rid, prompt=prompt or (1, 2), sampling=SamplingParams(max_new_tokens=tokens, seed=1)
        )
        return self.scheduler.submit(request, "0")

    async def until(self, fits: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not fits():  # noqa: ASYNC110 - threads tell no event
                await asyncio.sleep(0.001)

    async def counts(self, running: int, queued: int, at_door: int = 0) -> None:
        def now() -> tuple[int, int, int]:
            load = self.scheduler.load()
            return load.running, load.queued, load.at_door

        await self.until(lambda: now() == (running, queued, at_door))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(slots=2)
    yield rig
    async with asyncio.timeout(WAIT_S):
        await rig.scheduler.close()


async def test_slots_bound_what_runs_and_the_rest_queues(rig: Rig) -> None:
    generations = [rig.submit(number) for number in range(4)]
    await rig.counts(2, 2)
    assert not rig.scheduler.flush()
    rig.runtime.allow(MANY)
    for generation in generations:
        done = await rig.scheduler.result(generation)
        assert done.ids == [1, 2, 3, 4, 5]
        assert done.cached_tokens == 3
    assert {call["slot"] for call in rig.runtime.calls} == {0, 1}
    await rig.counts(0, 0)
    assert rig.scheduler.flush()


async def test_a_request_id_is_taken_until_the_work_has_ended(rig: Rig) -> None:
    first = rig.submit(rid="a")
    with pytest.raises(KeyError):
        rig.submit(rid="a")
    rig.runtime.allow(MANY)
    await rig.scheduler.result(first)
    await rig.counts(0, 0)
    rig.submit(rid="a")


async def test_abort_answers_at_once_but_the_work_counts_until_it_ends(rig: Rig) -> None:
    generation = rig.submit(rid="a")
    await rig.counts(1, 0)
    assert rig.scheduler.abort("a")
    assert generation.complete
    assert rig.scheduler.load().running == 1
    assert (await rig.scheduler.result(generation)).finish == generation.finish
    await rig.counts(0, 0)
    assert not rig.scheduler.abort("a")


async def test_an_abort_before_the_first_step_leaves_nothing_behind(rig: Rig) -> None:
    generation = rig.submit(rid="a")
    rig.scheduler.abort("a")
    done = await rig.scheduler.result(generation)
    assert done.finish is not None
    assert done.finish.reason == "abort"
    await rig.counts(0, 0)
    assert rig.runtime.calls == []


async def test_leaving_the_updates_aborts(rig: Rig) -> None:
    generation = rig.submit()
    task = asyncio.create_task(rig.scheduler.result(generation))
    await rig.counts(1, 0)
    task.cancel()
    await rig.counts(0, 0)
    assert generation.complete


async def test_a_finished_generation_still_gives_one_update(rig: Rig) -> None:
    generation = rig.submit(tokens=0)
    await rig.until(lambda: generation.complete)
    assert [state.complete async for state in rig.scheduler.updates(generation)] == [True]


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_pausing_stops_every_thread_and_each_mode_flushes_as_it_should(
    rig: Rig, mode: PauseMode
) -> None:
    generations = [rig.submit(number, tokens=6) for number in range(3)]
    await rig.counts(2, 1)
    rig.runtime.allow(2)
    await rig.until(lambda: sum(len(generation.ids) for generation in generations) == 2)
    before = len(rig.runtime.calls)
    async with asyncio.timeout(WAIT_S):
        await rig.scheduler.pause(mode)
    assert rig.scheduler.paused
    load = rig.scheduler.load()
    open_work = [generation for generation in generations if not generation.complete]
    assert load.running + load.queued == len(open_work)
    if mode is PauseMode.ABORT:
        assert open_work == []
        assert rig.scheduler.flush()
    else:
        assert load.running == 0 or mode is PauseMode.IN_PLACE
        assert len(open_work) == 3
        assert not rig.scheduler.flush()
    rig.runtime.allow(MANY)
    late = rig.submit(50, tokens=1)
    await rig.counts(load.running, load.queued, at_door=1)
    assert len(rig.runtime.calls) == before, "nothing is decoded while paused"
    rig.scheduler.continue_generation()
    assert (await rig.scheduler.result(late)).ids == [1]
    for generation in open_work:
        assert (await rig.scheduler.result(generation)).ids == [1, 2, 3, 4, 5, 6]


async def test_a_pause_between_grant_and_decode_wins(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = rig.scheduler._slots
    take = pool.take

    async def take_and_pause(sequence: Any) -> Any:
        monkeypatch.undo()
        slot = await take(sequence)
        await rig.scheduler.pause(PauseMode.IN_PLACE)
        return slot

    monkeypatch.setattr(pool, "take", take_and_pause)
    rig.runtime.allow(MANY)
    generation = rig.submit()
    await rig.until(lambda: rig.scheduler.paused)
    await rig.counts(0, 1)
    assert rig.runtime.calls == []
    rig.scheduler.continue_generation()
    assert len((await rig.scheduler.result(generation)).ids) == 5


async def test_retract_drops_the_cache_and_in_place_keeps_it(rig: Rig) -> None:
    for mode, reused in ((PauseMode.IN_PLACE, True), (PauseMode.RETRACT, False)):
        rig.runtime.calls.clear()
        assert rig.scheduler.flush()
        generation = rig.submit(9, 9, 9)
        await rig.counts(1, 0)
        await rig.scheduler.pause(mode)
        rig.runtime.allow(5)
        rig.scheduler.continue_generation()
        await rig.scheduler.result(generation)
        first, second = rig.runtime.calls
        assert first["reuse_cache"] is False
        assert second["reuse_cache"] is reused
        assert second["seed"] != first["seed"] or len(second["prompt"]) == len(first["prompt"])
        await rig.counts(0, 0)


async def test_abort_all_reaches_held_queued_and_waiting_requests(rig: Rig) -> None:
    generations = [rig.submit(number) for number in range(3)]
    await rig.counts(2, 1)
    await rig.scheduler.pause(PauseMode.IN_PLACE)
    generations.append(rig.submit(7))
    await rig.counts(2, 1, at_door=1)
    rig.scheduler.abort_all()
    for generation in generations:
        assert (await rig.scheduler.result(generation)).finish is not None
    await rig.counts(0, 0)
    assert rig.scheduler.flush()


async def test_released_memory_turns_requests_away(rig: Rig) -> None:
    await rig.scheduler.pause(PauseMode.ABORT)
    waiting = rig.submit()
    await rig.counts(0, 0, at_door=1)
    rig.memory.awake = False
    rig.scheduler.turn_away()
    with pytest.raises(NotServing):
        await rig.scheduler.result(waiting)
    with pytest.raises(NotServing):
        rig.submit()
    await rig.counts(0, 0)


async def test_a_runtime_that_fails_fails_its_request_only(rig: Rig) -> None:
    rig.runtime.fault = RuntimeFault("broken")
    with pytest.raises(RuntimeFault, match="broken"):
        await rig.scheduler.result(rig.submit())
    rig.runtime.fault = None
    rig.runtime.allow(MANY)
    assert len((await rig.scheduler.result(rig.submit())).ids) == 5


async def test_a_runtime_that_ends_early_is_asked_to_go_on(rig: Rig) -> None:
    """llama.cpp stops at an end token of its own, also where the caller ignores it."""
    rig.runtime.allow(MANY)
    rig.runtime.early_end = True
    assert (await rig.scheduler.result(rig.submit(1, 2))).ids == [2, 3, 4, 5, 6]
    assert [call["new_tokens"] for call in rig.runtime.calls] == [5, 4, 3, 2, 1]
    assert len({call["seed"] for call in rig.runtime.calls}) == 5


async def test_the_slot_with_the_longest_common_start_is_taken() -> None:
    pool = SlotPool(3)
    slots = [await pool.take(()) for _ in range(3)]
    for slot, cached in zip(slots, [(1, 2, 3), (1, 2), (5,)], strict=True):
        pool.give_back(slot, cached)
    assert (await pool.take((1, 2, 3, 4))).cached == (1, 2, 3)
    assert (await pool.take((1, 9))).cached == (1, 2)
    pool.forget()
    assert (await pool.take((5, 6))).cached == ()


async def test_a_cancelled_wait_gives_its_slot_to_the_next() -> None:
    pool = SlotPool(1)
    slot = await pool.take(())
    first, second = asyncio.create_task(pool.take(())), asyncio.create_task(pool.take(()))
    await asyncio.sleep(0)
    pool.give_back(slot, (1,))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(WAIT_S):
        assert (await second) is slot
    assert slot.cached == (1,)
