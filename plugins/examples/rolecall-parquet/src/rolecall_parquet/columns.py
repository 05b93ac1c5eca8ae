"""Columns of rows as Arrow arrays, exactly: what is decoded equals what was encoded.

| values of a column | Arrow type |
|---|---|
| text, bools, whole numbers, numbers | ``string``, ``bool``, ``int64``, ``double`` |
| arrays without dimensions | the dtype's own |
| arrays that agree in all sizes but the first | ``list``; of ``fixed_size_list`` for each further size |
| other arrays of one dtype | ``struct`` of ``shape`` and ``values`` |
| dicts of numbers | ``struct`` with a field a key; a key that a row lacks is null |
| values of several of these kinds | ``struct`` with a field a kind, all null but one |

A row's None is null. What the type alone does not tell, the kind of a value, stands in the field's metadata
under ``rolecall``, so any reader can read the file, and this one gives the same values back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import numpy as np
import pyarrow as pa
from attrs import frozen

# pyarrow comes without types.
ArrowArray = Any
ArrowField = Any

_KEY = b"rolecall"
_ARRAY_KINDS = "biuf"
_MAX_ITEM_BYTES = 8
_BIGGEST = 2**63


class ColumnError(Exception):
    """A value can't be kept; the message says why, without the column."""


class Kind(StrEnum):
    """What a column's values are."""

    NOTHING = "nothing"
    TEXT = "text"
    BOOL = "bool"
    INTEGER = "integer"
    NUMBER = "number"
    ARRAY = "array"
    POINT = "point"
    SHAPED = "shaped"
    NUMBERS = "numbers"
    MIXED = "mixed"


@frozen
class Column:
    """An Arrow array and the field that describes it."""

    field: ArrowField
    array: ArrowArray


def encode(name: str, values: Sequence[Any]) -> Column:
    """Return the values of one column, None for null.

    Raises:
        ColumnError: a value has no place in a table.
    """
    plain = [_plain(value) for value in values]
    groups: dict[str, list[Any]] = {}
    for place, value in enumerate(plain):
        if value is not None:
            groups.setdefault(_label(value), [None] * len(plain))[place] = value
    if not groups:
        return _column(name, Kind.NOTHING, pa.nulls(len(plain)))
    if len(groups) == 1:
        return _encode_alike(name, plain)
    parts = [_encode_alike(label, group) for label, group in sorted(groups.items())]
    return _column(name, Kind.MIXED, _struct(parts, [value is None for value in plain]), parts)


def decode(field: ArrowField, array: ArrowArray) -> list[Any]:
    """Return what :func:`encode` was given.

    Raises:
        ValueError: the field was not made by it.
    """
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    if _KEY not in metadata:
        raise ValueError(f'column "{field.name}" has no metadata "{_KEY.decode()}"')
    return _DECODERS[Kind(metadata[_KEY].decode())](array)


# --- kinds --------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _label(value: Any) -> str:
    """Name the group that a value belongs to: values of one group have one Arrow type."""
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        dtype = array.dtype
        if dtype.kind not in _ARRAY_KINDS or dtype.itemsize > _MAX_ITEM_BYTES or not dtype.isnative:
            raise ColumnError(f"arrays of {dtype.str} can't be kept")
        return f"{dtype.name} {'array' if array.ndim else 'point'}"
    if isinstance(value, bool):
        return Kind.BOOL.value
    if isinstance(value, int):
        if not -_BIGGEST <= value < _BIGGEST:
            raise ColumnError(f"{value} does not fit 64 bits")
        return Kind.INTEGER.value
    if isinstance(value, float):
        return Kind.NUMBER.value
    if isinstance(value, str):
        return Kind.TEXT.value
    if isinstance(value, Mapping):
        return Kind.NUMBERS.value
    raise ColumnError(f"a {type(value).__name__} can't be kept")


_SCALARS = {
    Kind.TEXT: pa.string(),
    Kind.BOOL: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.NUMBER: pa.float64(),
}


def _encode_alike(name: str, values: Sequence[Any]) -> Column:
    """Encode values of one group; there is at least one that is not None."""
    first = next(value for value in values if value is not None)
    if isinstance(first, np.ndarray):
        return _encode_arrays(name, values)
    if isinstance(first, Mapping):
        return _encode_dicts(name, values)
    kind = Kind(_label(first))
    try:
        return _column(name, kind, pa.array(values, _SCALARS[kind]))
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise ColumnError(str(error)) from error


def _encode_dicts(name: str, values: Sequence[Any]) -> Column:
    dicts = [cast("Mapping[Any, Any] | None", value) for value in values]
    keys = dict.fromkeys(key for numbers in dicts if numbers is not None for key in numbers)
    for numbers in dicts:
        for key, number in (numbers or {}).items():
            if not isinstance(key, str) or isinstance(
                _plain(number), bool | str | None | np.ndarray | Mapping
            ):
                raise ColumnError(f"{key!r}: {number!r:.60} is not a name with a number")
    absent = [numbers is None for numbers in dicts]
    if not keys:
        # Parquet has no struct without fields.
        empty = pa.array([None if none else [] for none in absent], pa.map_(pa.string(), pa.float64()))
        return _column(name, Kind.NUMBERS, empty)
    parts = [
        encode(str(key), [None if numbers is None else numbers.get(key) for numbers in dicts]) for key in keys
    ]
    return _column(name, Kind.NUMBERS, _struct(parts, absent), parts)


