"""GenRMClient: asks a judge, and asks again by one written policy.

For scripts and training loops. Inside a batch a reward's ``on_error`` is the policy, and there is no other
one beneath it. A judge's weights never change and a question changes nothing, so asking again is safe: it
costs the work that may have been done.

| what came | asked again |
|---|---|
| the connection failed, or broke before the answer was whole | yes |
| an answer of 500 to 599, or 429 | yes, not before its ``Retry-After`` |
| the judge is not READY, or discovery is away | yes, not before the time it names |
| any other status from 400, or a request that is wrong | no |
| an answer outside the protocol with status 200 | yes: a proxy in between may have made it |
| the deadline, which is one for all tries together | no |

Between tries it waits 0.2, 0.4, 0.8 … s, each shortened at random by up to half, so that callers who failed
together don't come back together. A wait that would not end before the deadline is not begun.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

from rolecall.api import (
    DeadlineError,
    ModelUnavailableError,
    RequestError,
    ScoringClient,
    UpstreamError,
    UpstreamStatusError,
    role_client,
)

RETRIES = 3
PAUSE_FIRST_S = 0.2
PAUSE_MOST_S = 5.0
TIMEOUT_S = 120.0

_TOO_MANY_REQUESTS = 429
_log = logging.getLogger(__name__)


class GenRMClient:
    """Asks judges over ``client``, which the caller owns. Use it in one event loop.

    retries: how often a question is asked again after the first time.
    max_concurrency: questions under way at once; more wait their turn, in order.
    chat_template_kwargs: given to the model's chat template with every question, as the role's option is.
    """

    def __init__(
        self,
        client: ScoringClient,
        *,
        retries: int = RETRIES,
        max_concurrency: int = 64,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        spread: Callable[[], float] = random.random,
    ) -> None:
        if retries < 0 or max_concurrency < 1:
            raise ValueError(
                "retries must be 0 or more and max_concurrency 1 or more, "
                f"found {retries} and {max_concurrency}"
            )
        self._client = client
        self._retries = retries
        self._turns = asyncio.Semaphore(max_concurrency)
        self._template = dict(chat_template_kwargs or {})
        self._spread = spread
        self.queued = 0
        """Questions that wait for their turn."""

    @classmethod
    async def connect(cls, gateway_url: str, *, token: str | None = None, **settings: Any) -> GenRMClient:
        """Return a client of the judges behind ``http://host:port/genrm``; nothing is asked yet."""
        return cls(await role_client(gateway_url, token=token), **settings)

    async def judge(
        self,
        messages: list[dict[str, Any]],
        *,
        sampling_params: Mapping[str, Any] | None = None,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        """Return the judge's words. ``sampling_params`` have their native names.

        Raises:
            RequestError: the last one that came, after all tries, or one that no other try can mend.
        """
        sampling = dict(sampling_params or {})
        if self._template:
            sampling.setdefault("chat_template_kwargs", self._template)
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self._turn(deadline, timeout_s)
        try:
            for attempt in range(self._retries + 1):
                try:
                    return await self._client.chat(
                        messages,
                        sampling=sampling,
                        model=model,
                        route_key=route_key,
                        affinity_key=affinity_key,
                        timeout_s=deadline - asyncio.get_running_loop().time(),
                    )
                except RequestError as error:
                    pause_s = self._pause_s(attempt, error)
                    left_s = deadline - asyncio.get_running_loop().time()
                    if pause_s is None or pause_s >= left_s:
                        raise
                    _log.info("try %d of %d failed: %s", attempt + 1, self._retries + 1, error)
                    await asyncio.sleep(pause_s)
            raise AssertionError("the last try returns or raises")
        finally:
            self._turns.release()

    async def _turn(self, deadline: float, timeout_s: float) -> None:
        self.queued += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError as error:
            raise DeadlineError(
                f"no turn came within {timeout_s:g} s; {self.queued} questions wait"
            ) from error
        finally:
            self.queued -= 1

    def _pause_s(self, attempt: int, error: RequestError) -> float | None:
        """Return how long to wait before the next try, None if there is none."""
        if attempt >= self._retries or not may_ask_again(error):
            return None
        pause_s = min(PAUSE_FIRST_S * 2**attempt, PAUSE_MOST_S) * (1 - self._spread() / 2)
        asked_s = getattr(error, "retry_after_s", None)
        return pause_s if asked_s is None else max(pause_s, asked_s)


def may_ask_again(error: RequestError) -> bool:
    """Return whether another try may mend it; the module's table."""
    if isinstance(error, UpstreamStatusError):
        return error.status >= 500 or error.status == _TOO_MANY_REQUESTS
    return isinstance(error, UpstreamError | ModelUnavailableError)
