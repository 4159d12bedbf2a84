"""From a path to the records there: the one place that knows what may stand at it.

A run's folder has rollouts, logs and a configuration; rollouts of another framework stand alone. Formats that lack
group ids, and those that are no Parquet, are read once, into a Parquet file of this process's own: a report asks
many things of the rows, and each would read and rebuild all of them.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import MissingDependency, RunError
from grouprl.records import RunFolder, source
from grouprl.records import Source as Rollouts

if TYPE_CHECKING:
    import polars as pl

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Opened:
    """What stands at a path.

    Args:
        name: What to call it.
        path: Where it is.
        rows: Rollouts in grouprl's columns (of which any may be missing, as in files of older versions); None where
            there are none.
        metrics, evaluations: The lines of metrics.jsonl and evaluations.jsonl, where there are any.
        config: The run's configuration, and as it stands on disk; empty and None for rollouts alone.
        framework: Who wrote the rollouts; None for grouprl itself.
        notes: What a reader should know of how they were read: that a format is unverified, how groups were rebuilt,
            what was left out.
        single_precision: The rewards were float32 numbers, whatever their column is now.
    """

    name: str
    path: Path
    rows: pl.LazyFrame | None
    metrics: Records = ()
    evaluations: Records = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str | None = None
    framework: str | None = None
    notes: tuple[str, ...] = ()
    single_precision: bool = False

    @property
    def where(self) -> str:
        """The path, for messages."""
        return str(self.path)


def open_records(
    path: str | Path | RunFolder,
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    group_size: int | None = None,
    rewards: Mapping[str, float] | Sequence[str] | None = None,
) -> Opened:
    """The records at a path.

    Args:
        path: A run's folder, or anything that `grouprl.records.read` takes: rollouts of any known framework, as a
            folder, a file or a glob.
        format, columns, group_size, rewards: As for `grouprl.records.read`; a run's own folder needs none.

    Raises:
        RunError: A log or rollout file of a run that cannot be read.
        InputError: Nothing is there that is known, or a line of it cannot be read.
    """
    if isinstance(path, RunFolder):
        return _open_run(path, str(path.path))
    given = Path(path).expanduser()
    named = any(option is not None for option in (columns, group_size, rewards))
    if (given / "config.toml").is_file() and format in (None, "grouprl") and not named:
        return _open_run(RunFolder.open(given), str(path))
    found = source(given, format, columns=columns, group_size=group_size, rewards=rewards)
    rows, kept = _kept(found, str(path))
    notes = found.notes()
    if found.format.repeats:
        rows, repeated = _without_repeats(rows)
        notes += [repeated] if repeated else []
    opened = Opened(
        name=str(path),
        path=given,
        rows=rows,
        framework=found.format.framework if found.format.name not in ("grouprl", "table") else None,
        notes=tuple(notes),
        single_precision=found.single_precision,
    )
    if kept is not None:
        weakref.finalize(opened, shutil.rmtree, kept, ignore_errors=True)
    return opened


def _open_run(run: RunFolder, name: str) -> Opened:
    rows = run.rollouts() if run.rollout_steps() else None
    return Opened(
        name=name,
        path=run.path,
        rows=rows,
        metrics=run.metrics(),
        evaluations=run.evaluations(),
        config=run.config(),
        config_text=run.config_path.read_text(encoding="utf-8"),
    )


def _kept(found: Rollouts, where: str) -> tuple[pl.LazyFrame, str | None]:
    """The rows but for lists (token ids and the like), to be asked many times; and the folder that keeps them."""
    pl = polars()
    rows = found.rows().select([name for name, dtype in found.columns.items() if not dtype.is_nested()])
    if found.scans:
        return rows, None
    folder = tempfile.mkdtemp(prefix="grouprl-report-")
    kept = Path(folder) / "rows.parquet"
    try:
        with readable(where):
            rows.sink_parquet(kept, compression="lz4")
        return pl.scan_parquet(kept, glob=False), folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunError(
                f"{where}: its rows cannot be kept in {Path(folder).parent} ({error.strerror}), expected room for "
                "them; let TMPDIR name another folder"
            ) from error
        raise


def _without_repeats(rows: pl.LazyFrame) -> tuple[pl.LazyFrame, str | None]:
    """The rows but for steps that hold exactly the completions of the step before; and what is to be said of it.

    Several updates were made on one generation then, and each logged it. Counted once each, they would make
    every interval too narrow.
    """
    pl = polars()
    row = pl.struct("prompt", "completion", "reward", "advantage").hash()
    prints = (
        rows.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.len(), row.sum().alias("sum"), row.min().alias("least"), row.max().alias("most"))
        .sort("step")
        .collect(engine="streaming")
    )
    same = pl.all_horizontal(
        pl.col("len", "sum", "least", "most") == pl.col("len", "sum", "least", "most").shift(1)
    )
    repeated = prints.filter(same)["step"].to_list()
    if not repeated:
        return rows, None
    some = ", ".join(map(str, repeated[:4])) + (", …" if len(repeated) > 4 else "")
    several = len(repeated) > 1
    said = (
        f"step{'s' if several else ''} {some} {'hold' if several else 'holds'} the completions of the step before "
        "once more (several updates a generation): they are counted once"
    )
    return rows.filter(~pl.col("step").is_in(repeated)), said


@contextmanager
def readable(where: str) -> Iterator[None]:
    """RunError naming `where`, in the place of what polars raises of a damaged file."""
    pl = polars()
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{where}: rollouts cannot be read ({reason}); remove the damaged file") from error


def polars() -> Any:
    """The polars module.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import polars
    except ImportError as error:
        raise MissingDependency("report: polars is not installed; pip install 'grouprl[report]'") from error
    return polars
