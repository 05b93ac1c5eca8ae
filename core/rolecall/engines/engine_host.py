"""The engine host: owns one engine process, and nothing else may touch it.

Pure asyncio; lives in a worker actor (``rolecall.engines.worker``) or, in tests, in the test. It
implements :class:`~rolecall.engines.worker_handle.WorkerHandle`: judges stamps, runs one command
at a time, watches for the process's exit while a command runs, and gives evidence of its end. It
decides nothing: when to start, sleep, wake or stop is the manager's business.

Invariants:

* A command whose stamp has a lower token or another incarnation than the engine's is refused.
* After a hand-over that failed, the engine's condition is unknown: sleep and wake are refused,
  only stop is left. So nothing is ever released or resumed twice.
* Generation is never asked of an engine that isn't known to be awake.
* Its door, where it has one, is open only while the engine is known to be awake, verified, and not
  handed over: it opens after the proofs, closes before anything else, and is cut before a stop.
* The engine is forgotten only when no process of its group is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve

from rolecall.engines.admission import Admission, MakeDoor
from rolecall.engines.deadline import Clock, Deadline, DeadlineExceededError
from rolecall.engines.engine_look import EngineLook, look_at
from rolecall.engines.fencing import Stamp, TokenGate
from rolecall.engines.handover import (
    Identity,
    SleepProof,
    check_not_uniform,
    prove_released,
    put_to_sleep,
    require_resident,
    wake,
)
from rolecall.engines.launching import HostSetup, Launching, Prepared
from rolecall.engines.processes import end_group
from rolecall.engines.read_ahead import FilesAhead, ReadAhead
from rolecall.engines.weight_change import change_weights
from rolecall.engines.worker_handle import (
    EngineExitedError,
    Started,
    UpdateRefusedError,
    WorkerDescription,
    WorkerHealth,
)
from rolecall.errors import (
    CanaryMismatchError,
    CapabilityError,
    EngineError,
    EngineStartError,
    ReleaseNotProvedError,
    StaleTokenError,
)
from rolecall.interfaces.engine_backend import (
    UPDATE_CAPABILITY,
    Capability,
    Engine,
    FromDisk,
    MemoryReport,
    ReloadsFiles,
    WeightsGroup,
    WeightUpdate,
)
from rolecall.interfaces.role import WeightSource

T = TypeVar("T")

logger = logging.getLogger(__name__)

_EXIT_LOOK_S = 0.1
_EXIT_LAG_S = 1.0
"""A dying process closes its sockets a moment before it can be reaped: after an error this long is
waited for its exit."""
_CLEANUP_S = 10.0


class Condition(StrEnum):
    """What the host knows of its engine; not the replica's state, which the manager owns."""

    EMPTY = "empty"
    STARTING = "starting"
    AWAKE = "awake"
    FALLING_ASLEEP = "falling asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    CHANGING_WEIGHTS = "changing weights"
    UNKNOWN = "unknown"


