"""The coordinator's process: dies, and comes back with what its journal says.

A dead coordinator may still run in this event loop, but nothing of it reaches anybody: its messages are lost,
its journal takes nothing, and nobody hears its events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolecall.errors import JournalError
from rolecall.ids import BatchId, RoleName
from rolecall.leases.coordinator import LeaseCoordinator
from rolecall.leases.journal import Record
from rolecall.leases.lease_state import OpeningLease
from rolecall.testing.memory_journal import MemoryDisk, MemoryJournal
from simulation.chance import Chance
from simulation.fleet import Fleet, RoleLink
from simulation.layouts import TRAINER, Layout
from simulation.network import Endpoint
from simulation.watchers import watch
from simulation.world import World

OPERATION_S = 60.0
"""Deadline of one command to a role."""


class CoordinatorHost:
    """``present`` is the coordinator that lives, at ``endpoint``."""

    def __init__(
        self,
        layout: Layout,
        *,
        world: World,
        fleet: Fleet,
        chance: Chance,
        opening: Mapping[RoleName, OpeningLease],
        disk: MemoryDisk,
        run: str,
    ) -> None:
        self._layout = layout
        self._world = world
        self._fleet = fleet
        self._chance = chance
        self._opening = opening
        self.disk = disk
        self._run = run
        self._over = False
        self.endpoint = Endpoint("coordinator")
        self.present = self._make()

    def kill(self) -> None:
        """SIGKILL, perhaps with a power cut; the next one is there after a while."""
        if not self.endpoint.alive:
            return
        self.endpoint.die()
        if self._chance.happens(0.5):
            self.disk.lose(int(self._chance.long_delay()))
        self._world.loop.call_later(1.0 + 20 * self._chance.delay(), self._restart)

    def end(self) -> None:
        """Its job has ended, and it with it; no other takes its place."""
        self._over = True
        self.endpoint.die()

    def _restart(self) -> None:
        if self._over:
            return
        self._world.note("fault", "the coordinator is back")
        self._world.restarted()
        self.endpoint = Endpoint("coordinator")
        self.present = self._make()

    def _make(self) -> LeaseCoordinator:
        life = self.endpoint

        def emit(kind: str, /, **fields: Any) -> None:
            if life.alive:
                self._world.emit(kind, **fields)

        conflicts = self._layout.conflicts
        coordinator = LeaseCoordinator(
            {
                name: RoleLink(self._fleet, self._world, self._chance, name, life)
                for name in self._fleet.services
            },
            conflicts=conflicts,
            opening=self._opening,
            training={TRAINER} & conflicts.keys(),
            timeout_s=OPERATION_S,
            emit=emit,
            clock=self._world.loop.time,
            journal=_MortalJournal(self.disk, life),
            run=self._run,
        )
        batch, timeout_s = BatchId(self._chance.pick((0, 0, 1))), self._chance.pick((0.5, 5.0, 500.0))
        self._world.loop.create_task(watch(self._world, coordinator, life, batch, timeout_s))
        return coordinator


class _MortalJournal(MemoryJournal):
    """Takes nothing from a dead coordinator."""

    def __init__(self, disk: MemoryDisk, life: Endpoint) -> None:
        super().__init__(disk, long_bytes=4_000)
        self._life = life

    def append(self, record: Record, *, durable: bool) -> None:
        if not self._life.alive:
            raise JournalError("its process is gone")
        super().append(record, durable=durable)

    def rewrite(self, records: Iterable[Record]) -> None:
        if not self._life.alive:
            raise JournalError("its process is gone")
        super().rewrite(records)
