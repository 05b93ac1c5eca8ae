"""How ``rolecall plan`` shows why a job has no plan: as text on standard error, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rolecall.cli.plugin_traceback import plugin_traceback
from rolecall.cli.suggestions import show_suggestions, suggestions_to_json
from rolecall.config.overrides import Override
from rolecall.errors import ConfigError, PlacementRefused, Refusal
from rolecall.job.suggestions import ModeSuggestions, suggest_changes
from rolecall.placement.pictures.plan_json import PLAN_SCHEMA_VERSION
from rolecall.placement.wording import counted


def show_problem(
    file: Path, error: ConfigError | PlacementRefused, overrides: Sequence[Override] | None, *, as_json: bool
) -> None:
    """Show all that is wrong with a file and, unless ``overrides`` is None, what would make it right.

    ``overrides`` are the values that the refused plan had in place of the file's.
    """
    suggestions: tuple[ModeSuggestions, ...] = ()
    if overrides is not None and isinstance(error, PlacementRefused):
        suggestions = suggest_changes(file, overrides)
    if as_json:
        problem = _problem_to_json(file, error)
        if suggestions:
            problem["suggestions"] = suggestions_to_json(suggestions)
        click.echo(json.dumps(problem, indent=2))
        return
    click.echo(plugin_traceback(error), err=True, nl=False)
    _print_problem(Console(stderr=True, highlight=False), file, error)
    if suggestions:
        show_suggestions(suggestions)


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


def _print_problem(console: Console, file: Path, error: ConfigError | PlacementRefused) -> None:
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
