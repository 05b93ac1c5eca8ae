"""Request bodies: read within a limit, parsed once, sent on without encoding again what is unchanged.

A body is one JSON object. Long values (``input_ids``, texts) keep their bytes: when the same value comes
back to be sent, its bytes are sent, not a new encoding of it. A value counts as the same by identity,
so a role that changes a list in place would not be heard; it replaces it instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from rolecall.client.codec import decode, encode
from rolecall.client.transport import Headers, header
from rolecall.errors import PayloadError
from rolecall.gateway.errors import BodyTooLargeError, CallerGoneError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLargeError: announced or found to be over ``limit``; the rest is not read.
        CallerGoneError: the caller left while sending it.
    """
    announced = header(headers, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGoneError("the caller left while sending")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is over the limit of {limit} bytes (gateway.max_body_bytes)")


class JsonBody:
    """A parsed request body; ``fields`` are its top-level values."""

    def __init__(self, text: bytes) -> None:
        """Parse.

        Raises:
            PayloadError: it is not one JSON object.
        """
        try:
            self._raw = _fields_decoder.decode(text)
            self.fields: dict[str, Any] = {name: decode(bytes(raw)) for name, raw in self._raw.items()}
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise PayloadError(f"body: must be one JSON object: {error}", field="body") from error

    def encode(self, payload: Mapping[str, Any]) -> bytes:
        """Return ``payload`` as JSON, with the bytes of the values that came in this body.

        Raises:
            PayloadError: the payload holds something that JSON has no word for.
        """
        try:
            parts = [encode(name) + b":" + self._encoded(name, value) for name, value in payload.items()]
        except TypeError as error:
            raise PayloadError(f"body: {error}", field="body") from error
        return b"{" + b",".join(parts) + b"}"

    def _encoded(self, name: str, value: object) -> bytes:
        unchanged = isinstance(value, str | list) and value is self.fields.get(name)
        return bytes(self._raw[name]) if unchanged else encode(value)


def is_json(text: bytes) -> bool:
    """Whether bytes are JSON, without building what they mean."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
