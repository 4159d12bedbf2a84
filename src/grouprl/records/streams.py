"""Bytes of files that may be compressed, in blocks of whole lines.

Compression is told by a file's first bytes, not by its name. A file that a kill cut short, compressed or not, is read
up to where it ends.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grouprl.errors import InputError, MissingDependency
from grouprl.records.table import BOM
from grouprl.records.table_files import LONGEST_LINE

BLOCK_BYTES = 1 << 22
"""Decompressed bytes of a block, beyond which it ends with its line."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a file.

    Args:
        first: The number of the first line, from 1.
        data: The lines, with their ends.
        last: Whether the file ends here; a last line without its end may be torn.
    """

    first: int
    data: bytes
    last: bool


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def compression(path: Path) -> str | None:
    """ "gzip", "zstd", or None, by the first bytes of the file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from error
    return "gzip" if start.startswith(_GZIP) else "zstd" if start == _ZSTD else None


def line_blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """The file's lines, decompressed, in blocks of about `size` bytes; a byte-order mark is left out.

    Raises:
        InputError: It cannot be read, is damaged before its end, or has a line of more than `LONGEST_LINE` bytes.
        MissingDependency: It is zstd, and nothing here reads that.
    """
    rest, line = bytearray(), 1
    for chunk in _chunks(path, size):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest += chunk
            if len(rest) > LONGEST_LINE:
                raise InputError(
                    f"{path}, line {line}: longer than {LONGEST_LINE >> 20} MiB, expected one row a line; "
                    "check the file's kind"
                )
            continue
        data = b"".join((rest, memoryview(chunk)[:cut]))
        rest = bytearray(memoryview(chunk)[cut:])
        yield Block(line, data.removeprefix(BOM) if line == 1 else data, last=False)
        line += data.count(b"\n")
    data = bytes(rest)
    yield Block(line, data.removeprefix(BOM) if line == 1 else data, last=True)


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    kind = compression(path)
    try:
        with path.open("rb") as file:
            if kind is None:
                while data := file.read(size):
                    yield data
                return
            unpacker = _decompressor(kind)
            while data := file.read(size // 8):
                while True:
                    yield (chunk := unpacker.decompress(data, size))  # a bomb, too, comes a block at a time
                    if unpacker.eof:  # what follows is another member, or nothing
                        data, unpacker = unpacker.unused_data, _decompressor(kind)
                        if data:
                            continue
                        break
                    data = _left_over(unpacker)
                    if not data and len(chunk) < size:
                        break
    except OSError as error:
        raise _unreadable(path, error.strerror or error) from error
    except Exception as error:
        if kind is None or not (isinstance(error, zlib.error) or type(error).__name__ == "ZstdError"):
            raise
        raise _unreadable(path, error, f"a whole {kind} file") from error


def _decompressor(kind: str) -> _Decompressor:
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    return _zstd().ZstdDecompressor()


def _left_over(unpacker: _Decompressor) -> bytes:
    """Input that zlib hands back when the output is full; zstd keeps its own."""
    return getattr(unpacker, "unconsumed_tail", b"")


def _zstd() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError as error:
        raise MissingDependency(
            "records: backports.zstd is not installed, expected it for zstd; pip install 'grouprl[report]'"
        ) from error
    return zstd


def _unreadable(path: Path, reason: object, expected: str = "a readable file") -> InputError:
    return InputError(f"{path}: cannot be read ({reason}), expected {expected}; check it")
