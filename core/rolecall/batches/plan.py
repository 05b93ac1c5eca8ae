"""From a resolved job to what a batch does: who generates, which stages follow, in what order.

Pure assembly: asks the role plugins what they declare and checks that it fits together. Starts
nothing, opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from rolecall.batches.rewards import reward_field, reward_stage
from rolecall.batches.schedule import order_stages
from rolecall.batches.sharing import EVERYBODY_SHARES, Sharing
from rolecall.batches.turns import Schedule, make_schedule
from rolecall.errors import JobError
from rolecall.ids import RoleName
from rolecall.interfaces.role import Generate, NamedReward, Stage, StageRequest

if TYPE_CHECKING:
    from rolecall.config.resolved import ResolvedJob

RULES_STAGE = "rules"
"""Name of the stage that computes the rewards whose adapters need no role."""


@frozen(kw_only=True)
class StagePlan:
    """What one batch runs.

    generation_role: awake while ``generate`` runs.
    stages: in an order in which they could run one after the other.
    rewards: names of the job's rewards, in the order of the job file.
    sharing: which roles share devices; the others' stages run at the same time.
    """

    generation_role: RoleName
    generate: Generate
    stages: tuple[Stage, ...] = ()
    rewards: tuple[str, ...] = ()
    sharing: Sharing = EVERYBODY_SHARES

    @property
    def schedule(self) -> Schedule:
        """The stages as turns of their roles."""
        return make_schedule(self.stages, generation_role=self.generation_role, sharing=self.sharing)


def plan_stages(job: ResolvedJob, sharing: Sharing = EVERYBODY_SHARES) -> StagePlan:
    """Assemble the batch of a job, with the fewest hand-overs between roles that share devices.

    Raises:
        JobError: no role or several generate, a reward that no stage writes, or stages that
            can't be ordered.
    """
    role, generate = generation_of(job)
    stages = [stage for name in job.roles for stage in _role_stages(job, name)]
    rules = tuple(reward for reward in job.rewards if reward.adapter.role is None)
    if rules:
        stages.append(reward_stage(name=RULES_STAGE, role=None, rewards=rules))
    _check_rewards(job.rewards, stages)
    return StagePlan(
        generation_role=role,
        generate=generate,
        stages=order_stages(stages, awake=role, sharing=sharing),
        rewards=tuple(reward.name for reward in job.rewards),
        sharing=sharing,
    )


def generation_of(job: ResolvedJob) -> tuple[RoleName, Generate]:
    """Return the role that makes a job's samples, and what makes them.

    Raises:
        JobError: no role does, or several.
    """
    found = [
        (role.name, generate)
        for role in job.roles.values()
        if (generate := role.plugin.generation()) is not None
    ]
    if len(found) != 1:
        names = ", ".join(name for name, _ in found) or "none"
        raise JobError(
            f"a batch needs exactly one role that makes samples; of {', '.join(job.roles)} these do: {names}"
        )
    return found[0]


def declared_stages(job: ResolvedJob, role: str) -> list[Stage]:
    """Return the scoring stages that one role of the job declares."""
    request = StageRequest(
        rewards=tuple(reward for reward in job.rewards if reward.adapter.role == role),
        route_keys=frozenset(job.roles[role].config.route_keys),
        models={name: model.weight_source for name, model in job.roles[role].models.items()},
    )
    return list(job.roles[role].plugin.scoring_stages(request))


def _role_stages(job: ResolvedJob, name: str) -> list[Stage]:
    stages = declared_stages(job, name)
    for stage in stages:
        if stage.role is not None and stage.role not in job.roles:
            raise JobError(
                f'stage "{stage.name}" of role "{name}" needs the role "{stage.role}", which this job '
                f"does not have. Roles: {', '.join(job.roles)}"
            )
    return stages


def _check_rewards(rewards: tuple[NamedReward, ...], stages: list[Stage]) -> None:
    written = {field for stage in stages for field in stage.writes}
    for reward in rewards:
        if reward_field(reward.name) not in written:
            raise JobError(
                f'reward "{reward.name}" ({reward.adapter.name}) is computed by no stage; the role '
                f'"{reward.adapter.role}" must declare one that writes "{reward_field(reward.name)}"'
            )
