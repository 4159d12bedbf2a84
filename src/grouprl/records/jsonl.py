"""JSON lines: a log that is appended to a line at a time, survives a kill, and reads back strictly.

Strict JSON (RFC 8259) has no NaN and no infinity, so they become null. A line that a kill cut short
("torn") has no newline after it: reading leaves it out, and the next append does not glue onto it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from grouprl.errors import InputError, RunError
from grouprl.records.files import sync_dir

SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a pair of surrogates, as a JSON escape."""
_MAX_DEPTH = 40
_BLOCK = 1 << 16


def plain(value: Any, *, _depth: int = 0) -> Any:
    """The value in terms that strict JSON can hold.

    Scalars of NumPy and torch become numbers; NaN and ±inf become None; mappings, lists and tuples are
    walked; anything else (a tensor, an array, a set, an object) becomes its text (repr), so that one odd
    value neither ends a run nor takes its column with it. Halves of a surrogate pair become U+FFFD.

    Example:
        >>> import numpy as np
        >>> plain({"loss": float("nan"), "step": np.int64(3), "seen": {7}, 1: (True, None)})
        {'loss': None, 'step': 3, 'seen': '{7}', '1': [True, None]}
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if _depth < _MAX_DEPTH:  # a list that holds itself ends as text
        if isinstance(value, Mapping):
            items = value.items()
            return {clean_text(str(key)): plain(item, _depth=_depth + 1) for key, item in items}
        if isinstance(value, list | tuple):
            return [plain(item, _depth=_depth + 1) for item in value]
        scalar = _scalar(value)
        if scalar is not None:
            return plain(scalar, _depth=_depth + 1)
    return text_of(value)


def text_of(value: Any) -> str:
    """The value's repr, as text that UTF-8 can hold, even where the object's own repr raises."""
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return clean_text(text)


def clean_text(text: str) -> str:
    """The text with its lone surrogates, which no UTF-8 file can hold, replaced by U+FFFD.

    Example:
        >>> clean_text("half of a pair: \\ud83d, a whole one: \\ud83d\\ude00")
        'half of a pair: �, a whole one: 😀'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, its names without halves of surrogate pairs: they become names of columns.

    >>> json.loads('{"a": {"b": 1, "c\\\\ud83d": 2}}', object_pairs_hook=clean_names)
    {'a': {'b': 1, 'c�': 2}}
    """
    return {clean_text(name): value for name, value in pairs}


def append_jsonl(path: str | Path, record: Mapping[str, Any]) -> None:
    """Append `record` as one line of strict JSON, whole or not at all, and flush it to the disk.

    Values that JSON cannot hold are written as `plain` says. Where a kill left the file's last line torn,
    that half line is dropped first, so the new record stands on a line of its own.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "metrics.jsonl"
        >>> _ = path.write_text('{"step": 1, "loss": null}\\n{"step": 2, "lo')
        >>> append_jsonl(path, {"step": 2, "loss": float("inf")})
        >>> read_jsonl(path)
        [{'step': 1, 'loss': None}, {'step': 2, 'loss': None}]
    """
    path = Path(path)
    if not isinstance(record, Mapping):
        raise InputError(f"append_jsonl: a {type(record).__name__}, expected a mapping of names to values")
    # ensure_ascii keeps U+2028 and U+0085, which some readers take for line ends, out of the file
    line = json.dumps(plain(record), allow_nan=False, ensure_ascii=True).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("ab+") as file:
        tail = _unfinished_line(file)
        end = file.seek(0, os.SEEK_END)
        if tail and _parse(tail) is None:
            end -= len(tail)
            file.truncate(end)
        elif tail:  # a whole record that lacks only its newline
            line = b"\n" + line
        try:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.truncate(path, end)  # a full disk must not leave half a line
            raise
    if fresh:
        sync_dir(path.parent)


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a torn last line is left out.

    Raises:
        RunError: The file is missing, or a line other than a torn last one is not a JSON object.
    """
    return [record for record, _ in jsonl_lines(path)]


def jsonl_lines(path: str | Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each record of a JSON-lines file with its line as it stands (newline included), torn last left out."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe, say, which would never end
        raise RunError(f"{path}: not a file, expected a file of JSON lines")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path}: missing, expected a file of JSON lines") from None
    except NotADirectoryError:
        raise RunError(f"{path}: not a file, expected a file of JSON lines") from None
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = _parse(line)
        if record is not None:
            yield record, line + b"\n"
        elif number < len(lines):
            raise RunError(
                f"{path}, line {number}: {line[:60].decode(errors='replace')!r} is not a JSON object; "
                "mend or remove that line (only a last line that was cut short is passed over)"
            )


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(
            line,
            parse_constant=lambda _: None,
            object_pairs_hook=clean_names if SURROGATE.search(line) else None,
        )
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _unfinished_line(file: BinaryIO) -> bytes:
    """What stands after the last newline."""
    tail = b""
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        size = min(_BLOCK, position)
        position = file.seek(position - size)
        block = file.read(size)
        newline = block.rfind(b"\n")
        tail = block[newline + 1 :] + tail
        if newline >= 0:
            break
    return tail


def _scalar(value: Any) -> Any:
    """The Python number of a 0-d NumPy or torch value, else None."""
    if getattr(value, "ndim", None) != 0 or not callable(getattr(value, "item", None)):
        return None
    try:
        item = value.item()
    except Exception:  # a tensor on the meta device has no value
        return None
    return None if type(item) is type(value) else item
