"""Gateways of a policy and a judge on real sockets, and a job file for loops to name."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from rolecall.api import RoleName
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, planes
from rolecall.testing.scripted_answers import VOCABULARY, tokens_of
from rolecall_loops.rewards import job_reward
from rolecall_routing.round_robin import RoundRobin

JOB = """
[job]
name = "asked"
[placement]
mode = "decoupled"
devices = 2
[roles.rollout]
devices = 1
[roles.rollout.models.m]
source = "m"
engine = "embedded"
[roles.genrm]
devices = 1
[roles.genrm.models.m]
source = "m"
engine = "embedded"
[rewards.judge]
adapter = "genrm_judge"
timeout_s = 5.0
on_error = "drop_sample"
options = { verdicts = {}, low = 0, high = 999, template = "{prompt}|{answer}|{response}", model = "m" }
[rewards.exact]
adapter = "exact_match"
[sink]
name = "jsonl"
"""


@frozen
class Served:
    """What runs: a policy and a judge, and what names them for a loop."""

    policy: Plane
    judge: Plane
    url: str
    job: str

    def judged(self) -> list[str]:
        """What the judge was asked, in no order."""
        return [received.payload["text"] for received in self.judge.engines[0].received]


@pytest.fixture(autouse=True)
def looked_up_anew() -> Iterator[None]:
    """A process asks for a job's reward once; each test is a process of its own."""
    job_reward.cache_clear()
    yield
    job_reward.cache_clear()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Served]:
    file = tmp_path / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    roles = [PlainRole(name=RoleName(name), policy=RoundRobin) for name in ("rollout", "genrm")]
    async with planes(*roles) as ((policy, judge), url):
        yield Served(policy, judge, url, str(file))


@pytest.fixture
def worth() -> Callable[[str], float]:
    """What the scripted judge's verdict on a question is worth."""
    return lambda question: tokens_of(question, 1)[0] / (VOCABULARY - 1)


@pytest.fixture
async def other_process() -> Callable[..., Any]:
    """Run a program with this interpreter and JSON as its argument; return the JSON that it prints last."""

    async def run(program: str, told: Mapping[str, Any]) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            json.dumps(told),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output
        return json.loads(output.strip().splitlines()[-1])

    return run
