"""Write ``docs/reference/refusals.md``: every refusal of a layout, with a job that triggers it.

    python docs/generate_refusals_reference.py

Every text is what rolecall really says: each example's job is written to a file and planned, each example of
binding is bound. Tests hold the committed page equal to what this writes, ask that no refusal's class is left
out, and apply every fix that is a value.
"""

from __future__ import annotations

import inspect
import json
import shlex
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import attrs
from attrs import evolve, field, frozen
from click.testing import CliRunner

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
from rolecall.cli.plan import plan as plan_command
from rolecall.config.overrides import Override, key_path, override
from rolecall.config.resolve import resolve_job
from rolecall.config.source import key_text
from rolecall.config.specs import JobConfig
from rolecall.config.structure import structure
from rolecall.errors import PlacementRefused
from rolecall.placement import binding_checks, contract_checks, deferral_checks, demand_checks, sharing_checks
from rolecall.placement.binding import bind
from rolecall.placement.bound import BundleProbe
from rolecall.placement.preflight import plan_job
from rolecall.plugins.host import PluginHost
from rolecall.plugins.installed import PluginInfo, installed_plugins
from rolecall.plugins.kinds import PluginKind
from rolecall_placement import room
from rolecall_plugins.engines.embedded import EmbeddedBackend
from rolecall_plugins.rewards.exact_match import ExactMatch
from rolecall_roles.teacher.role import TeacherRole

PAGE = Path(__file__).parent / "reference" / "refusals.md"
EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPTS = "prompts/arithmetic.jsonl"

BASE = """\
[job]
name = "job"

[placement]
mode = "defer"
devices = 16

[training.actor]
devices = 16
offload = true

[roles.rollout.models.policy]
source = "hf:acme/policy"
engine = "sglang"
replicas = 8
devices_per_engine = 2

[roles.genrm.models.judge]
source = "hf:acme/judge"
engine = "sglang"
devices_per_engine = 8

[roles.teacher.models.teacher]
source = "hf:acme/teacher"
engine = "sglang"
replicas = 4
devices_per_engine = 2

[rewards.verdict]
adapter = "genrm_judge"

[sink]
name = "jsonl"
"""
"""The job that all examples change."""

Changes = Mapping[str, Any]
"""Dotted key → value, as if the job file said so; None takes the key out."""


# --- plugins with a defect, or that can less than others ---------------------------------


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


# --- examples on paper --------------------------------------------------------------------


@frozen(kw_only=True)
class Example:
    """A job that a refusal stops: what is changed in the base job, and what to say beside it."""

    refusal: type[Refusal]
    changes: Changes
    prose: str = ""


WITHOUT_TRAINER: Changes = {"training": None}
ALONE: Changes = {"training": None, "roles.genrm": None, "roles.rollout": None, "rewards": None}

