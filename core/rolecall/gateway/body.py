"""Request bodies: read within a limit, parsed once, sent on without encoding again what is unchanged.

A body is one JSON object. Long values (``input_ids``, texts) keep their bytes: when the same value comes
back to be sent, its bytes are sent, not a new encoding of it. A value counts as the same by identity,
so a role that changes a list in place would not be heard; it replaces it instead. Long lists of token ids are
not even decoded (:class:`~rolecall.api.TokenIds`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from rolecall.client.codec import decode, encode
from rolecall.client.transport import Headers, header
from rolecall.errors import PayloadError
from rolecall.gateway.errors import BodyTooLargeError, CallerGoneError
from rolecall.interfaces.token_ids import TokenIds

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_object_decoder = msgspec.json.Decoder(dict[str, Any])

_SHORT = 2**12
"""Bytes of a body up to which it is decoded and encoded whole."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLargeError: announced or found to be over ``limit``; the rest is not read.
        CallerGoneError: the caller left while sending it.
    """
    announced = header(headers, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body, more = await _part(receive)
    if not more and len(body) <= limit:
        return body
    parts, size = [body], len(body)
    while size <= limit and more:
        part, more = await _part(receive)
        size += len(part)
        parts.append(part)
    if size > limit:
        raise _too_large(limit)
    return b"".join(parts)


async def _part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise CallerGoneError("the caller left while sending")
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is over the limit of {limit} bytes (gateway.max_body_bytes)")


class JsonBody:
    """A parsed request body; ``fields`` are its top-level values.

    A short body is read and written whole, which is quicker than to keep pieces of it.
    """

    def __init__(self, text: bytes) -> None:
        """Parse.

        Raises:
            PayloadError: it is not one JSON object.
        """
        try:
            self._raw = {} if len(text) <= _SHORT else _fields_decoder.decode(text)
            self.fields: dict[str, Any] = (
                {name: _value(raw) for name, raw in self._raw.items()}
                if self._raw
                else _object_decoder.decode(text)
            )
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise PayloadError(f"body: must be one JSON object: {error}", field="body") from error

    def encode(self, payload: Mapping[str, Any]) -> bytes:
        """Return ``payload`` as JSON, with the bytes of the values that came in this body.

        Raises:
            PayloadError: the payload holds something that JSON has no word for.
        """
        try:
            if not self._raw:
                return encode(payload)
            parts = [encode(name) + b":" + self._encoded(name, value) for name, value in payload.items()]
        except TypeError as error:
            raise PayloadError(f"body: {error}", field="body") from error
        return b"{" + b",".join(parts) + b"}"

    def _encoded(self, name: str, value: object) -> bytes:
        if isinstance(value, TokenIds):
            return value.text
        unchanged = isinstance(value, str | list) and value is self.fields.get(name)
        return bytes(self._raw[name]) if unchanged else encode(value)


def _value(raw: msgspec.Raw) -> Any:
    if len(memoryview(raw)) > _SHORT and (ids := TokenIds.of(bytes(raw))) is not None:
        return ids
    return decode(raw)


_HOST_FIELDS = "bootstrap_"
"""By fields that begin like this an engine is told where the other half of a prefill/decode pair is."""


def check_names_no_host(payload: Mapping[str, Any]) -> None:
    """Refuse a request that tells an engine which host to connect to; only routers may.

    Raises:
        PayloadError: names the field.
    """
    for name in payload:
        if name.startswith(_HOST_FIELDS):
            raise PayloadError(
                f"{name}: where engines are is not for callers to say; leave it out", field=name
            )


def is_json(text: bytes) -> bool:
    """Whether bytes are JSON, without building what they mean."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def may_be_json(start: bytes) -> bool:
    """Whether a body that starts like this could be a JSON object or list."""
    return start.lstrip(b" \t\r\n")[:1] in (b"{", b"[")
