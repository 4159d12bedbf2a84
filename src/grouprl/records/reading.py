"""`read`: rollouts on disk, of grouprl or another framework, as one polars LazyFrame."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.errors import InputError
from grouprl.records import formats
from grouprl.records.columns import polars
from grouprl.records.formats import FILE_STEP, Format, Head, Options
from grouprl.records.raw_columns import join
from grouprl.records.raw_files import read_head, rows_types
from grouprl.records.rollouts import rollout_schema
from grouprl.records.sources import Source

if TYPE_CHECKING:
    import polars as pl

MOST_HEADS = 512
"""Of more files than this, only so many are looked into for their columns, evenly spaced."""
MOST_COLUMNS = 2_000
"""A plan over columns takes polars their number squared: a second for these, 11 for 8,000."""
_COMPRESSED = ("", ".gz", ".zst")
_TOKENS = ("prompt_token_ids", "token_ids", "logprobs_sampler", "loss_mask")


def read(
    path: str | Path | Iterable[str | Path],
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    group_size: int | None = None,
    rewards: Mapping[str, float] | Sequence[str] | None = None,
) -> pl.LazyFrame:
    """Rollouts on disk, of grouprl or another framework, as one polars LazyFrame in grouprl's columns.

    Args:
        path: A run's folder, a file, a glob, or several files, of one run. JSON lines and CSV may be gzip or zstd.
        format: One of `formats.names()`; by default the one that the files' contents show.
        columns: For the format "table": grouprl's name → the file's, such as `{"reward": "score", "group_id": "uid"}`.
            Columns that are called as grouprl's need no entry.
        group_size: G, for formats without group ids, where prompts drawn twice in a row are to be told apart.
        rewards: Columns that are reward components, with their weights (1 each where only names are given), for
            formats that do not say which they are.

    Returns:
        One row a completion: all columns of `rollout_schema()`, null where the format lacks them; `reward_<name>` for
        each reward component; the format's other columns. `reward` is null where unscored (None, NaN, infinite), and
        `scored` says so. A `group_id` is unique within the run; it is null where it could not be rebuilt.

    Raises:
        InputError: There is no such file, no format fits or several do, a named column is not there, or there are more
            than `MOST_COLUMNS`. A fault within the files is raised in collecting, with file and line.

    `source` gives the same with what it was recognised as, and notes on what could not be read or rebuilt.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "1.jsonl"
        >>> line = '{"input": "2 + 2?", "output": "%s", "gts": "4", "score": %s, "step": 1}\\n'
        >>> _ = file.write_text(line % ("4", "1.0") + line % ("5", "NaN"))
        >>> read(file).select("group_id", "completion", "reward", "scored").collect().rows()
        [('1/0', '4', 1.0, True), ('1/0', '5', None, False)]
    """
    return source(path, format, columns=columns, group_size=group_size, rewards=rewards).rows()


def source(
    path: str | Path | Iterable[str | Path],
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    group_size: int | None = None,
    rewards: Mapping[str, float] | Sequence[str] | None = None,
) -> Source:
    """What `read` reads, recognised but not read yet: its format, its files, its columns, and notes.

    Args, Raises: As `read`.

    Example:
        >>> from tempfile import mkdtemp
        >>> file = Path(mkdtemp()) / "scores.csv"
        >>> _ = file.write_text("uid,score\\na,1\\na,0\\n")
        >>> found = source(file, columns={"reward": "score", "group_id": "uid"})
        >>> found.format.name, found.rows().select("group_id", "reward").collect().rows(), found.notes()
        ('table', [('a', 1.0), ('a', 0.0)], [])
    """
    options = _options(columns, group_size, rewards)
    if format is None and columns:
        format = "table"
    chosen = None if format is None else formats.get(format)
    paths = _paths(path, chosen)
    heads = [read_head(one) for one in _spread(paths)]
    first = next((head for head in heads if head.types), heads[0])  # a step may have left an empty file
    chosen = chosen or _recognise(first)
    kinds = {head.kind for head in heads}
    if len(kinds) > 1:
        raise InputError(f"read: files of {' and '.join(sorted(kinds))}, expected one kind; read them apart")
    raw: dict[str, pl.DataType] = {}
    for head in heads:
        if head.types and chosen.name != "table" and not chosen.recognises(head):
            raise InputError(
                f"{head.path}: not of format {chosen.name} ({_has(head)}), expected all files to be; read them apart, "
                "or name another format= (--format)"
            )
        for name, dtype in rows_types(head, chosen).items():
            raw[name] = join(raw[name], dtype) if name in raw else dtype
    if not raw:
        raise InputError(f"{paths[0]}: holds no rows, expected at least one; check the path")
    if len(raw) > MOST_COLUMNS:
        raise InputError(
            f"{paths[0]}: {len(raw):,} columns, expected at most {MOST_COLUMNS:,}; write the ones that are of rollouts"
        )
    with _complete(chosen, first):
        layout = chosen.layout(raw, options)
        single = _single_precision(raw, layout.columns)
        raw = {name: _readable(dtype) for name, dtype in raw.items()}
        raw |= _numbers(raw, layout.columns, first) | dict(layout.types)
        columns_of_rows = _columns(raw, layout.columns)
    return Source(
        format=chosen,
        paths=paths,
        columns=columns_of_rows,
        single_precision=single,
        _layout=layout,
        _raw=raw,
        _kind=kinds.pop(),
        _group_size=options.group_size,
    )


@contextmanager
def _complete(format: Format, head: Head) -> Iterator[None]:
    """A file with some of a format's columns, and not with others that its own writer always writes."""
    pl = polars()
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, LookupError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{head.path}: not a whole file of format {format.name} ({reason}), as it seemed by its columns; name "
            "another format= (--format)"
        ) from error


