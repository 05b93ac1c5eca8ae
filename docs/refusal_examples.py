"""Examples for ``docs/reference/refusals.md``: jobs that can't be placed, bundles that are not as planned,
layouts in one line that are none. What is refused of each is asked of rolecall itself.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

from attrs import field, frozen
from click.testing import CliRunner
from refusal_plugins import PLUGINS, offered_plugins, plugins

from rolecall.api import Nodes, PlacementPlan, Pool, Refusal
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
from rolecall_placement import room

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


# --- layouts in one line --------------------------------------------------------------------


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
