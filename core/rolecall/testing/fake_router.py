"""A router made of a script, for tests of whoever keeps one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import define, field, frozen

from rolecall.errors import RouterError
from rolecall.interfaces.router import RouterHealth, RouterLaunch, RouterWorker


@frozen(kw_only=True)
class FakeRouterOptions:
    """Nothing to set."""


@define(kw_only=True)
class RouterScript:
    """How routers behave; a test may change it at any time.

    start_error, stop_error: raise it.
    refuses: URL → why it can't be registered.
    may_come_later: URLs whose refused registration can't be taken back.
    keeps: URLs that stay listed whatever is asked.
    silent: health is not answered.
    """

    start_error: str | None = None
    stop_error: str | None = None
    refuses: dict[str, str] = field(factory=dict)
    may_come_later: set[str] = field(factory=set)
    keeps: set[str] = field(factory=set)
    silent: bool = False


class FakeRouter:
    """One router. ``calls`` is what it was told, in order; ``workers`` what it lists."""

    def __init__(self, launch: RouterLaunch, script: RouterScript) -> None:
        self.base_url = f"http://{launch.host}:{launch.port}"
        self.launch = launch
        self.script = script
        self.calls: list[str] = []
        self.workers: dict[str, RouterWorker] = {}
        self.running = False
        self.code: int | None = None

    async def start(self, timeout_s: float) -> None:
        del timeout_s
        if self.script.start_error is not None:
            raise RouterError(self.script.start_error)
        self.running = True

    @property
    def pid(self) -> int | None:
        return 4711 if self.running else None

    def exit_code(self) -> int | None:
        return self.code

    def die(self) -> None:
        """End, as a killed process does."""
        self.running, self.code = False, -9

    async def health(self, timeout_s: float) -> RouterHealth:
        del timeout_s
        if self.code is not None:
            return RouterHealth(alive=False, detail=f"ended, exit code {self.code}")
        if self.script.silent:
            return RouterHealth(alive=False, detail="no answer")
        return RouterHealth(alive=True, detail="")

    async def register(self, worker: RouterWorker, timeout_s: float) -> None:
        del timeout_s
        self._require_running()
        self.calls.append(f"register {worker.base_url}")
        if (why := self.script.refuses.get(worker.base_url)) is not None:
            raise RouterError(why)
        self.workers[worker.base_url] = worker

    async def deregister(self, base_url: str, timeout_s: float) -> None:
        del timeout_s
        self._require_running()
        self.calls.append(f"deregister {base_url}")
        if base_url in self.script.keeps | self.script.may_come_later:
            raise RouterError(f"{base_url} stays")
        self.workers.pop(base_url, None)

    async def listed(self, timeout_s: float) -> frozenset[RouterWorker]:
        del timeout_s
        self._require_running()
        return frozenset(self.workers.values())

    async def stop(self, timeout_s: float) -> None:
        del timeout_s
        if self.script.stop_error is not None:
            raise RouterError(self.script.stop_error)
        self.running = False
        self.code = 0 if self.code is None else self.code

    def _require_running(self) -> None:
        if not self.running:
            raise RouterError(f"{self.base_url}: connection refused")


class FakeRouterBackend:
    """Makes :class:`FakeRouter` objects; ``routers`` are all of them, ``router`` is the newest."""

    options: ClassVar[type[Any]] = FakeRouterOptions
    pairs: ClassVar[bool] = True

    def __init__(self) -> None:
        self.script = RouterScript()
        self.routers: list[FakeRouter] = []

    @property
    def router(self) -> FakeRouter:
        return self.routers[-1]

    def lost_fields(self, path: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
        del path
        return tuple(name for name in payload if name == "lost")

    def create(self, launch: RouterLaunch) -> FakeRouter:
        self.routers.append(FakeRouter(launch, self.script))
        return self.router
