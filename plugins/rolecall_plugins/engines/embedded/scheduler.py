"""Runs requests: door, prompt scoring, slot, decoding; and pause, abort and flush over them.

The only owner of the table of requests and the only one that changes a request's stage. Works on
the event loop; each decode blocks one thread of a pool as large as the slots. Memory is owned by
``EngineMemory``, which is asked to change only while nothing runs.

Pausing. ``abort`` ends what runs and waits. ``in_place`` stops decoding and keeps each sequence in
its slot's cache; ``retract`` sends it back to the queue and drops that cache. Both go on from the
tokens they have. Requests that arrive while paused wait at the door: they are no work of the
engine yet, so they do not keep it from counting as idle.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum

from attrs import frozen

from .forward import ScoreRequest
from .generation import Generation, Stage
from .llama_runtime import RuntimeFault, Token
from .memory import EngineMemory
from .requests import GenerateRequest
from .scorer import PromptScorer
from .slots import Slot, SlotPool
from .tokenizer import ModelTokenizer

_SEED_STEP = 1_000_003
"""A decode that goes on after a pause may not draw the same numbers again."""


class PauseMode(StrEnum):
    """SGLang's pause modes."""

    ABORT = "abort"
    IN_PLACE = "in_place"
    RETRACT = "retract"


class NotServing(Exception):
    """Part of the memory is released; nothing can be generated now (503)."""


@frozen(kw_only=True)
class Load:
    """Requests by what they do: ``running`` are scored, decoded or held, ``queued`` lack a slot."""

    running: int
    queued: int
    at_door: int

    @property
    def idle(self) -> bool:
        return self.running == 0 and self.queued == 0


