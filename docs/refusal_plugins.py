"""Plugins of the examples in ``docs/reference/refusals.md``: with a defect, or that can less than others.

``refusal_examples`` plans its jobs with these and rolecall's own installed, whatever else there is.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

from attrs import evolve

from rolecall.api import (
    ROLECALL_API,
    Arrangement,
    Nodes,
    Phase,
    PlacementJob,
    PlacementPlan,
    Pool,
    Refusal,
    ReplicaPlacement,
    WeightSource,
    engine_id,
    hookimpl,
    place_training,
)
from rolecall.plugins.installed import PluginInfo, installed_plugins
from rolecall.plugins.kinds import PluginKind
from rolecall_plugins.engines.embedded import EmbeddedBackend
from rolecall_plugins.rewards.exact_match import ExactMatch
from rolecall_roles.teacher.role import TeacherRole


class _Mode:
    """Lays one engine after the other into a shared pool, everybody awake; subclasses get it wrong."""

    api_version: ClassVar[int] = ROLECALL_API
    arrangement: ClassVar[Arrangement] = Arrangement.OTHER
    name: ClassVar[str]

    def start(self, free_from: int, devices: int, nodes: Nodes) -> int:
        """Return the first bundle of the next engine."""
        del devices, nodes
        return free_from

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        replicas: list[ReplicaPlacement] = []
        free_from = 0
        for role in job.roles:
            for model in role.models:
                for index in range(model.replicas):
                    first = self.start(free_from, model.devices_per_engine, job.nodes)
                    free_from = first + model.devices_per_engine
                    bundles = tuple(range(first, free_from))
                    engine = engine_id(model.model, index)
                    replicas.append(
                        ReplicaPlacement(
                            engine=engine, role=role.role, model=model.model, pool_id="all", bundles=bundles
                        )
                    )
        return PlacementPlan(
            mode=self.name,
            pools=(Pool(pool_id="all", resource=job.resource, nodes=job.nodes),),
            replicas=tuple(replicas),
            phases=(Phase(name="all", roles=tuple(role.role for role in (*job.roles, *job.training))),),
            training=place_training(job.training, pool_id="all", start=0).placements,
        )


class Pile(_Mode):
    name: ClassVar[str] = "pile"

    def start(self, free_from: int, devices: int, nodes: Nodes) -> int:
        del free_from, devices, nodes
        return 0


class Packed(_Mode):
    name: ClassVar[str] = "packed"


class Forgetful(_Mode):
    name: ClassVar[str] = "forgetful"

    def plan(self, job: PlacementJob) -> PlacementPlan | tuple[Refusal, ...]:
        answer = super().plan(job)
        return evolve(answer, replicas=answer.replicas[:-1]) if isinstance(answer, PlacementPlan) else answer


class Twin(_Mode):
    name: ClassVar[str] = "twin"
    arrangement: ClassVar[Arrangement] = Arrangement.APART


class Streamed(ExactMatch):
    name: ClassVar[str] = "streamed"
    supports_deferred: ClassVar[bool] = False


class SecondOpinion(ExactMatch):
    name: ClassVar[str] = "second_opinion"
    role: ClassVar[str | None] = "teacher"


class Guard(TeacherRole):
    name: ClassVar[str] = "guard"
    deferrable: ClassVar[bool] = False


class Rules(TeacherRole):
    name: ClassVar[str] = "rules"
    weight_sources: ClassVar[tuple[WeightSource, ...]] = ()


class Tpu(EmbeddedBackend):
    name: ClassVar[str] = "tpu"
    resource: ClassVar[str | None] = "TPU"


PLUGINS: Sequence[tuple[PluginKind, type[Any]]] = (
    *((PluginKind.PLACEMENT_MODE, mode) for mode in (Pile, Packed, Forgetful, Twin)),
    *((PluginKind.REWARD_ADAPTER, adapter) for adapter in (Streamed, SecondOpinion)),
    *((PluginKind.ROLE, role) for role in (Guard, Rules)),
    (PluginKind.ENGINE_BACKEND, Tpu),
)


@cache
def offered_plugins() -> tuple[Mapping[str, ModuleType], tuple[PluginInfo, ...]]:
    """Return rolecall's plugins and, of a distribution ``acme-plugins``, those above with their modules."""
    modules: dict[str, ModuleType] = {}
    offered = [info for info in installed_plugins() if info.distribution == "rolecall"]
    for kind, plugin in PLUGINS:
        module = ModuleType(f"acme_{plugin.name}")
        setattr(module, kind.hook, hookimpl(_hook(kind.hook, plugin)))
        modules[module.__name__] = module
        offered.append(
            PluginInfo(
                kind=kind,
                name=plugin.name,
                distribution="acme-plugins",
                version="1.2",
                target=module.__name__,
            )
        )
    return modules, tuple(offered)


@contextmanager
def plugins() -> Generator[None]:
    """Have no other plugins installed than these."""
    modules, offered = offered_plugins()
    sys.modules.update(modules)
    try:
        with mock.patch("rolecall.job.prepare.installed_plugins", return_value=offered):
            yield
    finally:
        for module in modules:
            del sys.modules[module]


def _hook(name: str, plugin: type[Any]) -> Any:
    def hook() -> type[Any]:
        return plugin

    hook.__name__ = name
    return hook
