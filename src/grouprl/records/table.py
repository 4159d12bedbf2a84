"""A table on disk that is gone through row by row: what its kinds share.

It is gone through twice. `read` brings the columns that are asked for, as arrays of a few bytes a row; `write` copies
every row into another file with one column more. The rows themselves are never held, so a table may be larger than
memory.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grouprl.errors import InputError

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is, in the table's own unit."""

BOM = b"\xef\xbb\xbf"
"""A byte-order mark, in UTF-8."""
MISSING = frozenset({"", "nan", "null", "none", "na", "n/a"})
TRUTH = {"true": 1.0, "false": 0.0}
SHOWN = 3
"""Rows that cannot be read are named up to so many, and counted beyond."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which columns of a table to read, and which to add to it.

    Args:
        numbers: Columns of numbers, null where there is none.
        group: Columns that name a row's group together; none may be missing in any row.
        added: The new column.
        replace: Put it in the place of a column of that name; otherwise such a column is refused.
    """

    numbers: tuple[str, ...]
    group: tuple[str, ...]
    added: str
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """What was read, one entry a row.

    Args:
        numbers: By column; NaN where there is none. float64, float32 where the table has that.
        group: int64, equal where the group is the same.
    """

    numbers: dict[str, NDArray[Any]]
    group: NDArray[np.int64]


class Table(ABC):
    """A file of rows. Its kinds: `JsonlTable`, `CsvTable`, `ParquetTable`."""

    unit = "line"
    """What a row's number counts: lines of the file, or rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = self._look()

    @abstractmethod
    def columns(self) -> list[str]:
        """The columns' names: of the header, the schema, or the first object."""

    @abstractmethod
    def read(self, plan: Plan, progress: Progress) -> Columns:
        """The plan's columns.

        Raises:
            InputError: Rows that cannot be read (the first few by number, the others counted), a column that is
                not there, or no rows at all.
        """

    @abstractmethod
    def write(self, out: Path, kind: str, plan: Plan, values: NDArray[Any], progress: Progress) -> None:
        """All rows with the column added, to the new file `out` of a kind of `tables.KINDS`; `read` came before.

        Raises:
            InputError: The table has not as many rows as there are values.
        """

    def check_kind(self, kind: str) -> None:  # noqa: B027  (most tables are written as their own kind alone)
        """Refuse a kind of file, of `tables.KINDS`, that not all columns can be written to.

        Raises:
            InputError: A column has a type that such a file does not hold.
        """

    def check_unchanged(self) -> None:
        """InputError where the file is another than when it was opened."""
        if self._look() != self._state:
            raise InputError(f"{self.path}: changed while it was read, expected it to stay; run it again")

    def _look(self) -> tuple[int, ...]:
        found = os.stat(self.path)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _refuse_other_count(self, rows: int, values: NDArray[Any]) -> None:
        if rows != len(values):
            raise InputError(
                f"{self.path}: {rows} rows, {len(values)} when it was read before, expected it to stay; run it again"
            )


class BadRows:
    """Rows that cannot be read: the first few and how many more, in one error."""

    def __init__(self, path: Path, unit: str) -> None:
        self._path, self._unit = path, unit
        self._shown: list[str] = []
        self._count = 0

    def add(self, number: int, reason: str) -> None:
        self._count += 1
        if self._count <= SHOWN:
            self._shown.append(f"{self._unit} {number}: {reason}")

    def add_more(self, count: int) -> None:
        """Rows of which only the number is known."""
        self._count += count

    def check(self) -> None:
        """InputError if there were any."""
        if self._count:
            more = self._count - len(self._shown)
            rest = f"; and {more} more such {self._unit}{'s' * (more > 1)}" if more else ""
            raise InputError(
                f"{self._path}, {'; '.join(self._shown)}{rest}; mend or remove {'them' if self._count > 1 else 'it'}"
            )


class Reading:
    """The arrays that `Columns` is made of, filled a row at a time."""

    def __init__(self, plan: Plan) -> None:
        self._numbers = {name: array("d") for name in plan.numbers}
        self._group = array("q")
        self._ids: dict[Hashable, int] = {}

    def add(self, numbers: Sequence[float], group: Hashable) -> None:
        for column, number in zip(self._numbers.values(), numbers):
            column.append(number)
        self._group.append(self._ids.setdefault(group, len(self._ids)))

    def columns(self, where: Path) -> Columns:
        """What was read; InputError where that is nothing."""
        if not self._group:
            raise no_rows(where)
        numbers = {name: np.frombuffer(column) for name, column in self._numbers.items()}
        return Columns(numbers, np.frombuffer(self._group, dtype=np.int64))


class Texts:
    """Numbers as text by their place, made a block at a time."""

    SIZE = 4096

    def __init__(self, values: NDArray[Any]) -> None:
        self._values, self._first, self._texts = values, 0, _as_text(values[: self.SIZE])

    def at(self, index: int) -> str:
        """That number; "0.0" beyond the last one, where the caller refuses the table for its count of rows."""
        place = index - self._first
        if place >= len(self._texts):
            self._first, place = index, 0
            self._texts = _as_text(self._values[index : index + self.SIZE]) or ["0.0"]
        return self._texts[place]


def no_rows(path: Path) -> InputError:
    return InputError(
        f"{path}: holds no rows, expected at least one with a reward and a group; check the path"
    )


def no_column(path: Path, name: str, columns: Sequence[str]) -> InputError:
    return InputError(
        f"{path}: no column {name!r}, expected one of {', '.join(map(repr, columns))}; name another one"
    )


def column_exists(path: Path, name: str) -> InputError:
    return InputError(
        f"{path}: has a column {name!r} already, expected a name that is free; "
        "name another one with --advantage-column, or replace it with --overwrite"
    )


def number_from_json(name: str, value: Any) -> float:
    """A JSON value as a number: null is NaN, true 1; ValueError for anything else."""
    if value is None:
        return math.nan
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise ValueError(f"{name} is {shown(value)}, expected a number or null")


def number_from_text(name: str, text: str) -> float:
    """A number as text: nothing, nan, null, none and NA are NaN, true 1; ValueError for anything else."""
    word = text.strip()
    try:
        if "_" not in word:
            return float(word)
    except ValueError:
        if word.lower() in MISSING:
            return math.nan
        if word.lower() in TRUTH:
            return TRUTH[word.lower()]
    raise ValueError(f"{name} is {shown(text)}, expected a number, or nothing where there is none")


def group_from_json(name: str, value: Any) -> Hashable:
    """A JSON value as a group id: text, or a whole number (3.0 is 3, "3" is not); ValueError for anything else."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    raise ValueError(f"{name} is {shown(value)}, expected text or a whole number")


def shown(value: Any) -> str:
    """A value as an error shows it: text in quotes, at most 40 characters; no list or object in full."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _as_text(values: NDArray[Any]) -> list[str]:
    """Each number in the fewest digits that read back as it."""
    return [repr(value) for value in values.tolist()]