SHAPES = (
    Example(
        refusal=demand_checks.ParallelProduct,
        changes={
            "roles.genrm.models.judge.tensor_parallel": 2,
            "roles.genrm.models.judge.pipeline_parallel": 2,
        },
    ),
    Example(
        refusal=demand_checks.EnginePartialNode, changes={"roles.genrm.models.judge.devices_per_engine": 12}
    ),
    Example(
        refusal=demand_checks.EngineOnSeveralNodes,
        changes={
            "roles.genrm.models.judge.engine": "embedded",
            "roles.genrm.models.judge.devices_per_engine": 16,
        },
    ),
    Example(
        refusal=demand_checks.AttentionGroups,
        changes={
            "roles.genrm.models.judge.engine_options.server_args.enable_dp_attention": True,
            "roles.genrm.models.judge.engine_options.server_args.dp_size": 3,
        },
    ),
    Example(refusal=demand_checks.BudgetMismatch, changes={"roles.rollout.devices": 12}),
    Example(refusal=demand_checks.BudgetNotDivisible, changes={"roles.genrm.devices": 12}),
    Example(
        refusal=demand_checks.ResourceMismatch,
        changes={**ALONE, "roles.teacher.models.teacher.engine": "tpu"},
        prose='An engine "tpu", made for another kind of device.',
    ),
    Example(
        refusal=demand_checks.StagesUnfit,
        changes={"batch.prompts": PROMPTS, "rewards.second.adapter": "second_opinion"},
        prose='An adapter "second_opinion" that asks the teacher, who scores nothing for rewards.',
    ),
)
ROOM = (
    Example(refusal=room.PoolMissing, changes={**WITHOUT_TRAINER, "placement.devices": None}),
    Example(
        refusal=room.PoolTooSmall,
        changes={"placement.mode": "split"},
        prose="The roles of the base job, not in turn but side by side.",
    ),
    Example(
        refusal=room.PoolTooSmall,
        changes={
            **WITHOUT_TRAINER,
            "placement.mode": "decoupled",
            "placement.devices": None,
            "placement.nodes": [8, 8, 6, 6],
        },
        prose="On nodes that differ, more of the largest ones are asked for.",
    ),
)
SHARING = (
    Example(
        refusal=sharing_checks.RoleNotDeferrable,
        changes={
            "roles.guard.models.guard.source": "hf:acme/guard",
            "roles.guard.models.guard.engine": "sglang",
        },
        prose='A role "guard" whose plugin is not deferrable: it has to be awake all the time.',
    ),
    Example(refusal=sharing_checks.RoleNeverAwake, changes={"rewards": None}),
    Example(
        refusal=sharing_checks.TrainingNotOffloaded,
        changes={"training.actor.offload": False},
    ),
    Example(
        refusal=sharing_checks.EngineCannotSleep,
        changes={"roles.teacher.models.teacher.engine_options.memory_saver": False},
    ),
    Example(
        refusal=sharing_checks.SharedCoResident,
        changes={
            **WITHOUT_TRAINER,
            "placement.mode": "pile",
            "roles.genrm": None,
            "rewards": None,
            "roles.rollout.models.policy.replicas": 1,
            "roles.teacher.models.teacher.replicas": 1,
        },
        prose='A mode "pile", which puts every engine on the first bundles.',
    ),
    Example(
        refusal=sharing_checks.ReservationExceeded,
        changes={**ALONE, "placement.mode": "pile", "roles.teacher.models.teacher.replicas": 10_001},
        prose="The same mode with more engines than Ray has shares.",
    ),
)
DEFERRED = (
    Example(
        refusal=deferral_checks.RewardNotDeferred,
        changes={"rewards.exact.adapter": "streamed"},
        prose='An adapter "streamed" that does not declare `supports_deferred`.',
    ),
    Example(
        refusal=deferral_checks.LoopNotDeferred,
        changes={"loop.uses": ["partial_rollout", "dynamic_batch", "streamed_scoring"]},
    ),
    Example(refusal=deferral_checks.TrainingNotOverlapped, changes={"loop.uses": ["async_training"]}),
)
MODES = (
    Example(
        refusal=contract_checks.ModeContract,
        changes={**WITHOUT_TRAINER, "placement.mode": "forgetful", "placement.devices": 32},
        prose='A mode "forgetful", which leaves the last replica out.',
    ),
    Example(
        refusal=contract_checks.BundleOutsidePool,
        changes={**ALONE, "placement.mode": "packed", "placement.devices": 7},
        prose='A mode "packed", which lays one engine after the other and looks neither for the end of the'
        " pool …",
    ),
    Example(
        refusal=contract_checks.EngineStraddlesNodes,
        changes={
            **ALONE,
            "placement.mode": "packed",
            "placement.devices_per_node": 4,
            "roles.teacher.models.teacher.devices_per_engine": 3,
        },
        prose="… nor for the borders of nodes.",
    ),
)
PAPER: Mapping[str, tuple[str, Sequence[Example]]] = {
    "Shapes, budgets, resources, stages": ("What the job file alone decides, whatever the mode.", SHAPES),
    "Room": (
        "What a mode says when it has no place for the roles. A mode of another distribution may have codes"
        " of its own.",
        ROOM,
    ),
    "Shared devices": (
        "Roles that share devices take turns: each sleeps while another is awake.",
        SHARING,
    ),
    "Deferred jobs": (
        "In a deferred job the inference roles are awake in different phases, so samples are scored after"
        " generation has ended. `loop.uses` is where the author of a training loop says what it needs.",
        DEFERRED,
    ),
    "Defective modes": (
        "A mode is a plugin, and what it returns is checked before it is used. These say that the mode is"
        " defective, not the job file.",
        MODES,
    ),
}


def job_table(changes: Changes) -> dict[str, Any]:
    """Return the base job's table with changes."""
    return changed(tomllib.loads(BASE), changes.items())


