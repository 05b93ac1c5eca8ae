"""``rolecall judge-eval``: the file, the figures, and the command against a served gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rolecall.calibration.figures import agreement, correlation
from rolecall.calibration.labelled import load_labelled
from rolecall.cli.judge_eval import judge_eval
from rolecall.discovery.source import SnapshotSource
from rolecall.errors import ConfigError, JobError
from rolecall.gateway.app import build_gateway
from rolecall.gateway.front import Front
from rolecall.gateway.settings import GatewaySettings
from rolecall.ids import RoleName
from rolecall.job import find, paths
from rolecall.job.paths import JobState
from rolecall.testing.asgi_server import serving
from rolecall.testing.plain_role import PlainRole
from rolecall.testing.plane import Plane, plane
from rolecall.testing.scripted_answers import VOCABULARY, tokens_of
from rolecall_routing.round_robin import RoundRobin

# --- the file -------------------------------------------------------------------------------


def written(folder: Path, *lines: Any) -> Path:
    file = folder / "labelled.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


ONE: Mapping[str, Any] = {"prompt": "2 + 2?", "answer": "4", "response": "4", "label": 1}


def test_a_line_is_a_sample_with_a_label(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {**ONE, "metadata": {"a": 1}},
        "",
        {**ONE, "id": "x", "label": "Good"},
        {**ONE, "label": False},
    )
    first, second, third = load_labelled(file, {"good": 0.75})
    assert (first.sample.sample_id, first.sample.response, first.sample.prompt.answer) == ("line-1", "4", "4")
    assert first.sample.prompt.metadata == {"a": 1}
    assert [one.label for one in (first, second, third)] == [1.0, 0.75, 0.0]
    assert second.sample.group_id == "x"


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "{",
        [],
        {**ONE, "lable": 1},
        {"prompt": 1, "label": 0},
        {**ONE, "label": "fine"},
        '{"prompt": "", "response": "", "label": NaN}',
        {**ONE, "id": "a"},
        {**ONE, "id": "a"},
    )
    with pytest.raises(ConfigError) as refused:
        load_labelled(file, {"good": 1.0})
    told = [(problem.line, problem.key) for problem in refused.value.problems]
    assert told == [
        (1, ""),
        (2, ""),
        (3, "lable"),
        (4, "prompt"),
        (4, "response"),
        (5, "label"),
        (6, "label"),
        (8, "id"),
    ]
    assert 'did you mean "label"' in str(refused.value)
    assert "must be a finite number or one of good, found 'fine'" in str(refused.value)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_verdicts_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="holds no labelled verdicts"):
        load_labelled(written(tmp_path, text), {})


# --- the figures ----------------------------------------------------------------------------


def test_kappa_is_the_agreement_beyond_chance() -> None:
    """Cohen's own kind of example: 20 yes-yes, 15 no-no, 5 and 10 mixed: 0.7 observed, 0.5 by chance."""
    labels = [1.0] * 25 + [0.0] * 25
    rewards = [1.0] * 20 + [0.0] * 5 + [1.0] * 10 + [0.0] * 15
    result = agreement(labels, rewards)
    assert result.share == pytest.approx(0.7)
    assert result.kappa == pytest.approx(0.4)
    assert [dict(row.chosen) for row in result.rows] == [{0.0: 15, 1.0: 10}, {0.0: 5, 1.0: 20}]


def test_what_could_not_be_scored_is_in_no_figure() -> None:
    result = agreement([1.0, 1.0, 0.0, 0.0], [1.0, "no verdict", 0.0, "no verdict"])
    assert (result.scored, result.failed, dict(result.errors)) == (2, 2, {"no verdict": 2})
    assert (result.share, result.kappa, result.pearson) == (1.0, 1.0, pytest.approx(1.0))
    assert [(row.label, row.errors, row.mean_reward) for row in result.rows] == [(0.0, 1, 0.0), (1.0, 1, 1.0)]


