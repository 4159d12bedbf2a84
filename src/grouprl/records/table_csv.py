"""CSV as a table. A row's text is copied as it stands, quotes and line end included, with one field added."""

from __future__ import annotations

import csv
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from grouprl.errors import InputError
from grouprl.records.table import (
    BadRows,
    Columns,
    Plan,
    Progress,
    Reading,
    Table,
    column_exists,
    no_column,
    no_rows,
    number_from_text,
)
from grouprl.records.table_files import LONGEST_LINE, new_file, read_lines
from grouprl.records.table_jsonl import BOM, Texts

DELIMITERS = ",;\t|"
_LINE_END = re.compile(rb"(?:\r\n|\n|\r)?\Z")


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: the line it begins on, its text, and its fields or why there are none."""

    line: int
    raw: bytes
    fields: list[str]
    trouble: str = ""


class CsvTable(Table):
    """A header, then a row a line (or more, where a quoted field holds line ends), in UTF-8.

    The delimiter is that of comma, semicolon, tab and bar which the header has most of. Blank lines and a byte-order
    mark are passed over, and kept.
    """

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
                if row.trouble:
                    raise ValueError(row.trouble)
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
        with new_file(out, kind) as stream:
            for row in self._records(self._delimiter, progress):
                if not row.fields:
                    stream.write(row.raw)
                    continue
                text = header if rows < 0 else texts.at(rows)
                rows += 1
                stream.write(self._with_field(row.raw, text.encode(), place))
        self._refuse_other_count(rows, values)

    def _with_field(self, raw: bytes, value: bytes, place: int | None) -> bytes:
        """The row's text with the value in that place, or after its last field."""
        if place is None:
            end = _LINE_END.search(raw)
            cut = end.start() if end else len(raw)
            return raw[:cut] + self._delimiter.encode() + value + raw[cut:]
        mark = BOM if raw.startswith(BOM) else b""
        field = re.compile(rb'"[^"]*(?:""[^"]*)*"|[^\r\n' + re.escape(self._delimiter.encode()) + rb"]*")
        begin = end_ = len(mark)
        for _ in range(place + 1):
            match = field.match(raw, begin)
            end_ = match.end() if match else begin
            start, begin = begin, end_ + 1
        return raw[:start] + value + raw[end_:]

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

    def _rows(self, progress: Progress) -> Iterator[_Row]:
        """The rows after the header, without blank lines; one of another length has trouble."""
        records = (row for row in self._records(self._delimiter, progress) if row.fields or row.trouble)
        next(records, None)
        for row in records:
            if not row.trouble and len(row.fields) != len(self._header):
                count = len(row.fields)
                reason = f"{count} field{'s' * (count != 1)}, expected {len(self._header)} as in the header"
                row = _Row(row.line, row.raw, row.fields, reason)
            yield row

    def _records(self, delimiter: str, progress: Progress) -> Iterator[_Row]:
        raw: list[bytes] = []
        trouble = ""

        def feed() -> Iterator[str]:
            nonlocal trouble
            for number, line in enumerate(read_lines(self.path, progress)):
                raw.append(line)
                line = line.removeprefix(BOM) if number == 0 else line
                try:
                    yield line.decode()
                except UnicodeDecodeError as error:
                    trouble = f"byte {error.start + 1} is not UTF-8"
                    yield line.decode(errors="replace")

        csv.field_size_limit(LONGEST_LINE)
        reader = csv.reader(feed(), delimiter=delimiter, strict=True)
        while True:
            begin, trouble = reader.line_num + 1, ""
            raw.clear()
            fields: list[str] = []
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                trouble = f"not CSV ({error})"
            yield _Row(begin, b"".join(raw), fields, trouble)


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
