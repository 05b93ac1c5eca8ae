"""Token ids that nobody decodes: a list counts as them exactly if it has integers from 0 and nothing else."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import PayloadError, TokenIds, check_native_payload

_items = (
    st.integers(-5, 10**7)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none()
    | st.booleans()
    | st.text(max_size=2)
    | st.lists(st.integers(0, 3), max_size=2)
    | st.dictionaries(st.text(max_size=1), st.integers(), max_size=1)
)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**70), max_size=5) | st.lists(_items, max_size=3) | _items)
def test_it_is_token_ids_or_it_is_not(value: Any) -> None:
    """As if the list had been decoded and looked at, however it is written."""
    expected = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=1)):
        ids = TokenIds.of(text.encode())
        assert (ids is not None) == expected
        if ids is not None:
            assert bool(ids) == bool(value)
            assert ids == value
            assert (list(ids), len(ids), ids[1:]) == (value, len(value), value[1:])


def test_it_is_a_value() -> None:
    ids = TokenIds.of(b"[3, 4]")
    assert ids == TokenIds.of(b"[3,4]") == pickle.loads(pickle.dumps(ids))
    assert ids != [3]
    assert ids != "34"
    assert repr(ids) == "[3, 4]"


def test_a_number_that_nobody_can_hold_is_the_request_s_fault() -> None:
    ids = TokenIds.of(b"[" + b"9" * 5000 + b"]")
    with pytest.raises(PayloadError, match="no number that can be held"):
        len(ids or [])


def test_an_engine_gets_some_ids_and_no_text_beside_them() -> None:
    check_native_payload({"input_ids": TokenIds.of(b"[1, 2]")})
    for wrong in ({"input_ids": TokenIds.of(b"[ ]")}, {"input_ids": TokenIds.of(b"[1]"), "text": "x"}):
        with pytest.raises(PayloadError) as refusal:
            check_native_payload(wrong)
        assert refusal.value.field == "input_ids"