def _options(
    columns: Mapping[str, str] | None,
    group_size: int | None,
    rewards: Mapping[str, float] | Sequence[str] | None,
) -> Options:
    if group_size is not None and (isinstance(group_size, bool) or group_size < 1):
        raise InputError(
            f"read: group_size is {group_size!r}, expected a whole number from 1; give G, or leave it out"
        )
    if isinstance(rewards, str):
        rewards = [rewards]
    if rewards is not None and not isinstance(rewards, Mapping):
        rewards = dict.fromkeys(rewards, 1.0)
    return Options(columns or {}, group_size, rewards)


def _paths(path: str | Path | Iterable[str | Path], format: Format | None) -> tuple[Path, ...]:
    """The files, by the numbers in their names."""
    if not isinstance(path, str | Path):
        return tuple(found for one in path for found in _paths(one, format))
    given = Path(path).expanduser()
    if given.is_dir():
        return _in_folder(given, format)
    if given.is_file():
        return (given,)
    matches = [Path(name) for name in glob.glob(str(given), recursive=True)]
    found = _sorted(match for match in matches if match.is_file())
    if not found:
        what = "no file matches" if glob.has_magic(str(given)) else "no such file"
        raise InputError(
            f"{path}: {what}, expected rollouts: a run's folder, a file or a glob; check the path"
        )
    return found


def _in_folder(folder: Path, format: Format | None) -> tuple[Path, ...]:
    """The files of the one format that the folder holds, by the names of formats; else its Parquet, or JSON lines."""
    found: dict[str, tuple[Path, ...]] = {}
    for one in [format] if format else formats.FORMATS.values():
        for pattern in one.files:
            files = _matching(folder, pattern)
            heads = (head for head in map(read_head, files) if head.types)
            if (head := next(heads, None)) is not None and one.recognises(head):
                found[one.name] = files
                break
    if len(found) > 1:
        raise InputError(
            f"{folder}: holds rollouts of {' and '.join(found)}, expected one format; name it with format= (--format)"
        )
    if not found and (others := _matching(folder, "*.parquet") or _matching(folder, "*.jsonl")):
        return others
    if not found:
        asked = [format] if format else formats.FORMATS.values()
        looked = ", ".join(f"{one.files[0]} ({one.name})" for one in asked if one.files) or "a file"
        raise InputError(f"{folder}: no rollouts found, expected {looked}; name a file or a glob")
    return next(iter(found.values()))


