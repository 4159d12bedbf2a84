"""Opening tables: gzip by the file's name, progress by the bytes read."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from grouprl.errors import InputError
from grouprl.records.table import Progress

LONGEST_LINE = 2**28
"""Bytes: a file without line ends is another kind of file, and must not be read whole to find that out."""
_EVERY = 256


def read_lines(path: Path, progress: Progress) -> Iterator[bytes]:
    """The file's lines as they stand, line ends included; a name that ends in .gz is read through gzip.

    Raises:
        InputError: It cannot be read, is not the gzip it says, or has a line of more than `LONGEST_LINE` bytes.
    """
    gzipped = path.name.lower().endswith(".gz")
    try:
        with path.open("rb") as raw, gzip.open(raw) if gzipped else raw as opened:
            stream, size = cast("BinaryIO", opened), os.fstat(raw.fileno()).st_size
            number = 0
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB, expected one row a line; "
                        "check the file's kind"
                    )
                yield line
                if number % _EVERY == 0:
                    progress(raw.tell(), size)
            progress(size, size)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{path}: cannot be read ({reason}), expected a {'whole gzipped' if gzipped else 'readable'} file; "
            "check it"
        ) from error


@contextmanager
def new_file(path: Path, name: str) -> Iterator[BinaryIO]:
    """A file to write bytes to, through gzip where `name`, the name it will have, ends in .gz."""
    with path.open("wb") as raw:
        if name.lower().endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast("BinaryIO", packed)
        else:
            yield raw
