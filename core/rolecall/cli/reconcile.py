"""``rolecall reconcile``: free the devices of a fenced role, with proof that is looked for."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from rolecall.engines.proof import Proof
from rolecall.job.control import command_job
from rolecall.job.find import find_job

ANSWER_S = 30.0


@click.command()
@click.argument("role")
@click.option("--job", help="The job's name or its file; may be left out while exactly one is running.")
@click.option(
    "--proof",
    type=click.Choice([proof.value for proof in Proof]),
    required=True,
    help="What has happened to the engines, and so where is looked: on their node, or, if the machine is "
    "switched off, in the cluster's table of nodes.",
)
@click.option("--note", default="", help="For the audit record, such as a ticket's number.")
def reconcile(role: str, job: str | None, proof: str, note: str) -> None:
    """Free the devices of ROLE, whose lease is BLOCKED, or lift the fences of its replicas.

    The proof is looked for, not believed: engines that are awake are put to sleep, broken ones are ended,
    and what dead workers left is looked for on their node and ended. What is not proved to be gone stays
    fenced, and the error says what is missing, replica by replica. Repeat it as often as you like.
    """
    state = find_job(job)
    run_dir = Path(state.run_dir)
    record = asyncio.run(_ask(run_dir, role, proof, note))
    click.echo(f"{role} is reconciled; on record for {record['by']} ({record['proof']})")
    for engine, found in record["evidence"].items():
        click.echo(f"  {engine}  {found}")
    if not record["evidence"]:
        click.echo("  nothing was fenced")


async def _ask(run_dir: Path, role: str, proof: str, note: str) -> Mapping[str, Any]:
    status = await command_job(run_dir, "status")
    # Two questions to the role, each within the coordinator's deadline.
    limit_s = 2 * status["coordinator"]["timeout_s"] + ANSWER_S
    return await command_job(
        run_dir,
        "reconcile",
        timeout_s=limit_s,
        role=role,
        operation=f"reconcile-{uuid4().hex}",
        proof=proof,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        note=note,
    )
