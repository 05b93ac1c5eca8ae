"""``get_rollout_engines_and_lock()``: its five values, from what a real manager tells of its replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolecall.api import WeightSource
from rolecall.testing.manager_rig import ManagerRig, ok, within
from rolecall.testing.virtual_time import run_virtual
from rolecall_roles.rollout.engines_and_lock import RolloutEngines


class Job:
    """A job with one role; counts nothing, remembers whose status was asked for."""

    def __init__(self, *rigs: ManagerRig) -> None:
        self.rigs = rigs
        self.asked: list[str] = []

    async def role_status(self, role: str) -> dict[str, Any]:
        self.asked.append(role)
        return {"role": role, "replicas": [entry for rig in self.rigs for entry in rig.manager.status()]}


def test_the_five_values(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = ManagerRig(tmp_path, source=WeightSource.ACTOR, nodes=2)
        assert ok(await rig.manager.start())
        job = Job(rig)
        engines = RolloutEngines(job)
        heads, lock, new, counts, offsets = await engines.get_rollout_engines_and_lock()
        assert [head.engine_id for head in heads] == ["m/replica-0", "m/replica-1"]
        assert all(head.state == "READY" and head.base_url for head in heads)
        assert [head.weight_version for head in heads] == ["0", "0"]
        assert new == 2
        devices = len(rig.manager.status()[0]["devices"]) + sum(
            len(follower["devices"]) for follower in rig.manager.status()[0]["followers"]
        )
        assert counts == [devices, devices]
        assert offsets == [0, devices]
        assert job.asked == ["rollout"]
        async with lock:
            again = await engines.get_rollout_engines_and_lock()
        assert again[1] is lock
        assert again[2] == 0, "none is new that was told of"
        assert ok(await rig.manager.stop("m/replica-1", within(60)))
        heads, _, new, counts, offsets = await engines.get_rollout_engines_and_lock()
        assert ([head.engine_id for head in heads], new, counts, offsets) == (
            ["m/replica-0"],
            0,
            [devices],
            [0],
        )

    run_virtual(scenario())


def replica(model: str, number: int, incarnation: int = 1) -> dict[str, Any]:
    return {
        "model": model,
        "engine": f"{model}/replica-{number}",
        "state": "READY",
        "generation": incarnation,
        "incarnation": incarnation,
        "base_url": "http://e",
        "weight_version": "1",
        "devices": ["0", "1"],
        "followers": [{"node": "b", "devices": ["0", "1"]}][:number],
    }


class Told:
    def __init__(self, *replicas: dict[str, Any]) -> None:
        self.replicas = list(replicas)

    async def role_status(self, role: str) -> dict[str, Any]:
        return {"replicas": self.replicas}


async def test_another_incarnation_is_new_and_offsets_follow_from_the_devices() -> None:
    job = Told(replica("m", 0), replica("m", 1), replica("other", 0))
    engines = RolloutEngines(job, model="m")
    _, _, new, counts, offsets = await engines.get_rollout_engines_and_lock()
    assert (new, counts, offsets) == (2, [2, 4], [0, 2])
    job.replicas[1] = replica("m", 1, incarnation=2)
    assert (await engines.get_rollout_engines_and_lock())[2] == 1
    assert (await engines.get_rollout_engines_and_lock())[2] == 0


@pytest.mark.parametrize(
    ("model", "told"), [(None, "name one: m, other"), ("x", "no model 'x'; it has: m, other")]
)
async def test_which_model_is_meant_is_never_guessed(model: str | None, told: str) -> None:
    engines = RolloutEngines(Told(replica("m", 0), replica("other", 0)), model=model)
    with pytest.raises(ValueError, match=told):
        await engines.get_rollout_engines_and_lock()
