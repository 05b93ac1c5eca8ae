"""SnapshotSource: fresh enough, one read for all who ask, and no trust in what was dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from attrs import define, evolve, field

from rolecall.discovery.registry import Published, Registry
from rolecall.discovery.snapshot import Snapshot
from rolecall.discovery.source import SnapshotSource
from rolecall.engines.replica_state import ReplicaState
from rolecall.errors import RegistryUnavailableError
from rolecall.testing.snapshots import OTHER_EPOCH, model_entry, snapshot_of

READY = snapshot_of({"m": model_entry("m", ["http://h:1"])}, policy="turns")
ASLEEP = snapshot_of(
    {"m": model_entry("m", ["http://h:1"], state=ReplicaState.SLEEPING)}, policy="turns", revision=2
)


@define
class CountingReader:
    """Reads a real registry; counts, may be held up and may be cut off."""

    registry: Registry
    reads: list[tuple[str | None, float]] = field(factory=list)
    gate: asyncio.Event = field(factory=asyncio.Event)
    away: bool = False
    closed: bool = False

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        self.reads.append((etag, wait_s))
        await self.gate.wait()
        if self.away:
            raise RegistryUnavailableError("cut off")
        return await self.registry.read("critic", etag, wait_s)

    async def aclose(self) -> None:
        self.closed = True


@define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.publish("critic", READY.to_json())
    return registry


@pytest.fixture
def reader(registry: Registry) -> CountingReader:
    reader = CountingReader(registry)
    reader.gate.set()
    return reader


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def source(reader: CountingReader, clock: Clock) -> AsyncIterator[SnapshotSource]:
    source = SnapshotSource(reader, role="critic", ttl_s=1.0, clock=clock)
    yield source
    await source.aclose()
    assert reader.closed


def change(registry: Registry, snapshot: Snapshot = ASLEEP) -> None:
    registry.publish("critic", snapshot.to_json())


async def test_a_snapshot_is_trusted_for_its_time_then_confirmed_by_its_tag(
    source: SnapshotSource, reader: CountingReader, clock: Clock
) -> None:
    first = await source.current()
    clock.now += 0.9
    assert await source.current() is first
    assert len(reader.reads) == 1
    clock.now += 0.2
    assert await source.current() is first, "an unchanged snapshot is not parsed again"
    assert reader.reads == [(None, 0.0), (READY.etag, 0.0)]


async def test_a_change_is_seen_after_its_time(
    source: SnapshotSource, registry: Registry, clock: Clock
) -> None:
    await source.current()
    change(registry)
    assert (await source.current()).topology_revision == 1
    clock.now += 1.1
    assert (await source.current()).topology_revision == 2


async def test_many_callers_share_one_read(source: SnapshotSource, reader: CountingReader) -> None:
    reader.gate.clear()
    callers = [asyncio.create_task(source.current()) for _ in range(100)]
    await asyncio.sleep(0)
    reader.gate.set()
    assert len({id(snapshot) for snapshot in await asyncio.gather(*callers)}) == 1
    assert len(reader.reads) == 1


async def test_a_caller_that_leaves_takes_nothing_from_the_others(
    source: SnapshotSource, reader: CountingReader
) -> None:
    reader.gate.clear()
    leaving = asyncio.create_task(source.current())
    staying = asyncio.create_task(source.current())
    await asyncio.sleep(0)
    leaving.cancel()
    reader.gate.set()
    assert (await staying).etag == READY.etag


async def test_a_read_that_nobody_waits_for_any_more_ends(
    source: SnapshotSource, reader: CountingReader
) -> None:
    reader.gate.clear()
    leaving = [asyncio.create_task(source.current()) for _ in range(3)]
    await asyncio.sleep(0)
    (read,) = [task for task in asyncio.all_tasks() if task.get_name() == "rolecall-snapshot-read"]
    for caller in leaving:
        caller.cancel()
    again = asyncio.create_task(source.current())
    await asyncio.wait({read, *leaving})
    assert read.cancelled()
    reader.gate.set()
    assert (await again).etag == READY.etag
    assert len(reader.reads) == 2


async def test_a_forced_refresh_asks_again_within_the_time(
    source: SnapshotSource, registry: Registry, reader: CountingReader
) -> None:
    await source.current()
    change(registry)
    assert (await source.refresh()).topology_revision == 2
    assert len(reader.reads) == 2


async def test_a_forced_refresh_does_not_take_an_answer_older_than_itself(
    source: SnapshotSource, registry: Registry, reader: CountingReader
) -> None:
    reader.gate.clear()
    earlier = asyncio.create_task(source.current())
    await asyncio.sleep(0)
    forced = [asyncio.create_task(source.refresh()) for _ in range(50)]
    await asyncio.sleep(0)
    reader.gate.set()
    await earlier
    change(registry)
    assert {(await one).topology_revision for one in forced} == {2}
    assert len(reader.reads) == 2, "all who force share the second read"


async def test_what_was_dropped_is_asked_for_again(
    source: SnapshotSource, registry: Registry, reader: CountingReader
) -> None:
    await source.current()
    change(registry)
    source.drop()
    assert (await source.current()).topology_revision == 2


async def test_a_registry_that_is_away_is_an_error_and_not_the_last_snapshot(
    source: SnapshotSource, reader: CountingReader, clock: Clock
) -> None:
    await source.current()
    reader.away = True
    clock.now += 2
    with pytest.raises(RegistryUnavailableError, match="cut off"):
        await source.current()
    reader.away = False
    assert (await source.current()).etag == READY.etag


@pytest.mark.parametrize(
    "body",
    ["{}", "", READY.to_json().replace('"generation":1', '"generation":true')],
    ids=["empty", "nothing", "bool for int"],
)
async def test_an_invalid_snapshot_counts_as_none(body: str) -> None:
    class Broken:
        async def read(self, etag: str | None, wait_s: float) -> Published:
            return Published(etag="x", body=body)

        async def aclose(self) -> None: ...

    source = SnapshotSource(Broken())
    with pytest.raises(RegistryUnavailableError, match="not valid"):
        await source.current()


async def test_another_roles_snapshot_is_refused(reader: CountingReader) -> None:
    source = SnapshotSource(reader, role="actor")
    with pytest.raises(RegistryUnavailableError, match="must be 'actor', found 'critic'"):
        await source.current()


async def test_an_answer_that_comes_late_does_not_bring_the_past_back() -> None:
    answers: list[asyncio.Future[Published]] = []

    class Slow:
        async def read(self, etag: str | None, wait_s: float) -> Published:
            answers.append(asyncio.get_running_loop().create_future())
            return await answers[-1]

        async def aclose(self) -> None: ...

    def published(snapshot: Snapshot) -> Published:
        return Published(etag=snapshot.etag, body=snapshot.to_json())

    source = SnapshotSource(Slow())
    source.follow()
    await asyncio.sleep(0)
    asking = asyncio.create_task(source.current())
    await asyncio.sleep(0.01)
    follower, on_demand = answers
    successor = evolve(READY, registry_epoch=OTHER_EPOCH)
    follower.set_result(published(successor))
    await asyncio.sleep(0.01)
    on_demand.set_result(published(ASLEEP))
    assert await asking == successor
    await source.aclose()


# --- following --------------------------------------------------------------------------


async def test_a_follower_sees_a_change_at_once_and_asks_nothing_in_between(
    source: SnapshotSource, registry: Registry, reader: CountingReader, clock: Clock
) -> None:
    source.follow()
    await source.published()
    clock.now += 1000
    for _ in range(10):
        assert (await source.current()).topology_revision == 1
    asked = len(reader.reads)
    waiting = asyncio.create_task(source.news(READY.etag, 60))
    await asyncio.sleep(0)
    change(registry)
    published = await asyncio.wait_for(waiting, 1)
    assert published is not None
    assert published.etag == ASLEEP.etag
    assert (await source.current()).topology_revision == 2
    assert len(reader.reads) <= asked + 1, "one long poll, however many asked"


async def test_a_quiet_wait_ends_with_nothing(source: SnapshotSource) -> None:
    source.follow()
    assert await source.news(READY.etag, 0.01) is None


async def test_a_follower_waits_for_the_first_snapshot() -> None:
    registry = Registry()
    source = SnapshotSource(CountingReader(registry, gate=_open()))
    source.follow()
    with pytest.raises(RegistryUnavailableError):
        await source.current()
    change(registry, READY)
    assert (await source.current()).etag == READY.etag
    await source.aclose()


async def test_a_follower_that_loses_the_registry_says_so_and_finds_it_again(
    registry: Registry, clock: Clock
) -> None:
    reader = CountingReader(registry, gate=_open())
    source = SnapshotSource(reader, clock=clock)
    source.follow()
    await source.published()
    await asyncio.sleep(0.01)
    assert any(wait_s > 0 and etag == READY.etag for etag, wait_s in reader.reads), "the long poll is open"
    waiting = asyncio.create_task(source.news(READY.etag, 60))
    await asyncio.sleep(0)
    reader.away = True
    registry.invalidate("critic")
    with pytest.raises(RegistryUnavailableError):
        await asyncio.wait_for(waiting, 1)
    with pytest.raises(RegistryUnavailableError):
        await source.current()
    reader.away = False
    change(registry, evolve(READY, registry_epoch=OTHER_EPOCH))
    assert (await source.current()).registry_epoch == OTHER_EPOCH
    await source.aclose()


async def test_a_follower_that_dies_leaves_reads_on_demand(registry: Registry, clock: Clock) -> None:
    reader = CountingReader(registry, gate=_open())
    source = SnapshotSource(reader, clock=clock)
    source.follow()
    await source.published()
    registry.invalidate("critic")
    reader.registry = Registry()
    reader.registry.publish("critic", ASLEEP.to_json())
    follower = source._follower  # pyright: ignore[reportPrivateUsage]
    assert follower is not None
    follower.cancel()
    await asyncio.wait({follower})
    assert (await source.current()).etag == ASLEEP.etag, "the past is not served as if it were followed"
    await source.aclose()


def _open() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