class Scheduler:
    """All requests of the engine."""

    def __init__(
        self, memory: EngineMemory, tokenizer: ModelTokenizer, *, slots: int, reuse_prefixes: bool
    ) -> None:
        self._memory = memory
        self._tokenizer = tokenizer
        self._reuse_prefixes = reuse_prefixes
        self._slots = SlotPool(slots)
        self._scorer = PromptScorer(memory.numpy_model)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="decode")
        self._active: dict[str, tuple[Generation, asyncio.Task[None]]] = {}
        self._door = asyncio.Event()
        self._door.set()
        self._hold: PauseMode | None = None
        self._stage_left = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether new requests have to wait."""
        return not self._door.is_set()

    def load(self) -> Load:
        """Count the requests."""
        count = Counter(generation.stage for generation, _ in self._active.values())
        return Load(
            running=count[Stage.SCORING] + count[Stage.DECODING] + count[Stage.HELD],
            queued=count[Stage.QUEUED],
            at_door=count[Stage.DOOR],
        )

    def submit(self, request: GenerateRequest, weight_version: str) -> Generation:
        """Start a request.

        Raises:
            NotServing: memory is released.
            KeyError: the request id is in use.
        """
        if not self._memory.awake:
            raise NotServing("the engine's memory is released")
        rid = request.rid or uuid.uuid4().hex
        if rid in self._active:
            raise KeyError(rid)
        generation = Generation(request, rid, self._tokenizer, weight_version)
        task = asyncio.create_task(self._drive(generation), name=f"request {rid}")
        self._active[rid] = (generation, task)
        # Not a ``finally`` inside the task: one that is cancelled before its first step runs none.
        task.add_done_callback(lambda _: self._done(generation))
        return generation

    async def updates(self, generation: Generation) -> AsyncIterator[Generation]:
        """Yield at every change, at last the final answer; several changes may share a turn.

        Leaving early, also by cancellation, aborts the request.

        Raises:
            NotServing: memory was released while it waited at the door.
            RuntimeFault: the runtime failed.
        """
        try:
            final = False
            while not final:
                if not generation.complete:
                    await generation.changed.wait()
                generation.changed.clear()
                final = generation.complete
                if generation.fault is not None:
                    raise generation.fault
                yield generation
        finally:
            if not generation.complete:
                self._abort(generation, "the caller went away")

    async def result(self, generation: Generation) -> Generation:
        """Wait for the final answer; as ``updates`` otherwise."""
        async for _ in self.updates(generation):
            pass
        return generation

    def abort(self, rid: str, message: str = "aborted by request") -> bool:
        """Abort one request; False if there is none of that id."""
        if rid not in self._active:
            return False
        self._abort(self._active[rid][0], message)
        return True

    def abort_all(self, message: str = "aborted by request") -> None:
        """Abort every request, also those at the door."""
        for rid in tuple(self._active):
            self.abort(rid, message)

    async def pause(self, mode: PauseMode) -> None:
        """Let nothing be decoded any more; returns when no thread decodes."""
        self._door.clear()
        self._slots.set_open(False)
        if mode is PauseMode.ABORT:
            for generation, _ in tuple(self._active.values()):
                if generation.stage is not Stage.DOOR:
                    self._abort(generation, "the engine was paused")
        else:
            self._hold = mode
            for generation, _ in self._active.values():
                if generation.stage is Stage.DECODING:
                    generation.stop = True
        while self._decoding():
            self._stage_left.clear()
            await self._stage_left.wait()

    def continue_generation(self) -> None:
        """Undo ``pause``; repeats do nothing."""
        self._hold = None
        self._door.set()
        self._slots.set_open(True)

    def flush(self) -> bool:
        """Drop the prefix cache; False, and nothing dropped, while there is work."""
        if not self.load().idle:
            return False
        self._slots.forget()
        return True

    def turn_away(self) -> None:
        """Answer those at the door that nothing is served."""
        for generation, task in tuple(self._active.values()):
            if generation.stage is Stage.DOOR:
                generation.fail(NotServing("the engine's memory was released while the request waited"))
                task.cancel()

    async def settle(self) -> None:
        """Return once no pass of the prompt scorer is under way; an aborted one ends within a layer."""
        await self._scorer.idle()

    def forget_cache(self) -> None:
        """The cache's memory is gone: no slot holds anything."""
        self._slots.forget()

    async def close(self) -> None:
        """Abort everything and wait for it."""
        self.abort_all("the engine is stopping")
        tasks = [task for _, task in self._active.values()]
        if tasks:
            await asyncio.wait(tasks)
        self._scorer.close()
        self._threads.shutdown(wait=False)

    def _decoding(self) -> bool:
        return any(generation.stage is Stage.DECODING for generation, _ in self._active.values())

    async def _drive(self, generation: Generation) -> None:
        try:
            await self._through(generation)
        except asyncio.CancelledError:
            if not generation.complete:
                generation.abort("cancelled")
        except Exception as error:  # noqa: BLE001 - whatever failed is this request's answer
            generation.fail(error)

    def _done(self, generation: Generation) -> None:
        generation.enter(Stage.DONE)
        del self._active[generation.rid]
        if not generation.complete:
            generation.settle()
        self._stage_left.set()

    def _abort(self, generation: Generation, message: str) -> None:
        generation.abort(message)
        if generation.stage not in (Stage.DECODING, Stage.DONE):
            # A decoding thread is never abandoned: it ends by the stop flag.
            self._active[generation.rid][1].cancel()

    async def _through(self, generation: Generation) -> None:
        request = generation.request
        await self._door.wait()
        if request.scores_prompt:
            generation.enter(Stage.SCORING)
            generation.prompt_scores = await self._scorer.score(
                ScoreRequest(
                    ids=request.prompt,
                    start=request.logprob_start,
                    top=request.top_logprobs,
                    of=request.logprobs_of,
                )
            )
        if request.sampling.max_new_tokens == 0:
            generation.end_without_tokens()
        seed = request.sampling.seed
        if seed is None:
            seed = random.getrandbits(32)
        while generation.finish is None:
            await self._decode_turn(generation, seed)
        if request.return_logprob and request.logprobs_of and generation.ids and not generation.complete:
            generation.enter(Stage.SCORING)
            generation.output_scores = await self._scorer.score(
                ScoreRequest(ids=generation.sequence, start=len(request.prompt) - 1, of=request.logprobs_of)
            )

    async def _decode_turn(self, generation: Generation, seed: int) -> None:
        """Wait for a slot and decode until the end, or until a pause takes the slot away."""
        if generation.stage is not Stage.QUEUED:
            generation.enter(Stage.QUEUED)
        slot = await self._slots.take(generation.sequence)
        if self.paused:
            # The slot was granted, and before this task ran, the engine was paused.
            self._slots.give_back(slot, slot.cached)
            return
        generation.enter(Stage.DECODING)
        generation.stop = False
        before = len(generation.ids)
        cached: tuple[int, ...] = ()
        try:
            await self._decode(generation, slot, seed + before * _SEED_STEP & 0xFFFFFFFF)
            cached = generation.sequence
        finally:
            if self._hold is PauseMode.RETRACT:
                cached = ()
            self._slots.give_back(slot, cached)
        if generation.finish is not None:
            return
        if self._hold is not None:
            generation.enter(Stage.HELD if self._hold is PauseMode.IN_PLACE else Stage.QUEUED)
            self._stage_left.set()
            await self._door.wait()
        elif len(generation.ids) == before:
            raise RuntimeFault("llama.cpp ended a generation without a token and without a reason")

    async def _decode(self, generation: Generation, slot: Slot, seed: int) -> None:
        loop = asyncio.get_running_loop()
        runtime = self._memory.runtime
        sequence, left = generation.sequence, generation.tokens_left
        first_turn = not generation.ids
        # Prompt scoring asks for figures from scratch; then the cache is not used either, so that
        # the same request gives the same numbers whatever ran before.
        reuse = bool(slot.cached) and not (first_turn and generation.request.scores_prompt)

        def on_token(token: Token) -> None:
            loop.call_soon_threadsafe(generation.accept, token)

        def work() -> int:
            end = runtime.decode(
                sequence,
                generation.request.sampling,
                slot=slot.index,
                new_tokens=left,
                seed=seed,
                top_logprobs=generation.request.top_logprobs,
                reuse_cache=reuse and self._reuse_prefixes,
                on_token=on_token,
                stop_now=lambda: generation.stop,
            )
            return end.cached_tokens

        cached_tokens = await loop.run_in_executor(self._threads, work)
        if first_turn:
            generation.cached_tokens = cached_tokens
