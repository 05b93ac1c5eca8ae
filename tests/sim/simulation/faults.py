"""What a blow does to whom."""

from __future__ import annotations

from simulation.chance import Blow, Chance
from simulation.coordinator_host import CoordinatorHost
from simulation.fleet import Fleet
from simulation.network import Endpoint, Network
from simulation.processes import EngineProcess
from simulation.sink import Storage
from simulation.world import World


class Faults:
    """Has blows fall, near the message for which they were planned; ``struck`` are those that hit."""

    def __init__(self, *, world: World, chance: Chance) -> None:
        self._world = world
        self._chance = chance
        self.struck: list[str] = []
        self.network: Network
        self.fleet: Fleet
        self.storage: Storage
        self.coordinator: CoordinatorHost | None = None
        self.driver: Endpoint | None = None
        self.consumer: Endpoint | None = None
        self.failing_requests = 0

    def strike(self, blow: Blow, target: Endpoint) -> None:
        """Have a blow fall on the target of the present message, or on somebody else who can take it."""
        hit = self._fall(blow, target)
        if hit:
            self.struck.append(blow.value)
            self._world.note("fault", f"{blow.value}: {hit}")

    def heal(self) -> None:
        """Whatever is not dead or broken for good is well again; what was stubborn can be ended."""
        self.network.heal()
        self.storage.full = self.storage.unsure = self.failing_requests = 0
        if self.coordinator is not None:
            self.coordinator.disk.full = self.coordinator.disk.stuck = False
        for engine in self.fleet.living():
            engine.stubborn = False
        for service in self.fleet.services.values():
            service.heal()

    def end_job(self) -> None:
        """Everything that belongs to the job's process ends with it."""
        assert self.coordinator is not None
        self.coordinator.end()
        for each in (self.driver, self.consumer):
            if each is not None:
                each.die()
        self.fleet.end()

    def _fall(self, blow: Blow, target: Endpoint) -> str:
        chance, later = self._chance, self._world.loop.call_later
        match blow:
            case Blow.KILL_ENGINE | Blow.HANG_ENGINE | Blow.KEEP_MEMORY | Blow.LOSE_WEIGHTS:
                engine = self._engine(target)
                if engine is None:
                    return ""
                later(chance.delay(), _hurt, engine, blow)
                return str(engine)
            case Blow.KILL_WORKER:
                return self._kill_worker(target)
            case Blow.PARTITION:
                self.network.cut(target.name, chance.long_delay())
                return target.name
            case Blow.SINK_FULL:
                self.storage.full += 1
            case Blow.SINK_UNSURE:
                self.storage.unsure += 1
            case Blow.FAIL_REQUEST:
                self.failing_requests += 1
            case Blow.KILL_COORDINATOR if self.coordinator is not None:
                later(chance.delay(), self.coordinator.kill)
            case Blow.DISK_FULL if self.coordinator is not None:
                disk = self.coordinator.disk
                disk.full = True
                later(chance.long_delay(), setattr, disk, "full", False)
            case Blow.DISK_STUCK if self.coordinator is not None:
                disk = self.coordinator.disk
                disk.stuck = True
                later(chance.long_delay(), setattr, disk, "stuck", False)
            case Blow.KILL_ROLE if self.coordinator is not None:
                service = chance.pick(list(self.fleet.services.values()))
                later(chance.delay(), service.endpoint.die)
                return service.shape.name
            case Blow.KILL_JOB if self.driver is not None:
                later(chance.delay(), self.end_job)
            case Blow.KILL_DRIVER if self.driver is not None:
                later(chance.delay(), self.driver.die)
            case Blow.KILL_CONSUMER if self.consumer is not None:
                later(chance.delay(), self.consumer.die)
            case _:
                return ""
        return "now"

    def _kill_worker(self, target: Endpoint) -> str:
        living = [each for each in self.fleet.workers if each.endpoint.alive]
        if not living:
            return ""
        worker = next((each for each in living if each.endpoint is target), None) or self._chance.pick(living)
        engine = worker.node.engine
        if engine is not None:
            engine.stubborn = self._chance.happens(0.15)
        worker.endpoint.die()
        worker.node.die(with_engine=self._chance.happens(0.5))
        return worker.endpoint.name

    def _engine(self, target: Endpoint) -> EngineProcess | None:
        living = self.fleet.living()
        near = [
            each for each in living if target.name in (each.role, f"{each.slot.engine}@{each.slot.node_id}")
        ]
        return self._chance.pick(near or living) if living else None


def _hurt(engine: EngineProcess, blow: Blow) -> None:
    match blow:
        case Blow.KILL_ENGINE:
            engine.kill()
        case Blow.HANG_ENGINE:
            engine.hangs = True
        case Blow.KEEP_MEMORY:
            engine.keeps_memory = True
        case _:
            engine.loses_weights = True
