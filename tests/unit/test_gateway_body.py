"""Request bodies: limits, one parse, and bytes that are not touched when nothing in them changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.api import TokenIds
from rolecall.errors import PayloadError
from rolecall.gateway.body import JsonBody, is_json, read_body
from rolecall.gateway.errors import BodyTooLargeError, CallerGoneError

BLANKS = pytest.mark.parametrize("blanks", [b"", b" " * 5000], ids=["short", "long"])
"""Short bodies are read whole, long ones in pieces; blanks behind one make it long."""


def receiver(*parts: bytes | None) -> Any:
    """An ASGI ``receive`` of body parts; None is a disconnect. Asked for more, it fails."""
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.disconnect"}
        if part is None
        else {"type": "http.request", "body": part, "more_body": index + 1 < len(parts)}
        for index, part in enumerate(parts)
    ]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    receive.left = messages  # type: ignore[attr-defined]
    return receive


def read(receive: Any, headers: list[tuple[bytes, bytes]] | None = None, limit: int = 10) -> bytes:
    return asyncio.run(read_body(receive, headers or [], limit))


def test_a_body_comes_in_parts() -> None:
    assert read(receiver(b"12345", b"", b"67890")) == b"1234567890"


def test_an_announced_excess_is_refused_unread() -> None:
    receive = receiver(b"never read")
    with pytest.raises(BodyTooLargeError, match="10 bytes"):
        read(receive, [(b"content-length", b"11")])
    assert len(receive.left) == 1


def test_an_excess_that_was_not_announced_is_refused_where_it_starts() -> None:
    receive = receiver(b"12345", b"678901", b"never read")
    with pytest.raises(BodyTooLargeError):
        read(receive)
    assert len(receive.left) == 1


def test_a_lie_about_the_length_helps_nobody() -> None:
    with pytest.raises(BodyTooLargeError):
        read(receiver(b"12345678901"), [(b"content-length", b"5")])


def test_a_caller_that_leaves_while_sending_is_noticed() -> None:
    with pytest.raises(CallerGoneError):
        read(receiver(b"123", None))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"{}{}",
        b'{"a": NaN}',
        b"\xff{}",
        b"\xef\xbb\xbf{}",
        b"{\"a\": 'x'}",
    ],
)
@BLANKS
def test_what_is_not_one_json_object_is_refused(text: bytes, blanks: bytes) -> None:
    with pytest.raises(PayloadError) as refusal:
        JsonBody(text + blanks)
    assert refusal.value.field == "body"


@pytest.mark.parametrize("deep", [b"[" * 200_000, b'{"a":' * 200_000])
def test_depth_is_refused_and_breaks_nothing(deep: bytes) -> None:
    with pytest.raises(PayloadError):
        JsonBody(b'{"x": ' + deep)
    assert not is_json(deep)


def test_unchanged_long_values_keep_their_bytes() -> None:
    text = b'{"input_ids" : [1,  2 , 3], "text": "\\u0041\\/b", "sampling_params": {"n" :1}, "model": "m"}'
    body = JsonBody(text + b" " * 5000)
    fields = dict(body.fields)
    fields.pop("model")
    sent = body.encode({"rid": "r", **fields})
    assert b"[1,  2 , 3]" in sent
    assert b'"\\u0041\\/b"' in sent
    assert json.loads(sent) == {
        "rid": "r",
        "input_ids": [1, 2, 3],
        "text": "A/b",
        "sampling_params": {"n": 1},
    }


def test_many_token_ids_are_sent_on_undecoded() -> None:
    ids = json.dumps(list(range(2000)))
    body = JsonBody(b'{"input_ids": %b, "model": "m"}' % ids.encode())
    found = body.fields["input_ids"]
    assert isinstance(found, TokenIds)
    assert ids.encode() in body.encode({"rid": "r", **body.fields})
    assert found == list(range(2000)), "and they are there for whoever looks"
    wrapped = body.encode({"batch": {"ids": found}})
    assert json.loads(wrapped) == {"batch": {"ids": list(range(2000))}}


@BLANKS
def test_a_replaced_value_and_a_changed_mapping_are_sent_as_they_are_now(blanks: bytes) -> None:
    body = JsonBody(b'{"input_ids": [1], "sampling_params": {"n": 1}}' + blanks)
    body.fields["sampling_params"]["n"] = 2
    sent = json.loads(body.encode({"input_ids": [1, 2], "sampling_params": body.fields["sampling_params"]}))
    assert sent == {"input_ids": [1, 2], "sampling_params": {"n": 2}}


@BLANKS
def test_a_value_under_another_name_is_not_taken_for_the_old_one(blanks: bytes) -> None:
    body = JsonBody(b'{"a": [1], "b": [2]}' + blanks)
    assert json.loads(body.encode({"b": body.fields["a"]})) == {"b": [1]}


@BLANKS
def test_of_a_key_that_stands_twice_the_last_one_counts_as_in_json(blanks: bytes) -> None:
    body = JsonBody(b'{"a": [1], "model": "x", "a": [2]}' + blanks)
    assert body.fields["a"] == [2]
    assert json.loads(body.encode(body.fields)) == {"a": [2], "model": "x"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


@settings(max_examples=25)
@given(objects, st.booleans(), st.sampled_from([None, 2]), st.sampled_from([b"", b" " * 5000]), st.data())
def test_parsing_and_sending_agree_with_json(
    value: dict[str, Any], ascii_only: bool, indent: int | None, blanks: bytes, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode() + blanks
    body = JsonBody(text)
    assert body.fields == value
    assert is_json(text)
    gone = data.draw(st.sets(st.sampled_from(sorted(value)))) if value else set()
    kept = {name: part for name, part in body.fields.items() if name not in gone}
    assert json.loads(body.encode({**kept, "rid": "r"})) == {**kept, "rid": "r"}


@settings(max_examples=60)
@given(st.binary(max_size=12) | st.text('{}[]",:0123truefalsn -.e\\', max_size=12).map(str.encode))
def test_is_json_agrees_with_json(text: bytes) -> None:
    try:
        json.loads(text.decode(), parse_constant=_refuse)
        expected = True
    except ValueError:
        expected = False
    assert is_json(text) == expected


def _refuse(name: str) -> None:
    raise ValueError(name)
