"""JSON Lines as a table. A row's line is copied as it stands, with the new member put before its closing brace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
    group_from_json,
    no_column,
    no_rows,
    number_from_json,
)
from grouprl.records.table_files import new_file, read_lines

SPACE = b" \t\r\n"
_SPACES = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class JsonlTable(Table):
    """One JSON object a line, in UTF-8. Blank lines and a byte-order mark are passed over, and kept."""

    def columns(self) -> list[str]:
        for number, line in self._rows(lambda *_: None):
            try:
                return list(_parse(line))
            except ValueError as error:
                raise InputError(f"{self.path}, line {number}: {error}; mend or remove it") from None
        raise no_rows(self.path)

    def read(self, plan: Plan, progress: Progress) -> Columns:
        names = (*plan.numbers, *plan.group, plan.added)
        keys = [json.dumps(name, ensure_ascii=False).encode() for name in names]
        first = self.columns()
        for name in (*plan.numbers, *plan.group):
            if name not in first:
                raise no_column(self.path, name, first)
        reading, bad = Reading(plan), BadRows(self.path, self.unit)
        for number, line in self._rows(progress):
            try:
                row = _parse(line)
                if any(line.count(key) > 1 for key in keys):
                    _refuse_twice(line, names)
                numbers = [number_from_json(name, _member(row, name)) for name in plan.numbers]
                group = tuple(group_from_json(name, _member(row, name)) for name in plan.group)
            except ValueError as error:
                bad.add(number, str(error))
                continue
            if plan.added in row and not plan.replace:
                raise column_exists(self.path, plan.added)
            reading.add(numbers, group)
        bad.check()
        return reading.columns(self.path)

    def write(self, out: Path, kind: str, plan: Plan, values: NDArray[Any], progress: Progress) -> None:
        key = json.dumps(plan.added, ensure_ascii=False).encode()
        block, rows = Texts(values), 0
        with new_file(out, kind) as stream:
            for line in read_lines(self.path, progress):
                body = line.rstrip(SPACE)
                if body in (b"", BOM):
                    stream.write(line)
                    continue
                value = block.at(rows).encode()
                rows += 1
                replaced = _replace(line, plan.added, value) if plan.replace else None
                stream.write(replaced or body[:-1] + b", " + key + b": " + value + b"}" + line[len(body) :])
        self._refuse_other_count(rows, values)

    def _rows(self, progress: Progress) -> Iterator[tuple[int, bytes]]:
        """Each line that is not blank, with its number."""
        for number, line in enumerate(read_lines(self.path, progress), 1):
            if number == 1:
                line = line.removeprefix(BOM)
            if line.strip(SPACE):
                yield number, line


def _parse(line: bytes) -> dict[str, Any]:
    """The line's object; ValueError says why there is none."""
    try:
        row = _DECODER.decode(line.rstrip(SPACE).decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos + 1})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {type(row).__name__}, expected one object a line")
    return row


def _member(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"no {name!r} in it")
    return row[name]


def _members(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each value at the top level of a line that is a JSON object."""

    def skip(at: int) -> int:
        match = _SPACES.match(text, at)
        return match.end() if match else at

    at = skip(text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        begin = skip(skip(at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield name, begin, end
        at = skip(end)
        if text[at] == ",":
            at = skip(at + 1)


def _refuse_twice(line: bytes, names: tuple[str, ...]) -> None:
    found = [name for name, _, _ in _members(line.decode())]
    for name in names:
        if found.count(name) > 1:
            raise ValueError(f"{name!r} stands twice in it")


def _replace(line: bytes, name: str, value: bytes) -> bytes | None:
    """The line with the member's value replaced, or None where it has no such member."""
    text = line.decode()
    for member, begin, end in _members(text):
        if member == name:
            return text[:begin].encode() + value + text[end:].encode()
    return None
