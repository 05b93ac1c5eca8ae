"""The end of a job whose placement groups can't, or must not, be removed."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.api import Nodes, Pool
from rolecall.cluster.pool_groups import PoolGroups
from rolecall.errors import CleanupPendingError
from rolecall.testing.fake_groups import FakeGroups
from rolecall.testing.manager_rig import ManagerRig, ok, within


def pools(*names: str) -> list[Pool]:
    return [Pool(pool_id=name, resource="device_slot", nodes=Nodes.equal(2, per_node=4)) for name in names]


def test_owned_placement_group_can_t_be_removed() -> None:
    """An error says which, and the clean-up stays to be done: it may be repeated until it succeeds."""
    cluster = FakeGroups(nodes={"a": 4})
    groups = PoolGroups(pools("writer", "judge"), job="job", borrowed={}, port=cluster, clock=cluster.clock)
    groups.create(10)
    cluster.unremovable.add("-judge-")
    for _ in range(2):
        started_s = cluster.clock.now_s()
        with pytest.raises(CleanupPendingError) as pending:
            groups.remove(5)
        assert "1 placement group could not be proved removed (rolecall-job-judge-" in str(pending.value)
        assert "still there after 5 s" in str(pending.value)
        assert 5 <= cluster.clock.now_s() - started_s < 6
        assert groups.owned_names == tuple(cluster.live_names), "the judge's, and the judge's alone"
    cluster.unremovable.clear()
    groups.remove(5)
    assert cluster.live_names == []
    assert groups.owned_names == ()
    groups.remove(5)


def test_borrowed_placement_group_at_shutdown(play_manager: Any) -> None:
    """The engines in it are stopped, with confirmation; the group is left to whoever lent it."""
    cluster = FakeGroups(nodes={"a": 4})
    lent = cluster.create("trainer", [{"device_slot": 1.0}] * 2)
    groups = PoolGroups(
        pools("writer", "judge"), job="job", borrowed={"writer": lent}, port=cluster, clock=cluster.clock
    )
    groups.create(10)
    assert groups.handles["writer"] is lent
    assert len(cluster.live_names) == 2, "nothing is made for a pool that has a group already"

    async def scenario(rig: ManagerRig) -> None:
        assert ok(await rig.manager.shutdown(within(60)))
        groups.remove(5)
        for engine in ("m/replica-0", "m/replica-1"):
            assert rig.worker(engine).engine.exit_code() is not None
            assert rig.worker(engine).disposed

    play_manager(scenario)
    assert cluster.live_names == ["trainer"]
