"""Rollout files of any kind as they stand: what they begin with, and their rows in frames of a bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import InputError
from grouprl.parquet import BombError, check_unpacked
from grouprl.records.columns import polars
from grouprl.records.formats.format import Format, Head
from grouprl.records.jsonl_frames import UNPACKING, Note, read_frames, read_records
from grouprl.records.raw_columns import types_of
from grouprl.records.streams import compression, line_blocks
from grouprl.records.table import MISSING, shown

if TYPE_CHECKING:
    import polars as pl

    from grouprl.records.jsonl_frames import Schema

FRAME_ROWS = 1 << 17
HEAD_ROWS = 64
"""Rows at the beginning of a JSON file from which its columns are known."""
_TEXT = (".csv", ".tsv")


def read_head(path: Path) -> Head:
    """The kind of a file and its columns.

    Raises:
        InputError: It cannot be read, or is neither Parquet, JSON lines nor CSV.
    """
    kind = _kind(path)
    if kind == "jsonl":
        records = tuple(record for _, record in islice(read_records(path), HEAD_ROWS))
        return Head(path, kind, types_of(records), records)
    frame = scan_parquet(path) if kind == "parquet" else _scan_csv(path)
    return Head(path, kind, dict(_guarded(path, frame.collect_schema)))


def _kind(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(_TEXT):
        return "csv"
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}), expected a readable file; check it"
        ) from error
    return "parquet" if start == b"PAR1" else "jsonl"


def rows_types(head: Head, format: Format) -> dict[str, pl.DataType]:
    """Types of the columns of a file's flat rows."""
    if format.unpack is None or head.kind != "jsonl":
        return dict(head.types)
    try:
        return types_of(row for line in head.records for row in format.unpack(line))
    except UNPACKING as error:
        reason = f"no {error.args[0]!r} in a line" if isinstance(error, KeyError) else error
        raise InputError(
            f"{head.path}: not of format {format.name} ({reason}); name another format= (--format)"
        ) from error


def raw_frames(
    path: Path, kind: str, schema: Schema, loose: frozenset[str], format: Format, note: Note
) -> Iterator[pl.DataFrame]:
    """The file's rows with these columns; one that it lacks is null.

    Raises:
        InputError: It cannot be read, or holds a value of another type.
    """
    if kind == "jsonl":
        yield from read_frames(path, schema, loose, format.unpack, note)
    elif kind == "parquet":
        yield from _batches(path, with_columns(scan_parquet(path), schema, path))
    else:
        first = 2
        for frame in _batches(
            path, with_columns(_scan_csv(path, infer_schema=False), schema, path, cast=False)
        ):
            yield _from_text(path, frame, schema, loose, first, note)
            first += frame.height


def scan_parquet(path: Path) -> pl.LazyFrame:
    """The file as a lazy frame.

    Raises:
        InputError: It is not Parquet, was cut short, or would unpack to many times its size.
    """
    _guarded(path, lambda: check_unpacked(path))
    frame: pl.LazyFrame = _guarded(path, lambda: polars().scan_parquet(path, glob=False))
    return frame


def with_columns(frame: pl.LazyFrame, schema: Schema, path: Path, *, cast: bool = True) -> pl.LazyFrame:
    """The columns of the schema, of its types; null where the frame lacks one."""
    pl = polars()
    have = _guarded(path, frame.collect_schema)
    columns = []
    for name, dtype in schema.items():
        if name not in have:
            columns.append(pl.lit(None, dtype if cast else pl.String()).alias(name))
        elif not cast or have[name] == dtype:
            columns.append(pl.col(name))
        elif have[name].is_nested() and not dtype.is_nested():
            raise InputError(
                f"{path}: column {name!r} is {have[name]}, expected {dtype} as in other files; read them apart"
            )
        else:
            columns.append(pl.col(name).cast(dtype))
    return frame.select(columns) if columns else frame.select(pl.lit(None).alias("\0")).drop("\0")


def _scan_csv(path: Path, **options: Any) -> pl.LazyFrame:
    pl = polars()
    separator = "\t" if ".tsv" in path.suffixes else ","
    if not options and compression(path):  # polars would hold a line of any length that a bomb unpacks to
        deque(line_blocks(path), maxlen=0)
    frame: pl.LazyFrame = _guarded(
        path, lambda: pl.scan_csv(path, separator=separator, glob=False, **options)
    )
    return frame


def _batches(path: Path, frame: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    batches = _guarded(path, lambda: frame.collect_batches(chunk_size=FRAME_ROWS, maintain_order=True))
    while (batch := _guarded(path, lambda: next(batches, None))) is not None:
        yield batch


def _from_text(
    path: Path, frame: pl.DataFrame, schema: Schema, loose: frozenset[str], first: int, note: Note
) -> pl.DataFrame:
    """Columns of text as the types that they should have: nothing, nan, null, none and NA are null."""
    pl = polars()
    for name, dtype in schema.items():
        if dtype == pl.String:
            continue
        words = frame[name].str.strip_chars()
        lower = words.str.to_lowercase()
        words = words.to_frame().select(pl.when(~lower.is_in(list(MISSING))).then(pl.col(name))).to_series()
        if dtype == pl.Boolean:
            lower = words.str.to_lowercase()
            values = lower.replace_strict({"true": True, "false": False, "1": True, "0": False}, default=None)
        else:
            values = (
                words.str.replace("^(?i)true$", "1")
                .str.replace("^(?i)false$", "0")
                .cast(pl.Float64, strict=False)
            )
            values = values.cast(dtype, strict=False)
        wrong = (values.is_null() & words.is_not_null()).arg_true()
        if len(wrong) and name in loose:
            note(f"values of {name!r} are not {dtype}, and null here", f"{path}, row {first + wrong[0]}")
        elif len(wrong):
            raise InputError(
                f"{path}, row {first + wrong[0]}: {name} is {shown(words[int(wrong[0])])}, expected a number, or "
                "nothing where there is none; mend or remove it"
            )
        frame = frame.with_columns(values.cast(dtype).alias(name))
    return frame


def _guarded(path: Path, act: Callable[[], Any]) -> Any:
    pl = polars()
    try:
        return act()
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        BombError,
        OSError,
        TypeError,
    ) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        zipped = compression(path) if path.is_file() else None
        raise InputError(
            f"{path}: cannot be read ({reason}), expected a whole file{f' of {zipped}' if zipped else ''}; check it"
        ) from error
