"""What tests of gateways on Ray Serve share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import ray
from attrs import frozen

from rolecall.config.loader import load_config
from rolecall.config.specs import JobConfig
from rolecall.discovery.registry_actor import RayRegistry, create_registry
from rolecall.gateway.serve import Gateways, deploy_gateways


@frozen(kw_only=True)
class Deployed:
    """A job's gateways on a Ray of their own, and the registry that they read."""

    config: JobConfig
    file: Path
    registry: RayRegistry
    gateways: Gateways

    def url(self, role: str) -> str:
        return f"{self.gateways.base_url}/{role}"


@contextmanager
def _deployed(job: str, namespace: str) -> Generator[Deployed]:
    # Short: sockets live below it, and their paths are limited.
    folder = Path(tempfile.mkdtemp(prefix="rcg-", dir="/tmp"))
    file = folder / "job.toml"
    file.write_text(job, encoding="utf-8")
    try:
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            namespace=namespace,
            _temp_dir=str(folder / "ray"),
            log_to_driver=False,
        )
        config = load_config(file)
        registry = create_registry(namespace)
        gateways = deploy_gateways(config, file, namespace=namespace, run_dir=folder)
        yield Deployed(config=config, file=file, registry=registry, gateways=gateways)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def deployed() -> Callable[[str, str], AbstractContextManager[Deployed]]:
    """Deploys the gateways of a job file's text in a Ray namespace; Ray ends with the block."""
    return _deployed
