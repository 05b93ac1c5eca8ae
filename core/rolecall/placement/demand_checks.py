"""Refusals that need no layout: shapes of engines, budgets of roles, what backends run on.

Pure; one small function a rule, which yields a refusal of that rule's class for every breach. ``preflight``
calls them before it asks a placement mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from rolecall.config.source import key_text
from rolecall.errors import Fix, Refusal
from rolecall.ids import ModelId, RoleName
from rolecall.placement.demand import EngineFacts, JobFacts
from rolecall.placement.plan import ModelDemand, PlacementJob, RoleDemand
from rolecall.placement.wording import counted, either

_Assignments = tuple[tuple[str, Any], ...]
_FactsOf = Mapping[tuple[RoleName, ModelId], EngineFacts]


def model_key(role: RoleName, model: ModelId, *keys: str) -> str:
    """Return the config key of a model's table, or of a key in it."""
    return key_text(("roles", role, "models", model, *keys))


# --- shapes of engines ------------------------------------------------------------------


@frozen(kw_only=True)
class ParallelProduct(Refusal):
    """``tensor_parallel`` × ``pipeline_parallel`` that is not ``devices_per_engine``."""

    code: str = field(default="parallel-product", init=False)
    tensor_parallel: int
    pipeline_parallel: int
    devices_per_engine: int


def refuse_parallel_product(job: PlacementJob, facts: JobFacts) -> Iterator[ParallelProduct]:
    """The devices of one engine are divided without rest."""
    of = _facts_of(facts)
    for role, model in _models(job):
        product = model.tensor_parallel * model.pipeline_parallel
        if product == model.devices_per_engine:
            continue
        fix = Fix(_parallel(role, model, of))
        yield ParallelProduct(
            key=model_key(role.role, model.model, "devices_per_engine"),
            message=f"tensor_parallel {model.tensor_parallel} × pipeline_parallel {model.pipeline_parallel}"
            f" = {product}, but devices_per_engine = {model.devices_per_engine};"
            " the product must be the devices of one engine",
            fix=either(fix, f"engines of {counted(product, 'device')}"),
            fixes=(fix,),
            tensor_parallel=model.tensor_parallel,
            pipeline_parallel=model.pipeline_parallel,
            devices_per_engine=model.devices_per_engine,
        )


