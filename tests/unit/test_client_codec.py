"""JSON both ways, and SSE in any pieces."""

from __future__ import annotations

import json
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.client.codec import decode, encode
from rolecall.client.sse import SseParser

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=25)
@given(json_values)
def test_it_agrees_with_the_standard_library(value: object) -> None:
    assert decode(encode(value)) == value
    assert json.loads(encode(value)) == value
    assert decode(json.dumps(value).encode()) == value


def test_mappings_and_arrays_are_plain_json() -> None:
    payload = MappingProxyType(
        {"ids": np.arange(3, dtype=np.int32), "inner": MappingProxyType({"x": np.float64(0.5)})}
    )
    assert encode(payload) == b'{"ids":[0,1,2],"inner":{"x":0.5}}'


def test_what_json_has_no_word_for_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="object can't be sent"):
        encode({"x": object()})


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"[" * 100_000, b"\xff", b"{} {}"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's own words
        decode(text)


EVENTS = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@settings(max_examples=15)
@given(st.data())
def test_events_come_out_whole_however_they_are_cut(end: bytes, data: st.DataObject) -> None:
    stream = b": comment" + end + end
    for event in EVENTS:
        stream += b"event: x" + end
        stream += b"".join(b"data: " + line + end for line in event.split(b"\n")) + end
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    if end == b"\r":
        events += parser.feed(b"x")  # a lone carriage return may have been half of a pair
    assert events == EVENTS


@pytest.mark.timeout(20)
def test_a_long_event_in_small_pieces_costs_no_more_than_its_length() -> None:
    """It would take minutes if all of the line were looked at for each piece."""
    parser = SseParser()
    event = b"x" * 2**20
    stream = b"data: " + event + b"\n\n"
    pieces = (stream[at : at + 8] for at in range(0, len(stream), 8))
    assert [found for piece in pieces for found in parser.feed(piece)] == [event]