def changed(table: Mapping[str, Any], assignments: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a job file's table with keys set or, for None, taken out."""
    overrides: list[Override] = []
    for key, value in assignments:
        path = key_path(key)
        assert path is not None, f"{key} is no key"
        overrides.append(Override(path, value, "here"))
    return override(table, overrides).table


def plan_of(table: Mapping[str, Any]) -> PlacementPlan:
    """Plan a job as if its file lay among the examples.

    Raises:
        PlacementRefused: it can't be placed.
    """
    return plan_job(resolve_job(structure(JobConfig, table), EXAMPLES / "job.toml", _host()))


def refusals_of(table: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """Return why a job can't be placed; empty if it can."""
    try:
        plan_of(table)
    except PlacementRefused as refused:
        return refused.refusals
    return ()


@cache
def _host() -> PluginHost:
    host = PluginHost(offered_plugins()[1])
    with plugins():
        for kind, plugin in PLUGINS:
            host.load(kind, plugin.name)
    return host


def said_of(table: Mapping[str, Any], *options: str) -> str:
    """Return what ``rolecall plan`` says of a job."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder), plugins():
        Path("job.toml").write_text("\n".join(_toml(table)), encoding="utf-8")
        Path(PROMPTS).parent.mkdir()
        Path(PROMPTS).touch()
        result = CliRunner().invoke(plan_command, ["job.toml", *options])
    assert result.exit_code == 2, result.output
    return result.stderr.strip()


def _toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Write a table of texts, numbers, lists of them, and tables."""
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path:
        yield f"[{key_text(path)}]"
    for key, value in table.items():
        if key not in tables:
            yield f"{key_text((key,))} = {json.dumps(value)}"
    for key, value in tables.items():
        yield from _toml(value, (*path, key))


# --- examples of binding --------------------------------------------------------------------


@frozen(kw_only=True)
class Reports:
    """What probes report that a refusal stops."""

    refusal: type[Refusal]
    changes: Changes
    found: Sequence[BundleProbe]


_FOUR: Changes = {
    **ALONE,
    "placement.devices": 4,
    "roles.teacher.models.teacher.replicas": 1,
    "roles.teacher.models.teacher.devices_per_engine": 4,
}
_TWO_NODES: Changes = {**_FOUR, "placement.devices_per_node": 2}


def _report(bundle: int, node: int, device: int | None, pool: str = "shared") -> BundleProbe:
    return BundleProbe(
        pool_id=pool,
        bundle=bundle,
        node_id=f"{0xA0 + node:x}" * 4,
        node_ip=f"10.0.0.{node}",
        device_ids=() if device is None else (str(device),),
    )


def _on(node: int, *devices: int, first: int = 0) -> list[BundleProbe]:
    return [_report(first + index, node, device) for index, device in enumerate(devices)]


_WHOLE = _on(1, 0, 1, 2, 3)
BINDING = (
    Reports(
        refusal=binding_checks.UnknownPool, changes=_FOUR, found=[*_WHOLE, _report(0, 1, 4, pool="other")]
    ),
    Reports(refusal=binding_checks.UnknownBundle, changes=_FOUR, found=[*_WHOLE, _report(4, 1, 4)]),
    Reports(refusal=binding_checks.DuplicateBundle, changes=_FOUR, found=[*_WHOLE, _report(3, 1, 3)]),
    Reports(refusal=binding_checks.SliceOutsideGroup, changes=_FOUR, found=_WHOLE[:3]),
    Reports(
        refusal=binding_checks.BundleDeviceCount, changes=_FOUR, found=[*_WHOLE[:3], _report(3, 1, None)]
    ),
    Reports(
        refusal=binding_checks.DeviceTwice, changes=_TWO_NODES, found=[*_on(1, 0, 1), *_on(2, 0, 0, first=2)]
    ),
    Reports(refusal=binding_checks.WorkerSplit, changes=_FOUR, found=[*_on(1, 0, 1), *_on(2, 0, 1, first=2)]),
    Reports(refusal=binding_checks.DevicesNotConsecutive, changes=_FOUR, found=_on(1, 0, 1, 2, 4)),
    Reports(refusal=binding_checks.NodeTwice, changes=_TWO_NODES, found=_WHOLE),
)
"""``borrowed-bundle-size`` is about a placement group, not about reports; it is shown by itself."""


def bound(reports: Reports) -> str:
    """Return what binding says of the reports."""
    plan = plan_of(job_table(reports.changes))
    try:
        bind(plan, reports.found)
    except PlacementRefused as refused:
        return str(refused)
    raise AssertionError(f"{reports.refusal.__name__}: nothing was refused")


def borrowed() -> str:
    """Return what is said of a lent placement group with two devices in a bundle."""
    pool = Pool(pool_id="shared", resource="GPU", nodes=Nodes.equal(2, per_node=2))
    (refusal,) = binding_checks.refuse_borrowed_sizes(pool, [1.0, 2.0])
    return str(refusal)


# --- examples of layouts in one line --------------------------------------------------------


@frozen(kw_only=True)
class Line:
    """A layout in one line that is none, or none of the job."""

    layout: str
    changes: Changes = field(factory=dict)


_TWO_JUDGES: Changes = {
    "roles.genrm.models.small.source": "hf:acme/small",
    "roles.genrm.models.small.engine": "sglang",
}
_ALL = "rollout[8] + genrm[8] + teacher[8] -> actor[*]"
WRITTEN = (
    Line(layout="rollout[1/2] + genrm[1/4] +"),
    Line(layout="rollout[1/2] & genrm[1/4]"),
    Line(layout="rollout + genrm[1/4]"),
    Line(layout="rollout[half] + genrm[1/4]"),
    Line(layout="rollout[1/2 + genrm[1/4]"),
    Line(layout="rollout[3/2]"),
    Line(layout="rollout[0]"),
    Line(layout=r'rollout[1/2] + "gen\rm\q"[1/4]'),
)
NAMED = (
    Line(layout="rolout[1/4] + genrm[1/2] + teacher[1/4] -> actor[*]"),
    Line(layout="rollout[1/4] + genrm.large[1/2] + teacher[1/4] -> actor[*]"),
    Line(layout="rollout[1/4] + genrm[1/2] + teacher[1/4] -> actor[*]", changes=_TWO_JUDGES),
    Line(layout="rollout[1/4] + genrm[1/2] + teacher[1/4] -> actor.model[*]"),
    Line(layout=f"{_ALL} + reference[*]", changes={"training.reference.on": "actor"}),
    Line(layout=f"rules[1/4] + {_ALL}", changes={"roles.rules.options": {}}),
    Line(layout="rollout[1/4] + rollout[1/4] + genrm[1/2] + teacher[1/4] -> actor[*]"),
    Line(layout="genrm[1/2] + rollout[1/4] + teacher[1/4] -> actor[*]"),
    Line(layout="rollout[1/2] + genrm[1/2]"),
)
SIGNS = (
    Line(layout="rollout[8] + genrm[8] | teacher[8] | actor[8]"),
    Line(layout="rollout[*] -> genrm[*] -> teacher[*] + actor[*]"),
    Line(layout="rollout[*] -> genrm[*] -> actor[*] -> teacher[*]"),
    Line(
        layout="rollout[*] -> genrm[*] -> teacher[*] -> actor[1/2] -> critic[1/2]",
        changes={"training.critic.devices": 8},
    ),
    Line(layout="rollout[*] -> genrm[1/2] + teacher[1/2] -> actor[*]"),
    Line(layout="rollout[8] | genrm[8] | teacher[8] | actor[8]"),
    Line(layout=_ALL, changes={"plugins.block": ["placement_mode/split"]}),
    Line(layout="", changes={"placement.layout": _ALL}),
)
SHARES = (
    Line(layout="rollout[1/4] + genrm[1/2] + teacher[1/4] -> actor[1/3]"),
    Line(layout="rollout[4] + genrm[4] + teacher[4] -> actor[*]"),
    Line(layout=_ALL),
    Line(
        layout="rollout[1/4] + genrm[1/2] + teacher[1/4]",
        changes={**WITHOUT_TRAINER, "placement.devices": None},
    ),
)
LINES: Mapping[str, Sequence[Line]] = {
    "How a layout is written": WRITTEN,
    "Names": NAMED,
    "Signs and modes": SIGNS,
    "Shares": SHARES,
}


# --- the page -------------------------------------------------------------------------------

INTRODUCTION = f"""\
<!-- Written by docs/generate_refusals_reference.py, which makes all of these happen; edit there. -->

# Refusals

Why a job is not started, in full. Nothing is started before the whole job has been checked, on paper by
`rolecall plan` and at the start of every job, and once more on the devices that the cluster really gave
([placement](placement.md)). All refusals are told at once, each with its code, the key to change, the rule
with its numbers, and a fix. Exit code 2. In Python: `PlacementRefused.refusals`, each a `Refusal` of a class
of its own, whose `fixes` are the fixes that are values. A fix lifts its refusal; where that was the only one,
the job can be placed.

Where an engine can't lie on the job's nodes, or the roles find no room, everything else is told as if that
had been mended as the first fix says.

The examples change keys of this job, which can be placed:

```toml
{BASE}```
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, _table(), *_paper(), *_binding(), *_layouts()])


def codes() -> dict[str, type[Refusal]]:
    """Return the class of each code on the page, in the page's order."""
    examples = [example.refusal for _, examples in PAPER.values() for example in examples]
    examples += [reports.refusal for reports in BINDING]
    return {code_of(refusal): refusal for refusal in (*examples, binding_checks.BorrowedBundleSize)}


def code_of(refusal: type[Refusal]) -> str:
    """Return the code that a class of refusals has."""
    return str(attrs.fields_dict(refusal)["code"].default)


def _table() -> str:
    rows = [f"| [`{code}`](#{code}) | {_meaning(refusal)} |" for code, refusal in codes().items()]
    return "\n".join(["| code | refused is |", "|---|---|", *rows]) + "\n"


def _meaning(refusal: type[Refusal]) -> str:
    text = " ".join(inspect.cleandoc(refusal.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
    return (text[0].lower() + text[1:] if not text.startswith("`") else text).removesuffix(".")


def _paper() -> Iterator[str]:
    for heading, (prose, examples) in PAPER.items():
        yield f"## {heading}\n\n{_wrapped(prose)}\n"
        shown: set[type[Refusal]] = set()
        for example in examples:
            if example.refusal not in shown:
                yield _heading(example.refusal)
                shown.add(example.refusal)
            said = said_of(job_table(example.changes))
            if example.prose:
                yield f"{_wrapped(example.prose)}\n"
            yield _block("toml", _changed_keys(example.changes))
            yield _block("console", f"$ rolecall plan job.toml\n{said}")


def _changed_keys(changes: Changes) -> str:
    written = [f"{key} = {json.dumps(value)}" for key, value in changes.items() if value is not None]
    return "\n".join([*written, *(f"# without {key}" for key, value in changes.items() if value is None)])


def _binding() -> Iterator[str]:
    yield "## Binding\n"
    yield (
        _wrapped(
            "When the placement groups are there, a probe in every bundle reports its node and its device."
            " Here the job has one engine of four devices, planned on one node of four or on two of two."
        )
        + "\n"
    )
    for reports in BINDING:
        yield _heading(reports.refusal)
        per_node = reports.changes.get("placement.devices_per_node", 4)
        lines = [f"planned: 4 bundles, {per_node} a node"]
        lines += [
            f'pool "{probe.pool_id}", bundle {probe.bundle}: node {probe.node_ip}/{probe.node_id}, '
            + (f"device {probe.device_ids[0]}" if probe.device_ids else "no device")
            for probe in reports.found
        ]
        yield _block("text", "\n".join(lines))
        yield _block("text", bound(reports))
    yield _heading(binding_checks.BorrowedBundleSize)
    yield _block("text", 'lent: bundle 0 of {"GPU": 1}, bundle 1 of {"GPU": 2}')
    yield _block("text", borrowed())


def _layouts() -> Iterator[str]:
    yield "## Layouts in one line\n"
    yield (
        _wrapped(
            "`placement.layout` and `--layout` are read before anything is planned, so what is wrong with"
            " them is a problem of the job file: no code, but the character. In Python:"
            " `ConfigError.problems`."
        )
        + "\n"
    )
    for heading, lines in LINES.items():
        yield f"### {heading}\n"
        for line in lines:
            if line.changes:
                yield _block("toml", _changed_keys(line.changes))
            yield _block("console", told(line))


def told(line: Line) -> str:
    """Return the command with a layout, and what it says."""
    options = ("--layout", line.layout) if line.layout else ()
    command = " ".join(
        ["rolecall plan job.toml", *(["--layout", shlex.quote(line.layout)] if options else [])]
    )
    return f"$ {command}\n{said_of(job_table(line.changes), *options)}"


def _heading(refusal: type[Refusal]) -> str:
    return f"### {code_of(refusal)}\n\n{_wrapped(_meaning(refusal)[0].upper() + _meaning(refusal)[1:])}.\n"


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, width=110, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
