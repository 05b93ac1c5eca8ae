"""A verdict that is a field of a JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from attrs import Attribute, field, frozen

from rolecall.verdicts.json_schema import check_schema, check_value
from rolecall.verdicts.number import NumberVerdict
from rolecall.verdicts.word import WordVerdict
from rolecall.verdicts.words import are_worths, is_above_low, is_finite, shown

_MOST_CHARACTERS = 2**18
_MOST_TRIES = 200
"""Braces that begin no object; a text with more of them is noise, and each costs a look at what follows."""


def _is_schema(_: object, attribute: Attribute[Mapping[str, Any]], value: Mapping[str, Any]) -> None:
    check_schema(value, attribute.name)


def _is_path(_: object, attribute: Attribute[str], value: str) -> None:
    if not value or not all(value.split(".")):
        raise ValueError(
            f'{attribute.name} must be names with dots between them, e.g. "verdict.score", found {value!r}'
        )


@frozen(kw_only=True)
class JsonVerdict:
    """Reads one field of the one JSON object in a text; what stands around it, such as a fence, is ignored.

    path: where the field is, names with dots between them.
    schema: what the whole object has to look like; see :mod:`rolecall.verdicts.json_schema`.
    low, high: the range, for a field that is a number.
    words: word → worth, for a field that is text; ``true`` and ``false`` are words, too.

    Two objects are no verdict: nobody knows which of them counts. Nor is an object in which a name comes
    twice.

    >>> JsonVerdict(path="score", low=0, high=5).read('So: {"why": "fine", "score": 4}. Done.')
    4.0
    """

    path: str = field(default="score", validator=_is_path)
    schema: Mapping[str, Any] = field(factory=dict, validator=_is_schema)
    low: float = field(default=0.0, validator=is_finite)
    high: float = field(default=10.0, validator=is_above_low)
    words: Mapping[str, float] = field(factory=dict, validator=are_worths)

    def read(self, text: str) -> float:
        """Return the field's number, or what its word is worth.

        Raises:
            ValueError: there is not exactly one object, it does not fit the schema, or its field is no
                verdict.
        """
        value = self.value(text)
        if isinstance(value, bool):
            value = "true" if value else "false"
        if isinstance(value, str) and self.words:
            try:
                return WordVerdict(words=self.words, where="whole").read(value)
            except ValueError as error:
                raise ValueError(f"{self.path}: {error}") from error
        if isinstance(value, int | float):
            # Compared before it is converted: an int may be too large for a float.
            number = NumberVerdict(low=self.low, high=self.high)
            return number.checked(value, f"{self.path} of {shown(text)}")
        raise ValueError(f"{self.path} must be {self.allowed}, found {shown(value)} in {shown(text)}")

    def value(self, text: str) -> object:
        """Return what the field holds, whatever it is.

        Raises:
            ValueError: there is not exactly one object, it does not fit the schema, or it has no such field.
        """
        found = _only_object(text)
        try:
            check_value(self.schema, found)
        except ValueError as error:
            raise ValueError(f"the verdict does not fit its schema: {error}; found {shown(text)}") from error
        value: object = found
        for name in self.path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise ValueError(f"the verdict has no field {self.path}: {shown(text)}")
            value = value[name]
        return value

    @property
    def allowed(self) -> str:
        """What may be said, in words."""
        number = f"a number from {self.low:g} to {self.high:g}"
        return f"one of {', '.join(self.words)} or {number}" if self.words else number


def _only_object(text: str) -> Mapping[str, object]:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the verdict has {len(text)} characters; {_MOST_CHARACTERS} are allowed")
    objects: list[Mapping[str, object]] = []
    place, tries, why = 0, 0, ""
    while (place := text.find("{", place)) >= 0:
        if tries == _MOST_TRIES:
            raise ValueError(
                f"the verdict has more than {_MOST_TRIES} braces that begin no JSON: {shown(text)}"
            )
        try:
            found, place = _DECODER.raw_decode(text, place)
        except _NotAllowed as error:
            raise ValueError(f"the verdict's JSON {error}: {shown(text)}") from error
        except (ValueError, RecursionError) as error:
            why = f" ({error})"
            place += 1
            tries += 1
            continue
        objects.append(found)
    if len(objects) != 1:
        found_words = f"has {len(objects)} JSON objects" if objects else f"has no JSON object{why}"
        raise ValueError(f"the verdict {found_words}, exactly one is allowed: {shown(text)}")
    return objects[0]


class _NotAllowed(Exception):
    """JSON as Python reads it, but nothing that may count."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotAllowed(f'has the name "{twice}" twice in one object')
    return made


def _no_constant(name: str) -> NoReturn:
    raise _NotAllowed(f"has {name}, which is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
