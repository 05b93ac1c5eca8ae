"""How ``rolecall plan --suggest`` shows what would make a job feasible."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from rolecall.job.suggestions import Change, ModeSuggestions


def suggestions_to_json(suggestions: Sequence[ModeSuggestions]) -> list[dict[str, Any]]:
    """Return what would do in each mode; ``value`` null takes the key out, ``now`` null: it isn't there."""
    return [
        {
            "mode": answer.mode,
            "ways": [
                [{"key": change.key, "value": change.value, "now": change.now} for change in way]
                for way in answer.ways
            ],
            "refused": sorted({refusal.code for refusal in answer.refusals}),
            "complete": answer.complete,
        }
        for answer in suggestions
    ]


def show_suggestions(suggestions: Sequence[ModeSuggestions]) -> None:
    """Print what would do in each mode, as lines that ``--set`` takes."""
    console = Console(highlight=False)
    console.print("\nThe smallest changes with which it can, in each mode:")
    for answer in suggestions:
        console.print()
        for line in _mode(answer):
            console.print(line, soft_wrap=True)


def _mode(answer: ModeSuggestions) -> Iterator[Text]:
    if not answer.ways:
        codes = ", ".join(sorted({refusal.code for refusal in answer.refusals}))
        why = "no change of values lifts" if answer.complete else "none found in time, refused are"
        yield Text.assemble((f"mode {answer.mode}", "bold"), f": {why} {codes}")
        return
    short = "" if answer.complete else ", as far as there was time"
    yield Text.assemble((f"mode {answer.mode}", "bold"), short)
    for number, way in enumerate(answer.ways):
        if number:
            yield Text("  or", style="dim")
        width = max(len(_assignment(change)) for change in way)
        for change in way:
            now = "not set" if change.now is None else json.dumps(change.now, ensure_ascii=False)
            yield Text.assemble(f"  {_assignment(change):<{width}}", (f"  now {now}", "dim"))


def _assignment(change: Change) -> str:
    if change.value is None:
        return f"leave out {change.key}"
    return f"{change.key} = {json.dumps(change.value, ensure_ascii=False)}"
