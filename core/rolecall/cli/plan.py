"""``rolecall plan``: check a job file on paper and show which devices each role gets.

Needs no device, no network and no Ray, and starts nothing. The plan goes to standard output;
what is wrong goes to standard error with exit code 2 (with ``--json`` it is JSON on standard
output, so that a script reads one stream either way).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rolecall.cli.plan_views import Views, view_options
from rolecall.cli.plugin_traceback import plugin_traceback
from rolecall.cli.suggestions import show_suggestions, suggestions_to_json
from rolecall.cli.what_if import WhatIf, what_if_options
from rolecall.config.overrides import toml_lines
from rolecall.errors import ConfigError, PlacementRefused, Refusal
from rolecall.job.prepare import resolve_file
from rolecall.job.suggestions import ModeSuggestions, suggest_changes
from rolecall.placement.pictures.diff_sheet import diff_sheet
from rolecall.placement.pictures.legend import plan_sheet
from rolecall.placement.pictures.plan_json import PLAN_SCHEMA_VERSION, diff_to_json, plan_to_json
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.plan_diff import diff_plans
from rolecall.placement.preflight import plan_job
from rolecall.placement.wording import counted

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
    try:
        resolved = resolve_file(file, overrides=what_if.overrides())
        what_if.check(resolved.config.placement)
        placement = plan_job(resolved)
        if other is not None:
            checked = other
            before = plan_job(resolve_file(other))
    except (ConfigError, PlacementRefused) as error:
        suggestions: tuple[ModeSuggestions, ...] = ()
        if what_if.suggest and checked is file and isinstance(error, PlacementRefused):
            suggestions = suggest_changes(file, what_if.overrides())
        if views.as_json:
            problem = _problem_to_json(checked, error)
            if suggestions:
                problem["suggestions"] = suggestions_to_json(suggestions)
            click.echo(json.dumps(problem, indent=2))
        else:
            click.echo(plugin_traceback(error), err=True, nl=False)
            _show_problem(Console(stderr=True, highlight=False), checked, error)
            if suggestions:
                show_suggestions(suggestions)
        ctx.exit(JOB_FILE_IS_WRONG)
    document = plan_to_json(placement)
    if before is None:
        sheet = plan_sheet(placement)
    else:
        diff = diff_plans(before, placement)
        old, new = _names(other or file, file)
        changed = ", ".join(dict.fromkeys(override.origin for override in what_if.overrides()))
        sheet = diff_sheet(diff, before=old, after=f"{new} with {changed}" if changed else new)
        document["diff"] = diff_to_json(diff)
    map_shown = views.show(sheet, document, title=str(file))
    if map_shown and resolved.explicit:
        console = Console(highlight=False)
        console.print("\nplacement.layout stands for:\n")
        console.print(Text("\n".join(f"  {line}" for line in toml_lines(resolved.explicit))), soft_wrap=True)


def _names(one: Path, other: Path) -> tuple[str, str]:
    """Return what to call two files: their names, or their paths where the names are the same."""
    if one != other and one.name == other.name:
        return str(one), str(other)
    return one.name, other.name


def _problem_to_json(file: Path, error: ConfigError | PlacementRefused) -> dict[str, Any]:
    if isinstance(error, PlacementRefused):
        return {
            "schema_version": PLAN_SCHEMA_VERSION,
            "file": str(file),
            "refusals": [
                {
                    "code": refusal.code,
                    "key": refusal.key,
                    "message": refusal.message,
                    "fix": refusal.fix,
                    "fixes": [dict(fix.assignments) for fix in refusal.fixes],
                }
                for refusal in error.refusals
            ],
        }
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "problems": [
            {
                "file": problem.file,
                "line": problem.line,
                "key": problem.key,
                "message": problem.message,
            }
            for problem in error.problems
        ],
    }


def _show_problem(console: Console, file: Path, error: ConfigError | PlacementRefused) -> None:
    if isinstance(error, PlacementRefused):
        title = f"this job can't be placed, for {counted(len(error.refusals), 'reason')}:"
        entries = [_refusal(refusal) for refusal in error.refusals]
    else:
        title = f"{counted(len(error.problems), 'problem')}:"
        entries = [Text(str(problem)) for problem in error.problems]
    console.print(Text(f"{file}: {title}", style="bold red"), soft_wrap=True)
    for entry in entries:
        console.print()
        if console.is_terminal:
            console.print(Padding(entry, (0, 0, 0, 2), expand=False))
        else:
            # Lines as they are: whoever reads a pipe or a log searches in them.
            console.print(Text.assemble("  ", entry.plain.replace("\n", "\n  ")), soft_wrap=True)


def _refusal(refusal: Refusal) -> Text:
    return Text.assemble(
        (refusal.key, "bold"),
        (f"  [{refusal.code}]\n", "dim"),
        f"{refusal.message}\n",
        ("fix: ", "green"),
        refusal.fix,
    )
