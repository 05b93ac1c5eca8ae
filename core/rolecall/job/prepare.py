"""From a job file to a checked plan, with nothing started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import evolve

from rolecall.config.loader import load_config
from rolecall.config.overrides import Override
from rolecall.config.resolve import ResolvedJob, resolve_job
from rolecall.config.specs import JobConfig, PluginsSection
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.preflight import plan_job
from rolecall.plugins.blocking import blocked_by_environment
from rolecall.plugins.host import PluginHost
from rolecall.plugins.installed import installed_plugins
from rolecall.plugins.trace import traced_by_environment


def resolve_file(file: Path, *, block: Iterable[str] = (), overrides: Sequence[Override] = ()) -> ResolvedJob:
    """Load a job file and the plugins it selects.

    What the environment says of plugins (``rolecall --block``, ``--trace-plugins``) becomes part of the
    configuration, and travels with it to every process of the job. ``block`` adds to its block list;
    ``overrides`` take the place of the file's own values.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
    """
    config, host = with_plugins(load_config(file, overrides), block=block)
    return resolve_job(config, file, host, overrides)


def with_plugins(config: JobConfig, *, block: Iterable[str] = ()) -> tuple[JobConfig, PluginHost]:
    """Return the configuration with all that is said of plugins, and the plugins that it may select."""
    found = installed_plugins()
    plugins = PluginsSection(
        block=tuple(dict.fromkeys((*config.plugins.block, *blocked_by_environment(found), *block))),
        trace=config.plugins.trace or traced_by_environment(),
    )
    host = PluginHost(found, block=plugins.block, trace=plugins.trace)
    return evolve(config, plugins=plugins), host


def prepare_job(file: Path, overrides: Sequence[Override] = ()) -> tuple[ResolvedJob, PlacementPlan]:
    """Load a job file, load the plugins it selects, and plan it on paper.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
        PlacementRefused: the job can't be placed; all refusals at once.
    """
    resolved = resolve_file(file, overrides=overrides)
    return resolved, plan_job(resolved)
