"""Python values to polars columns, with types that do not depend on what one step happened to hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grouprl.errors import MissingDependency, RunError
from grouprl.records.jsonl import clean_text, plain

if TYPE_CHECKING:
    import polars as pl

_EXACT_FLOAT_INT = 2**53


def polars() -> Any:
    """The polars module; MissingDependency, with the command that brings it, where it is not installed."""
    try:
        import polars
    except ImportError as error:
        raise MissingDependency(
            "records: polars is not installed, expected it for Parquet; pip install 'grouprl[report]'"
        ) from error
    return polars


def as_list(values: Any) -> list[Any]:
    """A list of Python values, from any sequence, NumPy array or torch tensor."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def check_length(name: str, values: Sequence[Any], count: int, of: str) -> None:
    """RunError naming the column where it has not one value for each of the `count` rows."""
    if len(values) != count:
        raise RunError(
            f"rollouts: column {name!r} has {len(values)} values for {count} {of}, expected one each; "
            "give None where there is no value"
        )


def to_series(name: str, values: Sequence[Any], dtype: pl.DataType | None = None) -> pl.Series:
    """A named column of `dtype`, by default the type that `type_of` finds.

    NaN becomes null, lone surrogates in text U+FFFD, and in a text column any other value its text.

    Raises:
        RunError: A value does not fit the type; the message names the column.
    """
    pl = polars()
    dtype = dtype or type_of(values)
    try:
        return pl.Series(name, [_cell(value, dtype) for value in values], dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"rollouts: column {name!r}: {reason}; expected values of {dtype} or None") from error


def type_of(values: Sequence[Any]) -> pl.DataType:
    """Boolean for bools, Float64 for numbers, Null where every value is null, else String."""
    pl = polars()
    present = [value for value in (plain(value) for value in values) if value is not None]
    if not present and any(value is not None for value in values):
        return pl.Float64()  # nothing but NaN
    if not present:
        return pl.Null()
    if all(isinstance(value, bool) for value in present):
        return pl.Boolean()
    if all(_is_number(value) for value in present):
        return pl.Float64()
    return pl.String()


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= _EXACT_FLOAT_INT
    return isinstance(value, float)


def _cell(value: Any, dtype: pl.DataType) -> Any:
    """A value as polars takes it for a column of this type; ValueError where it does not fit."""
    pl = polars()
    if value is None or dtype == pl.Null:
        return None
    if dtype == pl.String:
        return clean_text(value) if isinstance(value, str) else _as_text(plain(value))
    if isinstance(dtype, pl.List):
        return as_list(value)  # its items polars checks: there may be millions
    if hasattr(value, "item"):
        value = value.item()
    if dtype == pl.Boolean:
        fits = isinstance(value, bool)
    elif dtype == pl.Int64:
        fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    else:
        fits = isinstance(value, int | float)
    if not fits:
        raise ValueError(f"it holds {plain(value)!r}"[:80])
    if dtype == pl.Float64:
        value = float(value)
        return None if math.isnan(value) else value
    return value


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
