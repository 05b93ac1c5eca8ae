"""A group that can't be completed: its other requests are aborted at their engines, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from rolecall.api import GenerationContext, Prompt, RoleName, UpstreamError
from rolecall.client.inference_client import InferenceClient
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import plane
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole
from rolecall_routing.round_robin import RoundRobin


class Tokenised:
    """The client of engines at which only samples are under way: prompts' ids are known."""

    def __init__(self, client: InferenceClient) -> None:
        self._client = client

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        if "text" in payload:
            return {"text": "", "output_ids": [], "prompt_token_ids": [1, 2], "meta_info": {}}
        return await self._client.generate(payload, **selectors)

    async def chat(self, messages: list[dict[str, Any]], **selectors: Any) -> str:
        raise AssertionError("rollout sends raw payloads")


@pytest.mark.parametrize("cancelled", [False, True], ids=["one failed", "cancelled"])
async def test_the_others_are_aborted_and_nothing_stays_at_work(cancelled: bool) -> None:
    run = RolloutRole(RolloutOptions()).generation()
    assert run is not None
    async with (
        plane(PlainRole(name=RoleName("rollout"), policy=RoundRobin), engines=2) as running,
        InferenceClient(running.url, policy=RoundRobin) as client,
    ):
        for engine in running.engines:
            engine.behaviour.stuck = True
        homes = {(await client.resolve(affinity_key=name)).base_url: name for name in "abcdefgh"}
        prompts = [Prompt(prompt_id=homes[url], text="?") for url in running.urls]
        context = GenerationContext(
            client=Tokenised(client),
            samples_per_prompt=3,
            sampling={"max_new_tokens": 4},
            max_concurrency=6,
            progress=lambda *_: None,
        )
        making = asyncio.create_task(run(prompts, context))
        for engine in running.engines:
            await engine.until_running(3)
        under_way = {rid for engine in running.engines for rid in engine.running}
        if cancelled:
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
        else:
            ended, stops = next(iter(running.engines[0].running.items()))
            under_way.remove(ended)
            stops.set()  # as an engine does that gives a request up
            with pytest.raises(UpstreamError, match=r"ended a sample with .*abort"):
                await making
        for engine in running.engines:
            await engine.until_running(0)
        assert {rid for engine in running.engines for rid in engine.aborts} == under_way
