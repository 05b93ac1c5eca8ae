"""Real engines that several tests share, since starting one takes long.

One instance for the tests of a class or a whole run, used from one event loop. A test that ends an engine
*takes* it: nobody else gets that one, and the next test that wants such an engine starts another.
"""

from __future__ import annotations

from attrs import evolve

from rolecall.engines.reaping import EngineMark
from rolecall.ids import EngineId, RoleName
from rolecall.interfaces.engine_backend import Engine, EngineBackend, EngineLaunch

FIRST_VERSION = "41"
"""What a versioned engine reports before any update."""

MARK = EngineMark(
    namespace="rolecall-test", role=RoleName("role"), engine=EngineId("model/replica-0"), incarnation=1
)
"""What every process of these engines has to carry."""


class SharedEngines:
    """Starts an engine of each kind, static and versioned, when one is first asked for."""

    def __init__(
        self,
        backend: EngineBackend,
        launches: tuple[EngineLaunch, EngineLaunch],
        *,
        start_timeout_s: float,
        stop_timeout_s: float,
    ) -> None:
        """``launches`` are used for static and for versioned engines, one after the other."""
        self._backend = backend
        static, versioned = launches
        self._launches = {
            True: evolve(static, weight_version=None, marks=MARK.variables()),
            False: evolve(versioned, weight_version=FIRST_VERSION, marks=MARK.variables()),
        }
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._running: dict[bool, Engine] = {}

    def launch(self, *, static: bool) -> EngineLaunch:
        """Return what the engine of that kind is started with."""
        return self._launches[static]

    async def get(self, *, static: bool) -> Engine:
        """Return the shared engine; leave it awake, with nothing running."""
        if static not in self._running:
            launch = self._launches[static]
            engine = self._backend.create(launch)
            await engine.start(self._start_timeout_s)
            self._running[static] = engine
        return self._running[static]

    async def take(self, *, static: bool) -> Engine:
        """Return the shared engine for good; whoever takes it stops it."""
        engine = await self.get(static=static)
        del self._running[static]
        return engine

    async def close(self) -> None:
        """Stop whatever is left."""
        for static in list(self._running):
            await self._running.pop(static).stop(self._stop_timeout_s)
