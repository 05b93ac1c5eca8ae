"""docs/reference/refusals.md is what its generator makes happen; its fixes, applied, do what they say."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType, ModuleType
from typing import Any

import attrs
import pytest
from attrs import evolve

from rolecall.config.specs import JobConfig
from rolecall.config.structure import structure
from rolecall.errors import Refusal
from rolecall.placement import deferral_checks, demand_checks, sharing_checks
from rolecall.placement.shorthand import arrangements, explicit, names, notation
from rolecall_placement import room
from rolecall_placement.decoupled import Decoupled
from rolecall_placement.defer import Defer
from rolecall_placement.split import Split

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plugins(docs_script: Callable[[str], ModuleType]) -> ModuleType:
    return docs_script("refusal_plugins")


@pytest.fixture(scope="module")
def jobs(docs_script: Callable[[str], ModuleType], plugins: ModuleType) -> ModuleType:
    del plugins  # imported there
    return docs_script("refusal_examples")


@pytest.fixture(scope="module")
def generator(docs_script: Callable[[str], ModuleType], jobs: ModuleType) -> ModuleType:
    del jobs  # imported there
    return docs_script("generate_refusals_reference")


def test_the_committed_page_is_the_generated_one(generator: ModuleType) -> None:
    committed = generator.PAGE.read_text(encoding="utf-8")
    assert committed == generator.render(), "run: python docs/generate_refusals_reference.py"


def sources() -> str:
    """All code that may refuse a layout."""
    folders = ROOT / "core/rolecall", ROOT / "placement_modes"
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_every_refusal_has_a_code_of_its_own_and_is_on_the_page(generator: ModuleType) -> None:
    classes = re.findall(r"^class (\w+)\(Refusal\):", sources(), re.MULTILINE)
    assert sorted(refusal.__name__ for refusal in generator.codes().values()) == sorted(classes)
    assert len(generator.codes()) == len(classes) > 25


def test_nothing_refuses_without_a_class_of_its_own() -> None:
    assert not re.findall(r"\bRefusal\(", sources())


def test_each_refusal_has_numbers_or_names_beside_its_words(generator: ModuleType) -> None:
    words = {part.name for part in attrs.fields(Refusal)}
    silent = {room.PoolMissing}  # that a size is missing is all there is
    for refusal in {*generator.codes().values()} - silent:
        assert {part.name for part in attrs.fields(refusal)} - words, refusal


def test_every_fault_of_a_layout_in_one_line_is_on_the_page(jobs: ModuleType, plugins: ModuleType) -> None:
    """Each place that finds one is reached by an example."""
    modes = {mode.name: mode.arrangement for mode in (Decoupled, Split, Defer, plugins.Twin)}
    watched = {module.__file__: _faults(module) for module in (notation, names, arrangements, explicit)}
    reached: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in watched:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    for line in (line for lines in jobs.LINES.values() for line in lines):
        config = structure(JobConfig, jobs.job_table(line.changes))
        named = None if line.layout else config.placement.mode
        config = evolve(config, placement=evolve(config.placement, mode=named))
        blocked = {entry.rpartition("/")[2] for entry in config.plugins.block}
        installed = {name: declared for name, declared in modes.items() if name not in blocked}
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with pytest.raises(notation.LayoutError):
                explicit.explicit_form(line.layout or config.placement.layout, config, installed)
        finally:
            sys.settrace(before)
    missed = [
        ast.unparse(node)
        for file, nodes in watched.items()
        for node in nodes
        if not any((file, line) in reached for line in range(node.lineno, (node.end_lineno or 0) + 1))
    ]
    assert missed == []


def _faults(module: ModuleType) -> list[ast.stmt]:
    """Statements that say that something is wrong."""
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    found: list[ast.stmt] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Raise):
                found.append(node)
            elif isinstance(node, ast.Expr):
                calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
                ends = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
                found += [node] if ends & {"fault", "_fail"} else []
            elif isinstance(node, ast.Return) and function.name.endswith("_fault"):
                found += [node] if any(isinstance(part, ast.JoinedStr) for part in ast.walk(node)) else []
    return found


@pytest.fixture(scope="module")
def examples(jobs: ModuleType) -> list[tuple[Any, dict[str, Any], tuple[Refusal, ...]]]:
    """Each example on paper, its job's table, and what is refused of it."""
    made = [example for _, group in jobs.PAPER.values() for example in group]
    tables = [jobs.job_table(example.changes) for example in made]
    return [(example, table, jobs.refusals_of(table)) for example, table in zip(made, tables, strict=True)]


def test_the_job_that_is_changed_can_be_placed(jobs: ModuleType) -> None:
    assert jobs.refusals_of(jobs.job_table({})) == ()


