"""Opening tables: gzip by the file's name, progress by the bytes read, and new files whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from grouprl.errors import InputError
from grouprl.records.files import sync_dir
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


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A name for a new file, which becomes `path` once the block ends without an exception.

    Args:
        path: Where the file will stand, whole, in the place of one that stands there (whose permissions it takes);
            the folder is made where it is missing. A link stays, and what it leads to is replaced.

    Yields:
        `<path>.tmp-<pid>`. After an exception there is no such file.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "out.csv"
        >>> with atomic_file(path) as new:
        ...     _ = new.write_text("a,b\\n")
        ...     path.exists()
        False
        >>> path.read_text(), new.exists()
        ('a,b\\n', False)
    """
    final = Path(os.path.realpath(path))
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        if final.exists():
            shutil.copymode(final, temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_dir(final.parent)
