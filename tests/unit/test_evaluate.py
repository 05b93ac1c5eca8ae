"""``rolecall evaluate``: the figures, and the command against served gateways of policy and judge."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import Prompt, RoleName, Sample, ScoringError, UpstreamStatusError
from rolecall.cli.evaluate import evaluate as command
from rolecall.errors import ConfigError, JobError
from rolecall.evaluation.evaluate import Evaluated, evaluate
from rolecall.evaluation.figures import errors, figures
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, planes
from rolecall.testing.scripted_answers import VOCABULARY, tokens_of
from rolecall_routing.round_robin import RoundRobin

# --- figures --------------------------------------------------------------------------------


def one(group: str, reward: float | str, source: str | None = None) -> Evaluated:
    prompt = Prompt(prompt_id=group, text="?", data_source=source)
    sample = Sample(
        sample_id=f"{group}/{id(object())}",
        group_id=group,
        prompt=prompt,
        prompt_ids=(1,),
        response="",
        response_ids=(),
        rollout_log_probs=(),
        finish_reason="stop",
        weight_version="1",
    )
    return Evaluated(sample=sample, rewards={"r": reward})


def test_mean_spread_and_the_best_of_each_prompt() -> None:
    (found,) = figures([one("a", 0.0), one("a", 1.0), one("b", 0.5), one("b", 0.5)])
    assert (found.mean, found.best, found.samples) == (0.5, 0.75, 4)
    assert found.deviation == pytest.approx(math.sqrt(0.125))


def test_errors_are_in_no_figure() -> None:
    evaluated = [one("a", 1.0), one("a", "no verdict"), one("b", "no verdict")]
    (found,) = figures(evaluated)
    assert (found.mean, found.best, found.samples, found.failed) == (1.0, 1.0, 1, 2)
    assert errors(evaluated) == {"no verdict": 2}
    (nothing,) = figures([one("a", "no")])
    assert (nothing.mean, nothing.best, nothing.deviation, nothing.samples) == (None, None, None, 0)


def test_several_data_sources_are_told_apart() -> None:
    found = figures([one("a", 1.0, "sums"), one("b", 0.0, "words"), one("c", 1.0)])
    assert [(row.data_source, row.mean) for row in found] == [
        ("", pytest.approx(2 / 3)),
        ("sums", 1.0),
        ("words", 0.0),
        ("none", 1.0),
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-1e6, 1e6)), min_size=1))
def test_the_best_is_never_below_the_mean_of_means(pairs: list[tuple[str, float]]) -> None:
    (found,) = figures([one(group, reward) for group, reward in pairs])
    assert found.mean is not None
    assert found.best is not None
    low, high = min(reward for _, reward in pairs), max(reward for _, reward in pairs)
    for figure in (found.mean, found.best):
        assert low - 1e-6 <= figure <= high + 1e-6
    json.dumps(found.to_json())


async def test_samples_that_are_not_those_of_the_prompts_are_refused() -> None:
    async def generate(prompts: Any, context: Any) -> list[Sample]:
        assert context.log_probs is False
        return [one("evaluate/a", 0.0).sample]

    prompts = [Prompt(prompt_id=name, text="?") for name in "ab"]
    client: Any = None
    with pytest.raises(ScoringError, match="1 samples were made for 2 prompts"):
        await evaluate(prompts, generate=generate, client=client, rewards=(), clients={})


# --- the command ----------------------------------------------------------------------------

JOB = """
[job]
name = "evaluated"
[placement]
mode = "decoupled"
devices = 2
[roles.rollout]
devices = 1
[roles.rollout.options]
prompt_template = "{prompt}"
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
options = { verdicts = {}, low = 0, high = 999, template = "{response}", model = "m" }
[rewards.exact]
adapter = "exact_match"
[sink]
name = "jsonl"
[batch]
prompts = "prompts.jsonl"
columns = { id = "id", prompt = "question", answer = "gold.value", data_source = "source" }
shuffle_seed = 3
sampling = { max_new_tokens = 3, temperature = 1.0, sampling_seed = 5 }
"""
PROMPTS: list[Mapping[str, Any]] = [
    {"id": "a", "question": "first question", "gold": {"value": "4"}, "source": "sums"},
    {"id": "b", "question": "second question", "source": "words"},
]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    file = tmp_path / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    return file


@pytest.fixture
async def served() -> AsyncGenerator[tuple[Plane, Plane, str]]:
    """Gateways of policy and judge, at their names, as a job has them."""
    roles = [PlainRole(name=RoleName(name), policy=RoundRobin) for name in ("rollout", "genrm")]
    async with planes(*roles) as ((policy, judge), url):
        yield policy, judge, url


async def run(*arguments: object) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command, [str(argument) for argument in arguments])


async def test_the_policy_is_asked_and_every_reward_scores(
    job: Path, served: tuple[Plane, Plane, str]
) -> None:
    policy, judge, url = served
    done = await run("--job", job, "--url", url, "--samples", 2, "--temperature", 0, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert [sample["id"] for sample in told["samples"]] == [
        f"evaluate/{name}/{index}" for name in "ab" for index in range(2)
    ]
    for sample in told["samples"]:
        said = tokens_of(sample["response"].strip(), 1)[0] / (VOCABULARY - 1)
        assert sample["rewards"]["judge"] == pytest.approx(said)
        assert sample["weight_version"] == "default"
    rows = {(row["reward"], row["data_source"]): row for row in told["figures"]}
    assert (rows["judge", ""]["samples"], rows["judge", ""]["failed"]) == (4, 0)
    assert (rows["exact", ""]["samples"], rows["exact", ""]["failed"]) == (2, 2), "one has no answer"
    sent = [received.payload for received in policy.engines[0].received]
    generated = [payload for payload in sent if "input_ids" in payload]
    assert len(generated) == 4
    assert not any(payload["return_logprob"] for payload in generated)
    assert {payload["sampling_params"]["temperature"] for payload in generated} == {0.0}
    assert len({payload["sampling_params"]["sampling_seed"] for payload in generated}) == 4
    assert len(judge.engines[0].received) == 4


async def test_another_file_a_limit_and_a_table(
    job: Path, served: tuple[Plane, Plane, str], tmp_path: Path
) -> None:
    other = tmp_path / "held-out.jsonl"
    lines = [json.dumps({"prompt": f"{number}?", "answer": "1"}) for number in range(9)]
    other.write_text("\n".join(lines), encoding="utf-8")
    done = await run(other, "--job", job, "--url", served[2], "--limit", 3)
    assert done.exit_code == 0, done.output
    assert "3 samples; weights: default" in done.output
    assert "exact" in done.output
    assert "best of a prompt" not in done.output
    other.write_text('{"prompt": 1}', encoding="utf-8")
    assert isinstance((await run(other, "--job", job, "--url", served[2])).exception, ConfigError)


async def test_a_dead_judge_gives_errors_and_no_zeros(job: Path, served: tuple[Plane, Plane, str]) -> None:
    _, judge, url = served
    judge.engines[0].behaviour.status = 500
    done = await run("--job", job, "--url", url)
    assert done.exit_code == 3, "the judge's reward has not one number"
    assert "500" in done.output
    done = await run("--job", job, "--url", url, "--json")
    told = json.loads(done.output)
    (row,) = [row for row in told["figures"] if (row["reward"], row["data_source"]) == ("judge", "")]
    assert (row["samples"], row["failed"], row["mean"]) == (0, 2, None)


async def test_a_policy_that_fails_has_no_figures(job: Path, served: tuple[Plane, Plane, str]) -> None:
    policy, _, url = served
    policy.engines[0].behaviour.status = 500
    done = await run("--job", job, "--url", url)
    assert isinstance(done.exception, UpstreamStatusError)
    assert "mean" not in done.output


async def test_a_job_that_does_not_run_can_t_be_asked(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = await run("--job", job)
    assert isinstance(done.exception, JobError)
    assert "the job has to run: `rolecall up" in str(done.exception)
