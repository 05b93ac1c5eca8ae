"""What a new plugin, its distribution and its import package may be called.

Pure: what is installed comes in as an argument or is asked of Python's own import system. Every refusal
is a :class:`~rolecall.errors.ScaffoldError` that says what was found, what is allowed and what to do.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Collection

from attrs import frozen

from rolecall.errors import ScaffoldError
from rolecall.nearest import did_you_mean
from rolecall.plugins.kinds import PluginKind

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 24
_LONGEST_DISTRIBUTION = 60
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*")


@frozen(kw_only=True)
class Names:
    """What the new plugin is called in each place.

    Attributes:
        name: in job files, and of the entry point.
        distribution: what ``pip install`` is told.
        package: what Python imports.
        class_name: the plugin's class.
    """

    kind: PluginKind
    name: str
    distribution: str
    package: str
    class_name: str


def parse_kind(text: str) -> PluginKind:
    """Return the kind that is meant by its label, written with spaces, dashes or underscores.

    Raises:
        ScaffoldError: there is no such kind; the message has the nearest and all of them.
    """
    kinds = {as_argument(kind): kind for kind in PluginKind}
    wanted = re.sub(r"[\s_-]+", "-", text.strip()).casefold()
    if wanted in kinds:
        return kinds[wanted]
    hint = did_you_mean(wanted, kinds) or "."
    raise ScaffoldError(f'there is no kind "{text}" of plugin{hint} Kinds: {", ".join(kinds)}')


def as_argument(kind: PluginKind) -> str:
    """Return the kind as a command line writes it: ``routing-policy``."""
    return kind.label.replace(" ", "-")


def choose_names(
    kind: PluginKind,
    name: str,
    *,
    taken: Collection[str],
    reserved: Collection[str],
    distribution: str | None = None,
) -> Names:
    """Return all names of a new plugin.

    Args:
        taken: names of the kind that are installed.
        reserved: names that the plugin's modules import, which its class can't have.
        distribution: None takes ``rolecall-`` and the name, with dashes.

    Raises:
        ScaffoldError: one of the names can't be used.
    """
    _check_name(kind, name, taken)
    chosen = distribution if distribution is not None else f"rolecall-{name.replace('_', '-')}"
    class_name = _class_name(kind, name)
    if class_name in reserved:
        raise ScaffoldError(
            f'the class of "{name}" would be called {class_name}, as one of rolecall.api is; '
            f"choose another name, such as my_{name}"
        )
    return Names(
        kind=kind,
        name=name,
        distribution=chosen,
        package=_package(chosen),
        class_name=class_name,
    )


def _check_name(kind: PluginKind, name: str, taken: Collection[str]) -> None:
    if not _is_name(name):
        plain = re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
        hint = f'; "{plain}" would do' if _is_name(plain) else ""
        raise ScaffoldError(
            f'"{name}" can\'t name a plugin{hint}. Lower-case letters, digits and single underscores '
            f"between them are allowed, a letter first, {_LONGEST} characters at most"
        )
    if keyword.iskeyword(name):
        raise ScaffoldError(f'"{name}" is a word of Python; choose another, such as "{name}_one"')
    if name in taken:
        raise ScaffoldError(
            f'{kind.label} "{name}" is installed already, and two of one name can\'t be used: choose another '
            f"name. Installed: {', '.join(sorted(taken))}. See: rolecall plugins list"
        )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and len(text) <= _LONGEST


def _package(distribution: str) -> str:
    if not _DISTRIBUTION.fullmatch(distribution) or len(distribution) > _LONGEST_DISTRIBUTION:
        raise ScaffoldError(
            f'"{distribution}" can\'t name a distribution: letters and digits are allowed, ".", "-" and "_" '
            f"between them, {_LONGEST_DISTRIBUTION} characters at most"
        )
    package = re.sub(r"[._-]+", "_", distribution).casefold()
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ScaffoldError(
            f'the package of distribution "{distribution}" would be "{package}", which Python can\'t import; '
            "choose another with --distribution NAME"
        )
    if importlib.util.find_spec(package) is not None:
        raise ScaffoldError(
            f'the package of distribution "{distribution}" would be "{package}", but Python can import one '
            "of that name already; choose another with --distribution NAME"
        )
    return package


def _class_name(kind: PluginKind, name: str) -> str:
    """``sticky`` as a routing policy: ``StickyPolicy``."""
    suffix = kind.label.split()[-1]
    words = [*name.removesuffix(f"_{suffix}").split("_"), suffix]
    return "".join(word.capitalize() for word in words)
