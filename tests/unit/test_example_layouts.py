"""Layouts that other projects publish, as job files: each plans as its comment says, or is refused so.

The comment was written from what the authors say, not from a plan: where their roles lie, engine by
engine, and who is awake together. It is compared as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolecall.cli.plan import plan
from rolecall.config.overrides import parse_override
from rolecall.errors import PlacementRefused
from rolecall.job.prepare import prepare_job
from rolecall.placement.nodes import Nodes
from rolecall.placement.plan import PlacementPlan, ReplicaPlacement

FOLDER = Path(__file__).parents[2] / "examples" / "layouts"
FILES = {file.stem: file for file in sorted(FOLDER.glob("*.toml"))}

SOURCE = re.compile(
    r"# Source: https://github\.com/(THUDM/slime|volcengine/verl|NVIDIA-NeMo/RL|alibaba/ROLL)"
    r"/blob/[0-9a-f]{40}/\S+"
)


def layout(planned: PlacementPlan) -> list[str]:
    """Return the plan in the words of the files' comments."""
    models: dict[str, list[ReplicaPlacement]] = {}
    for replica in planned.replicas:
        models.setdefault(f"{replica.role}.{replica.model}", []).append(replica)
    return [
        *(f"pool {pool.pool_id} {_nodes(pool.nodes)}" for pool in planned.pools),
        *(f"{name} {_engines(replicas)}" for name, replicas in models.items()),
        *(f"{tenant.role} {tenant.pool_id} {_run(tenant.bundles)}" for tenant in planned.training),
        f"turns {' → '.join(', '.join(phase.roles) for phase in planned.phases)}",
    ]


def _nodes(nodes: Nodes) -> str:
    return " + ".join(f"{run.count} × {run.devices}" for run in nodes.runs)


def _engines(replicas: Sequence[ReplicaPlacement]) -> str:
    """Engines of one size, one right after the other."""
    bundles = [bundle for replica in replicas for bundle in replica.bundles]
    (pool,) = {replica.pool_id for replica in replicas}
    (size,) = {len(replica.bundles) for replica in replicas}
    return f"{pool} {_run(bundles)} by {size}"


def _run(bundles: Sequence[int]) -> str:
    assert list(bundles) == list(range(bundles[0], bundles[-1] + 1))
    return str(bundles[0]) if len(bundles) == 1 else f"{bundles[0]}-{bundles[-1]}"


def noted(file: Path, word: str) -> str | None:
    """Return what stands after ``# Word:`` in a file's comment."""
    found = re.search(rf"^# {word}: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return found and found[1]


def expected(file: Path) -> list[str]:
    lines = file.read_text(encoding="utf-8").partition("# Layout:\n")[2].splitlines()
    return [" ".join(line[1:].split()) for line in _while_comment(lines)]


def _while_comment(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if not line.startswith("#   "):
            return
        yield line


@pytest.mark.parametrize("name", FILES)
def test_layout_is_as_the_authors_say(name: str) -> None:
    file = FILES[name]
    refused, remedy = noted(file, "Refused"), noted(file, "Planned with")
    assert (refused is None) == (remedy is None)
    if refused is not None:
        with pytest.raises(PlacementRefused) as caught:
            prepare_job(file)
        assert [refusal.code for refusal in caught.value.refusals] == refused.split(", ")
    overrides = [] if remedy is None else [parse_override(remedy)]
    _, planned = prepare_job(file, overrides)
    assert layout(planned) == expected(file)


@pytest.mark.parametrize("name", FILES)
def test_source_is_told_and_job_has_the_name_of_its_file(name: str) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    assert SOURCE.search(text)
    assert f'[job]\nname = "{name}"\n' in text
    assert f"({name}.toml)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_readme_shows_what_the_command_prints() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    file, _, picture = readme.partition("$ rolecall plan ")[2].partition("\n")
    shown = CliRunner().invoke(plan, [str(FOLDER.parents[1] / file)]).output
    assert shown.startswith(picture.partition("\n```")[0] + "\n")


def test_there_are_layouts_of_four_projects_and_four_sizes() -> None:
    sizes = {int(name.rsplit("-", 1)[1]) for name in FILES}
    projects = {source[1] for file in FILES.values() for source in SOURCE.finditer(file.read_text("utf-8"))}
    assert sizes == {8, 16, 32, 64}
    assert len(projects) == 4
    assert len(FILES) >= 12
