"""Plays one schedule: a job is brought up, makes and trains batches while faults strike, heals, and goes on.

:meth:`Player.play` returns what came of it; with ``record`` also the timeline. The same seed gives the same
schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from attrs import field, frozen

from rolecall.engines.fencing import NO_TOKEN
from rolecall.errors import RolecallError
from rolecall.ids import RoleName
from rolecall.leases.confirmation import opening_lease
from rolecall.leases.lease_state import LeaseState, OpeningLease
from rolecall.leases.trainer import trainers_opening_lease
from rolecall.testing.memory_journal import MemoryDisk
from simulation.actors import SAMPLES, Consumer, CoordinatorLink, Driver, score_fields
from simulation.chance import Chance
from simulation.coordinator_host import OPERATION_S, CoordinatorHost
from simulation.faults import Faults
from simulation.fleet import Fleet
from simulation.layouts import LAYOUTS, TRAINER, Layout
from simulation.loop import SimLoop, StuckError
from simulation.managed_role import ManagedRole
from simulation.network import Endpoint, Network
from simulation.operator import Operator
from simulation.scaling import Scaling
from simulation.sink import Storage
from simulation.strangers import Stranger
from simulation.substitutes import substituted
from simulation.world import Row, Violation, World

_CONSUME_S = 300.0
_LONGEST_S = 3600.0
_ROUNDS = 6
_PAUSE_S = 100.0

Trail = list[tuple[float, str, str]]


@frozen(kw_only=True)
class Outcome:
    """One schedule; ``trail`` is its timeline, if one was kept."""

    seed: int
    layout: str
    violation: Violation | None
    ending: str
    messages: int
    steps: int
    faults: tuple[str, ...]
    trail: tuple[tuple[float, str, str], ...] = field(default=(), repr=False)


class Player:
    """Plays schedules one after the other, in one event loop; ``rows`` collects the transitions of all."""

    def __init__(self) -> None:
        self._loop = SimLoop()
        self.rows: set[Row] = set()

    def play(self, seed: int, *, record: bool = False) -> Outcome:
        trail: Trail | None = [] if record else None
        schedule = Schedule(seed, self._loop, self.rows, trail)
        try:
            asyncio.set_event_loop(self._loop)
            with substituted():
                self._loop.play(schedule.run(), schedule.chance.message_delay)
        except StuckError as error:
            schedule.world.violate("every waiter ends", str(error))
        except Exception as error:  # after a violation the loop was stopped, which is an error to it
            schedule.world.violate("errors are ours", f"{type(error).__name__}: {error}")
        return schedule.outcome(trail)

    def close(self) -> None:
        self._loop.close()


class Schedule:
    """The parts of one schedule."""

    def __init__(self, seed: int, loop: SimLoop, rows: set[Row], trail: Trail | None) -> None:
        self.seed = seed
        self.chance = chance = Chance(seed)
        self._layout: Layout = chance.pick(LAYOUTS)
        self._managed = chance.happens(0.2)
        self._batches = chance.pick((1, 1, 1, 1, 1, 2, 2, 3))
        self.world = world = World(loop, conflicts=self._layout.conflicts, rows_taken=rows, trail=trail)
        self._faults = faults = Faults(world=world, chance=chance)
        self._network = network = Network(
            loop, chance, strike=faults.strike, note=world.note if trail is not None else None
        )
        self._storage = Storage(world, score_fields(self._layout), SAMPLES)
        faults.network, faults.storage = network, self._storage
        self._disk = MemoryDisk()
        self._jobs = 0
        self._ending = "a role did not come up"

    async def run(self) -> None:
        chance = self.chance
        if not await self._begin_job(quiet=not chance.happens(0.1)):
            return
        self._invite_strangers()
        scaling = self._invite_scaling()
        await self._make_and_train(0)
        self._ending = "committed" if self._done else "recovered"
        if self._managed and chance.happens(0.1):
            self._ending = "shut down"
            await self._shut_down()
        elif not self._done or self._faults.struck:
            await self._recover()
        if scaling is not None and self._ending != "shut down" and self.world.violation is None:
            self._faults.heal()
            await scaling.end()
        self.world.evidence.over()

    async def _begin_job(self, *, quiet: bool) -> bool:
        """Bring a job up, the first or one that goes on after another; False if a role did not come up."""
        self._jobs += 1
        network, chance = self._network, self.chance
        self._fleet = self._faults.fleet = Fleet(
            self._layout, managed=self._managed, world=self.world, network=network, chance=chance
        )
        network.quiet = chance.idle = quiet
        opening = await self._bring_up()
        network.quiet = chance.idle = False
        if opening is None:
            return False
        self._coordinator = self._faults.coordinator = CoordinatorHost(
            self._layout,
            world=self.world,
            fleet=self._fleet,
            chance=chance,
            opening=opening,
            disk=self._disk,
            run=f"job {self._jobs}",
        )
        return True

    async def _shut_down(self) -> None:
        """End every role, whatever has happened to it; what is confirmed leaves nothing."""
        self._network.heal()
        for service in self._fleet.services.values():
            if not service.endpoint.alive:
                continue
            ending = self.world.loop.create_task(service.shutdown(OPERATION_S))
            await asyncio.wait({ending}, timeout=2 * OPERATION_S)
            if not ending.done():
                ending.cancel()
                if service.endpoint.alive:  # else its own process died over it
                    self.world.violate("every waiter ends", f"the shutdown of {service.shape.name}")
                continue
            result = ending.result()
            if result.confirmed and any(engine.alive for engine in service.processes):
                self.world.violate("nothing is left after a shutdown", f"an engine of {service.shape.name}")

    def _invite_strangers(self) -> None:
        """Have a stranger call in between, each time right after something has changed."""
        chance, evidence = self.chance, self.world.evidence
        stranger = Stranger(self.world, self._network, self._coordinator, chance)
        for _ in range(chance.pick((0, 0, 0, 0, 1, 1, 2, 4))):
            moment = evidence.told + 1 + int(chance.delay() * 100) + chance.pick(range(30))
            evidence.alarms[moment] = lambda: self.world.loop.create_task(stranger.act())
        if chance.happens(0.3):
            evidence.on_fence = lambda: self.world.loop.create_task(stranger.act())

    def _invite_scaling(self) -> Scaling | None:
        """Have somebody scale the roles meanwhile, if they have managers."""
        # Of its own luck, so that the other schedules are what they were before there was scaling.
        chance = Chance(self.seed ^ 0x5CA1E, faults=0)
        if not self._managed or not chance.happens(0.5):
            return None
        managed = [each for each in self._fleet.services.values() if isinstance(each, ManagedRole)]
        scaling = Scaling(self.world, self._network, chance, managed, self._fleet.spare)
        scaling.begin(chance.pick((1, 2, 3, 6)))
        return scaling

    @property
    def _done(self) -> bool:
        return len(self.world.read) == self._batches

    async def _bring_up(self) -> dict[RoleName, OpeningLease] | None:
        """Start every role and put those that share devices to sleep; None if that did not work."""
        opening: dict[RoleName, OpeningLease] = {}
        conflicts = self._layout.conflicts
        for name, service in self._fleet.services.items():
            answer = await service.start()
            if not answer.confirmed:
                return None
            shared = bool(conflicts[name])
            if shared:
                answer = await service.offload(NO_TOKEN, OPERATION_S)
            lease = opening_lease(name, answer, shared=shared, replicas=len(service.shape.replicas))
            if lease.state is LeaseState.BLOCKED:
                return None
            opening[name] = lease
        if TRAINER in conflicts:
            opening[TRAINER] = trainers_opening_lease(shared=bool(conflicts[TRAINER]))
        return opening

    async def _make_and_train(self, first: int) -> None:
        """Have a driver make the batches from ``first`` on, and a consumer train on them; both must end."""
        driver_at, consumer_at = Endpoint("driver"), Endpoint("consumer")
        self._faults.driver, self._faults.consumer = driver_at, consumer_at
        driver = Driver(
            self._layout,
            world=self.world,
            network=self._network,
            fleet=self._fleet,
            storage=self._storage,
            coordinator=self._link(driver_at),
            endpoint=driver_at,
            faults=self._faults,
        )
        consumer = Consumer(self.world, self._storage, self._link(consumer_at), consumer_at)
        await asyncio.gather(
            self._live(driver_at, driver.make(range(first, self._batches))),
            self._live(consumer_at, consumer.train(self._batches, _CONSUME_S)),
        )

    async def _recover(self) -> None:
        """Heal and reconcile; then the run must come to its end. Mostly nothing gets in its way any more."""
        quiet = self.chance.happens(0.7)
        for _ in range(_ROUNDS):
            self._faults.heal()
            if not all(service.endpoint.alive for service in self._fleet.services.values()):
                # A role's service is never restarted: only another job can go on.
                self._faults.end_job()
                self._fleet.reap()
                self.world.restarted(whole_job=True)
                self.world.note("operator", "rolecall run --resume")
                await self._begin_job(quiet=True)
            self._network.quiet = quiet
            operator = Operator(self.world, self._link(Endpoint("operator")))
            first = await operator.put_right()
            if first is not None:
                await self._make_and_train(first)
            if self._done or self.world.violation is not None:
                return
            await asyncio.sleep(_PAUSE_S)
        self.world.violate(
            "the run can go on",
            f"{len(self.world.committed)} of {self._batches} batches after {_ROUNDS} rounds",
        )

    async def _live(self, process: Endpoint, work: Coroutine[Any, Any, object]) -> None:
        """Have a process work until it ends: by success, by an error of ours, or by SIGKILL."""
        world = self.world
        task = world.loop.create_task(work)
        death = world.loop.create_future()
        process.on_death.append(lambda: death.done() or death.set_result(None))
        await asyncio.wait({task, death}, timeout=_LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            world.note(process.name, "is gone")
            return
        if not task.done():
            world.violate("every waiter ends", f"the {process.name} still waits after {_LONGEST_S:g} s")
            return
        error = task.exception()
        if isinstance(error, RolecallError):
            world.note(process.name, f"ended: {error}")
        elif error is not None:
            raise error

    def _link(self, source: Endpoint) -> CoordinatorLink:
        return CoordinatorLink(self._network, source, self._coordinator)

    def outcome(self, trail: Trail | None) -> Outcome:
        return Outcome(
            seed=self.seed,
            layout=f"{self._layout.name}, {'managed' if self._managed else 'plain'}",
            violation=self.world.violation,
            ending=self._ending,
            messages=self._network.messages,
            steps=self.world.steps,
            faults=(*self._faults.struck, *self._network.fates),
            trail=tuple(trail or ()),
        )
