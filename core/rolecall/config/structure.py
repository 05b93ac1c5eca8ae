"""From a TOML table to an instance of an attrs class, or every fault in the table at once.

Serves the job file's own classes and the ``options`` classes of plugins alike. cattrs chooses
what to do for a type; the hooks here are stricter than its own and say more: no value is
converted (a bool is not an int, text is not a list; an int may stand for a float), unknown keys
are refused with the nearest known one, and the faults of a table's keys are collected together
with those that its validators find.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import cattrs
from attrs import NOTHING, Attribute

from rolecall.config.source import Fault
from rolecall.config.words import (
    COLLECTIONS,
    MAPPINGS,
    choice_words,
    complaint_words,
    quoted,
    type_words,
    value_words,
)
from rolecall.nearest import did_you_mean, nearest

_Hook = Callable[[Any, Any], Any]


class StructureError(Exception):
    """A table does not fit its class; carries every fault, paths relative to the table."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.message for fault in self.faults))


def structure(cls: type[Any], table: object) -> Any:
    """Return an instance of the attrs class made from a table.

    Raises:
        StructureError: with all faults of the table and of the tables inside it.
    """
    return _structure(table, cls)


def _structure(value: object, hint: Any) -> Any:
    try:
        return _CONVERTER.structure(value, hint)
    except StructureError:
        raise
    except Exception as error:  # a converter of a plugin's own type may raise anything
        raise _refused(f"{error}, found {value_words(value)}") from error


def _refused(message: str) -> StructureError:
    return StructureError([Fault(path=(), message=message)])


def _expected(what: str, value: object, hint: str = "") -> StructureError:
    return _refused(f"must be {what}, found {value_words(value)}{hint}")


# --- single values ----------------------------------------------------------------------


def _boolean(value: object, _: Any) -> bool:
    if not isinstance(value, bool):
        hint = "; write it without quotes" if value in ("true", "false") else ""
        raise _expected("true or false", value, hint)
    return value