def _encode_arrays(name: str, values: Sequence[Any]) -> Column:
    arrays = [cast("np.ndarray[Any, Any] | None", value) for value in values]
    present = [array for array in arrays if array is not None]
    absent = [array is None for array in arrays]
    item = pa.from_numpy_dtype(present[0].dtype)
    if present[0].ndim == 0:
        return _column(name, Kind.POINT, pa.array([None if a is None else a[()] for a in arrays], item))
    sizes = {array.shape[1:] for array in present}
    flat = pa.array(np.concatenate([array.reshape(-1) for array in present]), item)
    if len(sizes) == 1 and 0 not in (inner := sizes.pop()):
        for size in reversed(inner):
            flat = pa.FixedSizeListArray.from_arrays(flat, size)
        return _column(name, Kind.ARRAY, _lists(flat, [None if a is None else len(a) for a in arrays]))
    shapes = pa.array([size for array in present for size in array.shape], pa.int64())
    parts = [
        _column("shape", Kind.ARRAY, _lists(shapes, [0 if a is None else a.ndim for a in arrays])),
        _column("values", Kind.ARRAY, _lists(flat, [0 if a is None else a.size for a in arrays])),
    ]
    return _column(name, Kind.SHAPED, _struct(parts, absent), parts)


def _lists(items: ArrowArray, lengths: Sequence[int | None]) -> ArrowArray:
    """Cut ``items`` into lists, None for null."""
    offsets = np.concatenate([[0], np.cumsum([length or 0 for length in lengths], dtype=np.int64)])
    mask = pa.array([length is None for length in lengths], pa.bool_())
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, mask=mask)


def _struct(parts: Sequence[Column], absent: Sequence[bool]) -> ArrowArray:
    return pa.StructArray.from_arrays(
        [part.array for part in parts],
        fields=[part.field for part in parts],
        mask=pa.array(absent, pa.bool_()),
    )


def _column(name: str, kind: Kind, array: ArrowArray, parts: Sequence[Column] = ()) -> Column:
    kind_type = pa.struct([part.field for part in parts]) if parts else array.type
    return Column(pa.field(name, kind_type, metadata={_KEY: kind.value}), array)


# --- back ---------------------------------------------------------------------------------


def _decode_scalars(array: ArrowArray) -> list[Any]:
    return array.to_pylist()


def _decode_points(array: ArrowArray) -> list[Any]:
    dtype = array.type.to_pandas_dtype()
    return [None if value is None else np.array(value, dtype=dtype) for value in array.to_pylist()]


def _decode_arrays(array: ArrowArray) -> list[Any]:
    offsets = array.offsets.to_numpy()
    items, inner = array.values, []
    while pa.types.is_fixed_size_list(items.type):
        inner.append(items.type.list_size)
        items = items.values
    flat = items.to_numpy(zero_copy_only=False)
    step = int(np.prod(inner, dtype=np.int64))
    return [
        flat[start * step : stop * step].reshape((stop - start, *inner)).copy() if valid else None
        for start, stop, valid in zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
    ]


def _decode_shaped(array: ArrowArray) -> list[Any]:
    shapes, values = _decode_arrays(array.field("shape")), _decode_arrays(array.field("values"))
    return [
        flat.reshape(tuple(shape)) if valid else None
        for shape, flat, valid in zip(shapes, values, array.is_valid().to_pylist(), strict=True)
    ]


def _decode_dicts(array: ArrowArray) -> list[Any]:
    valid = array.is_valid().to_pylist()
    if pa.types.is_map(array.type):
        return [{} if there else None for there in valid]
    columns = _parts(array)
    return [
        {key: values[row] for key, values in columns.items() if values[row] is not None} if there else None
        for row, there in enumerate(valid)
    ]


def _decode_mixed(array: ArrowArray) -> list[Any]:
    columns = _parts(array).values()
    return [
        next((values[row] for values in columns if values[row] is not None), None)
        for row in range(len(array))
    ]


def _parts(array: ArrowArray) -> dict[str, list[Any]]:
    return {part.name: decode(part, array.field(index)) for index, part in enumerate(array.type)}


_DECODERS: Mapping[Kind, Callable[[ArrowArray], list[Any]]] = {
    **dict.fromkeys((Kind.NOTHING, *_SCALARS), _decode_scalars),
    Kind.ARRAY: _decode_arrays,
    Kind.POINT: _decode_points,
    Kind.SHAPED: _decode_shaped,
    Kind.NUMBERS: _decode_dicts,
    Kind.MIXED: _decode_mixed,
}
