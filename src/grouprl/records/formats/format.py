"""What a format of rollouts is: how it is told, where its files lie, and how its columns become grouprl's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    Types = Mapping[str, pl.DataType]

FILE_STEP = "\0file_step"
"""A raw column that every file has: the step that its name says, by `Format.step_in_name`."""


@dataclass(frozen=True)
class Head:
    """The beginning of a file.

    Args:
        path: The file.
        kind: "parquet", "jsonl" or "csv".
        types: Name → type of its columns; of JSON lines, those of the first `records`, as they stand.
        records: The first JSON objects; none for the other kinds.
    """

    path: Path
    kind: str
    types: Types
    records: tuple[dict[str, Any], ...] = ()

    def has(self, *names: str) -> bool:
        """Whether it has all these columns."""
        return all(name in self.types for name in names)


@dataclass(frozen=True)
class Options:
    """What the caller knows of the files.

    Args:
        columns: grouprl's name → the file's.
        group_size: G.
        rewards: Columns that are reward components → their weights; None where the format decides.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    group_size: int | None = None
    rewards: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Layout:
    """How raw columns become grouprl's.

    Args:
        columns: Name → expression over raw columns: those of `rollout_schema` that the format has, reward components
            `reward_<name>`, and extra columns under their own names.
        key: What the rows of a group share, where the format has no group id: groups are then runs of equal keys.
        keep: Which rows to keep; all by default.
        types: Raw columns that are read as another type than was found in the first rows.
        notes: What a reader of the rows should know.
    """

    columns: Mapping[str, pl.Expr]
    key: pl.Expr | None = None
    keep: pl.Expr | None = None
    types: Types = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """One way in which rollouts lie on disk.

    Args:
        name: What `read(format=…)` takes.
        framework: Who writes it, as they call themselves.
        written_by: What was read to learn it: the writer's place in the framework's package, or a document.
        verified: The version whose own writer made the files that tests read; None where there is none: unverified.
        missing: What the files do not hold.
        files: Where its files lie below a run's folder; the first pattern that finds any holds. `.gz` and `.zst` may
            follow.
        recognises: Whether a file's beginning is of this format.
        layout: See `Layout`; given the types of all files' raw columns, joined.
        unpack: Makes flat rows of one line's object, where a line holds several rows or nested ones.
        step_in_name: The step that a file's name says.
        repeats: Whether a step that sampled nothing holds the completions of the step before once more.
    """

    name: str
    framework: str
    written_by: str
    verified: str | None
    missing: tuple[str, ...]
    files: tuple[str, ...]
    recognises: Callable[[Head], bool]
    layout: Callable[[Types, Options], Layout]
    unpack: Callable[[dict[str, Any]], Iterator[dict[str, Any]]] | None = None
    step_in_name: Callable[[Path], int | None] = lambda _: None
    repeats: bool = False
