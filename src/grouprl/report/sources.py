"""What the page is made from: a run's records as the findings see them, and what they lack in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.records import RunFolder
from grouprl.report.opening import open_records, polars, readable

if TYPE_CHECKING:
    import polars as pl

    from grouprl.report.findings.data import RunData

NAMES = {
    "step": "steps",
    "group_id": "groups",
    "prompt": "prompts",
    "completion": "completions",
    "reward": "rewards",
    "advantage": "advantages",
    "completion_tokens": "lengths",
    "finish_reason": "how a completion ended",
}
"""Columns whose absence the page says, with the words for it."""


@dataclass(frozen=True)
class Source:
    """What a page shows.

    Args:
        name: The run's name.
        metrics: One record a step, as in metrics.jsonl; made from the rollouts where there are these alone.
        evaluations: One record a held-out evaluation.
        config: The run's configuration, as nested dictionaries.
        config_text: The same as it stands on disk; None where there is none.
        run: The records as the findings see them; None where there are no rollouts.
        rollouts: Every row of `run`, those without a group under an id of their own, with `prompt_key`, what names a
            prompt in the page; None where there are none.
        missing: Those of `NAMES` that no row has.
        notes: Further sentences for the reader (what could not be rebuilt, say).
        path: Where the records are; None where they were given as a frame.
        metrics_stand_in: The metrics were made from the rollouts, since the records have none.
    """

    name: str
    metrics: Sequence[Mapping[str, Any]] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str | None = None
    run: RunData | None = None
    rollouts: pl.LazyFrame | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    path: Path | None = None
    metrics_stand_in: bool = False

    @property
    def components(self) -> tuple[str, ...]:
        """The reward components' names: rollouts have a column `reward_<name>` of each."""
        return () if self.run is None else tuple(self.run.components)

    @property
    def success_reward(self) -> float:
        """From this reward on a completion counts as right."""
        return 1.0 if self.run is None else self.run.success_reward

    @property
    def success_said(self) -> str:
        """Where that number is from."""
        return "" if self.run is None else self.run.success_said


def open_source(path: str | Path | RunFolder) -> Source:
    """The source of what stands at a path: see `grouprl.report.opening.open_records`."""
    from grouprl.report.findings.data import RunData

    return source_of(RunData.of_records(open_records(path)))


def source_of(run: RunData) -> Source:
    """The source of a run's records.

    Raises:
        RunError: A rollout file that cannot be read.
    """
    from grouprl.report.tables import step_metrics

    opened = run.opened
    nothing = opened is not None and opened.rows is None
    name = run.name if opened is None else opened.path.expanduser().resolve().name
    facts: dict[str, Any] = {
        "metrics": run.metrics,
        "evaluations": run.evaluations,
        "config": run.config,
        "config_text": None if opened is None else opened.config_text,
        "path": None if opened is None else opened.path,
    }
    if nothing:
        return Source(name, **facts)  # the page says what it lacks in words of its own
    with readable(run.name):
        source = Source(
            name,
            **facts,
            run=run,
            rollouts=_with_keys(run),
            missing=tuple(column for column in NAMES if run.lacks(column)),
            notes=tuple(f"{note[:1].upper()}{note[1:]}." for note in run.notes),
        )
        if source.metrics or source.config_text is not None:
            return source
        return _replace(source, metrics=step_metrics(source), metrics_stand_in=True)


def source_of_rollouts(frame: pl.LazyFrame, name: str, *, notes: Sequence[str] = ()) -> Source:
    """The source of rollouts alone; the curves are made from them.

    Args:
        frame: Rows in grouprl's schema; any column may be missing or null.
        name: What to call them.
        notes: What a reader should know of them, each without a full stop.
    """
    from grouprl.report.findings.data import RunData

    return source_of(RunData(frame, name=name, notes=notes))


def _with_keys(run: RunData) -> pl.LazyFrame:
    """Every row, with a group and a prompt to name it by."""
    pl = polars()
    rows: pl.LazyFrame = run.every_named
    alone = pl.format("{}/{}", pl.col("step"), "group_id")
    return rows.with_columns(prompt_key=pl.coalesce(pl.col("prompt_key").cast(pl.String), alone))


def _replace(source: Source, **changes: Any) -> Source:
    import dataclasses

    return dataclasses.replace(source, **changes)
