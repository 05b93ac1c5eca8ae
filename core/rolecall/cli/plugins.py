"""``rolecall plugins``: which plugins are installed, and whether they load.

``list`` reads metadata only and is quick; ``check`` imports every plugin. Tables are drawn on a
terminal and plain aligned columns written to a file or a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from rolecall.cli.plugin_traceback import plugin_traceback
from rolecall.cli.plugins_new import new_plugin
from rolecall.plugins.blocking import blocked_by_environment
from rolecall.plugins.host import CheckResult, PluginHost
from rolecall.plugins.installed import PluginInfo, PluginState, installed_plugins
from rolecall.plugins.trace import traced_by_environment

_Rows = Sequence[Sequence[str]]
_COLUMNS = ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE")
_OK, _BROKEN = "ok", "broken"
_STYLES = {
    PluginState.INSTALLED.value: "green",
    PluginState.DUPLICATE.value: "bold red",
    PluginState.BLOCKED.value: "dim",
    _OK: "green",
    _BROKEN: "bold red",
}


@click.group()
def plugins() -> None:
    """Show the installed plugins, check that they load, write a new one."""


plugins.add_command(new_plugin)


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, one object a plugin.")
def list_plugins(*, as_json: bool) -> None:
    """List the installed plugins; imports none of them."""
    found = _host().list()
    if as_json:
        import json  # a table needs none

        click.echo(json.dumps([_as_json(plugin) for plugin in found], indent=2))
        return
    if not found:
        click.echo("No plugins are installed, not even rolecall's own: is rolecall installed with pip?")
        return
    _print_table([(*_identity(plugin), plugin.state.value) for plugin in found])
    duplicates = [plugin for plugin in found if plugin.state is PluginState.DUPLICATE]
    if duplicates:
        click.echo(
            "\nA name that is claimed more than once can't be used. Uninstall or block all but one of:"
        )
        for plugin in duplicates:
            click.echo(f'  {plugin.kind.label} "{plugin.name}": {plugin.origin}')


@plugins.command("check")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show where a broken plugin raised.")
def check_plugins(*, with_traceback: bool) -> None:
    """Load every installed plugin; the exit code is 1 if one is broken."""
    results = _host().check()
    _print_table([(*_identity(result.plugin), _BROKEN if result.error else _OK) for result in results])
    broken = [result for result in results if result.error is not None]
    for result in broken:
        click.echo(f"\n{_report(result, with_traceback=with_traceback)}")
    sys.exit(1 if broken else 0)


def _host() -> PluginHost:
    found = installed_plugins()
    return PluginHost(found, block=blocked_by_environment(found), trace=traced_by_environment())


def _as_json(plugin: PluginInfo) -> dict[str, object]:
    return {
        "kind": plugin.kind.label,
        "group": plugin.kind.group,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "state": plugin.state.value,
        "rivals": list(plugin.rivals),
        "blocked_by": plugin.blocked_by,
    }


def _identity(plugin: PluginInfo) -> tuple[str, str, str, str]:
    return plugin.kind.label, plugin.name, plugin.distribution, plugin.version


def _report(result: CheckResult, *, with_traceback: bool) -> str:
    where = plugin_traceback(result.error) if with_traceback else ""
    return f"{where}{result.error}"


def _print_table(rows: _Rows) -> None:
    if not (sys.stdout.isatty() and _drawn(rows)):
        _print_plain(rows)


def _print_plain(rows: _Rows) -> None:
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _drawn(rows: _Rows) -> bool:
    """Draw a table; return False where the terminal is too narrow for whole names."""
    # A pipe must not pay for importing rich.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*(name.lower() for name in _COLUMNS), box=box.SIMPLE_HEAD, pad_edge=False)
    for *cells, state in rows:
        table.add_row(*map(Text, cells), Text(state, style=_STYLES[state]))
    console = Console()
    if console.measure(table).maximum >= console.width:  # a measure is cut off at the width
        return False
    console.print(table)
    return True
