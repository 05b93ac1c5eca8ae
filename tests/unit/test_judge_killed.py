"""A judge that is killed in the middle of a batch: what each error policy makes of it. Never a silent zero.

The runner, the coordinator, the stages, the adapters and the client are the real ones; the judge is a
scripted engine on a real socket that dies after some of the batch's verdicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest

from rolecall.api import (
    GenerationContext,
    NamedReward,
    Prompt,
    Row,
    Sample,
    make_reward_adapter,
    reward_stage,
)
from rolecall.batches.plan import StagePlan
from rolecall.batches.report import BatchReport
from rolecall.batches.runner import BatchRunner
from rolecall.client.inference_client import InferenceClient
from rolecall.config.specs import BatchSection
from rolecall.engines.replica_state import ReplicaState
from rolecall.engines.results import LifecycleResult, ReplicaOutcome
from rolecall.errors import BatchFailedError
from rolecall.ids import BatchId, EngineId, FencingToken, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.testing.engine_server import Death, EngineServer
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import plane
from rolecall.testing.samples import make_sample
from rolecall.testing.scripted_answers import VOCABULARY, tokens_of
from rolecall_routing.round_robin import RoundRobin

WRITER, JUDGE = RoleName("rollout"), RoleName("genrm")
PROMPTS = tuple(Prompt(prompt_id=f"p{number}", text=f"{number}?", answer="42") for number in range(6))
GOOD = 2
"""So many verdicts come before the judge dies."""

OPTIONS: Mapping[str, Any] = {"verdicts": {}, "low": 0.0, "high": VOCABULARY - 1.0, "template": "{response}"}
ADAPTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "genrm_judge": ("genrm_judge", OPTIONS),
    "weighted": (
        "weighted",
        {
            "parts": [{"adapter": "exact_match"}, {"adapter": "genrm_judge", "options": OPTIONS}],
            "combine": "sum",
        },
    ),
}


def worth(sample: Sample) -> float:
    """What the judge says of a sample while it lives; of none it is 0."""
    return tokens_of(sample.response, 1)[0] / (VOCABULARY - 1)


class Role:
    """A role whose engines do as they are told."""

    def __init__(self, role: RoleName) -> None:
        self.role = role
        self.awake = False

    async def onload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._become(ReplicaState.READY, awake=True)

    async def offload(self, token: FencingToken, timeout_s: float) -> LifecycleResult:
        return self._become(ReplicaState.SLEEPING, awake=False)

    async def prepare(self, timeout_s: float) -> None:
        pass

    def _become(self, state: ReplicaState, *, awake: bool) -> LifecycleResult:
        self.awake = awake
        outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=state, confirmed=True, detail="")
        return LifecycleResult(role=self.role, outcomes=(outcome,))


class Sink:
    def __init__(self) -> None:
        self.partitions: dict[str, list[Row]] = {}

    def put(self, partition: str, rows: Sequence[Row]) -> None:
        self.partitions[partition] = list(rows)

    def clear(self, partition: str) -> None:
        self.partitions.pop(partition, None)


class Killing:
    """The judge's client; kills the judge after ``GOOD`` answers, and revives it after ``revives`` errors."""

    def __init__(self, client: InferenceClient, judge: EngineServer) -> None:
        self.client = client
        self.judge = judge
        self.death = Death.RESET
        self.revives: int | None = None
        self.answers = self.errors = 0

    async def generate(self, payload: Mapping[str, Any], **selectors: Any) -> dict[str, Any]:
        try:
            answer = await self.client.generate(payload, timeout_s=0.5, **selectors)
        except Exception:
            self.errors += 1
            if self.errors == self.revives:
                await asyncio.to_thread(self.judge.live)
            raise
        self.answers += 1
        if self.answers == GOOD:
            await asyncio.to_thread(self.judge.die, self.death)
        return answer

    async def chat(self, messages: list[dict[str, Any]], **selectors: Any) -> str:
        raise AssertionError("it is not asked by chat")