def _parallel(role: RoleDemand, model: ModelDemand, of: _FactsOf) -> _Assignments:
    """Divide an engine's devices anew, keeping what can be kept."""
    devices = model.devices_per_engine
    changed = {"tensor_parallel": devices, "pipeline_parallel": 1}
    if devices % model.pipeline_parallel == 0:
        changed = {"tensor_parallel": devices // model.pipeline_parallel}
    elif devices % model.tensor_parallel == 0:
        changed = {"pipeline_parallel": devices // model.tensor_parallel}
    tensor_parallel = changed.get("tensor_parallel", model.tensor_parallel)
    engine = of.get((role.role, model.model))
    return (
        *((model_key(role.role, model.model, key), value) for key, value in changed.items()),
        *(() if engine is None else _groups(engine, tensor_parallel)),
    )


def _groups(engine: EngineFacts, tensor_parallel: int) -> _Assignments:
    """Return as many data-parallel groups as divide the devices, if the engine's own don't."""
    groups = engine.attention_groups
    if groups > 0 and tensor_parallel % groups == 0:
        return ()
    fewer = max((number for number in range(2, groups) if tensor_parallel % number == 0), default=None)
    return ((_groups_key(engine), fewer),)


def _groups_key(engine: EngineFacts) -> str:
    return f"{model_key(engine.role, engine.model, 'engine_options')}.{engine.attention_groups_key}"


@frozen(kw_only=True)
class EnginePartialNode(Refusal):
    """An engine larger than a node that does not fill whole nodes."""

    code: str = field(default="engine-partial-node", init=False)
    devices_per_engine: int
    devices_per_node: int


def refuse_partial_nodes(job: PlacementJob, facts: JobFacts) -> Iterator[EnginePartialNode]:
    """An engine larger than a node uses whole nodes."""
    of = _facts_of(facts)
    per_node = job.largest_node
    for role, model in _models(job):
        devices = model.devices_per_engine
        if _suits(job, devices):
            continue
        mended = whole_nodes(job, model)
        fix = Fix(
            (
                (model_key(role.role, model.model, "devices_per_engine"), mended.devices_per_engine),
                *_parallel(role, mended, of),
                *_budget(role, model, mended),
            )
        )
        yield EnginePartialNode(
            key=model_key(role.role, model.model, "devices_per_engine"),
            message=f"an engine of {devices} devices spans {devices / per_node:.2f} nodes of {per_node};"
            " an engine across nodes must use whole nodes",
            fix=either(fix, f"engines of {mended.devices_per_engine + per_node} devices"),
            fixes=(fix,),
            devices_per_engine=devices,
            devices_per_node=per_node,
        )


def on_whole_nodes(job: PlacementJob) -> PlacementJob:
    """Return the job with each engine that can't be placed as the refusal's fix would have it.

    A mode can be asked with that, so that one refusal hides no other.
    """
    return evolve(
        job,
        roles=tuple(
            evolve(role, models=tuple(whole_nodes(job, model) for model in role.models)) for role in job.roles
        ),
    )


def whole_nodes(job: PlacementJob, model: ModelDemand) -> ModelDemand:
    """Return the model with the largest engines, not larger than its own, that can be placed."""
    devices = model.devices_per_engine
    while not _suits(job, devices):
        devices -= 1
    return model if devices == model.devices_per_engine else evolve(model, devices_per_engine=devices)


def _suits(job: PlacementJob, devices: int) -> bool:
    """Whether an engine of that size fits a node, or would fill whole ones if there were enough."""
    per_node = job.largest_node
    if devices <= per_node or devices % per_node == 0:
        return True
    return job.per_node is None and job.nodes.first_start(0, devices) is not None


@frozen(kw_only=True)
class EngineOnSeveralNodes(Refusal):
    """An engine larger than a node whose backend has no engines across nodes."""

    code: str = field(default="engine-on-several-nodes", init=False)
    backend: str
    devices_per_engine: int
    devices_per_node: int


def refuse_several_nodes(job: PlacementJob, facts: JobFacts) -> Iterator[EngineOnSeveralNodes]:
    """A backend is only asked for engines across nodes if it has them."""
    per_node = job.largest_node
    of = _facts_of(facts)
    for role, model in _models(job):
        engine = of.get((role.role, model.model))
        if engine is None or engine.several_nodes or model.devices_per_engine <= per_node:
            continue
        smaller = evolve(model, devices_per_engine=per_node)
        key = model_key(role.role, model.model, "devices_per_engine")
        fix = Fix(((key, per_node), *_parallel(role, smaller, of), *_budget(role, model, smaller)))
        yield EngineOnSeveralNodes(
            key=key,
            message=f"an engine of {model.devices_per_engine} devices needs several nodes of {per_node}, but"
            f' engine "{engine.backend}" runs on one node only',
            fix=either(fix, "another engine"),
            fixes=(fix,),
            backend=engine.backend,
            devices_per_engine=model.devices_per_engine,
            devices_per_node=per_node,
        )


@frozen(kw_only=True)
class AttentionGroups(Refusal):
    """Data-parallel attention (or whole copies in one engine) that does not divide ``tensor_parallel``."""

    code: str = field(default="attention-groups", init=False)
    tensor_parallel: int
    groups: int


def refuse_attention_groups(job: PlacementJob, facts: JobFacts) -> Iterator[AttentionGroups]:
    """Data-parallel groups of an engine have the same number of devices each."""
    of = _facts_of(facts)
    for role, model in _models(job):
        engine = of.get((role.role, model.model))
        fix = Fix(() if engine is None else _groups(engine, model.tensor_parallel))
        if engine is None or not fix.assignments:
            continue
        groups = engine.attention_groups
        yield AttentionGroups(
            key=_groups_key(engine),
            message=f"{groups} data-parallel groups can't share tensor_parallel {model.tensor_parallel}:"
            " each needs the same number of devices, so the groups must divide it",
            fix=either(fix, f"tensor_parallel as a multiple of {groups}"),
            fixes=(fix,),
            tensor_parallel=model.tensor_parallel,
            groups=groups,
        )


# --- budgets ----------------------------------------------------------------------------


@frozen(kw_only=True)
class BudgetNotDivisible(Refusal):
    """A budget that is no multiple of the only model's ``devices_per_engine``."""

    code: str = field(default="budget-not-divisible", init=False)
    budget: int
    devices_per_engine: int


@frozen(kw_only=True)
class BudgetMismatch(Refusal):
    """A budget that differs from the sum over the role's models."""

    code: str = field(default="budget-mismatch", init=False)
    budget: int
    needed: int


def refuse_budget(job: PlacementJob) -> Iterator[BudgetNotDivisible | BudgetMismatch]:
    """A role's ``devices`` must be exactly what its models need."""
    for role in job.roles:
        budget = role.devices
        if budget is None or budget == role.needed:
            continue
        key = key_text(("roles", role.role, "devices"))
        as_needed = (Fix(((key, role.needed),)), Fix(((key, None),)))
        sole = role.models[0] if len(role.models) == 1 else None
        if sole is not None and budget % sole.devices_per_engine:
            size = sole.devices_per_engine
            below = budget // size
            whole = tuple(
                Fix(((key, count * size), (model_key(role.role, sole.model, "replicas"), count)))
                for count in (below, below + 1)
                if count not in (0, sole.replicas) and _have_room(job, role, count * size)
            )
            yield BudgetNotDivisible(
                key=key,
                message=f"{counted(budget, 'device')} can't be divided into engines of {size}",
                fix=either(*as_needed, *whole),
                fixes=(*as_needed, *whole),
                budget=budget,
                devices_per_engine=size,
            )
            continue
        fixes = as_needed
        if sole is not None and _have_room(job, role, budget):
            replicas = budget // sole.devices_per_engine
            fixes += (Fix(((model_key(role.role, sole.model, "replicas"), replicas),)),)
        yield BudgetMismatch(
            key=key,
            message=f"the budget is {counted(budget, 'device')}, but the role's models need"
            f" {role.needed} ({_sum_of(role)}); the two must be equal",
            fix=either(*fixes),
            fixes=fixes,
            budget=budget,
            needed=role.needed,
        )


def _have_room(job: PlacementJob, role: RoleDemand, devices: int) -> bool:
    """Whether there is room for the role with so many devices, even side by side with the others."""
    others = sum(other.needed for other in job.roles if other.role != role.role)
    return devices <= role.needed or job.devices is None or others + devices <= job.devices


def _budget(role: RoleDemand, model: ModelDemand, changed: ModelDemand) -> _Assignments:
    """Return the role's budget after one of its models was changed, if it has one."""
    if role.devices is None:
        return ()
    needed = role.needed - model.devices + changed.devices
    return ((key_text(("roles", role.role, "devices")), needed),)


# --- what backends run on ---------------------------------------------------------------


@frozen(kw_only=True)
class ResourceMismatch(Refusal):
    """An engine backend that runs on another resource."""

    code: str = field(default="resource-mismatch", init=False)
    backend: str
    resource: str


def refuse_resource(job: PlacementJob, facts: JobFacts) -> Iterator[ResourceMismatch]:
    """Every engine backend runs on the job's devices."""
    strangers: dict[tuple[str, str], list[EngineFacts]] = {}
    for engine in facts.engines:
        if engine.resource is not None and engine.resource != job.resource:
            strangers.setdefault((engine.backend, engine.resource), []).append(engine)
    wanted = {engine.resource for engine in facts.engines} - {None}
    for (backend, resource), engines in strangers.items():
        models = ", ".join(model_key(engine.role, engine.model) for engine in engines)
        fix = Fix((("placement.resource", resource),))
        other = f"another engine for {models}"
        yield ResourceMismatch(
            key="placement.resource",
            message=f'the job\'s devices are "{job.resource}", but engine "{backend}" (of {models})'
            f' runs on "{resource}"',
            # Where backends want different resources, no resource is right for all.
            fix=either(fix, other) if len(wanted) == 1 else other,
            fixes=(fix,) if len(wanted) == 1 else (),
            backend=backend,
            resource=resource,
        )


# --- the job's own batches --------------------------------------------------------------


@frozen(kw_only=True)
class StagesUnfit(Refusal):
    """Batches whose stages can't be put together: with a reward that no stage computes, a field that nobody
    writes or two do, stages that wait for each other."""

    code: str = field(default="stages-unfit", init=False)
    problem: str


def refuse_unfit_stages(facts: JobFacts) -> Iterator[StagesUnfit]:
    """The stages that roles and rewards bring make a batch."""
    for problem in facts.stage_problems:
        yield StagesUnfit(
            key="batch",
            message=problem,
            fix=either(
                "a role that brings what is missing",
                "another adapter for the reward",
                "a job without [batch], whose loop runs its own stages",
            ),
            problem=problem,
        )


def _models(job: PlacementJob) -> Iterator[tuple[RoleDemand, ModelDemand]]:
    for role in job.roles:
        for model in role.models:
            yield role, model


def _facts_of(facts: JobFacts) -> _FactsOf:
    return {(engine.role, engine.model): engine for engine in facts.engines}


def _sum_of(role: RoleDemand) -> str:
    return " + ".join(
        f"{model.model}: {model.replicas} × {model.devices_per_engine}" for model in role.models
    )
