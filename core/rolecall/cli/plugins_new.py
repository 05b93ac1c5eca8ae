"""``rolecall plugins new``: writes a distribution with one plugin that works as it is."""

from __future__ import annotations

from pathlib import Path

import click

from rolecall.plugins.host import PluginHost
from rolecall.plugins.kinds import PluginKind
from rolecall.scaffold.names import as_argument, choose_names, parse_kind

_KINDS = ", ".join(as_argument(kind) for kind in PluginKind)


@click.command("new", help=f"Write a distribution with a plugin NAME that works as it is.\n\nKIND: {_KINDS}.")
@click.argument("kind")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to write, empty or not there yet; by default one of the distribution's name.",
)
@click.option(
    "--distribution",
    metavar="NAME",
    help="What pip will call it; by default rolecall- and NAME.",
)
def new_plugin(kind: str, name: str, folder: Path | None, distribution: str | None) -> None:
    """See the command's help, which lists the kinds."""
    # The plugin interfaces are of no use to a listing, which shares this command's group.
    import rolecall.api
    from rolecall.scaffold.distribution import render, write

    host = PluginHost.from_environment()
    wanted = parse_kind(kind)
    names = choose_names(
        wanted,
        name,
        taken=host.names(wanted),
        reserved=rolecall.api.__all__,
        distribution=distribution,
    )
    # A piece of a job file names a role or an engine beside the new plugin; any installed one will do.
    examples = {each: next(iter(host.names(each)), as_argument(each)) for each in PluginKind}
    folder = folder or Path(names.distribution)
    texts = render(names, examples=examples)
    write(texts, folder)
    for path in sorted(texts):
        click.echo(f"  {folder / path}")
    click.echo(
        f'\n{wanted.label} "{name}" is written. Install it with its tests, run them, look at it:\n\n'
        f"  pip install -e '{folder}[test]'\n  pytest {folder}\n  rolecall plugins check\n\n"
        f"{folder / 'README.md'} says how a job file selects it."
    )
