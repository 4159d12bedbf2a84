"""Tables by the name of their file: JSON Lines, CSV, Parquet, and the rollouts of a run."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from grouprl.errors import InputError
from grouprl.records.files import atomic_file
from grouprl.records.table import Columns, Plan, Progress, Table
from grouprl.records.table_csv import CsvTable
from grouprl.records.table_jsonl import JsonlTable
from grouprl.records.table_parquet import ParquetTable

__all__ = ["KINDS", "Columns", "Plan", "Table", "check_output", "open_table", "write_table"]

KINDS: dict[str, type[JsonlTable] | type[CsvTable] | type[ParquetTable]] = {
    ".jsonl": JsonlTable,
    ".jsonl.gz": JsonlTable,
    ".ndjson": JsonlTable,
    ".csv": CsvTable,
    ".csv.gz": CsvTable,
    ".tsv": CsvTable,
    ".parquet": ParquetTable,
}
"""Suffix → kind of table."""
FROM_PARQUET = (".jsonl", ".ndjson", ".csv")
"""What a Parquet file can be written as: its columns have types, so nothing has to be guessed."""


def open_table(path: str | Path) -> Table:
    """The table in a file, or in the rollouts of a run's folder.

    Raises:
        InputError: There is no such file, it is of no known kind, or it cannot be read.
        RunError: A folder that is no run, or a run without rollouts.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "rewards.csv"
        >>> _ = path.write_text("uid,reward\\na,1\\nb,\\na,0\\n")
        >>> table = open_table(path)
        >>> read = table.read(Plan(("reward",), ("uid",), "advantage"), lambda done, total: None)
        >>> read.numbers["reward"].tolist(), read.group.tolist()
        ([1.0, nan, 0.0], [0, 1, 0])
    """
    path = Path(path)
    if path.is_dir():
        return ParquetTable(path)
    if not path.exists():
        raise InputError(f"{path}: no such file, expected {_known()}; check the path")
    if not path.is_file():
        raise InputError(f"{path}: not a file, expected one that can be read twice; save it first")
    kind = KINDS[_suffix(path)]
    if not os.access(path, os.R_OK):
        raise InputError(f"{path}: may not be read, expected a readable file; check its permissions")
    return kind(path)


def check_output(table: Table, out: str | Path) -> None:
    """Refuse a file that the table cannot be written to.

    Raises:
        InputError: A suffix that is not known, or of a kind that this table, or one of its columns, is not written
            as; something other than a file that stands there; no folder to write to.
    """
    out = Path(out)
    suffix = _suffix(out)
    given = ".parquet" if isinstance(table, ParquetTable) else _suffix(table.path)
    same = isinstance(table, KINDS[suffix]) and (suffix == ".tsv") == (given == ".tsv")
    if not same and not (isinstance(table, ParquetTable) and suffix in FROM_PARQUET):
        raise InputError(
            f"{out}: {suffix} from {given}, expected the same kind, as types would have to be guessed; "
            f"write {given}, and convert that as you like"
            if given != ".parquet"
            else f"{out}: {suffix} from .parquet, expected .parquet or one of {', '.join(FROM_PARQUET)}; choose one"
        )
    table.check_kind(suffix)
    if out.exists() and not stat.S_ISREG(os.stat(out).st_mode):
        raise InputError(f"{out}: stands there and is not a file, expected a file's name; choose another one")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"{out}: {parent} is no folder that can be written to; choose another place")


def write_table(table: Table, out: str | Path, plan: Plan, values: NDArray[Any], progress: Progress) -> None:
    """All rows with the plan's new column, as a file of the kind that its suffix says, whole or not at all.

    Args:
        table: It may be the file itself that is written.
        out: See `check_output`.
        plan: What the table was read with.
        values: The new column, an array of one number a row.
        progress: See `Table`.

    Raises:
        InputError: As `check_output`; or the table changed since it was opened.
        OSError: The disk is full, or the like.
    """
    check_output(table, out)
    suffix = _suffix(Path(out))
    with atomic_file(out) as new:
        try:
            table.write(new, suffix, plan, values, progress)
        except OSError as error:
            error.filename = error.filename or str(out)  # a full disk names no file
            raise
        finally:  # also where it failed: that it changed is why
            table.check_unchanged()


def _suffix(path: Path) -> str:
    """The longest known suffix of a name."""
    found = [suffix for suffix in KINDS if path.name.lower().endswith(suffix)]
    if not found:
        raise InputError(f"{path}: unknown kind of file, expected {_known()}; convert or rename it")
    return max(found, key=len)


def _known() -> str:
    return f"one of {', '.join(KINDS)}"
