"""``rolecall scale``: more or fewer replicas of a model, while its job runs."""

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

from rolecall.job.control import command_job
from rolecall.job.find import find_job
from rolecall.scaling.request import TIMEOUT_S, OnPartial

WAIT_S = 10.0
"""How long one question for an operation's end waits."""


@click.command()
@click.argument("role")
@click.option("--job", help="The job's name or its file; may be left out while exactly one is running.")
@click.option("--model", help="May be left out for a role with one model.")
@click.option("--to", "total", type=int, help="How many replicas the model shall have in all.")
@click.option(
    "--url", "urls", multiple=True, help="Base URL of an engine that runs already, to be added. Repeatable."
)
@click.option("--model-path", help="Checkpoint that the engines at --url have to name.")
@click.option("--force", is_flag=True, help="Fewer: do not wait long for running requests; they are cut off.")
@click.option(
    "--on-partial",
    type=click.Choice([each.value for each in OnPartial]),
    default=OnPartial.KEEP.value,
    show_default=True,
    help="What becomes of replicas that came or went when others did not.",
)
@click.option("--timeout", "timeout_s", type=float, default=TIMEOUT_S, show_default=True, help="Seconds.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--no-wait", is_flag=True, help="Return when it has begun.")
@click.option("--status", "asked", metavar="ID", help="Show an operation instead.")
@click.option("--cancel", "cancelled", metavar="ID", help="Cancel an operation instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def scale(
    ctx: click.Context,
    /,
    *,
    role: str,
    job: str | None,
    model: str | None,
    total: int | None,
    urls: tuple[str, ...],
    model_path: str | None,
    force: bool,
    on_partial: str,
    timeout_s: float,
    dry_run: bool,
    no_wait: bool,
    asked: str | None,
    cancelled: str | None,
    as_json: bool,
) -> None:
    """Scale a model of ROLE out or in, or show or cancel such an operation.

    The replicas of the job file stay as long as the job runs; of the others the last that came goes first.
    A new replica gets requests once it has the model's current weights, and one that goes is waited for until
    it has none. Ctrl-C ends the waiting, not the operation. Exit code 1 if it did not do all of it.
    """
    if sum((total is not None, bool(urls), asked is not None, cancelled is not None)) != 1:
        raise click.UsageError("give one of --to, --url, --status and --cancel")
    run_dir = Path(find_job(job).run_dir)
    if asked is not None or cancelled is not None:
        do = "scale_operation" if cancelled is None else "cancel_scale"
        answer = asyncio.run(command_job(run_dir, do, role=role, operation=asked or cancelled))
    else:
        wanted: dict[str, Any] = {"model": model, "on_partial": on_partial}
        wanted |= {"timeout_s": timeout_s, "dry_run": dry_run}
        if urls:
            wanted |= {"urls": list(urls), "model_path": model_path}
        else:
            wanted |= {"total": total, "force": force}
        answer = asyncio.run(_scale(run_dir, role, wanted, wait=not (no_wait or dry_run)))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        show_operation(Console(highlight=False), answer)
    if answer["state"] in {"PARTIAL", "FAILED", "ROLLED_BACK"} or (answer["final"] and answer["left"]):
        ctx.exit(1)


async def _scale(run_dir: Path, role: str, wanted: Mapping[str, Any], *, wait: bool) -> dict[str, Any]:
    answer = await command_job(run_dir, "scale", role=role, wanted=dict(wanted))
    while wait and not answer["final"]:
        answer = await command_job(
            run_dir,
            "scale_operation",
            role=role,
            operation=answer["id"],
            wait_s=WAIT_S,
            timeout_s=WAIT_S + 30,
        )
    return answer


def show_operation(console: Console, operation: Mapping[str, Any]) -> None:
    """Print an operation as its JSON has it."""
    name = "dry run" if operation["id"] is None else operation["id"]
    console.print(
        f"[bold]{operation['action']}[/] {name}  {operation['role']} {operation['model']}  "
        f"{operation['before']} → {operation['wanted']}  {operation['state']}  {operation['seconds']:.1f} s"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("engine", "", "what is known of it"):
        table.add_column(column)
    for replica in operation["replicas"]:
        mark = "undone" if replica["undone"] else "done" if replica["done"] else ""
        url = f"{replica['url']}: " if replica["url"] else ""
        table.add_row(replica["engine"], mark, escape(url + replica["detail"]))
    if operation["replicas"]:
        console.print(table)
    if operation["final"] and operation["id"] is not None:
        console.print(escape(operation["reason"]))
    for engine, what in operation["left"].items():
        console.print(f"[red]left to clean[/] {engine}: {escape(what)}; the next operation tries it again")
