"""The plugin host: knows every installed plugin by name, loads the ones that are asked for.

Listing reads metadata only. A plugin's module is imported when its name is loaded, and never
otherwise, so an installed but unselected broken plugin can't stop a job. Each process has a host
of its own; plugins are never sent from one process to another, only their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve, frozen

from rolecall.errors import DuplicatePluginError, PluginError, UnknownPluginError
from rolecall.nearest import did_you_mean
from rolecall.plugins.blocking import WHERE, BlockList
from rolecall.plugins.installed import PluginInfo, installed_plugins, with_rivals
from rolecall.plugins.kinds import PluginKind
from rolecall.plugins.trace import Trace


@frozen(kw_only=True)
class CheckResult:
    """What loading one installed plugin gave; ``error`` is None when it is sound."""

    plugin: PluginInfo
    error: PluginError | None


class PluginHost:
    """All plugins of one environment.

    Not thread-safe; loading a plugin twice gives the same class.
    """

    def __init__(
        self, plugins: Iterable[PluginInfo], *, block: Iterable[str] = (), trace: bool = False
    ) -> None:
        """Take what is installed.

        block: entries of a block list; see :mod:`rolecall.plugins.blocking`.
        trace: tell on standard error what is done with each plugin.
        """
        self._block = BlockList(tuple(block))
        self._plugins = with_rivals(
            evolve(plugin, blocked_by=self._block.blocker(plugin)) for plugin in plugins
        )
        self._trace = Trace(on=trace)
        self._trace.tell(self._summary())
        self._loaded: dict[tuple[PluginKind, str], type[Any]] = {}

    @classmethod
    def from_environment(cls, *, block: Iterable[str] = (), trace: bool = False) -> PluginHost:
        """Return a host over the distributions on ``sys.path`` as they are now."""
        return cls(installed_plugins(), block=block, trace=trace)

    def list(self) -> tuple[PluginInfo, ...]:
        """Return every claim to a plugin name, sorted by kind, name and distribution."""
        return self._plugins

    def names(self, kind: PluginKind) -> tuple[str, ...]:
        """Return the installed names of a kind that are not blocked, sorted."""
        return tuple(
            sorted({plugin.name for plugin in self._plugins if plugin.kind is kind and not plugin.blocked_by})
        )

    def block_faults(self) -> tuple[tuple[int, str], ...]:
        """Return what is wrong with entries of the block list, by their number."""
        return tuple(self._block.faults(self._plugins))

    def find(self, kind: PluginKind, name: str) -> PluginInfo:
        """Return what is known of a plugin without importing it.

        Raises:
            UnknownPluginError: no distribution offers the name; the message has those installed.
            DuplicatePluginError: several distributions do; the message has them all.
        """
        claims = [plugin for plugin in self._claims(kind, name) if plugin.blocked_by is None]
        if not claims:
            raise UnknownPluginError(self._unknown(kind, name))
        if len(claims) > 1:
            origins = ", ".join(claim.origin for claim in claims)
            raise DuplicatePluginError(
                f'{kind.label} "{name}" is claimed more than once: {origins}. {_way_out(claims)}'
            )
        return claims[0]

    def load(self, kind: PluginKind, name: str) -> type[Any]:
        """Return the class of a plugin, importing its module the first time.

        Raises:
            UnknownPluginError, DuplicatePluginError: as for :meth:`find`.
            PluginLoadError: the plugin's code raised; that exception is the cause.
            PluginContractError: the plugin breaks the contract of its kind.
        """
        if (kind, name) not in self._loaded:
            # pluggy and the plugin interfaces are of no use to a listing, which must be quick.
            from rolecall.plugins.contract import load_class

            plugin = self.find(kind, name)
            self._trace.tell(f"{plugin}: found in the group {kind.group} as {plugin.target}")
            self._loaded[kind, name] = load_class(plugin, self._trace)
        return self._loaded[kind, name]

    def check(self) -> tuple[CheckResult, ...]:
        """Load every plugin that is not blocked and return what each gave, in the order of :meth:`list`."""
        return tuple(
            CheckResult(plugin=plugin, error=self._error_of(plugin))
            for plugin in self._plugins
            if plugin.blocked_by is None
        )

    def _error_of(self, plugin: PluginInfo) -> PluginError | None:
        try:
            self.load(plugin.kind, plugin.name)
        except PluginError as error:
            return error
        return None

    def _claims(self, kind: PluginKind, name: str) -> list[PluginInfo]:
        return [plugin for plugin in self._plugins if plugin.kind is kind and plugin.name == name]

    def _summary(self) -> str:
        distributions = sorted({plugin.distribution for plugin in self._plugins})
        blocked = [plugin.claim for plugin in self._plugins if plugin.blocked_by]
        return (
            f"{len(self._plugins)} installed by {', '.join(distributions) or 'nobody'}"
            f"; blocked: {', '.join(blocked) or 'none'}"
        )

    def _unknown(self, kind: PluginKind, name: str) -> str:
        names = self.names(kind)
        installed = ", ".join(names) or "none"
        blocked = self._claims(kind, name)
        if blocked:
            claims = ", ".join(f'{claim.origin} by "{claim.blocked_by}"' for claim in blocked)
            return (
                f'{kind.label} "{name}" is installed but blocked: {claims}. Not blocked: {installed}. '
                f"Select one of those, or take that entry out of {WHERE}"
            )
        hint = did_you_mean(name, names) or "."
        return (
            f'{kind.label} "{name}" is not installed{hint} Installed: {installed}. See: rolecall plugins list'
        )


def _way_out(claims: Sequence[PluginInfo]) -> str:
    distributions = sorted({claim.distribution for claim in claims})
    if len(distributions) == 1:
        return f"A distribution may claim a name once: this is a fault of {distributions[0]}; uninstall it"
    others = ", ".join(f'"{claim.claim}"' for claim in claims[1:])
    return f"Uninstall all but one, or block the others, as in: plugins.block = [{others}]"
