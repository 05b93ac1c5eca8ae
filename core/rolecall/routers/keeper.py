"""The keeper of one model's router: starts it, tells it of engines, and replaces it when it dies.

Pure asyncio; lives in the role's service, whose event loop's thread the router is bound to, and
implements :class:`~rolecall.routers.membership.Membership` for the model's manager. It owns the router
process, its ports and its log, and what the router was told. It owns no replica and judges none.

Invariants:

* A URL is told only while the router is up and every change that was asked of it is proved.
* A router that does not do what it is told is replaced: only a process that is gone certainly brings
  nothing to an engine that left.
* One change at a time; the newest set of members is the one that counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from rolecall.discovery.snapshot import RouteMode
from rolecall.engines.deadline import Clock, Deadline
from rolecall.engines.ports import PortRange, PortReservation, reserve_port
from rolecall.errors import EngineError, RouterError
from rolecall.events.event import Emit
from rolecall.ids import EngineId, ModelId, RoleName
from rolecall.interfaces.router import Router, RouterBackend, RouterLaunch
from rolecall.routers.membership import Member

logger = logging.getLogger(__name__)

_LOOKS = 3
"""So many looks without an answer, one after the other, and a router counts as dead."""


@frozen(kw_only=True)
class RouterTimes:
    """Durations, seconds.

    start_s, stop_s: one router, from process start to its first answer, and its end.
    tell_s: one engine to be listed, or not to be listed any more.
    look_s, look_interval_s: one look at the router, and the pause between two.
    backoff_s, longest_backoff_s: pause before a router is tried again that could not be started; it
        doubles.
    """

    start_s: float = 60.0
    stop_s: float = 10.0
    tell_s: float = 10.0
    look_s: float = 5.0
    look_interval_s: float = 1.0
    backoff_s: float = 1.0
    longest_backoff_s: float = 30.0


@frozen(kw_only=True)
class RouterPlace:
    """What one model's routers are made of, one after the other.

    host: address that they listen on.
    pairs: the model's replicas are halves of prefill/decode pairs.
    log_dir: folder of their logs, one file a router; made when needed.
    """

    role: RoleName
    model: ModelId
    served_model_name: str
    host: str
    pairs: bool
    log_dir: Path
    options: Any


class RouterKeeper:
    """See the module's contract.

    Args:
        changed: called when a router came or went by itself, to make that visible.
    """

    route_mode = RouteMode.SGLANG_ROUTER

    def __init__(
        self,
        backend: RouterBackend,
        place: RouterPlace,
        *,
        clock: Clock,
        emit: Emit,
        changed: Callable[[], Awaitable[None]],
        times: RouterTimes | None = None,
    ) -> None:
        self._backend = backend
        self._place = place
        self._clock = clock
        self._emit = emit
        self._changed = changed
        self._times = times or RouterTimes()
        self._lock = asyncio.Lock()
        self._router: Router | None = None
        self._ports: tuple[PortReservation, ...] = ()
        self._log_path: Path | None = None
        self._started = 0
        self._failed_looks = 0
        self._failed_starts = 0
        self._wanted: Mapping[EngineId, Member] = {}
        self._told: dict[EngineId, Member] = {}
        self._problem: str | None = None
        self._distrust: str | None = None
        self._watcher: asyncio.Task[None] | None = None

    # --- what the manager sees ----------------------------------------------------------

    @property
    def router_url(self) -> str | None:
        return self._router.base_url if self._router is not None and self._told else None

    @property
    def problem(self) -> str | None:
        return self._problem

    def reaches(self, engine: EngineId) -> bool:
        return self._router is not None and engine in self._told

    async def settle(self, members: Mapping[EngineId, Member]) -> None:
        self._wanted = dict(members)
        # Half of a change would be worse than a late one: a command that is cancelled leaves it going.
        await asyncio.shield(asyncio.create_task(self._settle_alone(), name="rolecall-router-settle"))

    # --- life ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the router and keep it from now on. Repeats do nothing.

        Raises:
            RouterError: it did not start; nothing of it is left, and nothing is kept.
        """
        async with self._lock:
            if self._router is None:
                await self._start()
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name=f"rolecall-router-{self._place.model}")

    async def stop(self) -> None:
        """End the router and keep none. Repeats do nothing.

        Raises:
            EngineError: a process of it is left.
        """
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
            self._watcher = None
        async with self._lock:
            self._wanted = {}
            await self._end("stop")

    def status(self) -> dict[str, Any]:
        """The router as JSON values, for people."""
        router = self._router
        return {
            "model": self._place.model,
            "url": router.base_url if router is not None else None,
            "pid": router.pid if router is not None else None,
            "engines": sorted(self._told),
            "started": self._started,
            "problem": self._problem,
            "log": str(self._log_path) if self._log_path is not None else None,
        }

    async def look(self) -> None:
        """Look at the router once: replace one that is gone, and tell it what it was not told yet."""
        async with self._lock:
            before = (self.router_url, set(self._told), self._problem)
            if (fault := await self._fault()) is not None:
                await self._replace(fault)
            elif self._router is None or self._told != self._wanted:
                await self._settle()
            after = (self.router_url, set(self._told), self._problem)
        if before != after:
            await self._changed()

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._times.look_interval_s + self._pause())
            try:
                await self.look()
            except Exception:  # one look that breaks may not end the care for the router
                logger.exception("%s: looking after it broke; the next look tries again", self._name)

    def _pause(self) -> float:
        if self._failed_starts == 0:
            return 0.0
        return min(self._times.backoff_s * 2**self._failed_starts, self._times.longest_backoff_s)

    async def _settle_alone(self) -> None:
        async with self._lock:
            await self._settle()

    # --- under the lock -----------------------------------------------------------------

    async def _fault(self) -> str | None:
        """What is wrong with the running router; None for one that is well, or not there."""
        router = self._router
        if router is None or self._distrust is not None:
            return self._distrust
        health = await router.health(self._times.look_s)
        if router.exit_code() is not None:
            return health.detail
        self._failed_looks = 0 if health.alive else self._failed_looks + 1
        return health.detail if self._failed_looks >= _LOOKS else None

    async def _settle(self) -> None:
        if self._router is None and not await self._restart():
            return
        if self._distrust is None:
            await self._take_out()
        if self._distrust is not None:
            await self._replace(self._distrust)
        else:
            await self._bring_in()

    async def _take_out(self) -> None:
        router = self._router
        assert router is not None
        leaving = {e: m for e, m in self._told.items() if self._wanted.get(e) != m}
        # Whatever comes of it, they are not reached for certain any more.
        self._told = {e: m for e, m in self._told.items() if e not in leaving}
        await asyncio.gather(*(self._leave(router, member) for member in leaving.values()))

    async def _bring_in(self) -> None:
        joining = {e: m for e, m in self._wanted.items() if e not in self._told}
        problems = await asyncio.gather(*(self._join(e, m) for e, m in joining.items()))
        named = [problem for problem in problems if problem is not None]
        self._problem = "; ".join(named) or None

    async def _join(self, engine: EngineId, member: Member) -> str | None:
        """Tell the router of one member; what came in between if it isn't listed, which is undone."""
        router = self._router
        assert router is not None
        try:
            await router.register(member.worker, self._times.tell_s)
        except RouterError as error:
            logger.warning("%s: %s is not reached: %s", self._name, engine, error)
            try:
                await router.deregister(member.worker.base_url, self._times.tell_s)
            except RouterError as doubt:
                # It may be added later, behind our back.
                self._distrust = str(doubt)
            return str(error)
        self._told[engine] = member
        return None

    async def _leave(self, router: Router, member: Member) -> None:
        try:
            await router.deregister(member.worker.base_url, self._times.tell_s)
        except RouterError as error:
            self._distrust = str(error)

    async def _replace(self, why: str) -> None:
        """End a router that can't be trusted, start another one and tell it everything."""
        logger.error("%s is replaced: %s", self._name, why)
        try:
            await self._end(why)
        except EngineError as error:
            # Its URL is not told any more; the next one gets ports of its own.
            logger.error("%s: what was replaced has not ended: %s", self._name, error)
        if await self._restart():
            await self._bring_in()

    async def _restart(self) -> bool:
        try:
            await self._start()
        except EngineError as error:
            self._failed_starts += 1
            self._problem = str(error)
            logger.error("%s could not be started: %s", self._name, error)
            return False
        return True

    async def _start(self) -> None:
        place, times = self._place, self._times
        ports = tuple(reserve_port(place.host, PortRange.SERVER) for _ in range(2))
        self._started += 1
        name = f"{place.role}-{place.model.replace('/', '-')}-{self._started}.log"
        self._log_path = place.log_dir / name
        router = self._backend.create(
            RouterLaunch(
                role=place.role,
                model=place.model,
                served_model_name=place.served_model_name,
                host=place.host,
                port=ports[0].hand_over(),
                metrics_port=ports[1].hand_over(),
                pairs=place.pairs,
                log_path=self._log_path,
                options=place.options,
            )
        )
        try:
            whole = Deadline.after(self._clock, times.start_s + times.stop_s)
            await whole.bound(router.start(times.start_s), f"start of {self._name}")
        except BaseException:
            for port in ports:
                port.release()
            raise
        self._router, self._ports = router, ports
        self._failed_looks = self._failed_starts = 0
        self._problem = self._distrust = None
        self._emit(
            "router.started", role=place.role, model=place.model, url=router.base_url, number=self._started
        )

    async def _end(self, why: str) -> None:
        router, ports = self._router, self._ports
        self._router, self._ports, self._told = None, (), {}
        if router is None:
            return
        self._emit("router.ended", role=self._place.role, model=self._place.model, reason=why)
        try:
            await router.stop(self._times.stop_s)
        finally:
            for port in ports:
                port.release()

    @property
    def _name(self) -> str:
        return f"router of {self._place.role} {self._place.model}"
