"""Where replicas that come find devices: what the plan left over, a group of their own, or nothing; and
engines elsewhere, which need none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rolecall.api import EngineId, ModelId, Nodes, PlacementPlan, Pool, ReplicaPlacement, RoleName
from rolecall.cluster.spare_devices import SpareDevices, SpareOffer
from rolecall.engines.attached_worker import AttachedWorker
from rolecall.engines.deadline import LoopClock
from rolecall.engines.fencing import NO_TOKEN, Stamp
from rolecall.engines.worker_handle import UpdateRefusedError
from rolecall.errors import (
    CanaryMismatchError,
    CleanupPendingError,
    EngineError,
    EngineStartError,
    ScaleRefused,
)
from rolecall.interfaces.engine_backend import Capability, FromDisk, FromTensors
from rolecall.placement.binding import bind
from rolecall.placement.bound import BundleProbe
from rolecall.placement.spare import SpareAsk, find_spare
from rolecall.testing.fake_engine import FakeEngine, Script, fake_launch
from rolecall.testing.fake_groups import FakeGroups
from rolecall.testing.fake_workers import fake_slot
from rolecall.testing.manager_rig import within
from rolecall.testing.virtual_time import run_virtual

ROLE = RoleName("critic")


def ask(index: int, *nodes: int) -> SpareAsk:
    engine = EngineId(f"m/replica-{index}")
    return SpareAsk(role=ROLE, model=ModelId("m"), engine=engine, nodes=Nodes.of(nodes or (1,)))


def probe(bundle: int, device: int | str, node: str = "a", pool: str = "p") -> BundleProbe:
    return BundleProbe(
        pool_id=pool, bundle=bundle, node_id=node, node_ip=f"ip-{node}", device_ids=(str(device),)
    )


# --- what the plan left over ------------------------------------------------------------


def test_a_bound_plan_names_the_devices_that_nobody_uses() -> None:
    replica = ReplicaPlacement(
        engine=EngineId("m/replica-0"), role=ROLE, model=ModelId("m"), pool_id="p", bundles=(0,)
    )
    pool = Pool(pool_id="p", resource="GPU", nodes=Nodes.of([3]))
    plan = PlacementPlan(mode="some", pools=(pool,), replicas=(replica,), phases=())
    bound = bind(plan, [probe(0, 2), probe(1, 0), probe(2, 1)])
    assert [worker.device_ids for worker in bound.replicas[0].workers] == [("0",)]
    assert {(p.bundle, *p.device_ids) for p in bound.spare} == {(0, "2"), (2, "1")}


def test_devices_lie_side_by_side_on_one_node() -> None:
    spare = [probe(0, 0), probe(1, 2), probe(2, 3, node="b"), probe(3, 4, node="b")]
    found = find_spare(ask(1, 2), spare)
    assert found is not None
    (worker,) = found.workers
    assert (worker.node_id, worker.bundles, worker.device_ids) == ("b", (2, 3), ("3", "4"))
    assert find_spare(ask(1, 3), spare) is None
    assert find_spare(ask(1, 2), spare[:2]) is None, "0 and 2 are no neighbours"


def test_a_replica_over_nodes_gets_a_worker_on_each_and_one_pool() -> None:
    """Pitfall 12"""
    spare = [probe(0, 0), probe(1, 1), probe(2, 0, node="b"), probe(3, 1, node="b")]
    found = find_spare(ask(1, 2, 2), spare)
    assert found is not None
    assert [worker.node_id for worker in found.workers] == ["a", "b"]
    elsewhere = [*spare[:2], *(evolve(each, pool_id="q") for each in spare[2:])]
    assert find_spare(ask(1, 2, 2), elsewhere) is None


def test_the_smallest_place_is_taken_first() -> None:
    spare = [probe(0, 0), probe(1, 1), probe(2, 0, node="b")]
    found = find_spare(ask(1), spare)
    assert found is not None
    assert found.workers[0].node_id == "b"


# --- their owner ------------------------------------------------------------------------


def devices(
    groups: FakeGroups, *spare: BundleProbe, pooled: int = 1, most: int | None = None
) -> SpareDevices:
    offer = SpareOffer(job="job", resource="device_slot", spare=spare, pooled=pooled, most=most)
    return SpareDevices(offer, port=groups, clock=groups.clock)


def test_what_is_left_over_goes_first_then_a_group_of_its_own_then_nothing() -> None:
    groups = FakeGroups({"n": 1})
    owner = devices(groups, probe(3, 5))
    owner.room([ask(1), ask(2)])
    with pytest.raises(ScaleRefused, match="m/replica-3 needs 1 device"):
        owner.room([ask(1), ask(2), ask(3)])
    assert not groups.live_names, "looking takes nothing"
    first, second = owner.take(ask(1)), owner.take(ask(2))
    assert (first.bound.workers[0].bundles, first.groups) == ((3,), {})
    assert len(groups.live_names) == 1
    assert list(second.groups) == [second.bound.placement.pool_id]
    with pytest.raises(ScaleRefused, match="pools have 0 left over, and the cluster has 0 free"):
        owner.take(ask(3))
    with pytest.raises(ScaleRefused, match="has devices already"):
        owner.take(ask(1))
    for engine in (ask(2).engine, ask(2).engine, ask(1).engine):
        owner.give_back(ROLE, engine, 1.0)
    assert not groups.live_names
    assert owner.take(ask(3)).bound.workers[0].bundles == (3,)


def test_a_job_takes_no_more_than_its_file_says() -> None:
    groups = FakeGroups({"n": 8})
    owner = devices(groups, pooled=2, most=3)
    owner.take(ask(1))
    with pytest.raises(ScaleRefused, match="no more than 3, of which its pools and replicas have 3"):
        owner.take(ask(2))


def test_a_group_that_is_not_confirmed_removed_is_tried_again() -> None:
    groups = FakeGroups({"n": 1})
    owner = devices(groups)
    owner.take(ask(1))
    groups.unremovable.update(groups.live_names)
    with pytest.raises(CleanupPendingError):
        owner.give_all_back(1.0)
    groups.unremovable.clear()
    owner.give_all_back(1.0)
    assert not groups.live_names
    owner.take(ask(2))


def test_an_ask_that_comes_after_its_end_takes_nothing() -> None:
    owner = devices(FakeGroups({"n": 1}), probe(3, 5))
    owner.give_back(ROLE, ask(1).engine, 1.0)
    with pytest.raises(ScaleRefused, match="m/replica-1 has come and gone"):
        owner.take(ask(1))
    assert owner.take(ask(2)).bound.workers[0].bundles == (3,)


# --- engines elsewhere ------------------------------------------------------------------


class Elsewhere(FakeEngine):
    """An engine that is not the job's; ``paths`` are what it names."""

    paths = frozenset({"/models/policy"})

    @property
    def pid(self) -> None:
        return None

    async def model_paths(self) -> frozenset[str]:
        return self.paths