def test_nothing_scored_has_no_figures() -> None:
    result = agreement([1.0], ["no verdict"])
    assert (result.scored, result.share, result.kappa, result.pearson) == (0, None, None, None)


def test_a_reward_counts_for_the_nearest_label() -> None:
    result = agreement([0.0, 0.5, 1.0], [0.2, 0.26, 0.74])
    assert [dict(row.chosen) for row in result.rows] == [
        {0.0: 1, 0.5: 0, 1.0: 0},
        {0.0: 0, 0.5: 1, 1.0: 0},
        {0.0: 0, 0.5: 1, 1.0: 0},
    ]


def test_many_labels_are_a_scale_and_are_correlated() -> None:
    labels = [float(label) for label in range(20)]
    result = agreement(labels, [label**3 for label in labels])
    assert result.rows == ()
    assert result.kappa is None
    assert result.spearman == pytest.approx(1.0)
    assert result.pearson == pytest.approx(np.corrcoef(labels, [label**3 for label in labels])[0, 1])


def test_one_class_only_has_no_kappa() -> None:
    result = agreement([1.0, 1.0], [1.0, 1.0])
    assert (result.share, result.kappa, result.pearson) == (1.0, None, None)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1e9, 1e9)), min_size=1))
def test_figures_stay_in_their_ranges(pairs: list[tuple[float, float]]) -> None:
    labels, rewards = [label for label, _ in pairs], [reward for _, reward in pairs]
    result = agreement(labels, rewards)
    assert result.share is not None
    assert 0 <= result.share <= 1
    assert result.kappa is None or -1 <= result.kappa <= 1
    for figure in (result.pearson, result.spearman, correlation(labels, rewards)):
        assert figure is None or -1 <= figure <= 1
    assert sum(row.scored for row in result.rows) == len(pairs)
    json.dumps(result.to_json())


# --- the command ----------------------------------------------------------------------------

JOB = """
[job]
name = "graded"
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
options = { verdicts = {}, low = 0, high = 999, template = "{response}", model = "m" }
[rewards.exact]
adapter = "exact_match"
[sink]
name = "jsonl"
"""

RESPONSES = [f"answer {number}" for number in range(12)]


def grade(response: str) -> float:
    """What the scripted judge says of a response, as genrm_judge reads it."""
    return tokens_of(response, 1)[0] / (VOCABULARY - 1)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    return file


@pytest.fixture
async def served() -> AsyncGenerator[tuple[Plane, str]]:
    """A gateway of the role, at its name, as a job has them."""
    role = PlainRole(name=RoleName("genrm"), policy=RoundRobin)
    async with plane(role) as running:
        source = SnapshotSource(running.registry.reader(role.name), role=role.name)
        gateway = build_gateway(role, source, GatewaySettings())
        front = Front({"genrm": gateway})

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (gateway if scope["type"] == "lifespan" else front)(scope, receive, send)

        async with serving(app) as url:
            yield running, url


async def run(*arguments: object) -> Result:
    """Run the command beside the gateway's event loop."""
    return await asyncio.to_thread(CliRunner().invoke, judge_eval, [str(argument) for argument in arguments])


def labelled(folder: Path, flipped: Sequence[int] = ()) -> Path:
    """The judge's own opinions as labels, but for those that are flipped."""
    lines = [
        {"prompt": "?", "response": response, "label": round(grade(response)) ^ (number in flipped)}
        for number, response in enumerate(RESPONSES)
    ]
    return written(folder, *lines)


