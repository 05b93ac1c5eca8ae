"""Registry: the latest snapshot of every role, handed to whoever asks or waits.

Pure asyncio, one instance per job, used from one event loop. Managers publish, gateways read; it
calls neither of them and never a worker. It runs inside the registry actor
(:mod:`rolecall.discovery.registry_actor`) or, in tests and single-process jobs, as it is.

A new epoch replaces the one before it for good: a manager that was replaced, but doesn't know it yet,
is refused and can't overwrite its successor.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from attrs import frozen

from rolecall.discovery.snapshot import Snapshot, decode_snapshot
from rolecall.errors import RegistryUnavailableError, SnapshotError


@frozen(kw_only=True)
class Published:
    """A snapshot as it travels: its tag (``epoch:revision``) and its JSON text."""

    etag: str
    body: str


class SnapshotReader(Protocol):
    """Reads one role's snapshot from wherever the registry is."""

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        """Return the snapshot, or None if it still is ``etag`` after ``wait_s`` seconds.

        Raises:
            RegistryUnavailableError: the registry can't be read or has no snapshot of the role.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections. Repeats do nothing."""
        ...


class _Shelf:
    """One role's place in the registry."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.published: Published | None = None
        self.retired_epochs: set[str] = set()
        self.changed = asyncio.Event()

    def announce(self) -> None:
        """Wake everyone who waits now; later waiters wait for the next change."""
        self.changed.set()
        self.changed = asyncio.Event()


class Registry:
    """Role → latest snapshot."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}

    def publish(self, role: str, snapshot_json: str) -> bool:
        """Make a snapshot the role's latest; return whether anything changed.

        The same snapshot again does nothing, so a manager may publish as often as it likes.

        Raises:
            SnapshotError: it is invalid or another role's, its epoch was replaced by a newer one, its
                revision is lower than the latest, or it differs under the same revision.
        """
        snapshot = decode_snapshot(snapshot_json)
        if snapshot.role != role:
            raise SnapshotError(f"role: must be {role!r}, found {snapshot.role!r}")
        shelf = self._shelves.setdefault(role, _Shelf())
        if snapshot.registry_epoch in shelf.retired_epochs:
            raise SnapshotError(
                f"registry_epoch: {snapshot.registry_epoch} of role {role!r} was replaced by a newer manager"
            )
        last = shelf.snapshot
        if last is not None and last.registry_epoch == snapshot.registry_epoch:
            if snapshot == last:
                return False
            if snapshot.topology_revision <= last.topology_revision:
                raise SnapshotError(
                    f"topology_revision: must rise above {last.topology_revision} with a change, "
                    f"found {snapshot.topology_revision}"
                )
        elif last is not None:
            shelf.retired_epochs.add(last.registry_epoch)
        shelf.snapshot = snapshot
        shelf.published = Published(etag=snapshot.etag, body=snapshot_json)
        shelf.announce()
        return True

    def invalidate(self, role: str) -> None:
        """Forget the role's snapshot and refuse its epoch from now on; readers get an error at once."""
        shelf = self._shelves.get(role)
        if shelf is None or shelf.snapshot is None:
            return
        shelf.retired_epochs.add(shelf.snapshot.registry_epoch)
        shelf.snapshot = shelf.published = None
        shelf.announce()

    async def read(self, role: str, etag: str | None = None, wait_s: float = 0.0) -> Published | None:
        """Return the role's snapshot, or None if it still is ``etag`` after ``wait_s`` seconds.

        Waits, too, for the first snapshot of a role that has none yet. Cancelling is harmless.

        Raises:
            RegistryUnavailableError: no snapshot of the role was published, or it was invalidated.
        """
        shelf = self._shelves.setdefault(role, _Shelf())
        known = shelf.published
        if wait_s > 0 and (known is None or known.etag == etag):
            try:
                async with asyncio.timeout(wait_s):
                    await shelf.changed.wait()
            except TimeoutError:
                pass  # Quiet for the whole wait: answer with what there is.
        if shelf.published is None:
            raise RegistryUnavailableError(f"the registry has no snapshot of role {role!r}")
        return None if shelf.published.etag == etag else shelf.published

    def reader(self, role: str) -> SnapshotReader:
        """Return a reader of one role, for use in the registry's own event loop."""
        return _LocalReader(self, role)


class _LocalReader:
    def __init__(self, registry: Registry, role: str) -> None:
        self._registry = registry
        self._role = role

    async def read(self, etag: str | None, wait_s: float) -> Published | None:
        return await self._registry.read(self._role, etag, wait_s)

    async def aclose(self) -> None:
        pass
