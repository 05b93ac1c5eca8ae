"""``rolecall judge-eval``: how far a reward agrees with labelled verdicts."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from rolecall.calibration.figures import Agreement, agreement
from rolecall.calibration.labelled import Labelled, load_labelled
from rolecall.errors import JobError
from rolecall.job.asked import AskedJob, ask_job

if TYPE_CHECKING:
    from rolecall.interfaces.role import NamedReward

DISAGREES = 3
"""Exit code: it was done, and the figures are not what was asked for."""

ERRORS_SHOWN = 5


def _worths(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    worths: dict[str, float] = {}
    for entry in given:
        word, _sign, number = entry.rpartition("=")
        try:
            worths[word] = float(number)
        except ValueError:
            worths[word] = math.nan
        if not word or not math.isfinite(worths[word]):
            raise click.BadParameter(f'must be a word and a number, e.g. "good=1", found "{entry}"')
    return worths


@click.command("judge-eval")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--job", metavar="JOB", help="The job's name or file; may be left out while exactly one runs.")
@click.option("--reward", metavar="NAME", help="The reward of the job; may be left out if it has only one.")
@click.option(
    "--url",
    metavar="URL",
    help="Where the gateways are, up to a role's name; by default where the running job has them.",
)
@click.option(
    "--worth",
    "worths",
    multiple=True,
    metavar="WORD=NUMBER",
    callback=_worths,
    help="What a label that is a word is worth. Repeatable.",
)
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Scored at once.")
@click.option(
    "--least-agreement", type=click.FloatRange(0, 1), metavar="SHARE", help="Exit with 3 below this."
)
@click.option("--most-errors", type=click.IntRange(0), metavar="COUNT", help="Exit with 3 above this.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def judge_eval(
    ctx: click.Context,
    *,
    file: Path,
    job: str | None,
    reward: str | None,
    url: str | None,
    worths: dict[str, float],
    concurrency: int,
    least_agreement: float | None,
    most_errors: int | None,
    as_json: bool,
) -> None:
    """Score the labelled verdicts in FILE with a reward of a job, and say how far it agrees with them.

    FILE has an object a line: prompt, response, label, and what the reward needs (answer, data_source,
    metadata). What could not be scored is counted apart and is no 0.

    Exit codes: 0 done, 1 the job can't be asked, 2 FILE or the job file is wrong, 3 nothing could be scored,
    or the figures are not what --least-agreement and --most-errors ask for.
    """
    labelled = load_labelled(file, worths)
    asked = ask_job(job, url)
    chosen = _reward(asked, reward)
    if chosen.adapter.role is not None and asked.front is None:
        raise JobError(
            f'reward "{chosen.name}" asks the role "{chosen.adapter.role}", so its job has to run: '
            f"`rolecall up {asked.resolved.file}`, or tell with --url where its gateways are"
        )
    rewards = asyncio.run(_score(labelled, chosen, asked, concurrency, quiet=as_json))
    result = agreement([one.label for one in labelled], rewards)
    if as_json:
        verdicts = [
            {"id": one.sample.sample_id, "label": one.label}
            | ({"error": value} if isinstance(value, str) else {"reward": value})
            for one, value in zip(labelled, rewards, strict=True)
        ]
        told = {"job": asked.resolved.config.job.name, "reward": chosen.name, **result.to_json()}
        click.echo(json.dumps({**told, "verdicts": verdicts}, indent=2))
    else:
        show_agreement(Console(highlight=False), chosen.name, result)
    too_low = least_agreement is not None and (result.share is None or result.share < least_agreement)
    too_many = most_errors is not None and result.failed > most_errors
    if not result.scored or too_low or too_many:
        ctx.exit(DISAGREES)


def _reward(asked: AskedJob, name: str | None) -> NamedReward:
    try:
        return asked.reward(name)
    except JobError as error:
        raise click.UsageError(f"--reward: {error}") from error


async def _score(
    labelled: Sequence[Labelled],
    reward: NamedReward,
    asked: AskedJob,
    concurrency: int,
    *,
    quiet: bool,
) -> list[float | str]:
    from rolecall.calibration.evaluate import score_labelled

    client = None
    if reward.adapter.role is not None:
        client = await asked.client(reward.adapter.role)
    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("scoring", total=len(labelled))
        return await score_labelled(
            labelled,
            reward,
            client,
            max_concurrency=concurrency,
            progress=lambda count: progress.advance(task, count),
        )


def show_agreement(console: Console, reward: str, result: Agreement) -> None:
    """Print the figures and the table behind them."""
    table = Table(title=f'reward "{escape(reward)}"', title_justify="left", box=None, pad_edge=False)
    labels = [row.label for row in result.rows]
    table.add_column("label", justify="right")
    for label in labels:
        table.add_column(f"→ {label:g}", justify="right")
    for heading in ("error", "mean reward", "right"):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            f"{row.label:g}",
            *(str(row.chosen[label]) for label in labels),
            f"[red]{row.errors}[/]" if row.errors else "0",
            _figure(row.mean_reward),
            f"{row.chosen[row.label] / row.scored:.0%}" if row.scored else "–",
        )
    if result.rows:
        console.print(table)
    console.print(
        f"[bold]agreement {_share(result.share)}[/], kappa {_figure(result.kappa)}, correlation "
        f"{_figure(result.pearson)} (of ranks {_figure(result.spearman)}), over {result.scored} verdicts"
    )
    if result.failed:
        console.print(f"[red]{result.failed} could not be scored[/], and are in no figure:")
        for message, count in list(result.errors.items())[:ERRORS_SHOWN]:
            console.print(f"  {count} × {escape(message)}")
        if (more := len(result.errors) - ERRORS_SHOWN) > 0:
            console.print(f"  and {more} other errors; --json has them all")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
