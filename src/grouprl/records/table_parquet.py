"""Parquet as a table, by polars: rows stream from the file into the new one, their types as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grouprl.errors import InputError
from grouprl.parquet import BombError, check_unpacked
from grouprl.records.columns import polars
from grouprl.records.run import RunFolder
from grouprl.records.table import (
    BadRows,
    Columns,
    Plan,
    Progress,
    Table,
    column_exists,
    no_column,
    no_rows,
    shown,
)

if TYPE_CHECKING:
    import polars as pl

ROW_GROUP_BYTES = 2**24
"""Of the file read, for each row group written: a reader holds a row group at a time, and so does this."""
SMALLEST_ROW_GROUP = 256
LARGEST_ROW_GROUP = 2**18
_ARROW_SCHEMA = "ARROW:schema"


class ParquetTable(Table):
    """A Parquet file, or the rollouts of all steps of a run."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        self._run = RunFolder.open(path) if path.is_dir() else None
        super().__init__(path)
        if self._run is not None:
            self._frame = self._run.rollouts()
        else:
            _guarded(path, lambda: check_unpacked(path))
            self._frame = _guarded(path, lambda: polars().scan_parquet(path, glob=False))
        self._schema = _guarded(path, self._frame.collect_schema)

    def columns(self) -> list[str]:
        return list(self._schema)

    def check_kind(self, kind: str) -> None:
        if kind == ".parquet":
            return
        for name, dtype in self._schema.items():
            if not _fits_text(dtype, nested=kind != ".csv"):
                raise InputError(
                    f"{self.path}: column {name!r} is {dtype}, which {kind} cannot hold as it is; write .parquet"
                )

    def read(self, plan: Plan, progress: Progress) -> Columns:
        for name in (*plan.numbers, *plan.group):
            if name not in self._schema:
                raise no_column(self.path, name, self.columns())
        if plan.added in self._schema and not plan.replace:
            raise column_exists(self.path, plan.added)
        self._check_types(plan)
        wanted = list(dict.fromkeys((*plan.numbers, *plan.group)))
        frame: pl.DataFrame = _guarded(
            self.path, lambda: self._frame.select(wanted).collect(engine="streaming")
        )
        if frame.height == 0:
            raise no_rows(self.path)
        self._check_groups(plan, frame)
        numbers = {name: _numbers(frame[name]) for name in plan.numbers}
        progress(1, 1)
        return Columns(numbers, _numbered([frame[name] for name in plan.group]))

    def write(self, out: Path, kind: str, plan: Plan, values: NDArray[Any], progress: Progress) -> None:
        pl = polars()
        rows = _guarded(self.path, lambda: self._frame.select(pl.len()).collect().item())
        self._refuse_other_count(rows, values)
        added = pl.LazyFrame({"\0added": pl.Series(values)})
        frame = pl.concat([self._frame, added], how="horizontal").with_columns(
            pl.col("\0added").alias(plan.added)
        )
        frame = frame.select(list(dict.fromkeys([*self._schema, plan.added])))
        if kind == ".parquet":
            _guarded(self.path, lambda: self._sink(frame, out, len(values)))
        elif kind == ".csv":
            _guarded(self.path, lambda: frame.sink_csv(out))
        else:
            _guarded(self.path, lambda: frame.sink_ndjson(out))
        progress(1, 1)

    def _sink(self, frame: pl.LazyFrame, out: Path, rows: int) -> None:
        bytes_a_row = max(1, self._bytes() // rows)
        row_group = min(max(ROW_GROUP_BYTES // bytes_a_row, SMALLEST_ROW_GROUP), LARGEST_ROW_GROUP)
        metadata = {}
        if self._run is None:
            metadata = polars().read_parquet_metadata(self.path)
            metadata.pop(_ARROW_SCHEMA, None)
        frame.sink_parquet(out, row_group_size=row_group, metadata=metadata or None)

    def _paths(self) -> list[Path]:
        if self._run is None:
            return [self.path]
        return [self._run.rollouts_path(step) for step in self._run.rollout_steps()]

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self._paths())

    def _look(self) -> tuple[int, ...]:
        found = [path.stat() for path in self._paths()]
        return tuple(number for one in found for number in (one.st_ino, one.st_size, one.st_mtime_ns))

    def _check_types(self, plan: Plan) -> None:
        pl = polars()
        for name in plan.numbers:
            dtype = self._schema[name]
            if not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
                raise InputError(
                    f"{self.path}: column {name!r} is {dtype}, expected numbers; name another one"
                )
        for name in plan.group:
            dtype = self._schema[name]
            if not (dtype.is_numeric() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Binary, pl.Null)):
                raise InputError(
                    f"{self.path}: column {name!r} is {dtype}, expected text or whole numbers; name another one"
                )

    def _check_groups(self, plan: Plan, frame: pl.DataFrame) -> None:
        """Refuse rows without a group: null, empty text, a number that is not whole."""
        pl = polars()
        bad = BadRows(self.path, self.unit)
        for name in plan.group:
            ids = frame[name]
            wrong = ids.is_null()
            if ids.dtype.is_float() or ids.dtype.is_decimal():
                whole = ids.cast(pl.Float64)
                wrong = wrong | ((whole.floor() == whole) & (whole.abs() <= 2**53)).not_().fill_null(True)
            elif ids.dtype == pl.String:
                wrong = wrong | (ids == "").fill_null(True)
            places = wrong.arg_true()
            for place in places.head(3).to_list():
                bad.add(place + 1, f"{name} is {shown(ids[place])}, expected text or a whole number")
            bad.add_more(max(0, len(places) - 3))
        bad.check()


def _fits_text(dtype: pl.DataType, *, nested: bool) -> bool:
    """Whether values of this type are themselves, or their usual text, in JSON (nested) or CSV."""
    pl = polars()
    if isinstance(dtype, pl.List | pl.Array):
        return nested and _fits_text(dtype.inner, nested=True)
    if isinstance(dtype, pl.Struct):
        return nested and all(_fits_text(field.dtype, nested=True) for field in dtype.fields)
    known = (pl.String, pl.Boolean, pl.Null, pl.Categorical, pl.Enum, pl.Date, pl.Datetime)
    return bool(dtype.is_integer() or dtype.is_float() or dtype in known)


def _numbers(series: pl.Series) -> NDArray[Any]:
    """float64, or float32 for that and for shorter floats; null is NaN."""
    pl = polars()
    short = series.dtype.is_float() and series.dtype != pl.Float64
    return series.cast(pl.Float32 if short else pl.Float64).fill_null(float("nan")).to_numpy()


def _numbered(ids: list[pl.Series]) -> NDArray[np.int64]:
    """One number for each combination of values."""
    combined = np.zeros(len(ids[0]), np.int64)
    for series in ids:
        rank = series.rank("dense").to_numpy().astype(np.int64)
        combined = combined * (int(rank.max()) + 1) + rank
        combined = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    return combined


def _guarded(path: Path, act: Callable[[], Any]) -> Any:
    """What polars gives, or its complaint as an error of ours that names the file; a full disk stays an OSError."""
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
        if isinstance(error, OSError) and error.errno is not None:
            raise
        system = re.search(r"os error (\d+)", str(error))
        if system:
            raise OSError(int(system[1]), os.strerror(int(system[1]))) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path}: cannot be read as Parquet ({reason}), expected a whole file; check it"
        ) from error