class EngineHost:
    """See the module's contract.

    prepare: loads the backend and gets the model, once.
    make_door: makes the door of a head that wants one; None leaves every engine without, for tests.
    """

    def __init__(
        self,
        setup: HostSetup,
        prepare: Callable[[], Awaitable[Prepared]],
        clock: Clock,
        make_door: MakeDoor | None = None,
    ) -> None:
        self._setup = setup
        self._prepare = prepare
        self._clock = clock
        self._make_door = make_door
        self._prepared: Prepared | None = None
        self._gate = TokenGate()
        self._incarnation = 0
        self._condition = Condition.EMPTY
        self._engine: Engine | None = None
        self._launching: Launching | None = None
        self._proof: SleepProof | None = None
        self._command: asyncio.Task[Any] | None = None
        self._doing = ""
        self._ending: asyncio.Task[str] | None = None
        self._preparing: asyncio.Task[Prepared] | None = None
        self._ahead = FilesAhead()

    # --- commands -----------------------------------------------------------------------

    async def prepare(self, deadline: Deadline) -> None:
        await deadline.bound(self._ready_backend(), f"getting the model of {self._name}")

    async def prepare_next(self, update: Path | None, deadline: Deadline) -> ReadAhead:
        prepared = await deadline.bound(self._ready_backend(), f"getting the model of {self._name}")
        engine = self._engine
        if engine is None:
            paths = [prepared.model_path]
        elif self._condition is not Condition.ASLEEP:
            return ReadAhead()
        elif isinstance(engine, ReloadsFiles):
            paths = list(await deadline.bound(engine.files_for_resume(), "files for the resume"))
        else:
            paths = []
        return await self._ahead.read([*paths, *([update] if update is not None else [])], deadline)

    async def meet(self, stamp: Stamp, deadline: Deadline) -> str:
        del deadline  # nothing here waits
        self._admit(stamp, "meeting", new=True)
        if self._engine is not None:
            raise self._not_stopped()
        if self._launching is not None:
            self._launching.release()
        self._launching = Launching(self._setup, stamp.incarnation)
        return self._launching.meet()

    async def start(
        self, stamp: Stamp, weight_version: str | None, deadline: Deadline, *, rendezvous: str | None = None
    ) -> Started:
        if stamp.incarnation == self._incarnation and self._condition is Condition.AWAKE:
            self._gate.admit(stamp.token, f"start of {self._name}")
            return await self._describe_started(deadline)
        self._admit(stamp, "start", new=True)
        if self._engine is not None:
            raise self._not_stopped()
        return await self._run("start", self._start(stamp, weight_version, rendezvous, deadline))

    async def sleep(self, stamp: Stamp, grace_s: float, deadline: Deadline) -> SleepProof:
        self._admit(stamp, "sleep")
        return await self._run("sleep", self._sleep(grace_s, deadline))

    async def wake(self, stamp: Stamp, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        self._admit(stamp, "wake")
        return await self._run("wake", self._wake(weight_version, deadline))

    async def measure(self, stamp: Stamp, deadline: Deadline) -> MemoryReport:
        self._admit(stamp, "measuring")
        engine, _ = self._require_engine(Condition.AWAKE, Condition.ASLEEP, doing="measuring")
        return await deadline.bound(engine.memory(), f"memory report of {self._name}")

    async def prove_released(self, stamp: Stamp, awake: MemoryReport, deadline: Deadline) -> MemoryReport:
        self._admit(stamp, "proof of a release")
        engine, _ = self._require_engine(Condition.AWAKE, doing="proof of a release")
        # A follower is told of no tags, so its bytes alone count.
        proof = prove_released(engine, frozenset(), awake, deadline, self._setup.limits)
        return await self._unless_exited(engine, "proof of a release", proof)

    async def update_weights(
        self, stamp: Stamp, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        self._admit(stamp, "update of the weights")
        return await self._run("update of the weights", self._update(update, version, grace_s, deadline))

    async def join_weights_group(self, stamp: Stamp, group: WeightsGroup, deadline: Deadline) -> None:
        self._admit(stamp, "joining a weight group")
        await self._run(
            "joining a weight group",
            self._change_group(f"joining weight group {group.name!r}", group, deadline),
        )

    async def leave_weights_group(self, stamp: Stamp, name: str, deadline: Deadline) -> None:
        self._admit(stamp, "leaving a weight group")
        await self._run(
            "leaving a weight group",
            self._change_group(f"leaving weight group {name!r}", name, deadline),
        )

    async def stop(self, stamp: Stamp, deadline: Deadline) -> str:
        self._admit(stamp, "stop")
        # A start of this incarnation that is still on its way comes too late.
        self._incarnation = stamp.incarnation
        self._ahead.stop()
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._interrupt_and_end(deadline))
            self._ending.add_done_callback(self._forget_ending)
        # Whoever gives up waiting does not stop the stop.
        return await deadline.bound(_result(self._ending), f"stop of {self._name}")

    async def dispose(self) -> None:
        """Nothing to do: the owner of the process that hosts this ends it."""

    # --- looking ------------------------------------------------------------------------

    async def health(self, *, generate: bool, deadline: Deadline) -> WorkerHealth:
        engine, look = self._engine, EngineLook(detail="no engine")
        if engine is not None:
            prepared = self._prepared if self._condition is Condition.ASLEEP else None
            look = await look_at(
                engine,
                deadline,
                counts=self._setup.slot.is_head,
                generate=generate and self._condition is Condition.AWAKE,
                should_be_away=frozenset() if prepared is None else prepared.features.memory_tags,
            )
        return WorkerHealth(
            incarnation=self._incarnation,
            has_engine=engine is not None,
            exit_code=look.exit_code,
            alive=look.alive,
            running=look.running,
            permits=self._door.permits if self._door is not None else None,
            detail=look.detail,
        )

    async def describe(self, deadline: Deadline) -> WorkerDescription:
        del deadline  # nothing here waits
        return WorkerDescription(
            node_ip=self._setup.slot.node_ip,
            worker_pid=os.getpid(),
            incarnation=self._incarnation,
            condition=self._condition,
            engine_pid=self._engine.pid if self._engine is not None else None,
            base_url=self._base_url,
            log_path=str(self._log_path) if self._log_path is not None else None,
        )

    # --- the commands' bodies -----------------------------------------------------------

    async def _start(
        self, stamp: Stamp, weight_version: str | None, rendezvous: str | None, deadline: Deadline
    ) -> Started:
        self._incarnation = stamp.incarnation
        self._condition = Condition.STARTING
        try:
            work = deadline.leaving(_CLEANUP_S)
            prepared = await work.bound(self._ready_backend(), f"getting the model of {self._name}")
            engine = self._create(prepared, weight_version, rendezvous)
            if self._door is not None:
                opening = self._door.start(engine.base_url, self._setup.served_model_name)
                await work.bound(opening, "the door's start")
            await work.bound(engine.start(work.remaining_s()), f"start of {self._name}")
            await self._verify_started(engine, prepared, weight_version, work)
            if self._door is not None:
                self._door.open()
            self._condition = Condition.AWAKE
            return await self._describe_started(work)
        except asyncio.CancelledError:
            self._condition = Condition.UNKNOWN
            raise  # whoever interrupted the start ends the engine
        except Exception as error:  # whatever a backend raises, its process must not stay
            self._condition = Condition.UNKNOWN
            log = f" (log: {self._log_path})" if self._log_path is not None else ""
            await self._end_engine(deadline)
            raise EngineStartError(f"{self._name} did not start: {error}{log}") from error

    def _create(self, prepared: Prepared, weight_version: str | None, rendezvous: str | None) -> Engine:
        launching = self._launching
        if launching is None or launching.incarnation != self._incarnation:
            # Not the head of several nodes, whose ports were reserved when they met.
            self._release_ports()
            launching = self._launching = Launching(self._setup, self._incarnation)
        launch = launching.launch(prepared, weight_version, rendezvous, self._make_door)
        self._engine = prepared.backend.create(launch)
        launching.hand_over()
        return self._engine

    async def _verify_started(
        self, engine: Engine, prepared: Prepared, weight_version: str | None, deadline: Deadline
    ) -> None:
        """Hold a fresh engine to the same proofs as one that woke. The head answers for followers."""
        if not self._setup.slot.is_head:
            return
        memory = await deadline.bound(engine.memory(), "memory report after the start")
        require_resident(memory, prepared.features.memory_tags)
        if self._setup.weight_source is WeightSource.STATIC:
            canary = await deadline.bound(engine.canary(), "canary after the start")
            check_not_uniform(canary, self._setup.limits, "after the start")
            return
        found = await deadline.bound(engine.weight_version(), "weight version after the start")
        if found != weight_version:
            raise CanaryMismatchError(f"started with weight version {found!r}, expected {weight_version!r}")

    async def _describe_started(self, deadline: Deadline) -> Started:
        engine, log_path = self._engine, self._log_path
        if engine is None or engine.pid is None or log_path is None:
            raise EngineError(f"{self._name}: the engine is gone")
        memory = await deadline.bound(engine.memory(), "memory report")
        base_url = self._base_url or engine.base_url
        bootstrap_port = self._launching.bootstrap_port if self._launching is not None else None
        return Started(
            base_url=base_url,
            pid=engine.pid,
            memory=memory,
            log_path=log_path,
            bootstrap_port=bootstrap_port,
        )

    async def _sleep(self, grace_s: float, deadline: Deadline) -> SleepProof:
        engine, prepared = self._require_engine(Condition.AWAKE, Condition.ASLEEP, doing="sleep")
        if Capability.SLEEP not in prepared.features.capabilities:
            raise CapabilityError(
                f"{self._name}: engine backend {prepared.backend.name!r} can't put engines to sleep"
            )
        if self._condition is Condition.ASLEEP and self._proof is not None:
            return await self._measure_asleep(engine, prepared, self._proof, deadline)
        self._proof = await self._hand_over(
            engine,
            "sleep",
            put_to_sleep(
                engine,
                prepared.features.memory_tags,
                deadline.leaving(_EXIT_LAG_S),
                weight_source=self._setup.weight_source,
                grace_s=grace_s,
                limits=self._setup.limits,
                door=self._door,
            ),
            Condition.FALLING_ASLEEP,
            Condition.ASLEEP,
        )
        return self._proof

    async def _measure_asleep(
        self, engine: Engine, prepared: Prepared, proof: SleepProof, deadline: Deadline
    ) -> SleepProof:
        now = await deadline.bound(engine.memory(), "memory report of a sleeping engine")
        if resident := now.resident_tags & prepared.features.memory_tags:
            raise ReleaseNotProvedError(
                f"{self._name} should be asleep, but holds {', '.join(sorted(resident))}"
            )
        return evolve(proof, asleep_bytes=now.resident_bytes)

    async def _wake(self, weight_version: str | None, deadline: Deadline) -> MemoryReport:
        engine, prepared = self._require_engine(Condition.ASLEEP, Condition.AWAKE, doing="wake")
        if self._condition is Condition.AWAKE:
            memory = await deadline.bound(engine.memory(), "memory report")
            require_resident(memory, prepared.features.memory_tags)
            return memory
        asleep = (
            self._proof.identity if self._proof is not None else Identity(canary=None, weight_version=None)
        )
        return await self._hand_over(
            engine,
            "wake",
            wake(
                engine,
                prepared.features.memory_tags,
                deadline.leaving(_EXIT_LAG_S),
                weight_source=self._setup.weight_source,
                expected=evolve(asleep, weight_version=weight_version or asleep.weight_version),
                limits=self._setup.limits,
                door=self._door,
            ),
            Condition.WAKING,
            Condition.AWAKE,
        )

    async def _update(
        self, update: WeightUpdate, version: str, grace_s: float, deadline: Deadline
    ) -> MemoryReport:
        engine, prepared = self._require_engine(Condition.AWAKE, doing="update of the weights")
        if UPDATE_CAPABILITY[type(update)] not in prepared.features.capabilities:
            raise UpdateRefusedError(
                f"{self._name}: engine backend {prepared.backend.name!r} takes no update of this kind"
            )
        if isinstance(update, FromDisk) and not update.path.exists():
            raise UpdateRefusedError(
                f"{self._name}: {update.path} does not exist on node {self._setup.slot.node_ip}"
            )
        return await self._hand_over(
            engine,
            "update of the weights",
            change_weights(
                engine,
                update,
                version,
                deadline.leaving(_EXIT_LAG_S),
                grace_s=grace_s,
                limits=self._setup.limits,
                door=self._door,
            ),
            Condition.CHANGING_WEIGHTS,
            Condition.AWAKE,
        )

    async def _change_group(self, doing: str, group: WeightsGroup | str, deadline: Deadline) -> None:
        """Join a group, or leave the one of that name."""
        engine, _ = self._require_engine(Condition.AWAKE, doing=doing)
        work = (
            engine.join_weights_group(group)
            if isinstance(group, WeightsGroup)
            else engine.leave_weights_group(group)
        )
        bounded = deadline.leaving(_EXIT_LAG_S).bound(work, doing)
        await self._hand_over(engine, doing, bounded, Condition.CHANGING_WEIGHTS, Condition.AWAKE)

    async def _hand_over(
        self, engine: Engine, doing: str, work: Coroutine[Any, Any, T], during: Condition, after: Condition
    ) -> T:
        """Run a hand-over; anything but success leaves the condition unknown."""
        self._condition = during
        try:
            result = await self._unless_exited(engine, doing, work)
        except BaseException:
            self._condition = Condition.UNKNOWN
            if self._door is not None:
                self._door.close()
            raise
        self._condition = after
        return result

    async def _unless_exited(self, engine: Engine, doing: str, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``, but give up at once when the engine's process ends."""
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(self._exit_of(engine))
        try:
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and task.exception() is None:
                return task.result()
            lag = Deadline.after(self._clock, _EXIT_LAG_S)
            while not watcher.done() and not lag.passed:
                await lag.pause(_EXIT_LOOK_S)
            if watcher.done():
                raise EngineExitedError(
                    f"{self._name}: engine process {engine.pid} ended with exit code {watcher.result()} "
                    f"during {doing}"
                ) from (task.exception() if task.done() else None)
            return task.result()
        finally:
            for each in (task, watcher):
                each.cancel()
            await asyncio.wait({task, watcher})

    async def _exit_of(self, engine: Engine) -> int:
        while (code := engine.exit_code()) is None:
            await self._clock.sleep(_EXIT_LOOK_S)
        return code

    async def _interrupt_and_end(self, deadline: Deadline) -> str:
        command = self._command
        if command is not None:
            command.cancel()
            try:
                await deadline.share(0.3).bound(_ended(command), f"interrupting {self._doing}")
            except DeadlineExceededError as error:
                # It will fail by itself when its engine is gone.
                logger.warning("%s: %s", self._name, error)
        return await self._end_engine(deadline)

    def _forget_ending(self, ending: asyncio.Task[str]) -> None:
        self._ending = None
        if not ending.cancelled() and (error := ending.exception()) is not None:
            logger.info("%s: a stop ended with: %s", self._name, error)

    async def _end_engine(self, deadline: Deadline) -> str:
        engine = self._engine
        self._condition = Condition.UNKNOWN
        evidence = f"{self._name}: no engine process was running"
        if self._door is not None:
            # First: whoever waits for an answer learns at once that none will come.
            try:
                await deadline.share(0.1).bound(self._door.stop(), f"cutting the door of {self._name}")
            except EngineError as error:
                # Its callers wait for what will not come, but the engine has to end all the same.
                logger.warning("%s: %s", self._name, error)
        if engine is not None and (pid := engine.pid) is not None:
            gentle = deadline.share(0.6)
            try:
                await gentle.bound(engine.stop(gentle.remaining_s()), f"stop of {self._name}")
            except EngineError as error:
                # Its own stop did not do: the group is killed, and the group's end is the proof.
                logger.warning("%s: %s; killing process group %d", self._name, error, pid)
            survivors = await end_group(pid, deadline)
            also = f", {len(survivors)} left-over processes were killed" if survivors else ""
            evidence = (
                f"{self._name}: engine process {pid} ended (exit code {engine.exit_code()}){also}; "
                "no process of its group is left"
            )
        self._release_ports()
        self._engine, self._proof = None, None
        self._condition = Condition.EMPTY
        return evidence

    # --- helpers ------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self._setup.role} {self._setup.slot.engine}"

    @property
    def _base_url(self) -> str | None:
        """Where requests go: to the door, or to an engine that has none."""
        if self._door is not None:
            return self._door.url
        return self._engine.base_url if self._engine is not None else None

    @property
    def _door(self) -> Admission | None:
        return self._launching.door if self._launching is not None else None

    @property
    def _log_path(self) -> Path | None:
        return self._launching.log_path if self._launching is not None else None

    def _release_ports(self) -> None:
        if self._launching is not None:
            self._launching.release()
            self._launching = None

    def _not_stopped(self) -> EngineError:
        return EngineError(
            f"{self._name}: incarnation {self._incarnation} was not stopped before the next start"
        )

    async def _ready_backend(self) -> Prepared:
        """Return what was prepared; whoever asks while that is under way joins."""
        if self._prepared is not None:
            return self._prepared
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.ensure_future(self._prepare())
        prepared = await asyncio.shield(self._preparing)
        self._prepared = prepared
        return prepared

    def _admit(self, stamp: Stamp, doing: str, *, new: bool = False) -> None:
        what = f"{doing} of {self._name}"
        if stamp.incarnation < self._incarnation or (new and stamp.incarnation == self._incarnation):
            raise StaleTokenError(
                f"{what} is meant for incarnation {stamp.incarnation}, "
                f"but {self._incarnation} has been started"
            )
        if not new and stamp.incarnation > self._incarnation and self._engine is not None:
            raise StaleTokenError(
                f"{what} is meant for incarnation {stamp.incarnation}; the engine here is {self._incarnation}"
            )
        self._gate.admit(stamp.token, what)

    async def _run(self, doing: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a command's body as the only one."""
        if self._ending is not None or (self._command is not None and not self._command.done()):
            work.close()
            running = "stop" if self._ending is not None else self._doing
            raise EngineError(f"{self._name}: {doing} refused, {running} is still running")
        task = asyncio.ensure_future(work)
        self._command, self._doing = task, doing
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and not _being_cancelled():
                raise EngineError(f"{self._name}: {doing} was interrupted by a stop") from None
            raise
        finally:
            if self._command is task:
                self._command, self._doing = None, ""

    def _require_engine(self, *allowed: Condition, doing: str) -> tuple[Engine, Prepared]:
        if self._engine is None or self._prepared is None:
            raise EngineError(f"{self._name}: {doing} refused, there is no engine")
        if self._condition not in allowed:
            raise EngineError(
                f"{self._name}: {doing} refused, the engine's condition is {self._condition}; "
                "only a stop is safe"
            )
        return self._engine, self._prepared


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})


async def _result(task: asyncio.Task[T]) -> T:
    return await asyncio.shield(task)
