"""Reach a running job from another process: a training loop, a consumer, a notebook.

    with connect("quickstart") as job:
        sink = await job.open_sink()
        ...

The job is found by the state file that it wrote on this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import ray

from rolecall.engines.role_service import find_role_service
from rolecall.events.hub_actor import find_hub
from rolecall.events.outbox import flush_all
from rolecall.ids import RoleName
from rolecall.job.find import find_job
from rolecall.job.handle import JobHandle
from rolecall.job.prepare import resolve_file
from rolecall.job.session import TOKEN_FILE, present_token
from rolecall.leases.coordinator_actor import find_coordinator


@contextmanager
def connect(job: str | None = None) -> Generator[JobHandle]:
    """Join a running job's Ray for the length of a block.

    ``job`` is its name or its file; it may be left out while exactly one job runs here. The
    process must not have joined another Ray.

    Raises:
        JobError: no such job is running here.
    """
    state = find_job(job)
    token = Path(state.run_dir) / TOKEN_FILE
    if token.exists():
        present_token(token)
    resolved = resolve_file(Path(state.file), block=state.block)
    with ray.init(
        address=state.ray_address,
        namespace=state.namespace,
        log_to_driver=False,
        logging_level=logging.ERROR,
    ):
        try:
            yield JobHandle(
                resolved=resolved,
                coordinator=find_coordinator(state.namespace),
                gateway_url=state.gateway_url,
                hub=find_hub(state.namespace),
                services={
                    RoleName(role): find_role_service(state.namespace, RoleName(role))
                    for role in resolved.roles
                },
                training=state.training,
            )
        finally:
            flush_all()
