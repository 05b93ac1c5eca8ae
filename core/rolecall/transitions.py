"""Transition tables as data: asking them and drawing them.

A table maps each state to the states it may go to, each with the words for *when* it does. The
replica, lease, batch and operation machines are such tables; ``docs/explanation/leases.md`` and
``engine-lifecycle.md`` are drawn from them, so the pages can't say something else than the code.
Pure; holds no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from rolecall.errors import TransitionError

State = TypeVar("State", bound=StrEnum)


def require_transition(
    what: str, table: Mapping[State, Mapping[State, str]], current: State, wanted: State
) -> None:
    """Return if the table allows the change; ``what`` names the thing that would change.

    Raises:
        TransitionError: it does not; the message names what is allowed.
    """
    if wanted not in table[current]:
        allowed = ", ".join(sorted(table[current])) or "nothing, it is final"
        raise TransitionError(f"{what}: {current} → {wanted} is not allowed; from {current}: {allowed}")


def markdown_table(table: Mapping[State, Mapping[State, str]]) -> str:
    """Return the table as Markdown, a row a transition."""
    rows = ["| from | to | when |", "|---|---|---|"]
    for current, targets in table.items():
        rows += [f"| {current} | {wanted} | {when} |" for wanted, when in targets.items()]
        if not targets:
            rows.append(f"| {current} | – | final |")
    return "\n".join(rows)


def mermaid_diagram(table: Mapping[State, Mapping[State, str]], starts: Mapping[State, str]) -> str:
    """Return the table as a Mermaid state diagram; ``starts`` are the first states, labelled."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}: {label}" for state, label in starts.items()]
    lines += [f"    {current} --> {wanted}" for current, targets in table.items() for wanted in targets]
    return "\n".join([*lines, "```"])
