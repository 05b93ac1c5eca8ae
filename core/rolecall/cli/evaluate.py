"""``rolecall evaluate``: what the policy of a running job answers now, and what the rewards say of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from rolecall.errors import JobError
from rolecall.job.asked import AskedJob, ask_job

if TYPE_CHECKING:
    from rolecall.batches.sample import Prompt
    from rolecall.evaluation.evaluate import Evaluated
    from rolecall.evaluation.figures import Figures

UNSCORED = 3
"""Exit code: samples were made, and a reward has not one number."""

ERRORS_SHOWN = 5


@click.command()
@click.argument("prompts", required=False, type=click.Path(path_type=Path))
@click.option("--job", metavar="JOB", help="The job's name or file; may be left out while exactly one runs.")
@click.option(
    "--url",
    metavar="URL",
    help="Where the gateways are, up to a role's name; by default where the running job has them.",
)
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Samples a prompt.")
@click.option("--limit", type=click.IntRange(1), metavar="COUNT", help="Only the first so many prompts.")
@click.option("--temperature", type=click.FloatRange(0), help="In place of the job's.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests at once."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every sample.")
@click.pass_context
def evaluate(
    ctx: click.Context,
    *,
    prompts: Path | None,
    job: str | None,
    url: str | None,
    samples: int,
    limit: int | None,
    temperature: float | None,
    concurrency: int,
    as_json: bool,
) -> None:
    """Have a job's policy answer PROMPTS, score the answers with the job's rewards, and show the figures.

    PROMPTS is a prompt file in any format that [batch] takes, under the fields' own names; without it, the
    job's own prompts are taken. Nothing is trained on, staged or published, and no log-probabilities are
    asked for. The roles that are asked have to be awake. What could not be scored is counted apart, and is
    no 0.

    Exit codes: 0 done, 1 the job can't be asked or a sample could not be made, 2 PROMPTS or the job file is
    wrong, 3 a reward has not one number.
    """
    from rolecall.batches.prompts import load_prompts, open_prompts
    from rolecall.evaluation.figures import EVERYTHING, errors, figures

    asked = ask_job(job, url)
    resolved = asked.resolved
    if asked.front is None:
        raise JobError(
            f"its policy has to be asked, so the job has to run: `rolecall up {resolved.file}`, or tell with "
            "--url where its gateways are"
        )
    batch = resolved.config.batch
    if prompts is not None:
        chosen = load_prompts(prompts)
    elif batch is not None:
        chosen = open_prompts(batch, resolved.file).prompts
    else:
        raise click.UsageError(f"{resolved.file} has no [batch] table, so name a prompt file")
    sampling = {} if batch is None else dict(batch.sampling)
    if temperature is not None:
        sampling["temperature"] = temperature
    evaluated = asyncio.run(
        _evaluate(
            asked,
            chosen[:limit],
            samples=samples,
            sampling=sampling,
            concurrency=concurrency,
            quiet=as_json,
        )
    )
    result = figures(evaluated)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "job": resolved.config.job.name,
                    "figures": [one.to_json() for one in result],
                    "errors": errors(evaluated),
                    "samples": [_sample(one) for one in evaluated],
                },
                indent=2,
            )
        )
    else:
        show(Console(highlight=False), result, evaluated, samples)
    if any(one.samples == 0 for one in result if one.data_source == EVERYTHING):
        ctx.exit(UNSCORED)


async def _evaluate(
    asked: AskedJob,
    prompts: Sequence[Prompt],
    *,
    samples: int,
    sampling: dict[str, object],
    concurrency: int,
    quiet: bool,
) -> list[Evaluated]:
    from rolecall.evaluation.evaluate import evaluate as run

    role, generate = asked.generation()
    rewards = asked.resolved.rewards
    roles = {role, *(reward.adapter.role for reward in rewards if reward.adapter.role is not None)}
    clients = {name: await asked.client(name) for name in sorted(roles)}
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("evaluating", total=2 * len(prompts) * samples)
        return await run(
            prompts,
            generate=generate,
            client=clients[role],
            rewards=rewards,
            clients=clients,
            samples_per_prompt=samples,
            sampling=sampling,
            max_concurrency=concurrency,
            progress=lambda count: progress.advance(task, count),
        )


def _sample(one: Evaluated) -> dict[str, object]:
    return {
        "id": one.sample.sample_id,
        "response": one.sample.response,
        "finish_reason": one.sample.finish_reason,
        "weight_version": one.sample.weight_version,
        "rewards": {name: value for name, value in one.rewards.items() if not isinstance(value, str)},
        "errors": {name: value for name, value in one.rewards.items() if isinstance(value, str)},
    }


def show(console: Console, result: Sequence[Figures], evaluated: Sequence[Evaluated], samples: int) -> None:
    """Print the figures, the weights they are about, and what could not be scored."""
    from rolecall.evaluation.figures import errors

    versions = sorted({one.sample.weight_version or "none told" for one in evaluated})
    console.print(f"{len(evaluated)} samples; weights: {', '.join(map(escape, versions))}")
    table = Table(box=None, pad_edge=False)
    for heading in ("reward", "data source"):
        table.add_column(heading)
    for heading in (
        "scored",
        "error",
        "mean",
        "± of samples",
        *(["best of a prompt"] if samples > 1 else []),
    ):
        table.add_column(heading, justify="right")
    for one in result:
        table.add_row(
            escape(one.reward),
            escape(one.data_source) or "all",
            str(one.samples),
            f"[red]{one.failed}[/]" if one.failed else "0",
            _figure(one.mean),
            _figure(one.deviation),
            *([_figure(one.best)] if samples > 1 else []),
        )
    if result:
        console.print(table)
    for message, count in list(errors(evaluated).items())[:ERRORS_SHOWN]:
        console.print(f"[red]{count} × {escape(message)}[/]")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
