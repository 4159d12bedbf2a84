"""The columns of files as they stand: their names and types, from the first rows, joined over all files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grouprl.records.columns import polars

if TYPE_CHECKING:
    import polars as pl


def types_of(records: Iterable[Mapping[str, Any]]) -> dict[str, pl.DataType]:
    """Name → type over JSON objects: Boolean, Int64, Float64, lists of these, String for all else; Null if never set.

    Example:
        >>> {name: str(dtype) for name, dtype in types_of([{"a": 1, "b": None}, {"a": 0.5, "c": [1]}]).items()}
        {'a': 'Float64', 'b': 'Null', 'c': 'List(Int64)'}
    """
    pl = polars()
    found: dict[str, pl.DataType] = {}
    for record in records:
        for name, value in record.items():
            found[name] = join(found.get(name, pl.Null()), _type_of(value))
    return found


def join(a: pl.DataType, b: pl.DataType) -> pl.DataType:
    """The type that holds values of both: the wider number, for lists likewise, else String."""
    pl = polars()
    if a == b or b == pl.Null:
        return a
    if a == pl.Null:
        return b
    if isinstance(a, pl.List) and isinstance(b, pl.List):
        inner = join(a.inner, b.inner)
        return pl.List(inner) if inner != pl.String else pl.String()
    numbers = [dtype for dtype in (a, b) if dtype.is_numeric() or dtype == pl.Boolean]
    if len(numbers) == 2:
        whole = all(dtype.is_integer() for dtype in numbers)
        return pl.Int64() if whole else pl.Float64()
    return pl.String()


def _type_of(value: Any) -> pl.DataType:
    pl = polars()
    if value is None:
        return pl.Null()
    if isinstance(value, bool):
        return pl.Boolean()
    if isinstance(value, int):
        return pl.Int64() if abs(value) < 2**63 else pl.Float64()
    if isinstance(value, float):
        return pl.Float64()
    if isinstance(value, list):
        inner: pl.DataType = pl.Null()
        for item in value:
            inner = join(inner, _type_of(item))
        if inner == pl.Null or inner == pl.Boolean or (inner.is_numeric()):
            return pl.List(inner)
    return pl.String()