def attached(script: Script, *, version: str | None = "0") -> tuple[AttachedWorker, list[Elsewhere]]:
    made: list[Elsewhere] = []

    def attach() -> Any:
        made.append(Elsewhere(fake_launch(version), script))
        return made[-1]

    async def other_model(paths: frozenset[str]) -> str | None:
        return None if "/models/policy" in paths else f"it names {sorted(paths)}"

    worker = AttachedWorker(
        evolve(fake_slot("m/replica-1"), url="http://a:1"),
        attach,
        other_model=other_model,
        static=version is None,
        capabilities=frozenset(Capability),
        clock=LoopClock(),
    )
    return worker, made


def stamp(incarnation: int = 1) -> Stamp:
    return Stamp(incarnation=incarnation, token=NO_TOKEN)


def test_an_engine_elsewhere_is_taken_updated_and_let_go_of() -> None:
    async def main() -> None:
        worker, made = attached(Script())
        started = await worker.start(stamp(), "7", within(60))
        assert (started.base_url, started.pid, started.weight_version) == ("http://a:1", None, "0")
        await worker.update_weights(stamp(), FromDisk(path=Path("/x")), "1", 1.0, within(60))
        assert made[0]._version == "1"
        assert (await worker.health(generate=True, deadline=within(10))).alive
        proof = await worker.sleep(stamp(), 1.0, within(60))
        assert proof.awake_bytes == proof.asleep_bytes == 0
        assert not any(call.startswith("release") for call in made[0].calls)
        await worker.wake(stamp(), "1", within(60))
        made[0]._version = "somebody's"
        with pytest.raises(CanaryMismatchError, match="somebody's"):
            await worker.wake(stamp(), "1", within(60))
        assert "let go" in await worker.stop(stamp(), within(10))
        with pytest.raises(EngineError, match="not connected"):
            await worker.sleep(stamp(), 1.0, within(10))

    run_virtual(main())


def test_an_engine_of_another_model_or_none_is_not_taken() -> None:
    """Pitfall 31"""

    async def main() -> None:
        worker, made = attached(Script())
        Elsewhere.paths = frozenset({"/models/other"})
        try:
            with pytest.raises(EngineStartError, match=r"names .*other"):
                await worker.start(stamp(), "0", within(60))
        finally:
            Elsewhere.paths = frozenset({"/models/policy"})
        assert not (await worker.health(generate=True, deadline=within(10))).has_engine
        dead, _ = attached(Script(start_error="connection refused"))
        with pytest.raises(EngineStartError, match="connection refused"):
            await dead.start(stamp(), "0", within(600))
        assert made

    run_virtual(main())


def test_what_only_the_job_s_own_engines_do_is_refused() -> None:
    async def main() -> None:
        worker, _ = attached(Script())
        await worker.start(stamp(), "0", within(60))
        with pytest.raises(UpdateRefusedError, match="from disk only"):
            await worker.update_weights(stamp(), FromTensors(serialized=("0",)), "1", 1.0, within(60))
        with pytest.raises(EngineError, match="one engine to the job"):
            await worker.meet(stamp(), within(60))

    run_virtual(main())
