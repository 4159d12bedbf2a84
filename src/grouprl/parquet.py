"""What a Parquet file says that it unpacks to: a bomb is refused before a reader gives it the memory.

A column of one value takes a few bytes for a million rows, and a page of one letter a thousandth of itself, so that
two megabytes of file can be a gigabyte of memory for each column. What is asked here is the footer alone, in
Thrift's compact protocol: of each row group (the format's struct RowGroup) its field 2, the bytes of its pages
unpacked, and its field 3, its rows. A file's own count of rows is not taken: readers do not go by it.
"""

from __future__ import annotations

import os
from pathlib import Path

ROWS = 10_000_000
ROWS_A_BYTE = 8
"""More than `ROWS` rows are refused where there are more of them than this for each byte of the file."""
UNPACKED_BYTES = 1 << 30
RATIO = 200
"""More than `UNPACKED_BYTES` are refused where they are more than so many times the file."""

_MAGIC = b"PAR1"
_TAIL = 8
_DEEPEST = 16
_TRUE, _FALSE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 7, 8, 9, 10, 11, 12
_ROW_GROUPS, _GROUP_BYTES, _GROUP_ROWS = 4, 2, 3


class BombError(ValueError):
    """A file that would unpack to many times its size; the message says to what, without the file's name."""


def check_unpacked(path: Path) -> None:
    """Refuse a file that unpacks to many times what it is.

    Args:
        path: A Parquet file. One that is none, or whose footer cannot be read, is left to whoever reads it.

    Raises:
        BombError: See above. What a valid file of usual data takes is far below.
    """
    found = unpacked(path)
    if found is None:
        return
    rows, unpacked_bytes = found
    size = path.stat().st_size
    if rows > max(ROWS, ROWS_A_BYTE * size):
        raise BombError(f"it would unpack {size:,} bytes to {rows:,} rows")
    if unpacked_bytes > max(UNPACKED_BYTES, RATIO * size):
        raise BombError(f"it would unpack {size:,} bytes to {unpacked_bytes:,}")


def unpacked(path: Path) -> tuple[int, int] | None:
    """Rows and unpacked bytes of all row groups, as the footer says; None where it is not readable.

    Time is linear in the footer's size.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end < _TAIL:
                return None
            file.seek(end - _TAIL)
            tail = file.read(_TAIL)
            length = int.from_bytes(tail[:4], "little")
            if tail[4:] != _MAGIC or length > end - _TAIL:
                return None
            file.seek(end - _TAIL - length)
            footer = _Thrift(file.read(length))
        rows = unpacked_bytes = 0
        for group in footer.list_field(_ROW_GROUPS):
            unpacked_bytes += max(group.get(_GROUP_BYTES, 0), 0)
            rows += max(group.get(_GROUP_ROWS, 0), 0)
    except (OSError, IndexError, ValueError):
        return None
    return rows, unpacked_bytes


class _Thrift:
    """Reads Thrift's compact protocol; IndexError where the bytes end, ValueError for what it does not know."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def list_field(self, wanted: int) -> list[dict[int, int]]:
        """Of a struct, the field that is a list of structs: the whole numbers of each."""
        number = 0
        while header := self._byte():
            number, kind = self._field(header, number)
            if number == wanted and kind == _LIST:
                size, kind = self._list_header()
                if kind != _STRUCT:
                    raise ValueError("no structs")
                return [self._numbers() for _ in range(size)]
            self._skip(kind, 0)
        return []

    def _numbers(self) -> dict[int, int]:
        number, found = 0, {}
        while header := self._byte():
            number, kind = self._field(header, number)
            if 4 <= kind <= 6:
                found[number] = self._signed()
            else:
                self._skip(kind, 0)
        return found

    def _field(self, header: int, before: int) -> tuple[int, int]:
        return (before + (header >> 4) if header >> 4 else self._signed()), header & 15

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in (_TRUE, _FALSE):
            return
        if kind == 3:
            self.at += 1
        elif kind < _DOUBLE:
            self._varint()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            length = self._varint()  # not in one line: it moves `at`
            self.at += length
        elif kind in (_LIST, _SET):
            size, inner = self._list_header()
            self._skip_all(size, (inner,), depth)
        elif kind == _MAP:
            if size := self._varint():
                kinds = self._byte()
                self._skip_all(size, (kinds >> 4, kinds & 15), depth)
        elif kind == _STRUCT:
            number = 0
            while header := self._byte():
                number, inner = self._field(header, number)
                self._skip(inner, depth + 1)
        else:
            raise ValueError("no such type")

    def _skip_all(self, size: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(size):
            for kind in kinds:
                if kind in (_TRUE, _FALSE):  # in a list each is a byte
                    self.at += 1
                else:
                    self._skip(kind, depth + 1)
            if self.at > len(self.data):
                raise IndexError("beyond the end")

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        return (header >> 4 if header >> 4 != 15 else self._varint()), header & 15

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte
