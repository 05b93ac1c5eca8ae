"""A small part of JSON Schema: enough to say what a judge's answer has to look like.

``type``, ``enum``, ``const``, ``properties``, ``required``, ``additionalProperties`` (true or false),
``items``, ``minItems``, ``maxItems``, ``minimum``, ``maximum``, ``minLength``, ``maxLength``; ``title`` and
``description`` say nothing. Any other keyword is refused when the schema is given: one that is ignored
would allow what its author has ruled out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rolecall.verdicts.words import shown

_TYPES: Mapping[str, type[Any] | tuple[type[Any], ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_LIMITS = ("minimum", "maximum")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems")
_WORDS = ("title", "description")


def check_schema(schema: object, where: str = "schema") -> None:
    """Refuse a schema that uses what is not known here.

    Raises:
        ValueError: names the keyword and where it is.
    """
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} must be a table, found {shown(schema)}")
    for keyword, value in cast("Mapping[str, Any]", schema).items():
        at = f"{where}.{keyword}"
        if keyword == "type":
            for name in _as_list(value):
                if name not in _TYPES:
                    raise ValueError(f"{at} is {shown(name)}; known are {', '.join(_TYPES)}")
        elif keyword == "properties":
            if not isinstance(value, Mapping):
                raise ValueError(f"{at} must be a table, found {shown(value)}")
            for name, inner in cast("Mapping[str, Any]", value).items():
                check_schema(inner, f"{at}.{name}")
        elif keyword == "items":
            check_schema(value, at)
        elif keyword in ("required", "enum"):
            if not isinstance(value, list) or not value:
                raise ValueError(f"{at} must be a list, not empty, found {shown(value)}")
        elif keyword in _LIMITS or keyword in _SIZES:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{at} must be a number, found {shown(value)}")
        elif keyword == "additionalProperties":
            if not isinstance(value, bool):
                raise ValueError(f"{at} must be true or false, found {shown(value)}")
        elif keyword not in ("const", *_WORDS):
            raise ValueError(f"{at} is not known here; known are {', '.join(_KNOWN)}")


_KNOWN = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items"),
    *(*_LIMITS, *_SIZES, *_WORDS),
)


def check_value(schema: Mapping[str, Any], value: object) -> None:
    """Refuse a value that does not fit a schema that has been checked.

    Raises:
        ValueError: with the first fault: where it is, what was found and what is allowed.
    """
    for fault in _faults(schema, value, ""):
        raise ValueError(fault)


def _faults(schema: Mapping[str, Any], value: object, where: str) -> Iterator[str]:
    at = where or "the answer"
    if "type" in schema:
        types = _as_list(schema["type"])
        if not any(_is(value, name) for name in types):
            yield f"{at} must be {' or '.join(types)}, found {shown(value)}"
            return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{at} must be {shown(schema['const'])}, found {shown(value)}"
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        yield f"{at} must be one of {', '.join(map(shown, schema['enum']))}, found {shown(value)}"
    if _is(value, "number"):
        yield from _outside(schema, "minimum", "maximum", cast(float, value), f"{at} is {shown(value)}")
    if isinstance(value, str):
        yield from _outside(schema, "minLength", "maxLength", len(value), f"{at} has {len(value)} characters")
    if isinstance(value, list):
        items = cast("list[object]", value)
        yield from _outside(schema, "minItems", "maxItems", len(items), f"{at} has {len(items)} items")
        for place, item in enumerate(items):
            yield from _faults(schema.get("items", {}), item, f"{where}[{place}]")
    if isinstance(value, Mapping):
        yield from _object_faults(schema, cast("Mapping[str, object]", value), where)


def _object_faults(schema: Mapping[str, Any], value: Mapping[str, object], where: str) -> Iterator[str]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_joined(where, name)} is missing; found {', '.join(value) or 'nothing'}"
    for name, inner in value.items():
        if name in properties:
            yield from _faults(properties[name], inner, _joined(where, name))
        elif schema.get("additionalProperties") is False:
            yield f"{_joined(where, name)} is not allowed; allowed are {', '.join(properties) or 'none'}"


def _outside(schema: Mapping[str, Any], low: str, high: str, number: float, found: str) -> Iterator[str]:
    if low in schema and not number >= schema[low]:
        yield f"{found}, but {low} is {schema[low]}"
    if high in schema and not number <= schema[high]:
        yield f"{found}, but {high} is {schema[high]}"


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _same(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _as_list(value: object) -> Sequence[str]:
    return cast("list[str]", value) if isinstance(value, list) else [cast(str, value)]
