"""What tests of several folders start: roles' services on a real Ray."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from rolecall.ids import RoleName
from rolecall.placement.plan import PlacementPlan


@frozen(kw_only=True)
class RolePlane:
    """The roles' services, none started yet, with what they report to."""

    registry: Any
    hub: Any
    services: dict[RoleName, Any]


@contextmanager
def _role_plane(
    run_dir: Path, job: str, plan: PlacementPlan, *, namespace: str, num_cpus: int = 4
) -> Generator[RolePlane]:
    import ray

    from rolecall.cluster.ray_cluster import create_pools, probe_pools, remove_pools
    from rolecall.config.loader import load_config
    from rolecall.discovery.registry_actor import create_registry
    from rolecall.engines.role_service import create_role_service
    from rolecall.events.hub_actor import start_hub
    from rolecall.placement.binding import bind

    file = run_dir / "job.toml"
    file.write_text(job, encoding="utf-8")
    config = load_config(file)
    ray.init(
        address="local",
        namespace=namespace,
        num_cpus=num_cpus,
        resources={"device_slot": 1},
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 1024**2,
        _temp_dir=str(run_dir),
        _node_ip_address="127.0.0.1",
    )
    try:
        pools = create_pools(plan, job=config.job.name)
        try:
            bound = bind(plan, probe_pools(pools))
            registry, hub = create_registry(namespace), start_hub(namespace, observers=(), log_path=None)
            services = {
                role: create_role_service(
                    config=config,
                    file=file,
                    role=role,
                    bound=bound,
                    groups=pools.handles,
                    registry=registry,
                    events=hub,
                    run_dir=run_dir,
                    namespace=namespace,
                )
                for role in dict.fromkeys(replica.role for replica in plan.replicas)
            }
            yield RolePlane(registry=registry, hub=hub, services=services)
        finally:
            remove_pools(pools)
    finally:
        ray.shutdown()


@pytest.fixture(scope="session")
def role_plane() -> Callable[..., AbstractContextManager[RolePlane]]:
    """Runs a job's roles as a plan places them, on a Ray of their own with one device slot.

    The folder's path has to be short: Ray puts sockets below it.
    """
    return _role_plane