def _integer(value: object, _: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _expected("a whole number", value, _unquote_hint(value))
    return value


def _number(value: object, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _expected("a number", value, _unquote_hint(value))
    if not math.isfinite(value):
        raise _refused(f"must be a finite number, found {value}")
    return float(value)


def _unquote_hint(value: object) -> str:
    is_number = isinstance(value, str) and value.removeprefix("-").replace(".", "", 1).isdecimal()
    return "; write it without quotes" if is_number else ""


def _text(value: object, _: Any) -> str:
    if not isinstance(value, str):
        raise _expected("text", value)
    return value


def _path(value: object, _: Any) -> Path:
    return Path(_text(value, str))


def _moment(value: object, hint: Any) -> Any:
    # A datetime is a date to Python, but not to TOML.
    if type(value) is not hint:
        raise _expected(f"a {hint.__name__}", value)
    return value


def _anything(value: object, _: Any) -> Any:
    return value


def _literal(value: object, hint: Any) -> Any:
    return _choice(value, {option: option for option in get_args(hint)})


def _enum(value: object, enum: type[Enum]) -> Enum:
    return _choice(value, {member.value: member for member in enum})


def _choice(value: object, options: Mapping[Any, Any]) -> Any:
    for option, result in options.items():
        if type(option) is type(value) and option == value:
            return result
    hint = did_you_mean(value, map(str, options)) if isinstance(value, str) else ""
    raise _expected(f"one of {choice_words(options)}", value, hint)


def _union(value: object, hint: Any) -> Any:
    """Take the first member that accepts the value; TOML has no null, so None is none of them."""
    members = [member for member in get_args(hint) if member is not type(None)]
    if value is None and len(members) < len(get_args(hint)):
        return None
    errors: list[StructureError] = []
    for member in members:
        try:
            return _structure(value, member)
        except StructureError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise _refused("; or ".join(str(error) for error in errors))


# --- lists and tables -------------------------------------------------------------------


def _collection(value: object, hint: Any) -> Any:
    """Lists, sets and tuples of one type; ``list`` alone takes any items."""
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if not isinstance(value, list):
        example = f"; write [{quoted(value)}]" if isinstance(value, str) else ""
        raise _expected("a list", value, example)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _refused(f"must be a list of {len(arguments)}, found {len(value)}")
        hints: Sequence[Any] = arguments
    else:
        hints = [arguments[0] if arguments else Any] * len(value)
    items = _each(zip(range(len(value)), value, hints, strict=True))
    target = {tuple: tuple, set: set, frozenset: frozenset}.get(origin, list)
    return target(items.values())


def _mapping(value: object, hint: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _expected("a table", value)
    item = get_args(hint)[1] if get_args(hint) else Any
    return _each((key, entry, item) for key, entry in value.items())


def _each(items: Iterable[tuple[Any, object, Any]]) -> dict[Any, Any]:
    """Structure every (key, value, type); all faults or all results."""
    results: dict[Any, Any] = {}
    faults: list[Fault] = []
    for key, value, hint in items:
        try:
            results[key] = _structure(value, hint)
        except StructureError as error:
            faults += [fault.under((key,)) for fault in error.faults]
    if faults:
        raise StructureError(faults)
    return results


def _attrs_hook(cls: type[Any]) -> _Hook:
    hints = get_type_hints(cls)
    fields = {field.alias or field.name: field for field in attrs.fields(cls) if field.init}

    def from_table(value: object, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _expected("a table", value)
        return _make(cls, fields, hints, value)

    return from_table


_Fields = Mapping[str, "Attribute[Any]"]


def _make(cls: type[Any], fields: _Fields, hints: Mapping[str, Any], table: Mapping[str, Any]) -> Any:
    faults = list(_key_faults(fields, hints, table))
    values: dict[str, Any] = {}
    for key in (key for key in table if key in fields):
        try:
            values[key] = _structure(table[key], hints.get(fields[key].name, Any))
        except StructureError as error:
            faults += [fault.under((key,)) for fault in error.faults]
    if faults:
        raise StructureError([*faults, *_validator_faults(cls, fields, values, partial=True)])
    try:
        return cls(**values)
    except Exception as error:
        found = tuple(_validator_faults(cls, fields, values, partial=False))
        raise StructureError(found) if found else _refused(str(error)) from error


def _key_faults(fields: _Fields, hints: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Fault]:
    meant: set[str | None] = set()
    absent = [key for key in fields if key not in table]
    for key in (key for key in table if key not in fields):
        meant.add(nearest(key, absent))
        allowed = ", ".join(fields) or "none"
        hint = did_you_mean(key, absent) or "."
        yield Fault(path=(key,), message=f"is not a known key{hint} Allowed: {allowed}")
    for key, field in fields.items():
        if field.default is NOTHING and key not in table and key not in meant:
            yield Fault(
                path=(key,), message=f"is missing; it must be {type_words(hints.get(field.name, Any))}"
            )


def _validator_faults(
    cls: type[Any], fields: _Fields, values: Mapping[str, Any], *, partial: bool
) -> Iterator[Fault]:
    """Ask each field's validator by itself: the class's own ``__init__`` stops at the first fault."""
    instance = object.__new__(cls)
    for key, field in fields.items():
        if key in values:
            object.__setattr__(instance, field.name, values[key])
        elif field.default is not NOTHING:
            object.__setattr__(instance, field.name, _default(field, instance))
    for key, field in fields.items():
        if field.validator is None or key not in values:
            continue
        try:
            field.validator(instance, field, values[key])
        except Exception as error:  # noqa: BLE001 - validators raise what they like; it is told as a fault
            if partial and isinstance(error, AttributeError):
                continue  # it looks at a key whose own value is wrong; it is asked again next time
            yield Fault(path=(key,), message=complaint_words(error, field.name, values[key]))


def _default(field: Attribute[Any], instance: object) -> Any:
    default: Any = field.default
    if not hasattr(default, "takes_self"):
        return default
    return default.factory(instance) if default.takes_self else default.factory()


# --- the converter ----------------------------------------------------------------------


def _has_origin(origins: tuple[Any, ...]) -> Callable[[Any], bool]:
    return lambda hint: (get_origin(hint) or hint) in origins


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    singles: dict[Any, _Hook] = {bool: _boolean, int: _integer, float: _number, str: _text, Path: _path}
    # A class's hook is taken for its subclasses too, and a StrEnum is a str.
    singles |= {StrEnum: _enum, IntEnum: _enum}
    for hint, hook in singles.items():
        converter.register_structure_hook(hint, hook)
    converter.register_structure_hook_func(lambda hint: hint is Any or hint is object, _anything)
    converter.register_structure_hook_func(lambda hint: hint in (date, datetime, time), _moment)
    converter.register_structure_hook_func(_is_enum, _enum)
    converter.register_structure_hook_func(_has_origin((Literal,)), _literal)
    converter.register_structure_hook_func(_has_origin((Union, types.UnionType)), _union)
    converter.register_structure_hook_func(_has_origin(COLLECTIONS), _collection)
    converter.register_structure_hook_func(_has_origin(MAPPINGS), _mapping)
    converter.register_structure_hook_factory(lambda hint: attrs.has(get_origin(hint) or hint), _attrs_hook)
    return converter


_CONVERTER = _make_converter()
