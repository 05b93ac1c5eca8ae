"""Options of ``rolecall plan`` that ask how the job would lie if its file said something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from attrs import frozen

from rolecall.config.overrides import Override, parse_override
from rolecall.config.specs import PlacementSection

_Command = Callable[..., None]


@frozen(kw_only=True)
class WhatIf:
    """What was asked for; None and () where it was not."""

    devices: int | None = None
    devices_per_node: int | None = None
    nodes: tuple[int, ...] | None = None
    layout: str | None = None
    assignments: tuple[str, ...] = ()
    suggest: bool = False

    def overrides(self) -> tuple[Override, ...]:
        """Return it as values that take the place of the job file's, ``--set`` last.

        What can't stand beside such a value goes out of the file: the nodes beside a number of devices, the
        mode beside a layout.

        Raises:
            ConfigError: a ``--set`` is no key and value.
        """
        placement = {
            "--gpus": {"devices": self.devices, "nodes": None},
            "--gpus-per-node": {"devices_per_node": self.devices_per_node},
            "--nodes": {"nodes": None if self.nodes is None else list(self.nodes), "devices": None},
            "--layout": {"layout": self.layout, "mode": None},
        }
        asked = [
            Override(("placement", key), value, origin)
            for origin, values in placement.items()
            if any(value is not None for value in values.values())
            for key, value in values.items()
        ]
        return (*asked, *map(parse_override, self.assignments))

    def check(self, placement: PlacementSection) -> None:
        """Refuse what has no meaning for a job with this ``[placement]``."""
        if self.devices_per_node is not None and placement.nodes is not None:
            raise click.UsageError(
                "--gpus-per-node: the job file gives its nodes one by one (placement.nodes);"
                " add --gpus, or write --nodes"
            )


def _nodes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not how many devices each node has, as in 8,8,4", ctx, parameter
        ) from None


_OPTIONS = (
    click.option(
        "--gpus", "--devices", "devices", type=int, metavar="N", help="As if the job had N devices in all."
    ),
    click.option(
        "--gpus-per-node",
        "--devices-per-node",
        "devices_per_node",
        type=int,
        metavar="N",
        help="As if each node had N devices.",
    ),
    click.option("--nodes", callback=_nodes, metavar="N,N,…", help="As if the job had nodes of these sizes."),
    click.option("--layout", metavar="LAYOUT", help='As in "maker[1/2] + judge[1/2] -> trainer[*]".'),
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="As if FILE said so; VALUE as TOML. Repeatable.",
    ),
    click.option(
        "--suggest", is_flag=True, help="If it can't be placed, list the smallest changes with which it can."
    ),
)


def what_if_options(command: _Command) -> _Command:
    """Give a command these options; it gets them as one argument, ``what_if``."""

    @wraps(command)
    def with_what_if(
        *,
        devices: int | None,
        devices_per_node: int | None,
        nodes: tuple[int, ...] | None,
        layout: str | None,
        assignments: tuple[str, ...],
        suggest: bool,
        **others: Any,
    ) -> None:
        if nodes is not None and (devices, devices_per_node) != (None, None):
            raise click.UsageError("--nodes says it all; leave --gpus and --gpus-per-node out")
        what_if = WhatIf(
            devices=devices,
            devices_per_node=devices_per_node,
            nodes=nodes,
            layout=layout,
            assignments=assignments,
            suggest=suggest,
        )
        command(what_if=what_if, **others)

    for option in reversed(_OPTIONS):
        with_what_if = option(with_what_if)
    return with_what_if