class Scene:
    """Two roles on the same devices; six prompts, a sample each, one after the other judged."""

    def __init__(self, client: Killing) -> None:
        self.client = client
        self.sink = Sink()
        self.roles = {role: Role(role) for role in (WRITER, JUDGE)}
        self.coordinator = LeaseCoordinator(
            self.roles,
            conflicts={WRITER: frozenset({JUDGE}), JUDGE: frozenset({WRITER})},
            opening=dict.fromkeys(self.roles, OpeningLease(state=LeaseState.SLEEPING, reason="measured")),
            timeout_s=5.0,
        )
        self.made: list[Sample] = []

    async def generate(self, prompts: Sequence[Prompt], context: GenerationContext) -> Sequence[Sample]:
        self.made = [make_sample(prompt, 0, f"It is {prompt.prompt_id}.") for prompt in prompts]
        assert all(worth(sample) > 0 for sample in self.made), "so any 0 is a silent one"
        return self.made

    async def run(self, adapter: str, on_error: str, retries: int = 2) -> BatchReport:
        name, options = ADAPTERS[adapter]
        reward = NamedReward(
            name="judge",
            adapter=make_reward_adapter(name, options),
            on_error=on_error,
            retries=retries,
            timeout_s=30.0,
        )
        stage = reward_stage(name="judge", role=JUDGE, rewards=[reward])
        runner = BatchRunner(
            coordinator=self.coordinator,
            clients=lambda role: self.client,
            plan=StagePlan(
                generation_role=WRITER, generate=self.generate, stages=(stage,), rewards=("judge",)
            ),
            sink=self.sink,  # type: ignore[arg-type]
            settings=BatchSection(prompts="-", samples_per_prompt=1, max_concurrency=1),
        )
        return await runner.run(BatchId(0), PROMPTS)

    def rewards(self) -> dict[str, float]:
        """What training reads."""
        return {row["sample_id"]: row["reward"] for row in self.sink.partitions["train_0"]}

    async def assert_failed_and_nothing_published(self) -> None:
        assert self.sink.partitions == {}
        with pytest.raises(BatchFailedError):
            await self.coordinator.wait_committed(BatchId(0), 1.0)
        assert not [role for role in self.roles.values() if role.awake], "a role was left awake"


@pytest.fixture
async def scene(rolecall_engine_server: EngineServer) -> AsyncGenerator[Scene]:
    async with plane(PlainRole(name=JUDGE, policy=RoundRobin)) as running:
        running.publish(urls=[rolecall_engine_server.base_url])
        async with InferenceClient(running.url, policy=RoundRobin) as client:
            yield Scene(Killing(client, rolecall_engine_server))


every_adapter = pytest.mark.parametrize("adapter", ADAPTERS)
every_death = pytest.mark.parametrize("death", list(Death))


@every_death
@every_adapter
async def test_fail_batch_fails_it_with_the_reason_and_publishes_nothing(
    scene: Scene, adapter: str, death: Death
) -> None:
    scene.client.death = death
    with pytest.raises(BatchFailedError, match='batch 0 failed in judge: reward "judge"'):
        await scene.run(adapter, "fail_batch")
    assert scene.client.answers == GOOD
    assert scene.client.errors == 1
    await scene.assert_failed_and_nothing_published()


@every_death
@every_adapter
async def test_drop_sample_keeps_what_was_judged_and_names_what_was_not(
    scene: Scene, adapter: str, death: Death
) -> None:
    scene.client.death = death
    report = await scene.run(adapter, "drop_sample")
    judged, lost = scene.made[:GOOD], scene.made[GOOD:]
    assert scene.rewards() == pytest.approx({sample.sample_id: worth(sample) for sample in judged})
    assert set(report.dropped) == {sample.sample_id for sample in lost}
    assert scene.client.errors == len(lost)


@every_adapter
async def test_retry_goes_on_once_the_judge_is_back(scene: Scene, adapter: str) -> None:
    scene.client.revives = 2
    report = await scene.run(adapter, "retry")
    assert scene.rewards() == pytest.approx({sample.sample_id: worth(sample) for sample in scene.made})
    assert report.dropped == {}
    assert scene.client.errors == 2


@every_adapter
async def test_retry_fails_the_batch_if_it_is_not(scene: Scene, adapter: str) -> None:
    with pytest.raises(BatchFailedError, match="after 3 tries"):
        await scene.run(adapter, "retry")
    assert scene.client.errors == 3
    await scene.assert_failed_and_nothing_published()


async def test_a_judge_that_talks_nonsense_from_the_middle_on_is_no_zero_either(scene: Scene) -> None:
    judge = scene.client.judge
    scene.client.revives = 1

    def talk(death: Death) -> None:
        judge.behaviour.body = b'{"text": "the the the", "meta_info": {}}'

    scene.client.judge = _Talking(judge, talk)  # type: ignore[assignment]
    report = await scene.run("genrm_judge", "drop_sample")
    assert scene.rewards() == pytest.approx({sample.sample_id: worth(sample) for sample in scene.made[:GOOD]})
    assert len(report.dropped) == len(scene.made) - GOOD


class _Talking:
    def __init__(self, judge: EngineServer, talk: Any) -> None:
        self.die = talk
        self.live = judge.live