def _matching(folder: Path, pattern: str) -> tuple[Path, ...]:
    return _sorted(
        match for suffix in _COMPRESSED for match in folder.glob(pattern + suffix) if match.is_file()
    )


def _sorted(paths: Iterable[Path]) -> tuple[Path, ...]:
    """By name, numbers by their size: 2.jsonl before 10.jsonl."""

    def key(path: Path) -> list[tuple[int, int, str]]:
        parts = re.split(r"(\d+)", path.as_posix())
        return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]

    return tuple(sorted(set(paths), key=key))


def _spread(paths: tuple[Path, ...]) -> list[Path]:
    """All of them, or `MOST_HEADS`, the first and the last among them."""
    if len(paths) <= MOST_HEADS:
        return list(paths)
    return [paths[i * (len(paths) - 1) // (MOST_HEADS - 1)] for i in range(MOST_HEADS)]


def _recognise(head: Head) -> Format:
    for format in formats.FORMATS.values():
        if format.recognises(head):
            return format
    raise InputError(
        f"{head.path}: no known format of rollouts ({_has(head)}), expected one of {', '.join(formats.names())}; name "
        "its columns with columns= (--columns reward=… group_id=…)"
    )


def _has(head: Head) -> str:
    names = list(head.types)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"columns {', '.join(names[:8])}{more}" if names else "no rows"


def _readable(dtype: pl.DataType) -> pl.DataType:
    """What nothing is known of is read as text."""
    pl = polars()
    if dtype == pl.Null or (isinstance(dtype, pl.List) and dtype.inner == pl.Null):
        return pl.String()
    return dtype


def _single_precision(raw: Mapping[str, pl.DataType], columns: Mapping[str, pl.Expr]) -> bool:
    pl = polars()
    made_of = columns["reward"].meta.root_names() if "reward" in columns else []
    return any(raw.get(name) in (pl.Float32, pl.Float16) for name in made_of)


def _numbers(
    raw: Mapping[str, pl.DataType], columns: Mapping[str, pl.Expr], head: Head
) -> dict[str, pl.DataType]:
    """Raw columns of text that our numbers are made of: they are read as numbers, and what is none is named."""
    pl = polars()
    own = rollout_schema(
        components=[name.removeprefix("reward_") for name in columns if name.startswith("reward_")]
    )
    found = {}
    for name, expression in columns.items():
        dtype = own.get(name, pl.String())
        for root in expression.meta.root_names() if dtype.is_numeric() else ():
            if raw.get(root) == pl.String and root != FILE_STEP:
                found[root] = dtype
    if found and head.kind == "parquet":
        name = next(iter(found))
        raise InputError(f"{head.path}: column {name!r} is {raw[name]}, expected numbers; name another one")
    return found


def _columns(raw: Mapping[str, pl.DataType], columns: Mapping[str, pl.Expr]) -> dict[str, pl.DataType]:
    """grouprl's columns, then those of the format, with their types."""
    pl = polars()
    frame = pl.LazyFrame(schema={**raw, FILE_STEP: pl.Int64()})
    found = frame.with_columns(**columns).select(list(columns)).collect_schema()
    own = rollout_schema(components=[n.removeprefix("reward_") for n in columns if n.startswith("reward_")])
    full = rollout_schema(tokens=True)
    tokens = {name: full[name] for name in _TOKENS if name in columns}
    known = own | tokens
    return known | {name: dtype for name, dtype in found.items() if name not in known}
