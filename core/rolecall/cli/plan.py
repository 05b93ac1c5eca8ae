"""``rolecall plan``: check a job file on paper and show which devices each role gets.

Needs no device, no network and no Ray, and starts nothing. The plan goes to standard output;
what is wrong goes to standard error with exit code 2 (with ``--json`` it is JSON on standard
output, so that a script reads one stream either way).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rolecall.cli.plan_views import Views, view_options
from rolecall.cli.what_if import WhatIf, what_if_options
from rolecall.config.overrides import Override, toml_lines
from rolecall.config.source import key_text
from rolecall.errors import ConfigError, PlacementRefused
from rolecall.job.prepare import resolve_file
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.plan_json import plan_to_json
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.preflight import plan_job

if TYPE_CHECKING:
    from rolecall.config.resolved import ResolvedJob
    from rolecall.placement.plan_diff import PlanDiff

JOB_FILE_IS_WRONG = 2


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--diff",
    "other",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="OTHER",
    help="Show what FILE changes against the plan of OTHER: another job file, or FILE as it is.",
)
@view_options
@what_if_options
@click.pass_context
def plan(ctx: click.Context, file: Path, other: Path | None, views: Views, what_if: WhatIf) -> None:
    """Check FILE on paper and show which devices each role gets.

    Needs no device and starts nothing. Exit code 2: the file is wrong or its job can't be
    placed; everything that is wrong is listed.
    """
    checked = file
    before: PlacementPlan | None = None
    overrides: tuple[Override, ...] = ()
    try:
        overrides = what_if.overrides()
        resolved = resolve_file(file, overrides=overrides)
        what_if.check(resolved.config.placement)
        placement = plan_job(resolved)
        if other is not None:
            checked = other
            before = plan_job(resolve_file(other))
    except (ConfigError, PlacementRefused) as error:
        # Imported here: what most plans have no use for would make every plan wait.
        from rolecall.cli.plan_problems import show_problem

        asked = what_if.suggest and checked is file
        show_problem(checked, error, overrides if asked else None, as_json=views.as_json)
        ctx.exit(JOB_FILE_IS_WRONG)
    diff = None
    if before is None:
        sheet = plan_sheet(placement)
    else:
        from rolecall.placement.pictures.diff_sheet import diff_sheet
        from rolecall.placement.plan_diff import diff_plans

        diff = diff_plans(before, placement)
        old, new = _names(other or file, file)
        changed = ", ".join(dict.fromkeys(override.origin for override in overrides))
        sheet = diff_sheet(diff, before=old, after=f"{new} with {changed}" if changed else new)
    map_shown = views.show(sheet, lambda: _document(resolved, placement, diff), title=str(file))
    if map_shown and resolved.explicit:
        click.echo("\nplacement.layout stands for:\n")
        click.echo("\n".join(f"  {line}" for line in toml_lines(resolved.explicit)))


def _document(job: ResolvedJob, placement: PlacementPlan, diff: PlanDiff | None) -> dict[str, Any]:
    document = plan_to_json(placement, diff)
    if job.explicit:
        document["explicit"] = {key_text(override.path): override.value for override in job.explicit}
    return document


def _names(one: Path, other: Path) -> tuple[str, str]:
    """Return what to call two files: their names, or their paths where the names are the same."""
    if one != other and one.name == other.name:
        return str(one), str(other)
    return one.name, other.name
