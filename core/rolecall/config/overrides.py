"""Values that take the place of a job file's own: what a what-if asks, and what a layout stands for.

An override is a key and a value, as if the file said so; it is checked as the file is, and what is
wrong with it is told under the name it came by (``--set``) instead of a line. Pure; the file itself is
never written.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from attrs import evolve, field, frozen

from rolecall.config.lines import KeyPath
from rolecall.config.source import Fault, key_text
from rolecall.config.words import quoted
from rolecall.errors import ConfigError, ConfigProblem

_SET = "--set"

_GPUS = {"gpus": "devices", "gpus_per_engine": "devices_per_engine", "gpus_per_node": "devices_per_node"}
"""What people with GPUs call a key."""


@frozen
class Override:
    """One key and the value that it gets; None takes the key out, if it is there.

    ``origin`` is what the user wrote it with, for messages.
    """

    path: KeyPath
    value: Any
    origin: str


@frozen(kw_only=True)
class Overridden:
    """A table with overrides in it; ``origins`` are the paths that they made or gave a value."""

    table: dict[str, Any]
    origins: Mapping[KeyPath, str] = field(factory=dict)
    faults: tuple[Fault, ...] = ()


def override(table: Mapping[str, Any], overrides: Iterable[Override]) -> Overridden:
    """Put overrides into a copy of a job file's table, one after the other: the last one counts."""
    result = dict(table)
    origins: dict[KeyPath, str] = {}
    faults: list[Fault] = []
    for asked in overrides:
        change = _in_devices(asked, result)
        if isinstance(change, Fault):
            faults.append(change)
            origins[asked.path] = asked.origin
            continue
        parent: dict[Any, Any] = result
        for depth, part in enumerate(change.path[:-1], 1):
            child: Any = parent.get(part)
            if child is None:
                if change.value is None:
                    break  # the key that goes is not there
                origins[change.path[:depth]] = change.origin
                child = {}
            if not isinstance(child, Mapping):
                message = f"is no table, so {key_text(change.path)} can't be set"
                faults.append(Fault(path=change.path[:depth], message=message))
                break
            parent[part] = parent = dict(cast(Mapping[str, Any], child))
        else:
            if change.value is None:
                parent.pop(change.path[-1], None)
            else:
                parent[change.path[-1]] = change.value
                origins[change.path] = change.origin
    return Overridden(table=result, origins=origins, faults=tuple(faults))


def _in_devices(change: Override, table: Mapping[str, Any]) -> Override | Fault:
    """Say ``gpus`` as a job file does. A model's are as many replicas as they are engines."""
    *parents, last = change.path
    if last not in _GPUS:
        return change
    match change.path:
        case ("roles", role, "models", model, "gpus"):
            engine = _value(table, (*parents, "devices_per_engine"), 1)
            whole = type(change.value) is type(engine) is int and engine > 0
            if not whole or change.value % engine:
                message = (
                    f"{change.value!r} can't be divided into engines of {engine}; give a multiple, or set the"
                    f" devices_per_engine of {role}'s {model} first"
                )
                return Fault(path=change.path, message=message)
            return evolve(change, path=(*parents, "replicas"), value=change.value // engine)
        case _:
            return evolve(change, path=(*parents, _GPUS[str(last)]))


def _value(table: Any, path: KeyPath, default: Any) -> Any:
    for part in path:
        table = table.get(part, default) if isinstance(table, Mapping) else default
    return table


def with_values(config: Any, overrides: Iterable[Override]) -> Any:
    """Return a structured table, an attrs instance or a mapping, with overrides of values it has or may have.

    Unlike :func:`override` it takes no key out and makes no table.
    """
    for change in overrides:
        config = _with_value(config, change.path, change.value)
    return config


def _with_value(config: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    part = path[0]
    if isinstance(config, Mapping):
        return {**config, part: _with_value(config[part], path[1:], value)}
    return evolve(config, **{str(part): _with_value(getattr(config, str(part)), path[1:], value)})


# --- as text -------------------------------------------------------------------------------


def parse_override(text: str, origin: str = _SET) -> Override:
    """Read ``KEY=VALUE``: a dotted TOML key and a TOML value.

    Raises:
        ConfigError: it is not that; names the origin and what to write.
    """
    key, value = _split(text, origin)
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if list(parsed) != ["value"]:
        found = quoted(value.strip())
        hint = "" if '"' in value else f"; text needs quotes: {origin} '{key_text(key)}={found}'"
        raise _malformed(origin, key_text(key), f"{found} is no TOML value{hint}")
    return Override(key, parsed["value"], origin)


def toml_lines(overrides: Iterable[Override]) -> Iterator[str]:
    """Return overrides of texts, numbers and lists of them as they stand in a job file."""
    for change in overrides:
        yield f"{key_text(change.path)} = {json.dumps(change.value, ensure_ascii=False)}"


def key_path(text: str) -> KeyPath | None:
    """Read a dotted TOML key; None if it is none."""
    try:
        table = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(table, dict) and len(table) == 1:
        (part, table) = next(iter(table.items()))
        path.append(part)
    return tuple(path) if table == 0 else None


def _split(text: str, origin: str) -> tuple[KeyPath, str]:
    """Divide at the first ``=`` that is not inside a quoted key."""
    at = text.find("=")
    while at >= 0:
        path = key_path(text[:at])
        if path is not None:
            return path, text[at + 1 :]
        at = text.find("=", at + 1)
    raise _malformed(origin, "", f"{quoted(text)} is not KEY=VALUE, as in {origin} placement.devices=16")


def _malformed(origin: str, key: str, message: str) -> ConfigError:
    return ConfigError([ConfigProblem(file=origin, key=key, message=message)])
