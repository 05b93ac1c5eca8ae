"""From a job file to a checked plan, with nothing started."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from rolecall.config.loader import load_config
from rolecall.config.resolve import ResolvedJob, job_plugins, resolve_job
from rolecall.config.specs import PluginsSection
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.preflight import plan_job
from rolecall.plugins.blocking import blocked_by_environment
from rolecall.plugins.installed import installed_plugins
from rolecall.plugins.trace import traced_by_environment


def resolve_file(file: Path) -> ResolvedJob:
    """Load a job file and the plugins it selects.

    What the environment says of plugins (``rolecall --block``, ``--trace-plugins``) becomes part of the
    configuration, and travels with it to every process of the job.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
    """
    config = load_config(file)
    plugins = PluginsSection(
        block=(*config.plugins.block, *blocked_by_environment(installed_plugins())),
        trace=config.plugins.trace or traced_by_environment(),
    )
    config = evolve(config, plugins=plugins)
    return resolve_job(config, file, job_plugins(config))


def prepare_job(file: Path) -> tuple[ResolvedJob, PlacementPlan]:
    """Load a job file, load the plugins it selects, and plan it on paper.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
        PlacementRefused: the job can't be placed; all refusals at once.
    """
    resolved = resolve_file(file)
    return resolved, plan_job(resolved)
