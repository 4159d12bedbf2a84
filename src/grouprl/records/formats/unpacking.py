"""Lines of JSON that hold several rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def rows_of_columns(line: dict[str, Any], *columns: str) -> Iterator[dict[str, Any]]:
    """The rows of an object of columns; a value that is no list of the rows' number holds for all of them.

    Args:
        line: Name → one value a row.
        columns: Those that must be lists, all of one length.

    Raises:
        ValueError: They are not.
    """
    lengths = {name: len(line[name]) if isinstance(line.get(name), list) else None for name in columns}
    count = lengths[columns[0]]
    if count is None or set(lengths.values()) != {count}:
        said = ", ".join(f"{name}: {'no list' if n is None else n}" for name, n in lengths.items())
        raise ValueError(f"columns of unequal length ({said}), expected one value a completion in each")
    lists = {name: value for name, value in line.items() if isinstance(value, list) and len(value) == count}
    rest = {name: value for name, value in line.items() if name not in lists}
    for index in range(count):
        yield rest | {name: values[index] for name, values in lists.items()}
