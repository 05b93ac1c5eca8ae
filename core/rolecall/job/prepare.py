"""From a job file to a checked plan, with nothing started."""

from __future__ import annotations

from pathlib import Path

from rolecall.config.loader import load_config
from rolecall.config.resolve import ResolvedJob, resolve_job
from rolecall.placement.plan import PlacementPlan
from rolecall.placement.preflight import plan_job
from rolecall.plugins.host import PluginHost


def resolve_file(file: Path) -> ResolvedJob:
    """Load a job file and the plugins it selects.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
    """
    return resolve_job(load_config(file), file, PluginHost.from_environment())


def prepare_job(file: Path) -> tuple[ResolvedJob, PlacementPlan]:
    """Load a job file, load the plugins it selects, and plan it on paper.

    Raises:
        ConfigError: the file is wrong; all problems at once.
        PluginError: a selected plugin is broken.
        PlacementRefused: the job can't be placed; all refusals at once.
    """
    resolved = resolve_file(file)
    return resolved, plan_job(resolved)
