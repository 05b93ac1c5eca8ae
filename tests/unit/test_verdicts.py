"""Verdict parsers: what is read, what is refused and in which words, and that no text gives a number that
is not allowed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.api import JsonVerdict, NumberVerdict, WordVerdict, YesNoVerdict

GRADES = {"A": 1.0, "A-": 0.8, "B": 0.5, "C": -2.0}

TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            [
                *('0123456789+-.,eE{}[]":ABC ' + "\u2212٣½"),
                *("nan", "inf", "NaN", "Infinity", "1e999", "9" * 400, "true", "null", "yes", "no"),
                *('{"score": ', '"score"', "```json\n"),
            ]
        ),
        max_size=12,
    ).map("".join),
)


# --- numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "number"),
    [
        ("7", "first", 7.0),
        ("Grade: 7.5 of 10", "first", 7.5),
        ("3, no: 4", "last", 4.0),
        (" +2\n", "whole", 2.0),
        (".5", "first", 0.5),
        ("5e-1", "first", 0.5),
        ("so...5", "first", 5.0),
    ],
)
def test_a_number_is_read(text: str, where: Any, number: float) -> None:
    assert NumberVerdict(where=where).read(text) == number


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "first", "the verdict has no number: ''; a number from 0 to 10 is allowed"),
        ("eleven", "last", "has no number: 'eleven'"),
        ("11", "first", "the verdict 11 is not between 0 and 10: '11'"),
        ("11 or 5", "first", "11 is not between"),
        ("1e3", "first", "1000 is not between"),
        ("1,000", "first", "1000 is not between"),
        ("\u22121", "first", "-1 is not between"),
        ("9" * 500, "first", "inf is not between"),
        ("7 of 10", "whole", "is not a number and nothing else: '7 of 10'"),
        ("nan", "first", "has no number"),
    ],
)
def test_what_is_no_number_of_the_range_is_refused(text: str, where: Any, message: str) -> None:
    with pytest.raises(ValueError, match="the verdict") as refused:
        NumberVerdict(where=where).read(text)
    assert message in str(refused.value)


@given(TEXTS, st.sampled_from(["first", "last", "whole"]), st.floats(-50, 50), st.floats(0.1, 100))
def test_no_text_gives_a_number_out_of_range(text: str, where: Any, low: float, size: float) -> None:
    parser = NumberVerdict(low=low, high=low + size, where=where)
    try:
        number = parser.read(text)
    except ValueError:
        return
    assert low <= number <= low + size
    assert 0 <= parser.share(number) <= 1


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, math.inf), (math.nan, 1), (0, math.nan)])
def test_a_range_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        NumberVerdict(low=low, high=high)


# --- words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "worth"),
    [
        ("a, since it is right", "first", 1.0),
        ("**B**", "whole", 0.5),
        ("_b_", "first", 0.5),
        ("It is short. Grade: [[C]].\n", "last", -2.0),
        ("A-", "whole", 0.8),
        ("A-\n", "last", 0.8),
        ("B- it has a gap", "first", 0.5),
    ],
)
def test_a_word_is_worth_what_is_configured(text: str, where: Any, worth: float) -> None:
    assert WordVerdict(words=GRADES, where=where).read(text) == worth


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("", "first", "the verdict starts with none of A, A-, B, C: ''"),
        ("An answer", "first", "starts with none of"),
        ("A good one", "last", "ends with none of A, A-, B, C: 'A good one'"),
        ("A B", "whole", "is none of A, A-, B, C: 'A B'"),
        ("..." * 500, "last", "ends with none"),
    ],
)
def test_what_is_no_known_word_is_refused(text: str, where: Any, message: str) -> None:
    with pytest.raises(ValueError, match="the verdict") as refused:
        WordVerdict(words=GRADES, where=where).read(text)
    assert message in str(refused.value)


@given(TEXTS, st.sampled_from(["first", "last", "whole"]))
def test_no_text_gives_another_worth(text: str, where: Any) -> None:
    try:
        worth = WordVerdict(words=GRADES, where=where).read(text)
    except ValueError:
        return
    assert worth in GRADES.values()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "words is empty"),
        ({"not sure": 0.0}, "must be one word"),
        ({"": 0.0}, "must be one word"),
        ({"a": 1.0, "A": 0.0}, "case does not count"),
        ({"a": math.nan}, "must be a finite number"),
    ],
)
def test_words_that_can_not_be_told_apart_or_counted_are_refused(words: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordVerdict(words=words)


# --- JSON ---------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "required": ["score", "why"],
    "properties": {
        "score": {"type": ["number", "string"], "minimum": 1},
        "why": {"type": "string", "maxLength": 5},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"score": 4, "why": "ok"}', 4.0),
        ('So:\n```json\n{"score": 4.5, "why": ""}\n```\nDone {or not}.', 4.5),
        ('{"score": "Good.", "why": "", "tags": ["x", "y"]}', 0.9),
    ],
)
def test_a_field_of_the_only_object_is_read(text: str, number: float) -> None:
    assert JsonVerdict(schema=SCHEMA, high=5, words={"good": 0.9}).read(text) == number


def test_a_path_goes_into_objects_and_true_may_be_a_word() -> None:
    parser = JsonVerdict(path="a.b", words={"true": 1.0, "false": 0.0})
    assert parser.read('{"a": {"b": false}}') == 0.0
    with pytest.raises(ValueError, match=r"has no field a\.b"):
        parser.read('{"a": 1}')
    with pytest.raises(ValueError, match="b must be a number from 0 to 10, found 'true'"):
        JsonVerdict(path="b").read('{"b": true}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no JSON object, exactly one is allowed: ''"),
        ("[1]", "has no JSON object"),
        ('{"score": 4', "has no JSON object"),
        ('{"score": 4, "why": ""} {"score": 1, "why": ""}', "has 2 JSON objects"),
        ('{"score": 4, "score": 1, "why": ""}', 'has the name "score" twice'),
        ('{"score": NaN, "why": ""}', "has NaN"),
        ('{"score": 4}', "why is missing; found score"),
        ('{"score": 4, "why": 1}', "why must be string, found 1"),
        ('{"score": true, "why": ""}', "score must be number or string, found True"),
        ('{"score": 0, "why": ""}', "score is 0, but minimum is 1"),
        ('{"score": 4, "why": "a long one"}', "why has 10 characters, but maxLength is 5"),
        ('{"score": 4, "why": "", "tags": ["z"]}', "tags[0] must be one of 'x', 'y', found 'z'"),
        ('{"score": 4, "why": "", "tags": ["x", "x", "x"]}', "tags has 3 items, but maxItems is 2"),
        ('{"score": 4, "why": "", "more": 1}', "more is not allowed; allowed are score, why, tags"),
        ('{"score": 6, "why": ""}', "the verdict 6 is not between 0 and 5"),
        ('{"score": 1e999, "why": ""}', "inf is not between"),
        ('{"score": ' + "9" * 400 + ', "why": ""}', "of 400 digits is not between"),
        ('{"score": "4", "why": ""}', "score must be a number from 0 to 5, found '4'"),
        ("{" * 500, "than 200 braces"),
        ("[" * 10**4 + "{" + '"a":[' * 10**4, "has no JSON object"),
        ("x" * 2**19, "524288 characters"),
    ],
)
def test_json_that_is_no_verdict_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"verdict|score") as refused:
        JsonVerdict(schema=SCHEMA, high=5).read(text)
    assert message in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abs"), inner, max_size=3),
    max_leaves=8,
)


@given(st.one_of(TEXTS, st.dictionaries(st.sampled_from(["score", "a"]), JSON).map(json.dumps)))
def test_no_text_gives_a_field_out_of_range(text: str) -> None:
    parser = JsonVerdict(low=-1, high=4, words={"yes": 1.0})
    try:
        number = parser.read(text)
    except ValueError:
        return
    assert -1 <= number <= 4


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"oneOf": []}, "schema.oneOf is not known here; known are type"),
        ({"type": "text"}, "schema.type is 'text'; known are object"),
        ({"properties": {"a": {"pattern": "x"}}}, r"schema\.properties\.a\.pattern is not known"),
        ({"required": []}, "schema.required must be a list"),
        ({"minimum": "1"}, "schema.minimum must be a number"),
        ({"items": 1}, "schema.items must be a table"),
    ],
)
def test_a_schema_that_would_be_ignored_in_part_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JsonVerdict(schema=schema)


@given(JSON)
def test_the_small_schema_agrees_with_the_whole_one(value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from rolecall.verdicts.json_schema import check_schema, check_value

    inner = {"type": ["integer", "string", "null"], "maximum": 3, "minLength": 1}
    schema = {"properties": {"a": inner, "b": {"items": inner, "maxItems": 1}}, "required": ["a"]}
    schema |= {"additionalProperties": False, "type": ["object", "integer"]}
    check_schema(schema)
    sound = jsonschema.Draft202012Validator(schema).is_valid(value)
    try:
        check_value(schema, value)
    except ValueError:
        assert not sound
    else:
        assert sound


# --- log-probabilities --------------------------------------------------------------------


def answer(*tokens: tuple[str | None, float]) -> dict[str, Any]:
    entries = [[math.log(p) if p else -math.inf, place, text] for place, (text, p) in enumerate(tokens)]
    return {"text": "?", "meta_info": {"output_top_logprobs": [entries, []]}}


def test_how_likely_yes_is() -> None:
    parser = YesNoVerdict(yes=("yes", "true"))
    assert parser.read(answer((" Yes", 0.4), ("yes", 0.1), ("TRUE", 0.1), ("no", 0.2))) == pytest.approx(0.75)
    assert parser.read(answer(("no", 0.9), ("yes", 0.0))) == 0.0
    assert parser.fields() == {
        "return_logprob": True,
        "top_logprobs_num": 20,
        "return_text_in_logprobs": True,
    }


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (answer(("yes", 0.3), ("maybe", 0.6)), "yes or no with a probability of 0.3, at least 0.5"),
        (answer(("maybe", 1.0)), "probability of 0"),
        ({"text": "yes"}, r"no meta_info\.output_top_logprobs"),
        ({"meta_info": {"output_top_logprobs": []}}, "has no first token"),
        ({"meta_info": {"output_top_logprobs": [None]}}, "has no first token"),
        (answer((None, 0.9)), "has no text, which return_text_in_logprobs asks for"),
        ({"meta_info": {"output_top_logprobs": [[[0.5, 1, "yes"]]]}}, "which is 0 at the most"),
        ({"meta_info": {"output_top_logprobs": [[[math.nan, 1, "yes"]]]}}, "has no log-probability"),
        ({"meta_info": {"output_top_logprobs": [[["0", 1, "yes"]]]}}, "is not .log-probability, token"),
        (answer(("yes", 0.9), ("no", 0.9)), "sum up to 1.8"),
        ("yes", r"no meta_info\.output_top_logprobs"),
    ],
)
def test_log_probs_that_say_neither_yes_nor_no_are_refused(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        YesNoVerdict().read(found)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(), st.none(), st.integers(-3, 1)),
            st.integers(0, 5),
            st.one_of(st.sampled_from(["yes", "no", " Yes", "x"]), st.none()),
        ).map(list),
        max_size=5,
    )
)
def test_no_answer_gives_less_than_0_or_more_than_1(entries: list[Any]) -> None:
    try:
        number = YesNoVerdict(least_mass=0.1).read({"meta_info": {"output_top_logprobs": [entries]}})
    except ValueError:
        return
    assert 0 <= number <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"yes": ()}, "yes must have a word"),
        ({"no": (" ",)}, "no must have a word"),
        ({"no": ("No", " YES")}, "yes can't mean both"),
        ({"least_mass": 0.0}, "least_mass"),
        ({"top": 1}, "top"),
    ],
)
def test_yes_and_no_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        YesNoVerdict(**options)
