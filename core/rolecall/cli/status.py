"""``rolecall status``: what a running job is doing, and what is fenced, without joining its Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rolecall.engines.proof import Proof
from rolecall.job.control import command_job
from rolecall.job.find import find_job
from rolecall.leases.lease_state import LeaseState


@click.command()
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(job: str | None, as_json: bool) -> None:
    """Show a running job: leases, replicas, batches, and what to do about fences.

    JOB is a job's name or its file; it may be left out while exactly one job is running.
    """
    state = find_job(job)
    answer = asyncio.run(command_job(Path(state.run_dir), "status"))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show_status(Console(highlight=False), answer)


def show_status(console: Console, answer: Mapping[str, Any]) -> None:
    """Print what :meth:`~rolecall.job.job.RunningJob.status` told."""
    console.print(f"[bold]{answer['job']}[/]  gateway {answer['gateway_url']}  ray {answer['ray_address']}")
    coordinator = answer["coordinator"]
    if failure := coordinator["failure"]:
        console.print(f"[red]run failed[/] in batch {failure['batch']}: {failure['reason']}")
    table = Table(box=None, pad_edge=False)
    for column in ("role", "lease", "engine", "state", "in flight", "generation", "url"):
        table.add_column(column)
    for role, service in answer["roles"].items():
        lease = coordinator["leases"].get(role, {})
        for engine in service["replicas"]:
            table.add_row(
                role,
                str(lease.get("state", "")),
                engine["engine"],
                engine["state"],
                "" if engine.get("permits") is None else str(engine["permits"]),
                str(engine["generation"]),
                engine["base_url"] or "",
            )
        if not service["replicas"]:
            table.add_row(role, str(lease.get("state", "")), "unknown" if "problem" in service else "none")
    for role, lease in coordinator["leases"].items():
        if role not in answer["roles"]:
            table.add_row(role, str(lease["state"]), "the trainer's")
    console.print(table)
    for role, service in answer["roles"].items():
        if "problem" in service:
            console.print(f"[red]no word[/] of {role}: {escape(service['problem'])}")
    _show_fences(console, answer)
    for role, service in answer["roles"].items():
        for router in service["routers"]:
            where = router["url"] or "[red]no router[/]"
            problem = f"  [red]{escape(router['problem'])}[/]" if router["problem"] else ""
            engines = ", ".join(router["engines"]) or "no engine"
            console.print(f"router of {role} {router['model']}  {where}  {engines}{problem}")
    for batch in coordinator["batches"]:
        console.print(f"batch {batch['batch']}  {batch['state']}  {batch.get('reason') or ''}")


def _show_fences(console: Console, answer: Mapping[str, Any]) -> None:
    """Say for each fence why it is there and what lifts it."""
    job = answer["job"]
    for role, lease in answer["coordinator"]["leases"].items():
        if lease["state"] == LeaseState.BLOCKED:
            console.print(f"[red]fence[/] {role} is BLOCKED: {escape(lease['reason'])}")
            console.print(f"      rolecall reconcile {role} --job {job} --proof {Proof.PROCESS_GONE}")
    for role, service in answer["roles"].items():
        for engine in service["replicas"]:
            if engine.get("fence"):
                console.print(f"[red]fence[/] {role} {engine['engine']}: {escape(engine['fence'])}")
