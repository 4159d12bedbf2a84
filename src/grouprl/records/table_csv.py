"""CSV as a table. A row's text is copied as it stands, quotes and line end included, with one field added."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from grouprl.errors import InputError
from grouprl.records.table import (
    BOM,
    BadRows,
    Columns,
    Plan,
    Progress,
    Reading,
    Table,
    Texts,
    column_exists,
    no_column,
    no_rows,
    number_from_text,
)
from grouprl.records.table_files import LONGEST_LINE, new_file, read_lines

DELIMITERS = ",;\t|"
Lines = Iterator[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: the line it begins on, how many it has, and its fields or why there are none."""

    line: int
    lines: int
    fields: list[str]
    trouble: str = ""


class CsvTable(Table):
    """A header, then a row a line (or more, where a quoted field holds line ends), in UTF-8.

    The delimiter is that of comma, semicolon, tab and bar which the header has most of. Blank lines and a byte-order
    mark are passed over, and kept.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._spans = array("i")  # lines of each row, negative for a blank one: what `write` needs to know

    def columns(self) -> list[str]:
        return self._header

    def read(self, plan: Plan, progress: Progress) -> Columns:
        places = {name: self._place(name) for name in (*plan.numbers, *plan.group)}
        if plan.added in self._header and not plan.replace:
            raise column_exists(self.path, plan.added)
        if self._header.count(plan.added) > 1:
            self._place(plan.added)
        reading, bad = Reading(plan), BadRows(self.path, self.unit)
        for row in self._rows(progress):
            try:
                self._check(row)
                numbers = [number_from_text(name, row.fields[places[name]]) for name in plan.numbers]
                group = tuple(_group(name, row.fields[places[name]]) for name in plan.group)
            except ValueError as error:
                bad.add(row.line, str(error))
                continue
            reading.add(numbers, group)
        bad.check()
        return reading.columns(self.path)

    def write(self, out: Path, kind: str, plan: Plan, values: NDArray[Any], progress: Progress) -> None:
        texts, rows, header = Texts(values), -1, _quoted(plan.added, self._delimiter)
        place = self._header.index(plan.added) if plan.added in self._header else None
        lines = read_lines(self.path, progress)
        with new_file(out, kind) as stream:
            for span in self._spans:
                raw = b"".join(islice(lines, abs(span)))
                if span < 0:
                    stream.write(raw)
                    continue
                text = header if rows < 0 else texts.at(rows)
                rows += 1
                stream.write(self._with_field(raw, text.encode(), place))
        self._refuse_other_count(rows, values)

    def _with_field(self, raw: bytes, value: bytes, place: int | None) -> bytes:
        """The row's text with the value in that place, or after its last field."""
        if place is None:
            body = _without_end(raw)
            return body + self._delimiter.encode() + value + raw[len(body) :]
        begin = end = len(BOM) if raw.startswith(BOM) else 0
        for number in range(place + 1):
            begin = end + 1 if number else begin
            match = self._field.match(raw, begin)
            end = match.end() if match else begin
        return raw[:begin] + value + raw[end:]

    @cached_property
    def _field(self) -> re.Pattern[bytes]:
        return re.compile(rb'"[^"]*(?:""[^"]*)*"|[^\r\n' + re.escape(self._delimiter.encode()) + rb"]*")

    @cached_property
    def _delimiter(self) -> str:
        found: dict[str, int] = {}
        for delimiter in DELIMITERS:
            row = next(
                (row for row in self._records(delimiter, lambda *_: None) if row.fields or row.trouble), None
            )
            found[delimiter] = 0 if row is None else len(row.fields)
        return max(DELIMITERS, key=lambda delimiter: found[delimiter])

    @cached_property
    def _header(self) -> list[str]:
        for row in self._records(self._delimiter, lambda *_: None):
            if row.trouble:
                raise InputError(f"{self.path}, line {row.line}: {row.trouble}, expected a header; mend it")
            if row.fields:
                return row.fields
        raise no_rows(self.path)

    def _place(self, name: str) -> int:
        if name not in self._header:
            raise no_column(self.path, name, self._header)
        if self._header.count(name) > 1:
            raise InputError(f"{self.path}: two columns are named {name!r}, expected one; rename the other")
        return self._header.index(name)

    def _check(self, row: _Row) -> None:
        if row.trouble:
            raise ValueError(row.trouble)
        count = len(row.fields)
        if count != len(self._header):
            raise ValueError(
                f"{count} field{'s' * (count != 1)}, expected {len(self._header)} as in the header"
            )

    def _rows(self, progress: Progress) -> Iterator[_Row]:
        """The rows after the header, without blank lines; takes down how many lines each has."""
        self._spans = array("i")
        header = True
        for row in self._records(self._delimiter, progress):
            blank = not row.fields and not row.trouble
            self._spans.append(-row.lines if blank else row.lines)
            if not blank and not header:
                yield row
            header = header and blank

    def _records(self, delimiter: str, progress: Progress) -> Iterator[_Row]:
        lines = enumerate(read_lines(self.path, progress), 1)
        for number, line in lines:
            if number == 1:
                line = line.removeprefix(BOM)
            body = _without_end(line)
            if b'"' in body or b"\r" in body:
                yield _parse(number, line, lines, delimiter)
            else:  # what csv.reader would give, in a tenth of the time
                text, trouble = _decode(body)
                yield _Row(number, 1, text.split(delimiter) if text else [], trouble)


def _parse(number: int, line: bytes, rest: Lines, delimiter: str) -> _Row:
    """The row that begins on this line; takes more of the rest where a quoted field goes on."""
    taken, troubles = 0, []

    def feed() -> Iterator[str]:
        nonlocal taken
        for _, raw in chain([(number, line)], rest):
            taken += 1
            text, trouble = _decode(raw)
            troubles.append(trouble)
            yield text

    csv.field_size_limit(LONGEST_LINE)
    fields: list[str] = []
    try:
        fields = next(csv.reader(feed(), delimiter=delimiter, strict=True))
    except csv.Error as error:
        troubles.append(f"not CSV ({error})")
    return _Row(number, taken, fields, next(filter(None, troubles), ""))


def _decode(line: bytes) -> tuple[str, str]:
    """The text, and what is wrong with it."""
    try:
        return line.decode(), ""
    except UnicodeDecodeError as error:
        return line.decode(errors="replace"), f"byte {error.start + 1} is not UTF-8"


def _without_end(line: bytes) -> bytes:
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith((b"\n", b"\r")) else line


def _group(name: str, text: str) -> Hashable:
    if not text:
        raise ValueError(f"{name} is empty, expected the row's group")
    return text


def _quoted(name: str, delimiter: str) -> str:
    """A header's name, in quotes where it needs them."""
    if not any(character in name for character in (delimiter, '"', "\r", "\n")):
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
