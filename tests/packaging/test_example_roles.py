"""A role without engines and a reward that can't be deferred, from their wheels: up, asked, refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

ALONE = """
[job]
name = "verifier-alone"

[placement]
mode = "defer"
resource = "device_slot"

[roles.verifier.options]
concurrency = 1

[sink]
name = "parquet"
"""

AGREEMENT = """
[job]
name = "agreement"

[placement]
mode = "{mode}"
resource = "device_slot"
{devices}

[roles.rollout.models.policy]
source = "/nowhere/policy"
engine = "embedded"

[roles.genrm.models.judge]
source = "/nowhere/judge"
engine = "embedded"

[rewards.agreement]
adapter = "self_consistency"

[sink]
name = "jsonl"
"""


@pytest.fixture(scope="module")
def gateway(installation: Any) -> Iterator[str]:
    """The URL of the gateways of a job whose only role has no engine."""
    file: Path = installation.folder / "alone.toml"
    file.write_text(ALONE, encoding="utf-8")
    installation.run("rolecall", "up", str(file))
    try:
        yield json.loads(installation.run("rolecall", "status", "--json", "verifier-alone"))["gateway_url"]
    finally:
        installation.run("rolecall", "down", "verifier-alone")


@pytest.mark.ray
def test_a_role_without_engines_answers_on_an_endpoint_of_its_own(gateway: str) -> None:
    tests = ["assert double(2) == 4", "assert double(-1) == -2"]
    for program, outcome in (
        ("return 2 * x", "passed"),
        ("return 4", "failed"),
        ("raise SystemExit", "failed"),
    ):
        body = {"program": f"def double(x): {program}", "tests": tests}
        answer = httpx.post(f"{gateway}/verifier/verify", json=body, timeout=60)
        assert (answer.status_code, answer.json()["outcome"]) == (200, outcome), answer.text


@pytest.mark.ray
def test_its_gateway_has_the_pages_of_every_role(gateway: str, installation: Any) -> None:
    role = f"{gateway}/verifier"
    assert httpx.get(f"{role}/health", timeout=30).json() == {"status": "ready", "models": {}}
    assert httpx.get(f"{role}/engines", timeout=30).json()["models"] == {}
    assert httpx.post(f"{role}/generate", json={"text": "x"}, timeout=30).status_code == 400
    status = json.loads(installation.run("rolecall", "status", "--json", "verifier-alone"))
    assert status["coordinator"]["leases"]["verifier"]["state"] == "ACTIVE"
    assert status["roles"]["verifier"]["replicas"] == []


def test_a_reward_that_can_not_be_deferred_is_refused_where_roles_take_turns(installation: Any) -> None:
    file: Path = installation.folder / "agreement.toml"
    file.write_text(AGREEMENT.format(mode="defer", devices="devices = 1"), encoding="utf-8")
    said = " ".join(installation.run("rolecall", "plan", str(file), code=2).split())
    assert "rewards.agreement.adapter [reward-not-deferred]" in said
    assert (
        'mode "defer" scores samples after generation has ended, but adapter "self_consistency" does not '
        "declare supports_deferred"
    ) in said
    assert "fix: choose an adapter that declares supports_deferred, or a mode in which all roles are" in said


def test_it_is_taken_where_all_roles_are_awake_together(installation: Any) -> None:
    file: Path = installation.folder / "together.toml"
    file.write_text(AGREEMENT.format(mode="decoupled", devices=""), encoding="utf-8")
    plan = json.loads(installation.run("rolecall", "plan", "--json", str(file)))
    assert "refusals" not in plan
