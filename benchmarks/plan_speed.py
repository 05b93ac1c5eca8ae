"""How long a layout takes on paper, with all checks, by the number of devices.

    python benchmarks/plan_speed.py [--runs 5] [--only 8 10000]

For each first-party mode: a trainer, a role on its processes, and inference models with engines of a node
each (of one device in the smallest job) that use all devices there are. In ``defer`` every model has all of
them, so that there are twenty times as many engines as in ``split``. Printed are the median and the least
processor time: the work is pure, and on a busy machine the clock shows mostly waiting. The second figure is
for the same job with one device less, which is refused with the number that would do.

Targets, each for any mode: 8 devices in 5 ms, 10,000 with 20 models in 0.5 s, 100,000 in 5 s.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time

from attrs import evolve

from rolecall.api import Nodes, PlacementJob, PlacementMode, RoleName, TrainingDemand
from rolecall.errors import PlacementRefused
from rolecall.placement.demand import EngineFacts, JobFacts, RewardFacts
from rolecall.placement.preflight import plan_placement
from rolecall.testing.demands import placement_job, role_demand
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

NODE = 8
SIZES = {8: 2, 1_000: 20, 10_000: 20, 100_000: 20}
"""Devices, and on how many models they are used."""


def full_job(mode: PlacementMode, devices: int, models: int) -> PlacementJob:
    """Return a job that the mode can just lay out on the devices."""
    engine = 1 if devices == NODE else NODE
    shares = {"defer": 1, "split": models, "decoupled": models + 1}
    engines = devices // engine // shares[mode.name]
    left = devices - models * engines * engine
    actor = TrainingDemand(
        role=RoleName("actor"), devices=left if mode.name == "decoupled" else devices, offload=True
    )
    reference = evolve(actor, role=RoleName("reference"), on=actor.role)
    roles = [role_demand(f"role{index}", (engines, engine)) for index in range(models)]
    return placement_job(*roles, devices=devices, per_node=NODE, training=(actor, reference))


def facts(job: PlacementJob) -> JobFacts:
    """Return what engines that can sleep and a reward that may wait declare."""
    return JobFacts(
        engines=tuple(
            EngineFacts(
                role=role.role, model=model.model, backend="any", resource=job.resource, can_sleep=True
            )
            for role in job.roles
            for model in role.models
        ),
        rewards=(RewardFacts(reward="judged", adapter="any", supports_deferred=True),),
    )


def milliseconds(job: PlacementJob, mode: PlacementMode, runs: int) -> tuple[str, int]:
    """Return how long planning it takes, and how many engines are laid out: none if it is refused."""
    taken: list[float] = []
    engines = 0
    for _ in range(runs):
        gc.collect()
        started = time.process_time()
        try:
            engines = len(plan_placement(job, mode, facts(job)).replicas)
        except PlacementRefused:
            engines = 0
        taken.append(1000 * (time.process_time() - started))
    return f"{statistics.median(taken):7.1f} ms ({min(taken):.1f})", engines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", type=int, nargs="*", default=list(SIZES), choices=SIZES)
    arguments = parser.parse_args()
    print(f"{arguments.runs} runs each, load {os.getloadavg()[0]:.1f}; processor time, median (least)")
    for devices in arguments.only:
        for mode in (Split(), Defer(), Decoupled()):
            job = full_job(mode, devices, SIZES[devices])
            fewer = evolve(job, nodes=Nodes.equal(devices - 1, per_node=NODE))
            full, engines = milliseconds(job, mode, arguments.runs)
            refused, none = milliseconds(fewer, mode, arguments.runs)
            if not engines or none:
                raise SystemExit(
                    f"{mode.name} does not lay out the job, or lays out one with too few devices"
                )
            print(
                f"{devices:7,} devices, {mode.name:9} {engines:7,} engines: {full}; one less: {refused}",
                flush=True,
            )


if __name__ == "__main__":
    main()