def test_each_example_is_refused_by_its_rule(
    generator: ModuleType, jobs: ModuleType, examples: list[Any]
) -> None:
    for example, _, found in examples:
        assert example.refusal in {type(refusal) for refusal in found}
        assert all(refusal.key and refusal.message and refusal.fix for refusal in found)
    for reports in jobs.BINDING:
        assert f"[{generator.code_of(reports.refusal)}]" in jobs.bound(reports)


def test_each_fix_that_is_a_value_does_what_it_says(jobs: ModuleType, examples: list[Any]) -> None:
    """Written at its key, it lifts the refusal; if there was no other, the job can be placed."""
    tried: set[type[Refusal]] = set()
    for _, table, found in examples:
        for refusal in found:
            for fix in refusal.fixes:
                left = jobs.refusals_of(jobs.changed(table, fix.assignments))
                assert refusal not in left, f"{fix} leaves it: {refusal}"
                assert left == () or len(found) > 1, f"{fix} of {refusal} brings others: {left}"
                assert str(fix) in refusal.fix, "people are told another one"
                tried.add(type(refusal))
    assert tried >= {
        demand_checks.ParallelProduct,
        demand_checks.EnginePartialNode,
        demand_checks.EngineOnSeveralNodes,
        demand_checks.AttentionGroups,
        demand_checks.BudgetMismatch,
        demand_checks.BudgetNotDivisible,
        demand_checks.ResourceMismatch,
        room.PoolMissing,
        room.PoolTooSmall,
        sharing_checks.TrainingNotOffloaded,
        sharing_checks.EngineCannotSleep,
        deferral_checks.LoopNotDeferred,
        deferral_checks.TrainingNotOverlapped,
    }


CHANGES: dict[str, list[Any]] = {
    "placement.mode": ["split", "decoupled"],
    "placement.devices": [1, 8, 12, 24, 48, None],
    "placement.devices_per_node": [2, 4, 6],
    "training": [None],
    "training.actor.devices": [3, 20],
    "training.actor.offload": [False],
    "loop.uses": [["dynamic_batch"], ["async_training", "partial_rollout"]],
} | {
    f"{key}.{role}.{end}": values
    for role, model in (("rollout", "policy"), ("genrm", "judge"), ("teacher", "teacher"))
    for key, end, values in [
        ("roles", "devices", [1, 3, 6, 8, 12]),
        ("roles", f"models.{model}.devices_per_engine", [1, 2, 3, 4, 8, 12, 16]),
        ("roles", f"models.{model}.replicas", [1, 2, 3, 5]),
        ("roles", f"models.{model}.tensor_parallel", [1, 2, 3, 4, 8]),
        ("roles", f"models.{model}.pipeline_parallel", [2, 3]),
        ("roles", f"models.{model}.engine_options.server_args.dp_size", [2, 3, 4]),
        ("roles", f"models.{model}.engine_options.memory_saver", [False]),
    ]
}


def test_fixes_work_for_jobs_by_chance(jobs: ModuleType) -> None:
    """Jobs with a few changes each; the same every time."""
    chance = Random(5)
    alone: Counter[str] = Counter()
    for _ in range(250):
        keys = chance.sample(sorted(CHANGES), chance.randint(1, 4))
        changes = {key: chance.choice(CHANGES[key]) for key in keys}
        if "training" in changes:
            changes = {key: value for key, value in changes.items() if not key.startswith("training.")}
        table = jobs.job_table(changes)
        found = jobs.refusals_of(table)
        for refusal in found:
            for fix in refusal.fixes:
                left = jobs.refusals_of(jobs.changed(table, fix.assignments))
                assert refusal not in left, f"{fix} leaves it: {refusal}, for {changes}"
                if len(found) == 1:
                    assert left == (), f"{fix} of {refusal} brings others, for {changes}: {left}"
                    alone[refusal.code] += 1
    assert len(alone) > 8
    assert alone.total() > 60


def test_all_fixes_together_lift_all_that_have_one(jobs: ModuleType) -> None:
    """A job with something wrong of each kind: told at once, mended at once."""
    table = jobs.job_table(
        {
            "roles.rollout.models.policy.tensor_parallel": 3,
            "roles.genrm.models.judge.devices_per_engine": 12,
            "roles.genrm.devices": 12,
            "roles.teacher.devices": 6,
            "roles.teacher.models.teacher.engine_options.memory_saver": False,
            "training.actor.offload": False,
            "placement.devices": 12,
            "loop.uses": ["dynamic_batch"],
        }
    )
    found = jobs.refusals_of(table)
    assert sorted(refusal.code for refusal in found) == [
        "budget-mismatch",
        "engine-cannot-sleep",
        "engine-partial-node",
        "loop-not-deferred",
        "parallel-product",
        "pool-too-small",
        "training-not-offloaded",
    ]
    for refusal in found:
        table = jobs.changed(table, refusal.fixes[0].assignments)
    assert jobs.refusals_of(table) == ()