async def test_a_judge_behind_a_gateway_is_compared_with_labels(
    job: Path, served: tuple[Plane, str], tmp_path: Path
) -> None:
    running, url = served
    done = await run(labelled(tmp_path, [0, 1]), "--job", job, "--reward", "judge", "--url", url, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["job"] == "graded"
    assert told["agreement"] == pytest.approx(10 / 12)
    assert (told["scored"], told["failed"]) == (12, 0)
    assert [verdict["reward"] for verdict in told["verdicts"]] == pytest.approx([grade(r) for r in RESPONSES])
    assert len(running.engines[0].received) == 12


async def test_the_table_has_every_label_and_the_errors_apart(
    job: Path, served: tuple[Plane, str], tmp_path: Path
) -> None:
    running, url = served
    where = ("--job", job, "--reward", "judge", "--url", url)
    done = await run(labelled(tmp_path), *where, "--least-agreement", "1", "--most-errors", "0")
    assert done.exit_code == 0, done.output
    assert "agreement 100.0%, kappa 1.000" in done.output
    assert "→ 0" in done.output
    running.engines[0].behaviour.body = b'{"text": "I can not say", "meta_info": {}}'
    done = await run(labelled(tmp_path), *where)
    assert done.exit_code == 3, "nothing could be scored"
    assert "12 could not be scored, and are in no figure" in " ".join(done.output.split())
    assert "the verdict has no number" in done.output
    assert "agreement –" in done.output


async def test_a_judge_that_is_dead_gives_errors_and_no_zeros(
    job: Path, served: tuple[Plane, str], tmp_path: Path
) -> None:
    running, url = served
    running.engines[0].behaviour.status = 500
    done = await run(labelled(tmp_path), "--job", job, "--reward", "judge", "--url", url, "--json")
    assert done.exit_code == 3
    told = json.loads(done.output)
    assert (told["scored"], told["failed"], told["agreement"]) == (0, 12, None)
    assert all("reward" not in verdict and "500" in verdict["error"] for verdict in told["verdicts"])


async def test_figures_below_what_is_asked_for_exit_with_3(
    job: Path, served: tuple[Plane, str], tmp_path: Path
) -> None:
    where = ("--job", job, "--reward", "judge", "--url", served[1])
    done = await run(labelled(tmp_path, [0]), *where, "--least-agreement", "0.95")
    assert done.exit_code == 3, done.output
    file = written(tmp_path, {"prompt": "?", "response": "4", "label": 1}, ONE)
    done = await run(file, "--job", job, "--reward", "exact", "--most-errors", "0")
    assert done.exit_code == 3, "one has no reference answer"
    assert "1 could not be scored" in done.output


async def test_a_rule_needs_no_running_job(job: Path, tmp_path: Path) -> None:
    file = written(tmp_path, {**ONE, "label": "right"}, {**ONE, "response": "5", "label": "wrong"})
    words = ("--worth", "right=1", "--worth", "wrong=0")
    done = await run(file, "--job", job, "--reward", "exact", *words, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["kappa"] == 1.0


async def test_a_running_job_is_found_by_its_file_or_alone(
    job: Path, served: tuple[Plane, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(find, "is_alive", lambda state: True)
    file = labelled(tmp_path)
    done = await run(file, "--job", job, "--reward", "judge")
    assert isinstance(done.exception, JobError)
    assert 'asks the role "genrm", so its job has to run' in str(done.exception)
    paths.write_state(
        JobState(
            name="graded",
            file=str(job),
            pid=1,
            pid_started_s=0.0,
            run_dir="",
            namespace="",
            ray_address="",
            gateway_url=served[1],
        )
    )
    for where in (("--job", job), ("--job", "graded"), ()):
        done = await run(file, *where, "--reward", "judge", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["scored"] == 12


async def test_what_is_asked_for_has_to_be_there(job: Path, tmp_path: Path) -> None:
    file = written(tmp_path, ONE)
    assert "name a reward of" in (await run(file, "--job", job)).output
    done = await run(file, "--job", job, "--reward", "jugde")
    assert done.exit_code == 2
    assert 'no reward "jugde". Rewards: judge, exact' in done.output
    assert "must be a word and a number" in (await run(file, "--job", job, "--worth", "good")).output
    done = await run(tmp_path / "none.jsonl", "--job", job)
    assert isinstance(done.exception, ConfigError)
