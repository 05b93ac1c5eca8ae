"""Block lists: plugins that count as not installed though they are.

An entry is the name of a distribution (``acme-routing``: all that it offers), of a plugin
(``routing_policy/sticky``: whoever offers it), or both (``acme-routing/routing_policy/sticky``: settles a
name that several distributions claim). A list travels with the job's configuration, so every process of
a job leaves out the same plugins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from attrs import frozen

from rolecall.errors import UnknownPluginError
from rolecall.nearest import did_you_mean
from rolecall.plugins.installed import PluginInfo
from rolecall.plugins.kinds import PluginKind

BLOCK_VARIABLE = "ROLECALL_BLOCK_PLUGINS"
"""Environment variable with further entries, separated by commas; ``rolecall --block`` sets it."""

WHERE = f"plugins.block in the job file, rolecall --block or {BLOCK_VARIABLE}"
"""The places that an entry can come from, for messages."""


@frozen
class BlockList:
    """Entries in the order in which they were given."""

    entries: tuple[str, ...] = ()

    def blocker(self, plugin: PluginInfo) -> str | None:
        """Return the first entry that blocks the plugin; None if none does."""
        return next((entry for entry in self.entries if _blocks(entry, plugin)), None)

    def faults(self, plugins: Sequence[PluginInfo]) -> Iterator[tuple[int, str]]:
        """Yield the number of each entry that blocks nothing that is installed, and what is wrong."""
        names = sorted(
            {name for plugin in plugins for name in (plugin.distribution, plugin.path, plugin.claim)}
        )
        kinds = [kind.key for kind in PluginKind]
        for number, entry in enumerate(self.entries):
            if any(_blocks(entry, plugin) for plugin in plugins):
                continue
            *_, kind, _name = ("", *entry.split("/"))
            if "/" in entry and kind not in kinds:
                hint = did_you_mean(kind, kinds) or "."
                yield number, f'"{entry}" names no kind of plugin{hint} Kinds: {", ".join(kinds)}'
            else:
                hint = did_you_mean(entry, names) or "."
                yield (
                    number,
                    f'"{entry}" blocks nothing that is installed{hint} '
                    "Write a distribution, kind/name or distribution/kind/name. See: rolecall plugins list",
                )


def blocked_by_environment(plugins: Sequence[PluginInfo]) -> tuple[str, ...]:
    """Return the entries of :data:`BLOCK_VARIABLE`.

    Raises:
        UnknownPluginError: one of them blocks none of the plugins.
    """
    given = entries_of_environment()
    for _, fault in BlockList(given).faults(plugins):
        raise UnknownPluginError(f"--block or {BLOCK_VARIABLE}: {fault}")
    return given


def entries_of_environment() -> tuple[str, ...]:
    """Return the entries of :data:`BLOCK_VARIABLE` as they are."""
    return tuple(entry.strip() for entry in os.environ.get(BLOCK_VARIABLE, "").split(",") if entry.strip())


def _blocks(entry: str, plugin: PluginInfo) -> bool:
    parts = entry.split("/")
    if len(parts) == 2:
        return entry == plugin.path
    return _normal(parts[0]) == _normal(plugin.distribution) and (
        len(parts) == 1 or "/".join(parts[1:]) == plugin.path
    )


def _normal(distribution: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
