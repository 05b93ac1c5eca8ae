"""From tables to attrs classes: what is refused, in which words, all at once."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from attrs import field, frozen, validators

from rolecall.config.structure import StructureError, structure

Name = NewType("Name", str)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Fruit(StrEnum):
    APPLE = "apple"


class Level(IntEnum):
    HIGH = 3


@frozen(kw_only=True)
class Inner:
    size: int = field(default=1, validator=validators.gt(0))
    label: str


@frozen(kw_only=True)
class Everything:
    flag: bool = False
    count: int = 0
    ratio: float = 0.0
    text: str = ""
    path: Path = Path()
    name: Name = Name("")
    measured: Annotated[int, "seconds"] = 0
    mode: Literal["fast", "slow", 3] = "fast"
    colour: Colour = Colour.RED
    fruit: Fruit | None = None
    level: Level = Level.HIGH
    maybe: int | None = None
    either: int | str = 0
    texts: tuple[str, ...] = ()
    numbers: list[float] = field(factory=list)
    items: Sequence[Any] = ()
    unique: frozenset[int] = frozenset()
    pair: tuple[str, int] = ("", 0)
    anything: Any = None
    table: Mapping[str, int] = field(factory=dict)
    free: dict[str, Any] = field(factory=dict)
    inner: Inner = Inner(label="")
    inners: Mapping[str, Inner] = field(factory=dict)
    day: datetime.date = datetime.date(2000, 1, 1)


def test_choices_that_are_texts_or_numbers_become_their_members() -> None:
    made = structure(Everything, {"fruit": "apple", "level": 3})
    assert (made.fruit, made.level) == (Fruit.APPLE, Level.HIGH)
    assert type(made.fruit) is Fruit
    assert type(made.level) is Level
    assert "apple" in faults({"fruit": "pear"})["fruit",]


def faults(table: object, cls: type = Everything) -> dict[tuple, str]:
    with pytest.raises(StructureError) as caught:
        structure(cls, table)
    found = {fault.path: fault.message for fault in caught.value.faults}
    assert len(found) == len(caught.value.faults)
    return found


def fault(table: dict) -> str:
    ((_, message),) = faults(table).items()
    return message


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("flag", True, True),
        ("count", 3, 3),
        ("ratio", 1.5, 1.5),
        ("ratio", 2, 2.0),
        ("text", "x", "x"),
        ("path", "a/b", Path("a/b")),
        ("name", "n", "n"),
        ("measured", 4, 4),
        ("mode", "slow", "slow"),
        ("mode", 3, 3),
        ("colour", "blue", Colour.BLUE),
        ("maybe", 3, 3),
        ("either", 3, 3),
        ("either", "3", "3"),
        ("texts", ["a", "b"], ("a", "b")),
        ("numbers", [1, 2.5], [1.0, 2.5]),
        ("items", [1, "a"], [1, "a"]),
        ("unique", [1, 1, 2], frozenset({1, 2})),
        ("pair", ["a", 1], ("a", 1)),
        ("anything", {"a": [1]}, {"a": [1]}),
        ("table", {"a": 1}, {"a": 1}),
        ("free", {"a": {"b": 1.5}}, {"a": {"b": 1.5}}),
        ("inner", {"label": "l"}, Inner(label="l")),
        ("inners", {"a": {"label": "l", "size": 2}}, {"a": Inner(label="l", size=2)}),
        ("day", datetime.date(2026, 1, 2), datetime.date(2026, 1, 2)),
    ],
)
def test_what_is_accepted(key, value, expected):
    result = getattr(structure(Everything, {key: value}), key)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", True, "must be a whole number, found true (true or false)"),
        ("count", 1.0, "must be a whole number, found 1.0 (a number)"),
        ("count", "3", 'must be a whole number, found "3" (text); write it without quotes'),
        ("ratio", True, "must be a number, found true (true or false)"),
        ("ratio", "-1.5", 'must be a number, found "-1.5" (text); write it without quotes'),
        ("ratio", "much", 'must be a number, found "much" (text)'),
        ("ratio", float("inf"), "must be a finite number, found inf"),
        ("ratio", float("nan"), "must be a finite number, found nan"),
        ("flag", 1, "must be true or false, found 1 (a whole number)"),
        ("flag", "true", 'must be true or false, found "true" (text); write it without quotes'),
        ("text", 3, "must be text, found 3 (a whole number)"),
        ("text", ["x"], "must be text, found a list"),
        ("text", datetime.date(2026, 1, 2), "must be text, found 2026-01-02 (a date or time)"),
        ("path", {}, "must be text, found a table"),
        ("name", 3, "must be text, found 3 (a whole number)"),
        ("mode", "fastt", 'must be one of "fast", "slow", 3, found "fastt" (text); did you mean "fast"?'),
        ("mode", True, 'must be one of "fast", "slow", 3, found true (true or false)'),
        ("colour", "RED", 'must be one of "red", "blue", found "RED" (text); did you mean "red"?'),
        ("maybe", "x", 'must be a whole number, found "x" (text)'),
        (
            "either",
            1.5,
            "must be a whole number, found 1.5 (a number); or must be text, found 1.5 (a number)",
        ),
        ("texts", "console", 'must be a list, found "console" (text); write ["console"]'),
        ("pair", ["a"], "must be a list of 2, found 1"),
        ("table", [1], "must be a table, found a list"),
        ("inner", "x", 'must be a table, found "x" (text)'),
        ("day", datetime.datetime(2026, 1, 2), "must be a date, found 2026-01-02 00:00:00 (a date or time)"),
        ("text", 10**80, f"must be text, found {10**80} (a whole number)"),
    ],
)
def test_what_is_refused(key, value, message):
    assert faults({key: value}) == {(key,): message}


def test_long_text_is_cut_in_messages():
    message = fault({"count": "x" * 1000})
    assert len(message) < 150
    assert "…" in message


def test_paths_lead_into_lists_and_tables():
    found = faults(
        {
            "texts": ["a", 1, 2],
            "inners": {"a": {"label": 1}, "b c": {"label": "x", "sizes": 1}},
            "table": {"k": "v"},
        }
    )
    assert set(found) == {
        ("texts", 1),
        ("texts", 2),
        ("inners", "a", "label"),
        ("inners", "b c", "sizes"),
        ("table", "k"),
    }


def test_an_unknown_key_lists_the_allowed_ones():
    assert faults({"lable": "x", "label": "y"}, Inner) == {
        ("lable",): "is not a known key. Allowed: size, label"
    }


def test_a_misspelt_required_key_is_one_fault_not_two():
    assert faults({"lable": "x"}, Inner) == {
        ("lable",): 'is not a known key; did you mean "label"? Allowed: size, label'
    }


def test_a_missing_key_says_what_it_must_be():
    assert faults({}, Inner) == {("label",): "is missing; it must be text"}


def test_missing_keys_of_every_type_say_what_they_must_be():
    @frozen(kw_only=True)
    class Needy:
        a: int | None
        b: Literal["x", "y"]
        c: Inner
        d: tuple[str, ...]
        e: Mapping[str, int]
        f: Any

    assert faults({}, Needy) == {
        ("a",): "is missing; it must be a whole number",
        ("b",): 'is missing; it must be one of "x", "y"',
        ("c",): "is missing; it must be a table",
        ("d",): "is missing; it must be a list",
        ("e",): "is missing; it must be a table",
        ("f",): "is missing; it must be given",
    }


def test_the_top_must_be_a_table():
    assert faults("x", Inner) == {(): 'must be a table, found "x" (text)'}


# --- validators -------------------------------------------------------------------------


@frozen(kw_only=True)
class Checked:
    above: int = field(default=1, validator=validators.gt(0))
    least: float = field(default=1, validator=validators.ge(0.5))
    below: int = field(default=1, validator=validators.lt(5))
    most: int = field(default=1, validator=[validators.ge(0), validators.le(65535)])
    optional: int | None = field(default=None, validator=validators.optional(validators.gt(0)))
    pattern: str = field(default="a", validator=validators.matches_re(r"[a-z]+"))
    choice: str = field(default="a", validator=validators.in_(["a", "b"]))
    some: Mapping[str, int] = field(factory=lambda: {"a": 1}, validator=validators.min_len(1))
    few: tuple[str, ...] = field(default=(), validator=validators.max_len(1))
    short: str = field(default="", validator=validators.max_len(2))
    own: int = field(default=0)

    @own.validator
    def _own(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value > self.above:
            raise ValueError(f"must not be above {self.above}, the value of above")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("above", 0, "must be greater than 0, found 0"),
        ("least", 0.25, "must be at least 0.5, found 0.25"),
        ("below", 5, "must be less than 5, found 5"),
        ("most", -1, "must be at least 0, found -1"),
        ("most", 65536, "must be at most 65535, found 65536"),
        ("optional", -2, "must be greater than 0, found -2"),
        ("pattern", "A b", 'must match the pattern [a-z]+, found "A b"'),
        ("choice", "c", "must be one of ['a', 'b'], found \"c\""),
        ("some", {}, "must have at least 1 entry, has 0"),
        ("few", ["a", "b"], "must have at most 1 entry, has 2"),
        ("short", "abc", "must have at most 2 characters, has 3"),
        ("own", 2, "must not be above 1, the value of above, found 2"),
    ],
)
def test_validators_speak_plainly(key, value, message):
    assert faults({key: value}, Checked) == {(key,): message}


def test_all_validators_are_asked():
    assert set(faults({"above": 0, "most": -1, "choice": "c"}, Checked)) == {
        ("above",),
        ("most",),
        ("choice",),
    }


def test_validators_are_asked_beside_wrong_types_and_unknown_keys():
    found = faults({"above": -1, "below": "x", "moost": 1}, Checked)
    assert set(found) == {("above",), ("below",), ("moost",)}


def test_a_validator_that_needs_another_wrong_key_waits_for_it():
    @frozen(kw_only=True)
    class Range:
        low: int
        high: int = field()

        @high.validator
        def _above_low(self, attribute: attrs.Attribute[int], value: int) -> None:
            if value < self.low:
                raise ValueError("must not be below low")

    assert set(faults({"low": "x", "high": 1}, Range)) == {("low",)}
    assert faults({"low": 2, "high": 1}, Range) == {("high",): "must not be below low, found 1"}


def test_a_fault_of_the_whole_table_is_told_for_the_table():
    @frozen(kw_only=True)
    class Pair:
        a: int = 0
        b: int = 0

        def __attrs_post_init__(self) -> None:
            if self.a and self.b:
                raise ValueError("a and b exclude each other")

    assert faults({"a": 1, "b": 1}, Pair) == {(): "a and b exclude each other"}


def test_converters_and_private_names_of_plugin_classes_work():
    @frozen(kw_only=True)
    class Odd:
        _hidden: int = 0
        folder: Path = field(default=Path(), converter=Path)
        made: str = field(init=False, default="made")

    assert structure(Odd, {"hidden": 2, "folder": "x"}) == Odd(hidden=2, folder="x")
    assert set(faults({"_hidden": 1, "made": "x"}, Odd)) == {("_hidden",), ("made",)}


def test_a_validator_bug_is_told_not_hidden():
    @frozen(kw_only=True)
    class Buggy:
        a: int = field(default=0)

        @a.validator
        def _bug(self, attribute: attrs.Attribute[int], value: int) -> None:
            raise AttributeError("no such thing")

    assert faults({"a": 1}, Buggy) == {("a",): "no such thing, found 1"}
