"""Rows as JSON lines, exactly: what is decoded equals what was encoded, arrays with dtype and shape.

An array is an object with the keys ``dtype``, ``shape`` and ``values`` (nested lists). Every
float up to 64 bits has an exact decimal text, so values come back bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rolecall.api import Row, SinkError

_ARRAY_KEYS = {"dtype", "shape", "values"}
_KINDS = "biuf"
_MAX_ITEM_BYTES = 8
"""Wider floats than 64 bits have no exact Python number."""


def encode_row(row: Row) -> str:
    """Return the row as one line without its end.

    Raises:
        SinkError: a column holds what JSON can't keep; names the column.
    """
    return json.dumps(
        {column: _encoded(column, value) for column, value in row.items()},
        ensure_ascii=False,
        allow_nan=False,
    )


def decode_row(line: str) -> dict[str, Any]:
    """Return the row of a line that :func:`encode_row` made."""
    columns: dict[str, Any] = json.loads(line)
    return {column: _decoded(value) for column, value in columns.items()}


def _encoded(column: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _encoded_array(column, cast("np.ndarray[Any, Any]", value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        numbers = cast("Mapping[str, Any]", value)
        if set(numbers) == _ARRAY_KEYS:
            raise SinkError(
                f'column "{column}": a dict with the keys {sorted(_ARRAY_KEYS)} would read as an array'
            )
        return {key: _encoded(column, number) for key, number in numbers.items()}
    if isinstance(value, float) and not np.isfinite(value):
        raise SinkError(f'column "{column}": {value} is not finite')
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise SinkError(f'column "{column}": a {type(value).__name__} can\'t be stored')


def _encoded_array(column: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > _MAX_ITEM_BYTES:
        raise SinkError(f'column "{column}": an array of {array.dtype} can\'t be stored')
    if not np.isfinite(array).all():
        raise SinkError(f'column "{column}": the array has values that are not finite')
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": array.tolist()}


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and cast("dict[str, Any]", value).keys() == _ARRAY_KEYS:
        array = cast("dict[str, Any]", value)
        # The shape is kept apart since nested lists lose it where a length is 0.
        return np.asarray(array["values"], dtype=array["dtype"]).reshape(array["shape"])
    return value
