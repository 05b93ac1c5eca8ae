"""The Ray session of a job: a private local Ray, or a cluster that someone else runs."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from attrs import frozen

from rolecall.config.specs import PRIVATE_RAY, JobConfig
from rolecall.errors import JobError
from rolecall.job.actor_traces import show_traces_of_actors
from rolecall.placement.demand import job_nodes
from rolecall.placement.plan import PlacementPlan
from rolecall.processes.marks import RUN_DIR_VARIABLE

CPU, GPU = "CPU", "GPU"
"""Resources that Ray itself counts."""

PRIVATE_CPUS = 4
"""Ray CPUs of a private Ray, whatever the machine has. The job's own actors reserve none; a
plugin's may (a sink with storage of its own), and Ray starts as many workers ahead, which the job's
actors then find ready."""

STARTING_WORKERS = "16"
"""Actors reserve no CPU, so Ray's guess from the CPU count, one at a time, would be wrong for them."""

TOKEN_FILE = "ray-token"
"""File in the run folder with the private Ray's access token; its address is of no use without."""


@frozen(kw_only=True)
class RaySession:
    """A joined Ray. ``joined_address`` is None for a private Ray, which ends with the job."""

    address: str
    namespace: str
    joined_address: str | None


def namespace_of(job: str) -> str:
    """Return the Ray namespace that holds a job's named actors."""
    return f"rolecall-{job}"


@contextmanager
def ray_session(config: JobConfig, plan: PlacementPlan, run_dir: Path) -> Generator[RaySession]:
    """Start or join Ray for a job; leave it, or end it, on exit.

    Raises:
        JobError: no Ray answers at the address, or a private one could not start; or the plan
            needs more nodes than the one that a private Ray has.
    """
    namespace = namespace_of(config.job.name)
    local = config.cluster.is_private
    with _environment(run_dir, private=local):
        try:
            if local:
                context = _start_private(config, plan, namespace, run_dir)
            else:
                context: Any = ray.init(
                    address=config.cluster.address,
                    namespace=namespace,
                    log_to_driver=config.plugins.trace,
                    logging_level=logging.ERROR,
                )
            if config.plugins.trace:
                show_traces_of_actors()
        except Exception as error:  # Ray's own start raises bare exceptions, too
            raise JobError(
                f"cluster.address = {config.cluster.address!r}: Ray could not be "
                f"{'started' if local else 'joined'}: {error}"
            ) from error
        try:
            address = str(context.address_info["gcs_address"])
            yield RaySession(address=address, namespace=namespace, joined_address=None if local else address)
        finally:
            ray.shutdown()


def present_token(token: Path) -> None:
    """Have this process show the access token of a private Ray when it joins that."""
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})
    # Ray reads its settings when it is imported; without this the token would come too late.
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")


def _start_private(config: JobConfig, plan: PlacementPlan, namespace: str, run_dir: Path) -> Any:
    needed = {pool.resource: 0 for pool in plan.pools}
    for pool in plan.pools:
        needed[pool.resource] += pool.devices
    nodes = job_nodes(config.placement)
    one_node = nodes.largest
    if any(devices > one_node for devices in needed.values()):
        raise JobError(
            f"the plan needs {max(needed.values())} devices, but cluster.address = 'local' is one node with "
            f"{one_node} by placement.devices_per_node or placement.nodes; join a cluster, or raise it"
        )
    if nodes.devices is not None and config.placement.resource in needed:
        # What the plan leaves over is there for replicas that come while the job runs.
        room = min(nodes.devices, one_node)
        needed[config.placement.resource] = max(needed[config.placement.resource], room)
    return ray.init(
        address=PRIVATE_RAY,
        namespace=namespace,
        num_cpus=PRIVATE_CPUS + needed.get(CPU, 0),
        resources={name: count for name, count in needed.items() if name not in (GPU, CPU)},
        include_dashboard=False,
        object_store_memory=config.cluster.object_store_bytes,
        log_to_driver=config.plugins.trace,
        _temp_dir=str(run_dir),
        logging_level=logging.ERROR,
    )


@contextmanager
def _environment(run_dir: Path, *, private: bool) -> Generator[None]:
    """Set what Ray's processes inherit, and put back what was there."""
    values = {RUN_DIR_VARIABLE: str(run_dir), "RAY_USAGE_STATS_ENABLED": "0"}
    if private:
        token = run_dir / TOKEN_FILE
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        values |= {
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_worker_maximum_startup_concurrency": STARTING_WORKERS,
        }
    # Ray itself turns RAY_AUTH_MODE on when it finds a token; it is put back with the rest.
    before = {name: os.environ.get(name) for name in (*values, "RAY_AUTH_MODE")}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
