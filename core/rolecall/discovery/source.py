"""SnapshotSource: one role's parsed snapshot, kept fresh for everyone in one event loop.

Gateways and direct clients route by what this hands out. It reads through a
:class:`~rolecall.discovery.registry.SnapshotReader` and never asks a worker. Two ways of staying fresh:

* *on demand* (a client): a snapshot is trusted for ``ttl_s``, then confirmed by one conditional read;
* *following* (a gateway): a long poll stays open, so a change arrives at once and a quiet registry
  costs one call in ``_FOLLOW_WAIT_S``.

However many callers ask at once, one read is under way (two while a forced refresh waits for the one
before it). A caller that is cancelled doesn't cancel the read that others wait for. A snapshot is
parsed once per (epoch, revision).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from rolecall.discovery.registry import Published, SnapshotReader
from rolecall.discovery.snapshot import Snapshot, decode_snapshot
from rolecall.errors import RegistryUnavailableError, SnapshotError

_log = logging.getLogger(__name__)

_FOLLOW_WAIT_S = 20.0
_RETRY_FIRST_S = 0.1
_RETRY_MOST_S = 2.0


class SnapshotSource:
    """Snapshots of one role. Make, use and close it in one event loop.

    role: the role the snapshot must be of; None accepts any.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        *,
        role: str | None = None,
        ttl_s: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._reader = reader
        self._role = role
        self._ttl_s = ttl_s
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._published: Published | None = None
        self._fresh_until = float("-inf")
        self._epoch_since = float("-inf")
        self._flight: asyncio.Task[Snapshot] | None = None
        self._follower: asyncio.Task[None] | None = None
        self._following = False
        self._changed = asyncio.Event()

    async def current(self) -> Snapshot:
        """Return the snapshot that holds now.

        Raises:
            RegistryUnavailableError: it can't be read, or is not valid.
        """
        snapshot = self._snapshot
        if snapshot is not None and (self._following or self._clock() < self._fresh_until):
            return snapshot
        return await self._join(self._flight or self._start_read())

    async def refresh(self) -> Snapshot:
        """Return a snapshot read after this call began, whatever is cached.

        Raises:
            RegistryUnavailableError: it can't be read, or is not valid.
        """
        under_way = self._flight
        if under_way is not None:
            # It may have been answered before the caller saw what made it ask. Its error is its own.
            await asyncio.wait({under_way})
        return await self._join(self._flight or self._start_read())

    def drop(self) -> None:
        """Trust nothing cached: the next :meth:`current` asks again."""
        self._following = False
        self._fresh_until = float("-inf")

    def known(self) -> Snapshot | None:
        """Return the last snapshot seen, fresh or not, without asking anyone."""
        return self._snapshot

    async def published(self, etag: str | None = None, wait_s: float = 0.0) -> Published | None:
        """Return the snapshot as it travels, or None if it still is ``etag`` after ``wait_s`` seconds.

        Raises:
            RegistryUnavailableError: it can't be read, or is not valid.
        """
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            changed = self._changed
            snapshot = await self.current()
            if snapshot.etag != etag:
                return self._published
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return None

    def follow(self) -> None:
        """Keep a long poll open until :meth:`aclose`. Repeats do nothing."""
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(), name="rolecall-snapshot-follower")
            self._follower.add_done_callback(self._follower_ended)

    async def aclose(self) -> None:
        """Stop following and close the reader. Repeats do nothing."""
        for task in (self._follower, self._flight):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._follower = self._flight = None
        self._following = False
        await self._reader.aclose()

    def _follower_ended(self, follower: asyncio.Task[None]) -> None:
        # Without it nothing is known to be fresh any more; reads on demand go on.
        self.drop()
        self._announce()
        if not follower.cancelled() and (error := follower.exception()) is not None:
            _log.error("following the discovery registry ended", exc_info=error)

    # --- reading ------------------------------------------------------------------------

    def _start_read(self) -> asyncio.Task[Snapshot]:
        self._flight = asyncio.create_task(self._read(0.0), name="rolecall-snapshot-read")
        self._flight.add_done_callback(self._landed)
        return self._flight

    def _landed(self, flight: asyncio.Task[Snapshot]) -> None:
        if self._flight is flight:
            self._flight = None
        if not flight.cancelled():
            # Marks the error as seen: every waiter may have left.
            flight.exception()

    @staticmethod
    async def _join(flight: asyncio.Task[Snapshot]) -> Snapshot:
        return await asyncio.shield(flight)

    async def _read(self, wait_s: float) -> Snapshot:
        started = self._clock()
        known = self._published
        published = await self._reader.read(known.etag if known else None, wait_s)
        if published is None:
            if self._snapshot is None:
                raise RegistryUnavailableError("the registry called a snapshot unchanged that was never read")
        else:
            self._accept(published, started)
        assert self._snapshot is not None
        # An answer given at once may be as old as the question; one waited for is news.
        self._fresh_until = (self._clock() if wait_s else started) + self._ttl_s
        return self._snapshot

    def _accept(self, published: Published, started: float) -> None:
        try:
            snapshot = decode_snapshot(published.body)
            if self._role is not None and snapshot.role != self._role:
                raise SnapshotError(f"role: must be {self._role!r}, found {snapshot.role!r}")
        except SnapshotError as error:
            raise RegistryUnavailableError(f"the registry's snapshot is not valid: {error}") from error
        last = self._snapshot
        if last is not None and last.registry_epoch == snapshot.registry_epoch:
            # Two reads may be answered in the wrong order; the older one loses.
            if snapshot.topology_revision <= last.topology_revision:
                return
        elif started < self._epoch_since:
            return
        else:
            self._epoch_since = self._clock()
        self._snapshot = snapshot
        self._published = published
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _follow(self) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                # Known but not followed: look at once, then wait for news. Unknown: wait for the first.
                catch_up = self._snapshot is not None and not self._following
                await self._read(0.0 if catch_up else _FOLLOW_WAIT_S)
            except RegistryUnavailableError as error:
                if self._following:
                    _log.warning("lost the discovery registry: %s", error)
                    self.drop()
                    self._announce()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_MOST_S)
            else:
                self._following = True
                pause_s = _RETRY_FIRST_S
