"""The ids by which an engine can be told to abort a request: read from its body, or given to it. Pure.

Gateways and direct clients name one in each request. A body without one gets it here, as one more field
before the others, so that its caller may leave without the engine working on for nobody. All other bytes
stay as they are.
"""

from __future__ import annotations

import re

import msgspec

from rolecall.client.aborter import rids_in
from rolecall.client.codec import decode
from rolecall.errors import PayloadError

_NAMED = b'"rid"'
_NONE = msgspec.Raw(b"null")


class _Shape(msgspec.Struct):
    """The fields that tell one generation from several; no other field is looked at."""

    rid: msgspec.Raw = _NONE
    text: msgspec.Raw = _NONE
    input_ids: msgspec.Raw = _NONE
    input_embeds: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    n: int | None = None
    sampling_params: dict[str, msgspec.Raw] | None = None


_ONE = (
    ("text", re.compile(rb'\s*(null|")')),
    ("input_ids", re.compile(rb"\s*(null|\[\s*\d)")),
    ("input_embeds", re.compile(rb"\s*null")),
    ("prompt", re.compile(rb'\s*(null|"|\[\s*\d)')),
)
"""How a field begins that holds one input, not several."""

_shapes = msgspec.json.Decoder(_Shape)


def named_rids(body: bytes) -> tuple[str, ...]:
    """Return the ids that a body names; none if it names none or is not what an engine understands."""
    if _NAMED not in body:
        return ()
    try:
        return rids_in({"rid": decode(bytes(_shapes.decode(body).rid))})
    except (msgspec.MsgspecError, RecursionError, ValueError, PayloadError):
        return ()


def with_rid(body: bytes, rid: str) -> bytes:
    """Return a body that names an id: the one given, where it has none and asks for one generation.

    Engines number the parts of a batch in ways of their own, so a batch stays without.
    """
    if _NAMED in body:
        return body  # at the top, or in some nested field: then it is left alone, too
    try:
        shape = _shapes.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return body  # several generations, or the engine will say what is wrong with it
    if not _asks_for_one(shape):
        return body
    start = body.index(b"{") + 1
    rest = body[start:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return body[:start] + _NAMED + b':"' + rid.encode() + b'"' + comma + rest


def _asks_for_one(shape: _Shape) -> bool:
    samples = [shape.n, decode(bytes((shape.sampling_params or {}).get("n", _NONE)))]
    return all(count in {None, 1} for count in samples) and all(
        pattern.match(getattr(shape, name)) for name, pattern in _ONE
    )
