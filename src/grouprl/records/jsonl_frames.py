"""Blocks of JSON lines as polars frames: fast where they are as expected, else line by line with a reason.

polars reads a block in one go, and refuses it where a line is not JSON (Python writes NaN and Infinity) or a value has
another type. Such a block is read again by Python, which takes NaN, and names the file and the line of what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import InputError
from grouprl.records.columns import polars
from grouprl.records.jsonl import SURROGATE, clean_names, clean_text
from grouprl.records.streams import Block, line_blocks
from grouprl.records.table import shown

if TYPE_CHECKING:
    import polars as pl

    Schema = Mapping[str, pl.DataType]

Record = dict[str, Any]
Unpack = Callable[[Record], Iterator[Record]]
"""A line's object to flat records, one a row."""
Note = Callable[[str, str], None]
"""Called with what kind of thing was met, and where and what it was."""

_SURROGATES = re.compile(rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?P<half>[89abcdefABCDEF]))")
"""A pair of surrogates as JSON escapes, or half of one."""


def read_records(path: Path, note: Note = lambda *_: None) -> Iterator[tuple[int, Record]]:
    """Each line's object with the line's number. A torn last line is passed over and noted.

    Raises:
        InputError: A line, other than a torn last one, is no JSON object.
    """
    for block in line_blocks(path):
        yield from _records(path, block, note)


UNPACKING = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What a line of another form than its format's may raise where it is taken apart."""


def read_frames(
    path: Path, schema: Schema, loose: frozenset[str], unpack: Unpack | None, note: Note
) -> Iterator[pl.DataFrame]:
    """The file's rows in frames of these columns, null where a line lacks one.

    Args:
        path: JSON lines, plain, gzip or zstd.
        schema: Boolean, Int64, Float64, String, or a list of these. A text column takes any value: one that is no text
            becomes its JSON.
        loose: Columns in which a value of another type is null and noted; in others it is an error.
        unpack: Makes rows of a line, where a line holds several.
        note: See `Note`.

    Raises:
        InputError: A line is no JSON object, or a value has another type; the message names file and line.
    """
    for block in line_blocks(path):
        frame = None if unpack or block.last else _fast(block, schema)
        if frame is None:
            frame = _careful(path, _records(path, block, note), schema, loose, unpack, note)
        if frame.height:
            yield frame


def _fast(block: Block, schema: Schema) -> pl.DataFrame | None:
    pl = polars()
    if any(found["half"] for found in _SURROGATES.finditer(block.data)):
        return None  # polars takes half a pair for the character NUL
    try:
        frame: pl.DataFrame = pl.read_ndjson(block.data, schema=dict(schema))
    except pl.exceptions.PolarsError:
        return None
    return frame


def _careful(
    path: Path,
    records: Iterator[tuple[int, Record]],
    schema: Schema,
    loose: frozenset[str],
    unpack: Unpack | None,
    note: Note,
) -> pl.DataFrame:
    pl = polars()
    columns: dict[str, list[Any]] = {name: [] for name in schema}
    for number, line in records:
        try:
            rows = list(unpack(line)) if unpack else [line]
        except UNPACKING as error:
            raise InputError(f"{path}, line {number}: {_reason(error)}; mend or remove it") from error
        for row in rows:
            for name, dtype in schema.items():
                value = row.get(name)
                try:
                    columns[name].append(_cell(value, dtype))
                except ValueError as error:
                    if name not in loose:
                        raise InputError(
                            f"{path}, line {number}: {name} is {shown(value)}, expected {error}; mend or remove it"
                        ) from None
                    note(f"values of {name!r} are not {error}, and null here", f"{path}, line {number}")
                    columns[name].append(None)
    return pl.DataFrame({name: pl.Series(name, columns[name], dtype=dtype) for name, dtype in schema.items()})


def _records(path: Path, block: Block, note: Note) -> Iterator[tuple[int, Record]]:
    lines = block.data.split(b"\n")
    for number, line in enumerate(lines, block.first):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=clean_names if SURROGATE.search(line) else None)
        except (ValueError, RecursionError) as error:
            if block.last:
                note("last lines were cut short, and are left out", f"{path}, line {number}")
                continue
            reason = (
                getattr(error, "msg", None) or "not UTF-8" if isinstance(error, ValueError) else "too deep"
            )
            raise InputError(f"{path}, line {number}: not JSON ({reason}); mend or remove it") from None
        if not isinstance(record, dict):
            raise InputError(
                f"{path}, line {number}: {shown(record)}, expected one JSON object a line; mend or remove it"
            )
        yield number, record


def _cell(value: Any, dtype: pl.DataType) -> Any:
    """The value for a column of this type; ValueError says what was expected."""
    pl = polars()
    if value is None:
        return None
    if dtype == pl.String:
        return clean_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if isinstance(dtype, pl.List):
        if not isinstance(value, list):
            raise ValueError("a list")
        return [_cell(item, dtype.inner) for item in value]
    if dtype == pl.Boolean:
        if isinstance(value, bool):
            return value
        raise ValueError("true or false")
    if isinstance(value, bool | int | float):
        if dtype == pl.Float64:
            return _float(value)
        if int(value) == value if abs(value) < 2**63 else False:
            return int(value)
    raise ValueError("a whole number" if dtype == pl.Int64 else "a number or null")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _reason(error: Exception) -> str:
    return f"no {error.args[0]!r} in it" if isinstance(error, KeyError) else str(error)
