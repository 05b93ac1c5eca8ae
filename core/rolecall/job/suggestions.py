"""For a job that can't be placed: the smallest changes of its file, in each installed placement mode.

Every suggestion has been planned as ``rolecall plan`` would plan the changed file. Nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from attrs import evolve, frozen

from rolecall.config.lines import KeyPath
from rolecall.config.loader import load_config
from rolecall.config.overrides import Override, key_path
from rolecall.config.resolve import resolve_job
from rolecall.config.source import key_text
from rolecall.config.specs import JobConfig
from rolecall.errors import ConfigError, PlacementRefused, PluginError, Refusal
from rolecall.job.prepare import with_plugins
from rolecall.placement.preflight import plan_job
from rolecall.placement.suggest import Changes, Question, suggest
from rolecall.plugins.kinds import PluginKind

_MODE_KEY, _LAYOUT_KEY = "placement.mode", "placement.layout"


@frozen(kw_only=True)
class Change:
    """A key of the job file, what it has ``now`` and what it would have; None: the key is not there."""

    key: str
    value: Any
    now: Any


@frozen(kw_only=True)
class ModeSuggestions:
    """What would make the job feasible in one mode.

    ways: sets of changes, the smallest one first; none if none was found.
    refusals: what refuses the job in that mode without any other change.
    complete: everything was tried; otherwise there was no time for all.
    """

    mode: str
    ways: tuple[tuple[Change, ...], ...]
    refusals: tuple[Refusal, ...]
    complete: bool


def suggest_changes(file: Path, overrides: Sequence[Override] = ()) -> tuple[ModeSuggestions, ...]:
    """Return what would do in each mode, the mode that needs the fewest changes first.

    What ``overrides`` say is not changed again: with a number of devices, less has to do with those.

    Raises:
        ConfigError: the file is wrong.
        PluginError: a selected plugin is broken.
    """
    search = _Search(file, overrides)
    found = [answer for mode in search.modes() if (answer := search.suggestions(mode)) is not None]
    # Sorting keeps the order of what is equal, and so the job's own mode first.
    return tuple(sorted(found, key=lambda answer: len(answer.ways[0]) if answer.ways else math.inf))


class _Search:
    """One job file with its plugins, which are loaded once."""

    def __init__(self, file: Path, overrides: Sequence[Override]) -> None:
        self._file = file
        self._overrides = overrides
        self._config, self._host = with_plugins(load_config(file, overrides))
        job = resolve_job(self._config, file, self._host, overrides)
        self._mode = job.mode.name
        self._kept = frozenset(key_text(key.path) for key in overrides if key.value is not None)
        self._start: Changes = {}
        if job.explicit:
            # Changes are of keys that the layout stands for, so these stand in its place.
            self._start = {_LAYOUT_KEY: None, **{key_text(key.path): key.value for key in job.explicit}}

    def modes(self) -> list[str]:
        """Return the modes to ask: the job's own, then all others."""
        if _MODE_KEY in self._kept:
            return [self._mode]
        names = self._host.names(PluginKind.PLACEMENT_MODE)
        return [self._mode, *(name for name in names if name != self._mode)]

    def suggestions(self, mode: str) -> ModeSuggestions | None:
        """Return what would do in a mode; None if the mode can't be asked."""
        start = self._start if mode == self._mode else {**self._start, _MODE_KEY: mode}
        answer = suggest(
            Question(
                attempt=self._attempt,
                now=self._now,
                counts=tuple(_counts(self._config)),
                start=start,
                kept=self._kept,
            )
        )
        if answer.refusals is None:
            return None
        ways = tuple(
            tuple(
                Change(key=key, value=value, now=now)
                for key, value in fix.assignments
                if value != (now := self._now(key))
            )
            for fix in answer.fixes
        )
        return ModeSuggestions(mode=mode, ways=ways, refusals=answer.refusals, complete=answer.complete)

    def _attempt(self, changes: Changes) -> tuple[Refusal, ...] | None:
        asked = (*self._overrides, *(Override(_path(key), value, key) for key, value in changes.items()))
        try:
            config = evolve(load_config(self._file, asked), plugins=self._config.plugins)
            plan_job(resolve_job(config, self._file, self._host, asked))
        except PlacementRefused as refused:
            return refused.refusals
        except (ConfigError, PluginError):
            return None  # a fix of a third party's that makes no job file, or a mode that is broken
        return ()

    def _now(self, key: str) -> Any:
        value: Any = self._config
        for part in _path(key):
            if isinstance(value, Mapping):
                value = cast(Mapping[Any, Any], value).get(part)
            else:
                value = getattr(value, str(part), None)
        return value


def _counts(config: JobConfig) -> Iterator[str]:
    """Return the keys of numbers that a job of less size has less of."""
    for role, of_role in config.roles.items():
        for model in of_role.models:
            yield key_text(("roles", role, "models", model, "replicas"))
    for role, of_role in config.training.items():
        if of_role.devices is not None:
            yield key_text(("training", role, "devices"))


def _path(key: str) -> KeyPath:
    path = key_path(key)
    if path is None:
        raise ValueError(f"{key!r} is no key of a job file")
    return path
