"""``rolecall run`` of the example: three roles take turns, two batches, from file to committed rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rolecall.config.loader import load_config
from rolecall.config.resolve import open_sink
from rolecall.plugins.host import PluginHost

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(540)]

ASLEEP = {"SLEEPING", "STOPPING"}


EXAMPLE = Path(__file__).parents[3] / "examples" / "quickstart.toml"
SMALLER = {
    '"../.rolecall/quickstart-events.jsonl"': '"events.jsonl"',
    '"prompts/arithmetic.jsonl"': '"prompts.jsonl"',
    "prompts_per_batch = 8": "prompts_per_batch = 2",
    "max_new_tokens = 48": "max_new_tokens = 16",
}


@pytest.fixture(scope="module")
def finished(command):
    """The example that the README's first command runs, on fewer prompts, with shorter answers."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for before, after in SMALLER.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (command.folder / "job.toml").write_text(text, encoding="utf-8")
    result = command.run("run", "job.toml", timeout_s=480)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def rows_of(folder: Path, partition: str) -> list[dict[str, object]]:
    file = folder / "job.toml"
    sink = open_sink(load_config(file), file, PluginHost.from_environment())
    try:
        return [dict(row) for row in sink.read(partition)]
    finally:
        sink.close()


def test_both_batches_are_committed_and_were_read_by_the_consumer(finished, command):
    committed = [
        event["batch"]
        for event in command.events()
        if event["kind"] == "batch.state" and event["to"] == "COMMITTED"
    ]
    assert committed == [0, 1]
    assert "2 of 2 batches committed" in finished.stdout
    assert "teacher [" in finished.stdout


@pytest.mark.parametrize("partition", ["train_0", "train_1"])
def test_every_row_carries_its_scores(finished, command, partition: str):
    rows = rows_of(command.folder, partition)
    dropped = finished.stdout.count(f"batch {partition[-1]}: sample")
    assert rows
    assert len(rows) + dropped == 4
    for row in rows:
        length = len(row["response_ids"])
        assert set(row["reward"]) == {"judge", "exact"}
        assert all(math.isfinite(value) for value in row["reward"].values())
        assert row["teacher_log_probs"].shape == (length,)
        assert row["teacher_log_probs"].dtype == np.float32
        assert row["teacher_topk_ids"].shape == row["teacher_topk_log_probs"].shape
        assert row["teacher_topk_ids"].shape[0] == length
        assert row["teacher_topk_ids"].dtype == np.int32
        assert np.isfinite(row["teacher_topk_log_probs"]).all()
        assert (row["teacher_log_probs"] < 0).any()


def test_the_policy_and_the_teacher_agree_since_they_are_one_model(finished, command):
    # Same weights on both sides, one by llama.cpp, one by the NumPy forward: an offset of one
    # token, or a lost weight, would show as a difference of several nats.
    for row in rows_of(command.folder, "train_0"):
        assert np.abs(row["teacher_log_probs"] - row["rollout_log_probs"]).mean() < 0.1


def test_no_two_roles_were_ever_awake_at_once(finished, command):
    awake: dict[str, set[str]] = {}
    roles_seen: set[str] = set()
    # By the time at which each happened: the hub numbers events as they arrive.
    for event in sorted(command.events(), key=lambda event: event["time_s"]):
        if event["kind"] != "replica.state":
            continue
        engines = awake.setdefault(event["role"], set())
        if event["to"] in ASLEEP:
            engines.discard(event["engine"])
        else:
            engines.add(event["engine"])
            roles_seen.add(event["role"])
        holders = {role for role, engines in awake.items() if engines}
        assert len(holders) <= 1, f"{holders} awake together at {event}"
    assert roles_seen == {"rollout", "genrm", "teacher"}


def test_a_sleeping_engine_holds_at_least_60_percent_less(finished, command):
    reports = [event for event in command.events() if event["kind"] == "replica.memory"]
    for role in ("rollout", "genrm", "teacher"):
        awake = [e["resident_bytes"] for e in reports if e["role"] == role and e["awake"]]
        asleep = [e["resident_bytes"] for e in reports if e["role"] == role and not e["awake"]]
        assert awake
        assert asleep
        assert max(asleep) <= 0.4 * min(awake), (role, awake, asleep)


def test_roles_were_prepared_while_another_one_had_the_devices(finished, command):
    holder: str | None = None
    prepared: set[tuple[str | None, str]] = set()
    for event in sorted(command.events(), key=lambda event: event["time_s"]):
        if event["kind"] == "lease.state" and event["to"] == "ACTIVE":
            holder = event["role"]
        elif event["kind"] == "replica.prepared":
            assert event["problem"] is None
            assert event["bytes"] > 0
            prepared.add((holder, event["role"]))
    assert {("rollout", "genrm"), ("genrm", "teacher"), ("teacher", "rollout")} <= prepared


def test_nothing_is_left(finished, command):
    command.wait_until_gone(timeout_s=10)
