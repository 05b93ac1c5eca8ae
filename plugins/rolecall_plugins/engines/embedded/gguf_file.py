"""Read a GGUF file: its metadata, and its tensors as views of the mapped file.

The ``gguf`` package's reader makes several NumPy objects of every string of the vocabulary: 9 s
and hundreds of megabytes for 49,152 tokens, measured. This reader takes the metadata in one pass
and copies no tensor. Writing is left to the ``gguf`` package (``serving_file``).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip


class GgufError(Exception):
    """The file is not a GGUF file that this engine can read; the message says why."""


@frozen(kw_only=True)
class Quantisation:
    """How one tensor type lies in the file: ``block`` weights take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int


QUANTISATIONS: Mapping[int, Quantisation] = {
    0: Quantisation(name="F32", block=1, block_bytes=4),
    1: Quantisation(name="F16", block=1, block_bytes=2),
    2: Quantisation(name="Q4_0", block=32, block_bytes=18),
    3: Quantisation(name="Q4_1", block=32, block_bytes=20),
    8: Quantisation(name="Q8_0", block=32, block_bytes=34),
    30: Quantisation(name="BF16", block=1, block_bytes=2),
}
"""Tensor types with a NumPy dequantiser (``dequantise``)."""


@frozen(kw_only=True)
class Tensor:
    """One tensor: ``shape`` is (rows, columns) or (length,), ``raw`` its bytes, row by row.

    ``raw`` is a view of the map and keeps it alive.
    """

    name: str
    shape: tuple[int, ...]
    quantisation: Quantisation
    type_number: int
    raw: np.ndarray[Any, np.dtype[np.uint8]]


class GgufFile:
    """An open GGUF file: ``metadata`` by key, ``tensors`` by name."""

    EXTENSION: ClassVar[str] = ".gguf"

    def __init__(self, path: Path, *, with_arrays: bool = True) -> None:
        """Map the file and read its head.

        Arrays (the vocabulary) are skipped unless ``with_arrays``.

        Raises:
            GgufError: it is no GGUF file, cut short, or holds a tensor type without dequantiser.
        """
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise GgufError(f"{path}: cannot be mapped: {error}") from error
        try:
            self._read(with_arrays)
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
            raise GgufError(f"{path}: damaged or cut short: {error}") from error

    def touch(self) -> None:
        """Read one byte of each page, so that the whole file is resident in this process."""
        np.frombuffer(self._map, dtype=np.uint8)[:: mmap.PAGESIZE].max()

    def let_go(self) -> None:
        """Take the file's pages out of this process's resident set; reading brings them back."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def require(self, key: str) -> Any:
        """Return a metadata value; GgufError if the file lacks it."""
        if key not in self.metadata:
            raise GgufError(f"{self.path}: metadata key {key!r} is missing")
        return self.metadata[key]

    def _read(self, with_arrays: bool) -> None:
        head = _Cursor(self._map)
        magic = head.take(4)
        version = head.scalar("I") if magic == _MAGIC else None
        if version not in _VERSIONS:
            raise GgufError(f"{self.path}: not a GGUF file of version 2 or 3 (magic {magic!r}, {version})")
        tensor_count, key_count = head.scalar("Q"), head.scalar("Q")
        for _ in range(key_count):
            key = head.string()
            value = head.value(head.scalar("I"), with_arrays)
            if value is not None:
                self.metadata[key] = value
        infos: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(tensor_count):
            name = head.string()
            dimensions = tuple(head.scalar("Q") for _ in range(head.scalar("I")))
            infos.append((name, tuple(reversed(dimensions)), head.scalar("I"), head.scalar("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-head.offset // alignment) * alignment
        for name, shape, type_number, offset in infos:
            self.tensors[name] = self._tensor(name, shape, type_number, start + offset)

    def _tensor(self, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> Tensor:
        quantisation = QUANTISATIONS.get(type_number)
        if quantisation is None:
            known = ", ".join(q.name for q in QUANTISATIONS.values())
            raise GgufError(
                f"{self.path}: tensor {name!r} has GGML type {type_number}; this engine reads {known}. "
                "Convert the model to one of them."
            )
        count = int(np.prod(shape))
        size = count // quantisation.block * quantisation.block_bytes
        if count % quantisation.block or offset + size > len(self._map):
            raise GgufError(f"{self.path}: tensor {name!r} does not fit into the file: cut short?")
        raw = np.frombuffer(self._map, dtype=np.uint8, count=size, offset=offset)
        return Tensor(name=name, shape=shape, quantisation=quantisation, type_number=type_number, raw=raw)


class _Cursor:
    """A read position in the head of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self.offset : self.offset + size]
        if len(piece) != size:
            raise IndexError(f"{size} bytes wanted at {self.offset}, {len(piece)} there")
        self.offset += size
        return piece

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.take(layout.size))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode()

    def value(self, kind: int, with_arrays: bool) -> Any:
        """One metadata value; None for a skipped array."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(with_arrays)
        return self.scalar(self._code(kind))

    def _array(self, wanted: bool) -> Any:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            read: Callable[[], object] = self.string if wanted else self._skip_string
            values = [read() for _ in range(count)]
        elif kind == _ARRAY:
            values = [self._array(wanted) for _ in range(count)]
        else:
            layout = struct.Struct(f"<{count}{self._code(kind)}")
            values = list(layout.unpack(self.take(layout.size)))
        return values if wanted else None

    def _skip_string(self) -> None:
        self.take(self.scalar("Q"))

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise GgufError(f"metadata value of unknown kind {kind} at byte {self.offset}")
        return _SCALARS[kind]
