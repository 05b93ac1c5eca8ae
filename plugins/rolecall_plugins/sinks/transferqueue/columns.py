"""Rows as TransferQueue's columns and back.

Arrays travel as tensors (jagged where their first dimension differs), columns of plain floats or
integers as one tensor, so trainers that read the queue natively find tensors; everything else
travels as Python objects. What each column was is kept beside the data, so that rows come back
as they were put.

Imported only once torch is known to be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import numpy as np
import tensordict  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]

from rolecall.api import Row, SinkError

torch_: Any = torch
"""Untyped on purpose: torch is an extra that type checkers of this project do not install."""
tensordict_: Any = tensordict

_TENSOR_DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_INT64 = range(-(2**63), 2**63)


class Kind(StrEnum):
    """What the values of a column were."""

    ARRAY = "array"
    FLOAT = "float"
    INT = "int"
    OBJECT = "object"


def to_columns(rows: Sequence[Row]) -> tuple[Any, dict[str, str]]:
    """Return the rows as a TensorDict, and the kind of each column.

    Raises:
        SinkError: the rows have different columns.
    """
    names = list(rows[0])
    for place, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            odd = sorted(row.keys() ^ rows[0].keys())
            raise SinkError(
                f'row {place}: column "{odd[0]}" is not in every row; all rows need the same columns'
            )
    values = {name: [_plain(row[name]) for row in rows] for name in names}
    kinds = {name: _kind(column) for name, column in values.items()}
    fields = {name: _packed(values[name], kinds[name]) for name in names}
    table = tensordict_.TensorDict(fields, batch_size=[len(rows)])
    return table, {name: str(kind) for name, kind in kinds.items()}


def to_rows(table: Any, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a table that :func:`to_columns` made, columns in their first order."""
    columns = {name: _unpacked(table.get(name), Kind(kind)) for name, kind in kinds.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _kind(values: list[Any]) -> Kind:
    if all(isinstance(value, np.ndarray) for value in values):
        arrays = cast("list[np.ndarray[Any, Any]]", values)
        first = arrays[0]
        alike = all(array.dtype == first.dtype and array.shape[1:] == first.shape[1:] for array in arrays)
        # A tensor has no byte order and no zero-dimensional jagged form.
        fits = first.ndim > 0 and first.dtype.name in _TENSOR_DTYPES and first.dtype.isnative
        return Kind.ARRAY if alike and fits and all(array.ndim for array in arrays) else Kind.OBJECT
    if all(type(value) is float for value in values):
        return Kind.FLOAT
    if all(type(value) is int and value in _INT64 for value in values):
        return Kind.INT
    return Kind.OBJECT


def _packed(values: list[Any], kind: Kind) -> Any:
    if kind is Kind.ARRAY:
        # Copied: torch refuses to share memory that NumPy marks as read-only.
        tensors = [torch_.from_numpy(np.array(value)) for value in values]
        return torch_.nested.as_nested_tensor(tensors, layout=torch_.jagged)
    if kind is Kind.FLOAT:
        return torch_.tensor(values, dtype=torch_.float64)
    if kind is Kind.INT:
        return torch_.tensor(values, dtype=torch_.int64)
    return tensordict_.NonTensorStack(*values)


def _unpacked(column: Any, kind: Kind) -> list[Any]:
    if kind is Kind.OBJECT:
        return list(column.tolist())
    if kind is Kind.ARRAY:
        parts = column.unbind() if isinstance(column, torch_.Tensor) else column.tolist()
        return [part.numpy().copy() for part in parts]
    return list(column.reshape(-1).tolist())
