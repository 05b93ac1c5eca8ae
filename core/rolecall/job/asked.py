"""A job that is asked questions: one that runs here, or gateways elsewhere with a job file.

For commands, and for training loops that have batches and samples of their own: they use a job's rewards and
its generation without its batch runner. Starts nothing, wakes nothing, joins no Ray.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from rolecall.errors import JobError

# Imported where they are used, all others too: plugins import this module while a job is planned.
if TYPE_CHECKING:
    from rolecall.client.inference_client import InferenceClient
    from rolecall.config.resolved import ResolvedJob
    from rolecall.ids import RoleName
    from rolecall.interfaces.role import Generate, NamedReward


@frozen(kw_only=True)
class AskedJob:
    """A job as :func:`ask_job` found it.

    front: URL of its gateways, up to a role's name; None if it does not run here and no URL was given.
    """

    resolved: ResolvedJob
    front: str | None

    def reward(self, name: str | None = None) -> NamedReward:
        """Return a reward of the job; without a name its only one.

        Raises:
            JobError: it has none of that name, or several and none was named.
        """
        rewards = self.resolved.rewards
        known = ", ".join(reward.name for reward in rewards) or "none"
        if name is None and len(rewards) != 1:
            raise JobError(f"name a reward of {self.resolved.file}. Rewards: {known}")
        for reward in rewards:
            if name in (None, reward.name):
                return reward
        raise JobError(f'{self.resolved.file} has no reward "{name}". Rewards: {known}')

    def generation(self) -> tuple[RoleName, Generate]:
        """Return the role that makes the job's samples, and what makes them.

        Raises:
            JobError: no role does, or several.
        """
        from rolecall.batches.plan import generation_of

        return generation_of(self.resolved)

    async def client(self, role: str) -> InferenceClient:
        """Return the running loop's client of a role; it is closed with the loop.

        Raises:
            JobError: it is not known where the job's gateways are.
        """
        if self.front is None:
            raise JobError(
                f'the role "{role}" has to be asked, so the job has to run: `rolecall up '
                f"{self.resolved.file}`, or tell the URL of its gateways"
            )
        from rolecall.client.shared import shared_client
        from rolecall.gateway.settings import bearer_tokens

        config = self.resolved.config
        tokens = bearer_tokens(config.gateway, file=str(self.resolved.file))
        return await shared_client(
            f"{self.front.rstrip('/')}/{role}",
            policy=self.resolved.roles[role].policy,
            role=role,
            token=tokens[0] if tokens else None,
            timeout_s=config.gateway.request_timeout_s,
            max_in_flight_per_replica=self.resolved.roles[role].config.max_in_flight_per_replica,
        )


def ask_job(job: str | None = None, url: str | None = None) -> AskedJob:
    """Return a job to ask; nothing is asked yet.

    job: its name, if it runs on this machine, or its file; None for the only one that runs here. A file may
        be given while its job does not run here: for gateways elsewhere, or for a rule.
    url: where its gateways are, up to a role's name; by default where the running job has them.

    Raises:
        JobError: no such job runs here.
        ConfigError: the job file is wrong.
        PluginError: a plugin that it selects is not installed here, or broken.
    """
    from rolecall.job.find import find_job, is_alive, job_name
    from rolecall.job.paths import read_state
    from rolecall.job.prepare import resolve_file

    if job is not None and (job.endswith(".toml") or Path(job).is_file()):
        state = None if url is not None else read_state(job_name(job))
        if state is not None and not is_alive(state):
            state = None
        resolved = resolve_file(Path(job), block=() if state is None else state.block)
        return AskedJob(resolved=resolved, front=url or (None if state is None else state.gateway_url))
    state = find_job(job)
    return AskedJob(
        resolved=resolve_file(Path(state.file), block=state.block), front=url or state.gateway_url
    )
