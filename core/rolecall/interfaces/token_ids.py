"""Token ids of a long request, as the JSON they came in.

Most of a gateway's work with a long prompt would be to build its ids, one object each, only to write them
down again. Whoever looks at them gets them; whoever passes them on does not pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, overload

from rolecall.errors import PayloadError

_NOT_IN_IDS = b'"{-.eEn'
"""A list in JSON that has none of these, and no second bracket, has integers from 0 in it, nothing else."""


class TokenIds(Sequence[int]):
    """A sequence of integers from 0, read-only; equal to a list of the same ids.

    A gateway sends it as the JSON it is. ``list(ids)`` is a list.

    >>> ids = TokenIds.of(b"[11, 7, 5]")
    >>> ids[0], len(ids), ids == [11, 7, 5], ids.text
    (11, 3, True, b'[11, 7, 5]')
    >>> TokenIds.of(b"[[11], [7]]") is None
    True
    """

    __slots__ = ("_ids", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._ids: list[int] | None = None

    @classmethod
    def of(cls, text: bytes) -> TokenIds | None:
        """Return the ids in a piece of JSON; None if it is no list, or has something else in it.

        The text must be known to be JSON, with no blanks around it.
        """
        if text[:1] != b"[" or text.find(b"[", 1) >= 0 or any(text.find(byte) >= 0 for byte in _NOT_IN_IDS):
            return None
        return cls(text)

    def _decoded(self) -> list[int]:
        if self._ids is None:
            import msgspec  # of no use to a process that only plans

            try:
                self._ids = msgspec.json.decode(self.text, type=list[int])
            except msgspec.ValidationError as error:
                raise PayloadError(
                    f"a token id is no number that can be held: {error}", field="input_ids"
                ) from error
        return self._ids

    def __len__(self) -> int:
        return len(self._decoded())

    def __bool__(self) -> bool:
        return bool(self.text[1:-1].strip())

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._decoded()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self._decoded() == other._decoded()
        return self._decoded() == cast("list[int]", other) if isinstance(other, list) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(self._decoded())
