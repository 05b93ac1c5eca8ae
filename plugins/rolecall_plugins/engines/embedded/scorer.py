"""Prompt log-probabilities for concurrent requests: one thread, one pass for all that wait.

Owns the queue of sequences to score and the thread that runs ``NumpyModel``; used from the
event loop. A cancelled caller's sequence is dropped before the next pass, and a pass whose
callers have all gone is stopped between two layers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .forward import NumpyModel, PassAborted, ScoreRequest, Scores

_PASS_TOKENS = 512
"""Tokens in one pass: enough to share the dequantised weights, small enough for memory and aborts."""


class PromptScorer:
    """Scores prompts with the model that ``open_model`` opens at first need."""

    def __init__(self, open_model: Callable[[], NumpyModel]) -> None:
        self._open_model = open_model
        self._waiting: deque[tuple[ScoreRequest, asyncio.Future[Scores]]] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt-scorer")

    async def score(self, request: ScoreRequest) -> Scores:
        """Score one sequence; cancelling drops it."""
        future: asyncio.Future[Scores] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def idle(self) -> None:
        """Return once no pass is under way."""
        if self._runner is not None:
            await asyncio.wait({self._runner})

    def close(self) -> None:
        """End the thread; only when idle."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            requests = [request for request, _ in batch]
            futures = [future for _, future in batch]

            def nobody_waits(futures: list[asyncio.Future[Scores]] = futures) -> bool:
                return all(future.done() for future in futures)

            def one_pass(
                requests: list[ScoreRequest] = requests, gone: Callable[[], bool] = nobody_waits
            ) -> list[Scores]:
                return self._open_model().score(requests, gone)

            try:
                results = await loop.run_in_executor(self._thread, one_pass)
            except PassAborted:
                continue
            except Exception as error:  # noqa: BLE001 - whatever NumPy raised belongs to these callers
                for future in futures:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)

    def _next_batch(self) -> list[tuple[ScoreRequest, asyncio.Future[Scores]]]:
        """Take waiting sequences, oldest first, up to the size of a pass; at least one."""
        batch: list[tuple[ScoreRequest, asyncio.Future[Scores]]] = []
        tokens = 0
        while self._waiting:
            request, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if batch and tokens + len(request.ids) > _PASS_TOKENS:
                break
            self._waiting.popleft()
            batch.append((request, future))
            tokens += len(request.ids)
        return batch
