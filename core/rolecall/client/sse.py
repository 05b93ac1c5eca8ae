"""Server-sent events: bytes in any pieces to the data of whole events."""

from __future__ import annotations

DONE = b"[DONE]"
"""Data of the event that ends an engine's stream."""


class SseParser:
    """Collects one stream. Fields other than ``data`` and comments are skipped, as the format says."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that ``chunk`` completes."""
        half_end = self._rest.endswith(b"\r")
        self._rest += chunk
        if not half_end and b"\n" not in chunk and b"\r" not in chunk:
            return []  # looking at all of a long line for each of its pieces would take the square of it
        # A carriage return at the end may be half of a line end: it waits for the next piece.
        held = b"\r" if self._rest.endswith(b"\r") else b""
        text = bytes(self._rest[: len(self._rest) - len(held)])
        *lines, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = bytearray(rest + held)
        events: list[bytes] = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
