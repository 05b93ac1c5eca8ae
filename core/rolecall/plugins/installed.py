"""Which plugins are installed, read from distribution metadata alone: imports no plugin.

Everything here is a snapshot: a distribution installed later is seen by the next call. The
same distribution found twice on ``sys.path`` (an editable install beside its source tree, a
folder listed twice, an older version further down the path) counts once, as the one Python would
import; two *different* claims to one name of a kind are kept side by side, so that the host can
refuse the name and show who claims it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any, Protocol

import importlib_metadata
from attrs import evolve, frozen

from rolecall.plugins.kinds import PluginKind

_KINDS = {kind.group: kind for kind in PluginKind}
_GROUP_PREFIX = "rolecall."


class PluginState(Enum):
    """What metadata tells about a plugin; only loading it can tell more."""

    INSTALLED = "installed"
    DUPLICATE = "duplicate"
    BLOCKED = "blocked"


@frozen(kw_only=True)
class PluginInfo:
    """One claim of one distribution to one name of a kind.

    Attributes:
        target: the entry point's value, the module that implements the hook.
        rivals: the other claims to the same name of the same kind, as ``origin`` texts; a claim that
            is blocked has none and is none.
        blocked_by: entry of a block list by which it counts as not installed.
    """

    kind: PluginKind
    name: str
    distribution: str
    version: str
    target: str
    rivals: tuple[str, ...] = ()
    blocked_by: str | None = None

    @property
    def state(self) -> PluginState:
        if self.blocked_by is not None:
            return PluginState.BLOCKED
        return PluginState.DUPLICATE if self.rivals else PluginState.INSTALLED

    @property
    def path(self) -> str:
        """Kind and name: ``routing_policy/sticky``."""
        return f"{self.kind.key}/{self.name}"

    @property
    def claim(self) -> str:
        """Distribution, kind and name: ``acme-routing/routing_policy/sticky``."""
        return f"{self.distribution}/{self.path}"

    @property
    def origin(self) -> str:
        """Distribution, version and module: ``acme-routing 1.2 (acme_routing.sticky)``."""
        return f"{self.distribution} {self.version} ({self.target})"

    def __str__(self) -> str:
        return f'{self.kind.label} "{self.name}" of {self.distribution} {self.version}'


class _Distribution(Protocol):
    """What is read of a distribution; importlib-metadata's own name for it differs by version."""

    @property
    def entry_points(self) -> Any: ...
    def read_text(self, filename: str, /) -> str | None: ...
    def locate_file(self, path: str, /) -> object: ...


def installed_plugins() -> tuple[PluginInfo, ...]:
    """Return every claim, sorted by kind, name and origin; none is marked as rival or blocked yet."""
    claims = {
        claim: None  # each once, also of a folder that is on sys.path twice
        for distribution in importlib_metadata.distributions()
        for claim in _claims(distribution)
    }
    order = {kind: position for position, kind in enumerate(PluginKind)}
    return tuple(sorted(claims, key=lambda info: (order[info.kind], info.name, info.origin)))


def with_rivals(plugins: Iterable[PluginInfo]) -> tuple[PluginInfo, ...]:
    """Return the claims, each with the others to its name; those that are blocked are left out of it."""
    found = tuple(plugins)
    claims: defaultdict[tuple[PluginKind, str], list[PluginInfo]] = defaultdict(list)
    for claim in found:
        if claim.blocked_by is None:
            claims[claim.kind, claim.name].append(claim)
    return tuple(
        claim
        if claim.blocked_by is not None
        else evolve(
            claim,
            rivals=tuple(other.origin for other in claims[claim.kind, claim.name] if other is not claim),
        )
        for claim in found
    )


def _claims(distribution: _Distribution) -> tuple[PluginInfo, ...]:
    try:
        # Reading one file is far cheaper than parsing the metadata of hundreds of distributions.
        if _GROUP_PREFIX not in (distribution.read_text("entry_points.txt") or ""):
            return ()
        name, version = _identity(distribution)
        importable = importlib_metadata.distribution(name)
        if importable.locate_file("") != distribution.locate_file("") or _identity(importable)[1] != version:
            return ()  # hidden by one of the same name that comes earlier on sys.path
        return tuple(
            PluginInfo(
                kind=_KINDS[entry_point.group],
                name=entry_point.name,
                distribution=name,
                version=version,
                target=entry_point.value,
            )
            for entry_point in distribution.entry_points
            if entry_point.group in _KINDS
        )
    except Exception as error:  # noqa: BLE001 - a half-removed distribution must not stop a job
        folder = getattr(distribution, "_path", distribution)  # it may not even know its own name
        import logging  # a sound listing, which must be quick, has no use for it

        logging.getLogger(__name__).warning(
            "%s: the plugins of this distribution are left out, since its metadata can't be read (%s: %s). "
            "Reinstall it, or remove the folder",
            folder,
            type(error).__name__,
            error,
        )
        return ()


def _identity(distribution: _Distribution) -> tuple[str, str]:
    """Return name and version. ``distribution.name`` would parse all of the metadata as an e-mail, slowly."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(": ")
        fields.setdefault(key, value.strip())
    if "Name" not in fields or "Version" not in fields:
        raise LookupError("no name or no version is written there")
    return fields["Name"], fields["Version"]
