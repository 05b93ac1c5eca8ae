"""What a resolved job asks of placement: its demands, and facts about its plugins.

Pure. :func:`placement_job` is what a placement mode gets to see. :class:`JobFacts` is what only
the core's checks need: modes decide on devices and never on what a plugin can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rolecall.batches.plan import declared_stages, plan_stages
from rolecall.errors import JobError
from rolecall.ids import ModelId, RoleName
from rolecall.interfaces.engine_backend import Capability
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import ModelDemand, PlacementJob, RoleDemand, TrainingDemand

if TYPE_CHECKING:
    from rolecall.config.resolved import ResolvedJob
    from rolecall.config.specs import ModelConfig, PlacementSection, TrainingConfig


@frozen(kw_only=True)
class EngineFacts:
    """What preflight must know about the backend of one model; see ``EngineFeatures``.

    resource: the only Ray resource the backend runs on, None if any will do.
    can_sleep: it gives its device memory back and gets its weights again.
    """

    role: RoleName
    model: ModelId
    backend: str
    resource: str | None
    can_sleep: bool
    no_sleep_because: str = ""
    sleep_options: tuple[tuple[str, Any], ...] = ()
    several_nodes: bool = True
    attention_groups: int = 1
    attention_groups_key: str = ""


@frozen(kw_only=True)
class RewardFacts:
    """What preflight must know about one reward."""

    reward: str
    adapter: str
    supports_deferred: bool


@frozen(kw_only=True)
class JobFacts:
    """What the job's plugins and the author of its loop declare. What is not listed here is not checked.

    idle_roles: roles that neither make samples nor score them.
    stage_problems: why the stages of the job's batches can't be put together.
    loop_uses: ``loop.uses`` of the job file.
    """

    engines: tuple[EngineFacts, ...] = ()
    rewards: tuple[RewardFacts, ...] = ()
    idle_roles: frozenset[RoleName] = frozenset()
    stage_problems: tuple[str, ...] = ()
    loop_uses: tuple[str, ...] = ()


def placement_job(job: ResolvedJob) -> PlacementJob:
    """Return the devices and demands of a resolved job, roles and models in the file's order.

    A role without engines is not in it: there is nothing to place, and it is always there.
    """
    placement = job.config.placement
    return PlacementJob(
        resource=placement.resource,
        nodes=job_nodes(placement),
        roles=tuple(
            RoleDemand(
                role=role.name,
                models=tuple(model_demand(model.model, model.config) for model in role.models.values()),
                deferrable=role.plugin.deferrable,
                devices=role.config.devices,
            )
            for role in job.roles.values()
            if role.models
        ),
        training=tuple(training_demands(job.config.training)),
        per_node=None if placement.nodes is not None else placement.devices_per_node,
    )


def job_nodes(placement: PlacementSection) -> Nodes:
    """Return the job's nodes, larger ones first: the order in which probed devices are put, too."""
    if placement.nodes is not None:
        return Nodes.of(sorted(placement.nodes, reverse=True))
    if placement.devices is not None:
        return Nodes.equal(placement.devices, per_node=placement.devices_per_node)
    return Nodes.endless(placement.devices_per_node)


def training_demands(training: Mapping[str, TrainingConfig]) -> Iterator[TrainingDemand]:
    """Return what the trainer's roles need, in the file's order; checked by the configuration."""
    for name, config in training.items():
        host = training[config.on] if config.on is not None else config
        devices = config.devices if config.devices is not None else host.devices
        if devices is None:
            raise ValueError(f'training role "{name}" has no devices')
        yield TrainingDemand(
            role=RoleName(name),
            devices=devices,
            # One process sleeps as a whole.
            offload=host.offload,
            on=None if config.on is None else RoleName(config.on),
        )


def job_facts(job: ResolvedJob) -> JobFacts:
    """Return what the job's engine backends and reward adapters declare."""
    return JobFacts(
        engines=tuple(
            EngineFacts(
                role=role.name,
                model=model.model,
                backend=model.backend.name,
                resource=model.backend.resource,
                can_sleep=Capability.SLEEP in model.features.capabilities,
                no_sleep_because=model.features.no_sleep_because,
                sleep_options=model.features.sleep_options,
                several_nodes=Capability.SEVERAL_NODES in model.features.capabilities,
                attention_groups=model.features.attention_groups,
                attention_groups_key=model.features.attention_groups_key,
            )
            for role in job.roles.values()
            for model in role.models.values()
        ),
        rewards=tuple(
            RewardFacts(
                reward=reward.name,
                adapter=reward.adapter.name,
                supports_deferred=reward.adapter.supports_deferred,
            )
            for reward in job.rewards
        ),
        idle_roles=idle_roles(job),
        stage_problems=stage_problems(job),
        loop_uses=job.config.loop.uses,
    )


def idle_roles(job: ResolvedJob) -> frozenset[RoleName]:
    """Return the roles that neither make samples nor are needed by a stage that scores them."""
    makers = {role.name for role in job.roles.values() if role.plugin.generation() is not None}
    scorers = {stage.role for name in job.roles for stage in declared_stages(job, name)}
    return frozenset(role.name for role in job.roles.values()) - makers - scorers


def stage_problems(job: ResolvedJob) -> tuple[str, ...]:
    """Return what keeps the job's batches from being run at all; nothing for a job without batches."""
    if job.config.batch is None:
        return ()
    try:
        plan_stages(job)
    except JobError as error:
        return tuple(str(error).splitlines())
    return ()


def model_demand(model: ModelId, config: ModelConfig) -> ModelDemand:
    """Return what one model asks for, with the tensor parallelism that its engines are started with."""
    tensor_parallel = config.tensor_parallel
    if tensor_parallel is None:
        # Where pipeline_parallel does not divide, the product check refuses it with its numbers.
        tensor_parallel = max(1, config.devices_per_engine // config.pipeline_parallel)
    return ModelDemand(
        model=model,
        replicas=config.replicas,
        devices_per_engine=config.devices_per_engine,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=config.pipeline_parallel,
    )
