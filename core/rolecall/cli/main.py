"""The ``rolecall`` command. Subcommands are imported when used: planning must not load Ray."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import click

from rolecall import __version__
from rolecall.errors import ConfigError, PlacementRefused, RolecallError

COMMANDS = {
    "plan": "Check a job file on paper and show which devices each role gets.",
    "run": "Bring a job up, run its batches, show them, leave nothing behind.",
    "up": "Bring a job up in the background.",
    "gateway": "Serve a job's gateways without Ray Serve, behind a front of your own.",
    "status": "Show a running job: leases, replicas, batches, fences.",
    "events": "Show what happened in a job, and what happens.",
    "scale": "Give a model more or fewer replicas while it serves.",
    "reconcile": "Free a fenced role's devices, with proof.",
    "down": "Stop a running job and everything it started.",
    "evaluate": "Have a job's policy answer prompts, and show what the rewards say of it.",
    "judge-eval": "Say how far a reward agrees with labelled verdicts.",
    "plugins": "List and check the installed plugins, write a new one.",
}
"""Command → help line; each lives in ``rolecall.cli.<command>`` under its own name, `-` being ``_``."""


_OBJECTS_A_COLLECTION = 50_000
"""Python's own 700 suits a program that makes garbage; importing only makes what stays."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        return getattr(importlib.import_module(f"rolecall.cli.{name}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_LazyGroup)
@click.version_option(__version__, prog_name="rolecall")
@click.option(
    "--block",
    multiple=True,
    metavar="PLUGIN",
    help="Let plugins count as not installed: DISTRIBUTION, KIND/NAME or DISTRIBUTION/KIND/NAME. Repeatable.",
)
@click.option("--trace-plugins", is_flag=True, help="Tell on standard error what is done with each plugin.")
def cli(block: tuple[str, ...], trace_plugins: bool) -> None:
    """Every inference role of an RL post-training job on one plane."""
    # By the environment, since `up` leaves the job to another process.
    if block:
        from rolecall.plugins.blocking import BLOCK_VARIABLE, entries_of_environment

        os.environ[BLOCK_VARIABLE] = ",".join((*entries_of_environment(), *block))
    if trace_plugins:
        from rolecall.plugins.trace import TRACE_VARIABLE

        os.environ[TRACE_VARIABLE] = "1"


def main() -> None:
    """Run the command; errors made on purpose are shown without a traceback of rolecall's own.

    Exit codes: 0 done, 1 failed, 2 the job file is wrong or can't be placed, 130 interrupted.
    """
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    try:
        # Without standalone mode click returns the code of ``ctx.exit(code)``.
        code = cli.main(standalone_mode=False) or 0
        gc.freeze()  # what is left ends with the process: the last collection needs to look at nothing
        sys.exit(code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (ConfigError, PlacementRefused) as error:
        _tell(error, str(error))
        sys.exit(2)
    except RolecallError as error:
        _tell(error, f"rolecall: {error}")
        sys.exit(1)


def _tell(error: RolecallError, message: str) -> None:
    """Show an error with its notes; where a plugin raised, the traceback of that comes first."""
    from rolecall.cli.plugin_traceback import plugin_traceback

    click.echo("\n".join([plugin_traceback(error) + message, *getattr(error, "__notes__", ())]), err=True)
