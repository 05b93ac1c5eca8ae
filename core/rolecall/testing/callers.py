"""Callers that keep asking a gateway while something happens to it, and note each answer that is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from attrs import define, field

_CALLERS = 8
_PAUSE_S = 0.01


@define
class Load:
    """What has come of it: ``failed`` has an entry for each request that was not answered as it should."""

    answered: int = 0
    failed: list[str] = field(factory=list)
    _more: asyncio.Event = field(factory=asyncio.Event)

    def note(self, problem: str | None) -> None:
        """Count a request."""
        if problem is None:
            self.answered += 1
            self._more.set()
        else:
            self.failed.append(problem)

    async def until(self, answered: int, timeout_s: float = 60.0) -> None:
        """Return when so many were answered."""
        async with asyncio.timeout(timeout_s):
            while self.answered < answered:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def under_load(gateway_url: str) -> AsyncGenerator[Load]:
    """Keep asking for whole answers and streams, by turns, for the length of a block."""
    load = Load()
    over = False

    async def ask(http: httpx.AsyncClient, stream: bool) -> str | None:
        body = {"text": "x", "stream": stream}
        try:
            answer = await http.post(f"{gateway_url}/generate", json=body)
        except httpx.HTTPError as error:
            return repr(error)
        complete = answer.text.endswith("data: [DONE]\n\n") if stream else "output_ids" in answer.text
        return None if answer.status_code == 200 and complete else f"{answer.status_code}: {answer.text:.200}"

    async def caller() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            number = 0
            while not over:
                load.note(await ask(http, stream=number % 2 == 1))
                number += 1
                await asyncio.sleep(_PAUSE_S)

    async with asyncio.TaskGroup() as callers:
        for _ in range(_CALLERS):
            callers.create_task(caller())
        try:
            await load.until(2 * _CALLERS)
            yield load
        finally:
            over = True
