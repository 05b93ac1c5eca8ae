"""SnapshotSource: one role's parsed snapshot, kept fresh for everyone in one event loop.

Gateways and direct clients route by what this hands out. It reads through a
:class:`~rolecall.discovery.registry.SnapshotReader` and never asks a worker. Two ways of staying fresh:

* *on demand* (a client): a snapshot is trusted for ``ttl_s``, then confirmed by one conditional read;
* *following* (a gateway): a long poll stays open, so a change arrives at once and a quiet registry
  costs one call in ``_FOLLOW_WAIT_S``.

However many callers ask at once, one read is under way (two while a forced refresh waits for the one
before it). A caller that is cancelled doesn't cancel the read that others wait for; with the last one the
read ends. A snapshot is parsed once per (epoch, revision).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
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
    released: nobody waits any more, see :meth:`release`.
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
        self._joined: Counter[asyncio.Task[Snapshot]] = Counter()
        self._follower: asyncio.Task[None] | None = None
        self._following = False
        self._waiting: set[asyncio.Timeout] = set()
        self.released = False

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

    async def published(self) -> Published:
        """Return the snapshot that holds now as it travels.

        Raises:
            RegistryUnavailableError: it can't be read, or is not valid.
        """
        await self.current()
        assert self._published is not None
        return self._published

    async def news(
        self, etag: str, wait_s: float, gone: Callable[[], Awaitable[object]] | None = None
    ) -> Published | None:
        """Return the snapshot as it travels once it is not ``etag``, or None after ``wait_s`` seconds.

        ``gone`` is awaited meanwhile: it returns when nobody waits any more, and None is returned.

        Raises:
            RegistryUnavailableError: it can't be read, or is not valid.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while (published := await self.published()).etag == etag:
            if self.released:
                return None
            limit = asyncio.timeout_at(deadline)
            try:
                async with limit:
                    # No task and no future of its own: a thousand may wait. A change ends the time.
                    self._waiting.add(limit)
                    try:
                        await (loop.create_future() if gone is None else gone())
                    finally:
                        self._waiting.discard(limit)
            except TimeoutError:
                if not limit.expired():
                    raise
                if loop.time() < deadline:
                    continue
            return None
        return published

    def release(self) -> None:
        """Have nobody wait for news any more: who answers them is about to end. Reads go on."""
        self.released = True
        self._announce()

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

    async def _join(self, flight: asyncio.Task[Snapshot]) -> Snapshot:
        self._joined[flight] += 1
        try:
            return await asyncio.shield(flight)
        finally:
            self._joined[flight] -= 1
            if not self._joined[flight]:
                del self._joined[flight]
                if not flight.done():
                    if self._flight is flight:
                        self._flight = None  # nobody may join what is being cancelled
                    flight.cancel()

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
        if self._published is not None and published.etag == self._published.etag:
            return
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
        self._published = Published(etag=snapshot.etag, body=published.body)
        self._announce()

    def _announce(self) -> None:
        """Have everybody who waits look again."""
        waiting, self._waiting = self._waiting, set()
        for limit in waiting:
            if not limit.expired():
                limit.reschedule(0.0)

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
