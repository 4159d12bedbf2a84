"""What the page is made from: a run's logs and rollouts, or rollouts alone, with what they lack.

Rollouts of another framework may have no prompts, no texts, no advantages, no groups. `complete` gives every
column that the page reads, null where it is missing, and says which are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import MissingDependency, RunError
from grouprl.records import RunFolder, scan_rollouts
from grouprl.report.series import number

if TYPE_CHECKING:
    import polars as pl

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

_TEXT = ("group_id", "prompt_id", "prompt", "completion", "finish_reason", "dropped_reason")
_REAL = ("reward", "correctness", "advantage")
_WHOLE = ("step", "sample_index", "completion_tokens")


@dataclass(frozen=True)
class Source:
    """What a page shows.

    Args:
        name: The run's name.
        metrics: One record a step, as in metrics.jsonl; empty where there are rollouts alone.
        evaluations: One record a held-out evaluation.
        config: The run's configuration, as nested dictionaries.
        config_text: The same as it stands on disk; None where there is none.
        rollouts: Rows in grouprl's schema, from `complete`; None where there are none.
        components: The reward components' names: rollouts have a column `reward_<name>` of each.
        missing: Those of `NAMES` that no row has.
        notes: Further sentences for the reader (what could not be rebuilt, say).
        success_reward: From this reward on a completion counts as right.
        success_said: Where that number is from.
        metrics_stand_in: The metrics were made from the rollouts, since the records have none.
    """

    name: str
    metrics: Sequence[Mapping[str, Any]] = ()
    evaluations: Sequence[Mapping[str, Any]] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str | None = None
    rollouts: pl.LazyFrame | None = None
    components: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    success_reward: float = 1.0
    success_said: str = ""
    metrics_stand_in: bool = False


def open_source(path: str | Path | RunFolder) -> Source:
    """The source of a run folder, or of a Parquet file of rollouts, or of a folder of such files.

    Raises:
        RunError: Nothing of that kind there, or a log or rollout file that cannot be read.
    """
    if not isinstance(path, RunFolder) and (files := _rollout_files(Path(path).expanduser())):
        return source_of_rollouts(scan_rollouts(files), Path(path).expanduser().resolve().name)
    run = path if isinstance(path, RunFolder) else RunFolder.open(path)
    metrics, evaluations, config = run.metrics(), run.evaluations(), run.config()
    base = Source(
        name=run.path.resolve().name,
        metrics=metrics,
        evaluations=evaluations,
        config=config,
        config_text=run.config_path.read_text(encoding="utf-8"),
    )
    if not run.rollout_steps():
        return base
    return with_rollouts(base, run.rollouts(), where=str(run.rollouts_dir))


def _rollout_files(path: Path) -> list[Path]:
    """The files where rollouts stand without a run; none for a run folder, and where there is nothing."""
    if path.is_file() and path.suffix == ".parquet":
        return [path]
    if path.is_dir() and not (path / "config.toml").is_file():
        return sorted(path.glob("*.parquet"))
    return []


def source_of_rollouts(frame: pl.LazyFrame, name: str, *, notes: Sequence[str] = ()) -> Source:
    """The source of rollouts alone; the curves are made from them.

    Args:
        frame: Rows in grouprl's schema; any column may be missing or null.
        name: What to call them.
        notes: What a reader should know of them.
    """
    from grouprl.report.tables import step_metrics

    source = with_rollouts(Source(name=name, notes=tuple(notes)), frame, where=name)
    return _replace(source, metrics=step_metrics(source), metrics_stand_in=True)


def with_rollouts(source: Source, frame: pl.LazyFrame, *, where: str) -> Source:
    """The source with these rollouts: columns completed, what is missing said, right and wrong told apart."""
    pl = polars()
    try:
        complete_frame, components = complete(frame)
        judged = pl.col("correctness")
        facts = (
            complete_frame.select(
                *(pl.col(name).count().alias(name) for name in NAMES),
                pl.len().alias("rows"),
                judged.min().alias("low"),
                judged.max().alias("high"),
                judged.drop_nulls().n_unique().alias("distinct"),
            )
            .collect(engine="streaming")
            .row(0, named=True)
        )
    except pl.exceptions.PolarsError as error:
        raise RunError(f"{where}: rollouts cannot be read ({str(error).splitlines()[0]})") from error
    missing = tuple(name for name in NAMES if not facts[name])
    if facts["group_id"] < facts["rows"]:  # a completion of no known group stands alone
        complete_frame = complete_frame.with_row_index("_row").with_columns(
            pl.col("group_id").fill_null(pl.format("row {}", pl.col("_row")))
        )
    success, said = _success(source.config, facts)
    return _replace(
        source,
        rollouts=complete_frame.with_columns(
            pl.col("step").fill_null(0),
            pl.coalesce(
                "prompt_id", "prompt", pl.format("{}/{}", pl.col("step").fill_null(0), "group_id")
            ).alias("prompt_key"),
        ),
        components=components,
        missing=missing,
        success_reward=success,
        success_said=said,
    )


def complete(frame: pl.LazyFrame) -> tuple[pl.LazyFrame, tuple[str, ...]]:
    """Every column that the page reads, in its type, null where it is missing; and the components' names.

    Rewards and advantages that are NaN or infinite become null: unscored. `correctness`, by which right and wrong are
    told apart, is the reward where it is not recorded apart from it; `used` is true unless recorded otherwise.
    """
    pl = polars()
    schema = frame.collect_schema()
    components = tuple(
        name.removeprefix("reward_")
        for name, dtype in schema.items()
        if name.startswith("reward_") and (dtype.is_numeric() or dtype == pl.Boolean)
    )

    def cast(name: str, dtype: Any) -> pl.Expr:
        if name not in schema or schema[name] == pl.Null:
            return pl.lit(None, dtype=dtype).alias(name)
        return pl.col(name).cast(dtype, strict=False)

    real = [*_REAL, *(f"reward_{name}" for name in components)]
    columns = [
        *(cast(name, pl.String()) for name in _TEXT),
        *(cast(name, pl.Int64()) for name in _WHOLE),
        *(_finite(cast(name, pl.Float64())).alias(name) for name in real),
        cast("used", pl.Boolean()).fill_null(True),
    ]
    judged = pl.coalesce("correctness", "reward")
    return frame.select(columns).with_columns(
        correctness=pl.when(pl.col("reward").is_not_null()).then(judged)
    ), components


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


def _finite(expression: pl.Expr) -> pl.Expr:
    pl = polars()
    return pl.when(expression.is_finite()).then(expression)


def _success(config: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[float, str]:
    """From which reward on a completion is right, and why that one."""
    set_by_user = number(config.get("success_reward"))
    if set_by_user is not None:
        return set_by_user, "success_reward of the configuration"
    low, high = facts["low"], facts["high"]
    if config or high is None:
        return 1.0, "the usual reward of a solved task"
    if facts["distinct"] <= 2:
        return max(high, 1.0) if low == high else high, "the higher of the two rewards that occur"
    if low < 1.0 <= high:
        return 1.0, "rewards lie on both sides of 1"
    return (low + high) / 2, "the middle between the lowest and the highest reward"


def _replace(source: Source, **changes: Any) -> Source:
    import dataclasses

    return dataclasses.replace(source, **changes)
