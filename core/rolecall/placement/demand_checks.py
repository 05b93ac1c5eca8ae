"""Refusals that need no layout: shapes of engines, budgets of roles, resources of backends.

Pure; one small function a rule, each returning every breach it finds. ``preflight`` calls them
before it asks a placement mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.errors import Refusal
from rolecall.ids import ModelId, RoleName
from rolecall.placement.demand import EngineFacts, JobFacts
from rolecall.placement.plan import ModelDemand, PlacementJob, RoleDemand
from rolecall.placement.wording import counted


def model_key(role: RoleName, model: ModelId) -> str:
    """Return the config key of a model's table."""
    return f"roles.{role}.models.{model}"


def refuse_parallel_product(job: PlacementJob) -> Iterator[Refusal]:
    """tensor_parallel × pipeline_parallel must be the devices of one engine."""
    for role, model in _models(job):
        product = model.tensor_parallel * model.pipeline_parallel
        if product == model.devices_per_engine:
            continue
        fixes = [f"devices_per_engine = {product}"]
        if model.devices_per_engine % model.pipeline_parallel == 0:
            fixes.append(f"tensor_parallel = {model.devices_per_engine // model.pipeline_parallel}")
        elif model.devices_per_engine % model.tensor_parallel == 0:
            fixes.append(f"pipeline_parallel = {model.devices_per_engine // model.tensor_parallel}")
        yield Refusal(
            code="parallel-product",
            key=f"{model_key(role.role, model.model)}.devices_per_engine",
            message=f"tensor_parallel {model.tensor_parallel} × pipeline_parallel {model.pipeline_parallel}"
            f" = {product}, but devices_per_engine = {model.devices_per_engine};"
            " the product must be the devices of one engine",
            fix=" or ".join(fixes),
        )


def refuse_partial_nodes(job: PlacementJob) -> Iterator[Refusal]:
    """An engine larger than a node must use whole nodes."""
    per_node = job.nodes.largest
    for role, model in _models(job):
        devices = model.devices_per_engine
        if job.nodes.suit(devices):
            continue
        fewer = devices // per_node * per_node
        yield Refusal(
            code="engine-partial-node",
            key=f"{model_key(role.role, model.model)}.devices_per_engine",
            message=f"an engine of {devices} devices spans {devices / per_node:.2f} nodes of {per_node};"
            " an engine across nodes must use whole nodes",
            fix=f"devices_per_engine = {fewer} or {fewer + per_node}, with tensor_parallel and"
            " pipeline_parallel to match",
        )


def refuse_budget(job: PlacementJob) -> Iterator[Refusal]:
    """A role's ``devices`` must be exactly what its models need."""
    for role in job.roles:
        budget = role.devices
        if budget is None or budget == role.needed:
            continue
        key = f"roles.{role.role}.devices"
        sole = role.models[0] if len(role.models) == 1 else None
        if sole is not None and budget % sole.devices_per_engine:
            below = budget // sole.devices_per_engine
            replicas = [count for count in (below, below + 1) if count]
            yield Refusal(
                code="budget-not-divisible",
                key=key,
                message=f"{counted(budget, 'device')} can't be divided into engines of"
                f" {sole.devices_per_engine}",
                fix=" or ".join(
                    f"devices = {count * sole.devices_per_engine} with models.{sole.model}.replicas = {count}"
                    for count in replicas
                ),
            )
            continue
        fix = f"devices = {role.needed}, or leave it out"
        if sole is not None:
            fix += f", or models.{sole.model}.replicas = {budget // sole.devices_per_engine}"
        yield Refusal(
            code="budget-mismatch",
            key=key,
            message=f"the budget is {counted(budget, 'device')}, but the role's models need"
            f" {role.needed} ({_sum_of(role)}); the two must be equal",
            fix=fix,
        )


def refuse_resource(job: PlacementJob, facts: JobFacts) -> Iterator[Refusal]:
    """Every engine backend must run on the job's devices."""
    strangers: dict[tuple[str, str], list[EngineFacts]] = {}
    for engine in facts.engines:
        if engine.resource is not None and engine.resource != job.resource:
            strangers.setdefault((engine.backend, engine.resource), []).append(engine)
    for (backend, resource), engines in strangers.items():
        models = ", ".join(model_key(engine.role, engine.model) for engine in engines)
        yield Refusal(
            code="resource-mismatch",
            key="placement.resource",
            message=f'the job\'s devices are "{job.resource}", but engine "{backend}" (of {models})'
            f' runs on "{resource}"',
            fix=f'placement.resource = "{resource}", or another engine for {models}',
        )


def _models(job: PlacementJob) -> Iterator[tuple[RoleDemand, ModelDemand]]:
    for role in job.roles:
        for model in role.models:
            yield role, model


def _sum_of(role: RoleDemand) -> str:
    return " + ".join(
        f"{model.model}: {model.replicas} × {model.devices_per_engine}" for model in role.models
    )
