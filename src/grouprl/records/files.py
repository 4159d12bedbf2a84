"""Files and folders that are written whole or not at all.

Something new is written beside its final name as `<name>.tmp-<pid>`, synced to the disk, and renamed: a
reader, or a run that was killed at any moment, sees the old state or the new one, never a half.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grouprl.errors import RunError

_ASIDE = re.compile(r"(?P<name>.+)\.old-\d+")
_TEMPORARY = re.compile(r"(?P<name>.+)\.(?:tmp|old)-\d+")


def sync_dir(path: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename inside it outlives a power cut."""
    _sync(path)


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all: see `atomic_file`.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "note.txt"
        >>> atomic_write(path, b"old"); atomic_write(path, b"new"); path.read_bytes()
        b'new'
    """
    with atomic_file(path) as new:
        new.write_bytes(data)


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
    temporary = _temporary(final)
    try:
        yield temporary
        _sync(temporary)
        if final.exists():
            shutil.copymode(final, temporary)
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_dir(final.parent)


@contextmanager
def atomic_dir(final: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes its final name once the block ends without an exception.

    Args:
        final: Where the folder will stand. Its parents are made where they are missing.
        replace: Put it in the place of what stands there; otherwise that is refused.

    Yields:
        An empty folder `<final>.tmp-<pid>` beside `final`. After an exception it is removed.

    Raises:
        RunError: `final` exists and `replace` is false.

    A kill between the two renames of a replacement leaves the old folder as `<final>.old-<pid>`;
    `restore_aside` (called when a run is locked) puts it back.

    Example:
        >>> from tempfile import mkdtemp
        >>> final = Path(mkdtemp()) / "step_00010"
        >>> with atomic_dir(final) as folder:
        ...     _ = (folder / "weights").write_bytes(b"w")
        ...     final.exists()
        False
        >>> sorted(p.name for p in final.parent.iterdir()), (final / "weights").read_bytes()
        (['step_00010'], b'w')
    """
    final = Path(final)
    _refuse_existing(final, replace)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    remove(temporary)  # left by a killed process that had our pid
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                if not (entry := Path(folder, name)).is_symlink():
                    _sync(entry)
            sync_dir(Path(folder))
        _refuse_existing(final, replace)
        aside = None
        if final.exists() or final.is_symlink():
            aside = final.with_name(f"{final.name}.old-{os.getpid()}")
            remove(aside)
            os.rename(final, aside)
        try:
            os.rename(temporary, final)
        except BaseException:
            if aside is not None and not final.exists():
                os.rename(aside, final)
            raise
        sync_dir(final.parent)
        if aside is not None:
            remove(aside)
    except BaseException:
        remove(temporary)
        raise


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; nothing happens where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove a file or folder so that a kill half-way leaves nothing under its name."""
    if path.is_dir() and not path.is_symlink():
        temporary = _temporary(path)
        remove(temporary)
        os.rename(path, temporary)
        path = temporary
    remove(path)


def restore_aside(folder: Path) -> None:
    """Put back each `<name>.old-<pid>` in `folder` whose `<name>` a kill kept from being replaced."""
    for path, match in _matching(folder, _ASIDE):
        final = folder / match["name"]
        if not (final.exists() or final.is_symlink()):
            os.rename(path, final)


def remove_temporaries(folder: Path, ours: Callable[[str], bool] = lambda _: True) -> None:
    """Remove what a killed process left half written in `folder`, for the final names that are `ours`."""
    for path, match in _matching(folder, _TEMPORARY):
        if ours(match["name"]):
            remove(path)


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    if not folder.is_dir():
        return []
    return [(path, match) for path in sorted(folder.iterdir()) if (match := pattern.fullmatch(path.name))]


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def _refuse_existing(final: Path, replace: bool) -> None:
    if not replace and (final.exists() or final.is_symlink()):
        raise RunError(
            f"{final}: exists already, expected a name not yet taken; pass replace=True to replace it"
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
