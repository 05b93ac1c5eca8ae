"""Reward adapters that are named inside another adapter's options.

An adapter that combines others gets them here, by name and options as a job file would give them. While a
job is resolved the job's own plugins are asked, with its block list; elsewhere those of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.interfaces.reward_adapter import RewardAdapter
    from rolecall.plugins.host import PluginHost

JOBS_PLUGINS: ContextVar[PluginHost | None] = ContextVar("JOBS_PLUGINS", default=None)
"""The plugins of the job that is being resolved; set by :mod:`rolecall.config.resolve`."""


def make_reward_adapter(name: str, options: Mapping[str, Any]) -> RewardAdapter:
    """Return a new instance of an installed reward adapter.

    options: its table, as TOML gives it.

    Raises:
        ValueError: the table does not fit; the message has every fault with its key.
        PluginError: no such adapter is installed, or it is broken.
    """
    # Imported here: plugins import this module to be listed, and reading config takes a while to import.
    from rolecall.config.source import key_text
    from rolecall.config.structure import StructureError, structure
    from rolecall.plugins.blocking import entries_of_environment
    from rolecall.plugins.host import PluginHost
    from rolecall.plugins.kinds import PluginKind
    from rolecall.plugins.trace import traced_by_environment

    host = JOBS_PLUGINS.get()
    if host is None:
        host = PluginHost.from_environment(block=entries_of_environment(), trace=traced_by_environment())
    adapter = host.load(PluginKind.REWARD_ADAPTER, name)
    try:
        made = structure(adapter.options, dict(options))
    except StructureError as error:
        faults = "; ".join(f"{key_text(('options', *fault.path))} {fault.message}" for fault in error.faults)
        raise ValueError(faults) from error
    return adapter(made)
