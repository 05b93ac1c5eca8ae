"""Live progress of a run, from its events alone.

:class:`RunProgress` is a pure model: events in, what to show out. :func:`live_view` draws it in a
terminal; :func:`plain_lines` says the same in lines for logs and pipes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from attrs import define, field
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rolecall.events.event import Event

AWAKE_STATES = frozenset({"ONLOADING", "ACTIVE", "DRAINING", "BLOCKED"})
"""Lease states in which a role has, or may have, the devices."""

ROLE_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


class StageStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CUT_SHORT = "cut short"
    """It failed, or another one did and it was ended."""


_MARKS = {
    StageStatus.RUNNING: ("▶", "bold"),
    StageStatus.DONE: ("✔", "green"),
    StageStatus.CUT_SHORT: ("✘", "red"),
}


@define
class StageProgress:
    """One stage of the present batch; several may run at once. Times are Unix seconds, tokens those made or
    scored."""

    name: str
    role: str | None
    started_s: float
    done: int = 0
    total: int = 0
    tokens: int = 0
    ended_s: float | None = None
    was_cut_short: bool = False

    @property
    def status(self) -> StageStatus:
        if self.was_cut_short:
            return StageStatus.CUT_SHORT
        return StageStatus.RUNNING if self.ended_s is None else StageStatus.DONE

    def elapsed_s(self, now_s: float) -> float:
        return max((self.ended_s or now_s) - self.started_s, 1e-3)

    def tokens_per_s(self, now_s: float) -> float:
        return self.tokens / self.elapsed_s(now_s)

    def eta_s(self, now_s: float) -> float | None:
        """Seconds left at the present pace; None before the first sample is done."""
        if self.ended_s is not None or self.done == 0:
            return None
        return self.elapsed_s(now_s) / self.done * (self.total - self.done)


@define
class RunProgress:
    """What is known of a run: its batch, its stages, who holds the shared devices."""

    batches: int
    batch: int | None = None
    stages: dict[str, StageProgress] = field(factory=dict)
    leases: dict[str, str] = field(factory=dict)
    committed: int = 0
    failure: str | None = None

    def apply(self, event: Event) -> None:
        """Take one event; kinds that say nothing about progress are passed over."""
        fields = event.fields
        if event.kind == "lease.state":
            self.leases[fields["role"]] = fields["to"]
        elif event.kind == "batch.state":
            self._batch_changed(fields["batch"], fields["to"], fields["reason"], event.time_s)
        elif event.kind == "stage.state" and fields["state"] == "started":
            self._enter(fields["batch"])
            self.stages[fields["stage"]] = StageProgress(
                name=fields["stage"], role=fields["role"], started_s=event.time_s
            )
        elif event.kind == "stage.state":
            self.stages[fields["stage"]].ended_s = event.time_s
        elif event.kind == "stage.progress":
            stage = self.stages[fields["stage"]]
            stage.done, stage.total, stage.tokens = fields["done"], fields["total"], fields["tokens"]

    @property
    def holders(self) -> list[str]:
        """Roles that have, or may have, the shared devices now."""
        return [role for role, state in self.leases.items() if state in AWAKE_STATES]

    def _batch_changed(self, batch: int, state: str, reason: str, time_s: float) -> None:
        if state == "COMMITTED":
            self.committed += 1
        elif state == "FAILED":
            self.failure = reason
            for stage in self.stages.values():
                if stage.status is StageStatus.RUNNING:
                    stage.ended_s, stage.was_cut_short = time_s, True
        else:
            self._enter(batch)

    def _enter(self, batch: int) -> None:
        if batch != self.batch:
            self.batch = batch
            self.stages = {}


def live_view(progress: RunProgress, now_s: float) -> RenderableType:
    """Draw the present state: a line of who holds the devices, a line a stage."""
    number = 0 if progress.batch is None else progress.batch + 1
    head = Text.assemble(("batch ", "bold"), (f"{number}/{progress.batches}", "bold"), "   devices: ")
    for role, state in progress.leases.items():
        held = state in AWAKE_STATES
        head.append(f"{role} {state.lower()}", style=f"bold {_colour(progress, role)}" if held else "dim")
        head.append("  ")
    table = Table.grid(padding=(0, 2))
    for stage in progress.stages.values():
        eta = stage.eta_s(now_s)
        table.add_row(
            Text(*_MARKS[stage.status]),
            Text(stage.name, style=_colour(progress, stage.role) if stage.role else ""),
            Bar(max(stage.total, 1), 0, stage.done, width=24, color=_colour(progress, stage.role)),
            f"{stage.done}/{stage.total}",
            f"{stage.tokens_per_s(now_s):.0f} tok/s",
            f"{stage.elapsed_s(now_s):.1f} s",
            "" if eta is None else f"ETA {eta:.0f} s",
        )
    return Group(head, table)


def plain_lines(progress: RunProgress, event: Event) -> Iterator[str]:
    """Yield what a log should say about an event that ``progress`` has already taken."""
    fields = event.fields
    if event.kind == "stage.state" and fields["state"] == "finished":
        stage = progress.stages[fields["stage"]]
        seconds = stage.elapsed_s(event.time_s)
        yield (
            f"batch {fields['batch']}  {stage.name:<10} {stage.done}/{stage.total} samples  "
            f"{stage.tokens} tokens  {stage.tokens_per_s(event.time_s):.0f} tok/s  {seconds:.1f} s"
        )
    elif event.kind == "lease.state" and fields["to"] in {"ACTIVE", "SLEEPING", "BLOCKED"}:
        yield f"devices    {fields['role']} → {fields['to']}  {fields['reason']}".rstrip()
    elif event.kind == "observer.raised":
        yield f"observer   {fields['observer']} raised on {fields['event']}: {fields['error']}"
    elif event.kind == "batch.state":
        yield f"batch {fields['batch']}  {fields['to']}  {fields['reason'] or ''}".rstrip()


def _colour(progress: RunProgress, role: str | None) -> str:
    roles = list(progress.leases)
    return ROLE_COLOURS[roles.index(role) % len(ROLE_COLOURS)] if role in roles else "white"
