"""Registry: one truth a role, waiting readers, and managers that were replaced stay out."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from rolecall.discovery.registry import Published, Registry
from rolecall.discovery.snapshot import decode_snapshot
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import RegistryUnavailableError, SnapshotError
from rolecall.testing.snapshots import EPOCH, OTHER_EPOCH, model_entry, snapshot_of

READY = snapshot_of({"m": model_entry("m", ["http://h:1"])}, policy="turns")
ASLEEP = snapshot_of(
    {"m": model_entry("m", ["http://h:1"], state=ReplicaState.SLEEPING)}, policy="turns", revision=2
)


async def test_what_is_published_is_read() -> None:
    registry = Registry()
    assert registry.publish("critic", READY.to_json())
    published = await registry.read("critic")
    assert published == Published(etag=f"{EPOCH}:1", body=READY.to_json())
    assert await registry.read("critic", READY.etag) is None


async def test_publishing_again_changes_nothing() -> None:
    registry = Registry()
    assert registry.publish("critic", READY.to_json())
    assert not registry.publish("critic", READY.to_json())


@pytest.mark.parametrize(
    ("published", "named"),
    [
        (READY.to_json().replace("DIRECT", "DIRECTLY"), "models.m.route_mode"),
        (evolve(READY, role="other").to_json(), "role: must be 'critic'"),
        (evolve(ASLEEP, topology_revision=1).to_json(), "topology_revision"),
        (evolve(ASLEEP, topology_revision=0).to_json(), "topology_revision"),
        ("{}", "schema_version"),
    ],
)
async def test_a_wrong_publication_is_refused_and_leaves_the_last(published: str, named: str) -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    with pytest.raises(SnapshotError, match=named):
        registry.publish("critic", published)
    assert (await registry.read("critic")) == Published(etag=READY.etag, body=READY.to_json())


async def test_a_replaced_manager_can_not_come_back() -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    successor = evolve(READY, registry_epoch=OTHER_EPOCH)
    registry.publish("critic", successor.to_json())
    with pytest.raises(SnapshotError, match="replaced by a newer manager"):
        registry.publish("critic", ASLEEP.to_json())
    published = await registry.read("critic")
    assert published is not None
    assert decode_snapshot(published.body) == successor


async def test_a_waiting_reader_learns_of_a_change_at_once() -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    waiting = asyncio.create_task(registry.read("critic", READY.etag, 60))
    await asyncio.sleep(0)
    registry.publish("other", evolve(READY, role="other").to_json())
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.publish("critic", ASLEEP.to_json())
    published = await asyncio.wait_for(waiting, 1)
    assert published is not None
    assert published.etag == ASLEEP.etag


async def test_a_quiet_registry_says_unchanged_after_the_wait() -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    assert await registry.read("critic", READY.etag, 0.01) is None


async def test_a_reader_may_wait_for_the_first_snapshot() -> None:
    registry = Registry()
    waiting = asyncio.create_task(registry.read("critic", None, 60))
    await asyncio.sleep(0)
    registry.publish("critic", READY.to_json())
    assert await asyncio.wait_for(waiting, 1) is not None


async def test_without_a_snapshot_there_is_an_error_not_an_empty_answer() -> None:
    with pytest.raises(RegistryUnavailableError, match="no snapshot of role 'critic'"):
        await Registry().read("critic")


async def test_an_invalidated_role_is_unavailable_and_its_epoch_gone_for_good() -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    waiting = asyncio.create_task(registry.read("critic", READY.etag, 60))
    await asyncio.sleep(0)
    registry.invalidate("critic")
    with pytest.raises(RegistryUnavailableError):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(SnapshotError, match="replaced"):
        registry.publish("critic", ASLEEP.to_json())
    registry.publish("critic", evolve(READY, registry_epoch=OTHER_EPOCH).to_json())
    assert await registry.read("critic") is not None


async def test_a_thousand_waiters_are_all_woken_by_one_change() -> None:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    waiting = [asyncio.create_task(registry.read("critic", READY.etag, 60)) for _ in range(1000)]
    await asyncio.sleep(0)
    registry.publish("critic", ASLEEP.to_json())
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert {answer.etag for answer in answers if answer is not None} == {ASLEEP.etag}
    assert None not in answers
