"""Rollouts of any known format as one polars LazyFrame in grouprl's columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.errors import InputError
from grouprl.records.columns import polars
from grouprl.records.formats import FILE_STEP, Format, Layout
from grouprl.records.raw_files import raw_frames
from grouprl.records.rollouts import SCHEMA_VERSION, rollout_schema
from grouprl.records.runs import KEY, STEP, GroupsFromRuns, Stretches

if TYPE_CHECKING:
    import polars as pl

_SHOWN = 3


@dataclass(frozen=True)
class Source:
    """Rollouts on disk, recognised and ready to be read.

    Args:
        format: Which of `formats.FORMATS`.
        paths: The files, in order.
        columns: Name → type of the columns that `rows` has.
        single_precision: The files' rewards are float32 or narrower, so that more of a difference is rounding.
    """

    format: Format
    paths: tuple[Path, ...]
    columns: Mapping[str, pl.DataType]
    single_precision: bool
    _layout: Layout
    _raw: Mapping[str, pl.DataType]
    _kind: str
    _group_size: int | None = None
    _met: dict[str, list[str]] = field(default_factory=dict)
    _groups: list[GroupsFromRuns] = field(default_factory=list)

    @property
    def scans(self) -> bool:
        """Whether `rows` reads of Parquet what a query needs; else each query reads all of the files anew."""
        return self._kind == "parquet" and self._layout.key is None

    def rows(self) -> pl.LazyFrame:
        """One row a completion. It streams: `collect(engine="streaming")` holds a few frames of rows at a time.

        What goes wrong in reading is raised in collecting, as InputError with the file and the line.
        """
        from polars.io.plugins import register_io_source

        def source(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            left = rows
            for frame in self._frames(list(self.columns) if columns is None else columns):
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if left == 0:
                    return

        frame: pl.LazyFrame = register_io_source(source, schema=dict(self.columns), is_pure=True)
        return frame

    def notes(self) -> list[str]:
        """What a reader of the rows should know; what was met in them is here once they were read."""
        found = []
        if self.format.verified is None:
            found.append(
                f"unverified: {self.format.framework}'s format is known from {self.format.written_by}, and was not "
                "tried on files that it wrote"
            )
        found += self._layout.notes
        if "group_id" not in self._layout.columns and self._layout.key is None:
            found.append(
                "no group ids, and no prompts to rebuild them from: group_id is null; give group_size (--group-size)"
            )
        for groups in self._groups:
            found += groups.notes()
        for what, places in self._met.items():
            more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
            found.append(f"{what}: {'; '.join(places[:_SHOWN])}{more}")
        return found

    def _note(self, what: str, where: str) -> None:
        places = self._met.setdefault(what, [])
        if where not in places:
            places.append(where)

    def _frames(self, wanted: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The rows with these columns, file by file."""
        pl = polars()
        key = self._layout.key
        rebuilt = key is not None and not {"group_id", "sample_index"}.isdisjoint(wanted)
        expressions = self._expressions(wanted)
        if key is not None and rebuilt:
            step = self._layout.columns.get("step", pl.lit(None, pl.Int64()))
            expressions[KEY] = pl.struct(step.alias("step"), key.alias("key")).hash()
            expressions[STEP] = step.cast(pl.Int64)
        needed = {root for expression in expressions.values() for root in expression.meta.root_names()}
        if self._layout.keep is not None:
            needed |= set(self._layout.keep.meta.root_names())
        needed |= (
            set() if needed - {FILE_STEP} else set(list(self._raw)[:1])
        )  # rows without columns have no number
        schema = {name: dtype for name, dtype in self._raw.items() if name in needed}
        groups = GroupsFromRuns(self._group_size)
        if rebuilt:
            self._groups[:] = [groups]
        for path in self.paths:
            stretches = Stretches()
            for raw in raw_frames(path, self._kind, schema, self._loose(), self.format, self._note):
                frame = raw.lazy().with_columns(self._file_step(path))
                if self._layout.keep is not None:
                    frame = frame.filter(self._layout.keep)
                ready = self._evaluated(frame.with_columns(**expressions).select(list(expressions)), path)
                if not rebuilt:
                    yield ready.select(wanted)
                    continue
                yield from (groups.add_to(stretch).select(wanted) for stretch in stretches.feed(ready))
            yield from (groups.add_to(stretch).select(wanted) for stretch in stretches.rest())

    def _evaluated(self, frame: pl.LazyFrame, path: Path) -> pl.DataFrame:
        pl = polars()
        try:
            return frame.collect()
        except pl.exceptions.PolarsError as error:  # a list where there should be a number, say
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"{path}: not of format {self.format.name} ({reason}); name another format= (--format)"
            ) from error

    def _expressions(self, wanted: Sequence[str]) -> dict[str, pl.Expr]:
        """Those of the wanted columns that are had row by row; what the format lacks is null."""
        pl = polars()
        chosen = {}
        for name in wanted:
            dtype = self.columns[name]
            if name in self._layout.columns:
                chosen[name] = self._layout.columns[name].cast(dtype)
            elif name == "schema_version":
                chosen[name] = pl.lit(SCHEMA_VERSION, dtype)
            elif self._layout.key is None or name not in ("group_id", "sample_index"):
                chosen[name] = pl.lit(None, dtype)
        return chosen

    def _file_step(self, path: Path) -> pl.Expr:
        pl = polars()
        return pl.lit(self.format.step_in_name(path), pl.Int64()).alias(FILE_STEP)

    def _loose(self) -> frozenset[str]:
        """Raw columns of which no column of grouprl's is made: a value there that does not fit is no fault."""
        own = rollout_schema(tokens=True)
        strict = {
            root
            for name, expression in self._layout.columns.items()
            if name in own or name.startswith("reward_")
            for root in expression.meta.root_names()
        }
        return frozenset(set(self._raw) - strict)
