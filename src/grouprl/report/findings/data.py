"""A run's records as the checks see them: rows that always have the same columns, and one row a group.

The rows stay on disk (a polars LazyFrame); what the checks share is summed up in one streaming pass into `groups`,
one row a group, which for a million completions in groups of eight takes some tens of megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ulp
from typing import TYPE_CHECKING, Any

import polars as pl

from grouprl.report.findings.finding import Example, stretches
from grouprl.report.series import number

if TYPE_CHECKING:
    from grouprl.report.opening import Opened

Records = Sequence[Mapping[str, Any]]

COLUMNS: dict[str, Any] = {
    "step": pl.Int64,
    "group_id": pl.String,
    "prompt_id": pl.String,
    "sample_index": pl.Int64,
    "prompt": pl.String,
    "completion": pl.String,
    "reward": pl.Float64,
    "advantage": pl.Float64,
    "advantage_estimator": pl.String,
    "advantage_options": pl.String,
    "prompt_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "finish_reason": pl.String,
    "logprob_mean_sampler": pl.Float64,
    "logprob_mean_trainer": pl.Float64,
    "trained_tokens": pl.Float64,
    "greedy_reward": pl.Float64,
    "correctness": pl.Float64,
    "used": pl.Boolean,
    "dropped_reason": pl.String,
}
"""Columns that every check may name; null in all rows where the records lack one."""

OWN = ("seen", "row", "score", "step_given", "advantage_given", "prompt_key", "text_key")
"""Names that the checks give to columns of their own; the records' of that name are passed over."""

SHORTEST_TREND = 8
"""Steps from which on a run has a beginning and an end to compare: two in each quarter."""

NO_ROLLOUTS = "no rollouts on disk: what is said here is from the logs alone"

GROUP = ["step", "group_id"]
"""What names a group: some frameworks count their groups anew in each step."""


class RunData:
    """What is known of a run.

    Args:
        rows: Rollout rows in grouprl's schema, in the order they were written; missing columns are filled with
            null, rows without a group are left out.
        name: What to call the run.
        metrics, evaluations: The lines of metrics.jsonl and evaluations.jsonl, where there are any.
        config: The run's configuration, where there is one.
        success_reward: From this reward on a completion is right. By default see `success_reward`.
        notes: What a reader should know of how the rows were read.
        opened: Where the rows come from, kept as long as they are asked for; `of_records` gives it.
    """

    def __init__(
        self,
        rows: pl.LazyFrame,
        *,
        name: str = "run",
        metrics: Records = (),
        evaluations: Records = (),
        config: Mapping[str, Any] | None = None,
        success_reward: float | None = None,
        notes: Sequence[str] = (),
        opened: Opened | None = None,
    ) -> None:
        self.name, self.notes, self.opened = name, tuple(notes), opened
        self.framework = None if opened is None else opened.framework
        self.metrics, self.evaluations, self.config = metrics, evaluations, dict(config or {})
        schema = rows.collect_schema()
        self.single_precision = schema.get("reward") in (pl.Float32, pl.Float16) or (
            opened is not None and opened.single_precision
        )
        self.components = [
            column.removeprefix("reward_")
            for column, dtype in schema.items()
            if column.startswith("reward_") and (dtype.is_numeric() or dtype == pl.Boolean)
        ]
        self._success = success_reward
        self.every = _normalised(rows, schema, self.components)
        self.rows = self.every.filter(pl.col("group_id").is_not_null())

    @classmethod
    def of_records(cls, opened: Opened, *, success_reward: float | None = None) -> RunData:
        """What stands at a path. A run without rollouts on disk has no rows, and a note that says so."""
        nothing = opened.rows is None
        return cls(
            pl.LazyFrame(schema=COLUMNS) if opened.rows is None else opened.rows,
            name=opened.name,
            metrics=opened.metrics,
            evaluations=opened.evaluations,
            config=opened.config,
            success_reward=success_reward,
            notes=(*opened.notes, *((NO_ROLLOUTS,) if nothing else ())),
            opened=opened,
        )

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What one pass over all rows says: how many, how many values each column has, the bounds of the rewards."""
        counts = [pl.col(name).count().alias(f"count {name}") for name in COLUMNS]
        found = self.every.select(
            pl.len().alias("rows"),
            *counts,
            steps=pl.col("step_given").sum(),
            low=pl.col("score").min(),
            high=pl.col("score").max(),
        )
        return found.collect(engine="streaming").row(0, named=True)

    @cached_property
    def ungrouped(self) -> int:
        """Rows whose group is not known; they are left out of `rows`."""
        return int(self._facts["rows"] - self._facts["count group_id"])

    def lacks(self, column: str) -> bool:
        """Whether no row has a value there."""
        return not self._facts["steps" if column == "step" else f"count {column}"]

    @cached_property
    def two_rewards(self) -> tuple[float, float] | None:
        """(lower, higher) where the rewards before shaping have two values, else None."""
        reward, low, high = pl.col("score"), self._facts["low"], self._facts["high"]
        if low is None or low == high:
            return None
        between = (reward != low) & (reward != high)
        if self.every.select(between.any()).collect(engine="streaming").item():
            return None
        return low, high

    @cached_property
    def _success_said(self) -> tuple[float, str]:
        if self._success is not None:
            return self._success, "as asked for"
        configured = number(self.config.get("success_reward"))
        if configured is not None:
            return configured, "success_reward of the configuration"
        low, high = self._facts["low"], self._facts["high"]
        if self.config or high is None:
            return 1.0, "the usual reward of a solved task"
        if self.two_rewards is not None:
            return high, "the higher of the two rewards that occur"
        if low == high:
            return max(
                high, 1.0
            ), "the usual reward of a solved task" if high < 1 else "the only reward that occurs"
        if low < 1.0 <= high:
            return 1.0, "rewards lie on both sides of 1"
        return (low + high) / 2, "the middle between the lowest and the highest reward"

    @property
    def success_reward(self) -> float:
        """From this reward on a completion is right.

        As asked for, or as the configuration has it; 1 where that says nothing of it. Of rollouts alone: the higher
        of two rewards where only two occur, 1 where rewards lie on both sides of it, else the middle between the
        lowest and the highest.
        """
        return self._success_said[0]

    @property
    def success_said(self) -> str:
        """Where `success_reward` is from, in words."""
        return self._success_said[1]

    @property
    def least_right(self) -> float:
        """`success_reward`, less what is rounding: 4 units in its last place."""
        return self.success_reward - 4 * ulp(self.success_reward)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """One row a group, by step and in the order of the records.

        step, group_id, prompt_key; n and scored completions; prompts (distinct ones in it); reward_min, _max, _mean,
        _std (population), right (completions at success_reward or above); has_spread and kind ("informative",
        "all_high", "all_low", "single", "unscored"), by the rewards that advantages are made of; task_kind, the same
        by rewards before shaping, as metrics.jsonl counts groups; used (some completion was trained on) and
        dropped_reason; tokens, tokens_known; ended_known, truncated, truncated_right,
        truncated_scored; right_tokens, wrong, wrong_tokens; empty; advantages (those recorded), advantage_bad (missing
        or not finite, though scored), advantage_min, _max; nll, nll_tokens (−log-prob under the sampler, summed over
        tokens); gap, gap_abs, gap_tokens (sampler − trainer); distinct, same_pairs (ordered pairs of equal text),
        expected_pairs (how many the log-probs let expect), pairs; seen (its place in the records).
        """
        return self._table(self.rows)

    @cached_property
    def every_group(self) -> pl.DataFrame:
        """`groups`, and each row of no known group as one of its own, named "row 7"."""
        return self._table(self.every_named) if self.ungrouped else self.groups

    @cached_property
    def every_named(self) -> pl.LazyFrame:
        """`every`, each row of no known group in one of its own: "row 7"."""
        if not self.ungrouped:
            return self.every
        alone = pl.format("row {}", pl.col("row"))
        return self.every.with_row_index("row").with_columns(pl.col("group_id").fill_null(alone)).drop("row")

    def _table(self, rows: pl.LazyFrame) -> pl.DataFrame:
        table = _group_table(rows, self.least_right)
        spread = self._spread(table["reward_min"], table["reward_max"])
        task_spread = self._spread(table["score_min"], table["score_max"])
        return table.with_columns(has_spread=spread, kind=_kind(spread), task_kind=_kind(task_spread)).drop(
            "score_min", "score_max"
        )

    def _spread(self, low: pl.Series, high: pl.Series) -> pl.Series:
        """By the one function that decides it for advantages, statistics and sampling too."""
        import torch

        from grouprl.advantages.groups import exceeds_rounding
        from grouprl.advantages.inputs import DOUBLE, SINGLE

        bottom, top = (torch.tensor(bound.fill_null(0.0).to_numpy()) for bound in (low, high))
        found = exceeds_rounding(bottom, top, 4, SINGLE if self.single_precision else DOUBLE)
        return pl.Series(found.numpy())

    @cached_property
    def steps(self) -> list[int]:
        """The steps that have rows, ascending."""
        found: list[int] = self.groups["step"].unique().sort().to_list()
        return found

    @cached_property
    def group_size(self) -> int:
        """G: the size that most groups have; 0 without rows."""
        if self.groups.is_empty():
            return 0
        sizes = self.groups.group_by("n").len().sort("len", "n")
        return int(sizes["n"][-1])

    @property
    def last_steps(self) -> list[int]:
        """The last quarter of the steps: how the run is now."""
        return self.steps[-_quarter(self.steps) :]

    @property
    def first_steps(self) -> list[int]:
        """The first quarter of the steps: how it began."""
        return self.steps[: _quarter(self.steps)]

    @property
    def last(self) -> pl.DataFrame:
        """The groups of the last quarter of the steps."""
        return self.of(self.last_steps)

    @property
    def first(self) -> pl.DataFrame:
        """The groups of the first quarter of the steps."""
        return self.of(self.first_steps)

    @property
    def has_trend(self) -> bool:
        """Whether there are enough steps to compare the first with the last."""
        return len(self.steps) >= SHORTEST_TREND

    def of(self, steps: Sequence[int]) -> pl.DataFrame:
        """The groups of these steps."""
        return self.groups.filter(pl.col("step").is_in(list(steps)))

    def stretches(self, groups: pl.DataFrame) -> tuple[tuple[int, int], ...]:
        """The steps of these groups, as stretches."""
        return stretches(groups["step"].unique().to_list(), self.steps)

    def examples(
        self, groups: pl.DataFrame, *, where: pl.Expr | None = None, count: int = 2
    ) -> tuple[Example, ...]:
        """A few completions of the first of these groups, from the records.

        Args:
            groups: Rows of `self.groups`.
            where: Which completions; all by default.
            count: At most so many.
        """
        if groups.is_empty():
            return ()
        step, group_id = groups.sort("seen").row(0, named=True)["step"], groups.sort("seen")["group_id"][0]
        chosen = self.rows.filter((pl.col("step") == step) & (pl.col("group_id") == group_id))
        if where is not None:
            chosen = chosen.filter(where)
        columns = ["step", "group_id", "prompt", "completion", "reward", "advantage"]
        return tuple(Example(*row) for row in chosen.select(columns).head(count).collect().iter_rows())


def total(groups: pl.DataFrame, column: str) -> float:
    """The sum of a column; 0 of no groups."""
    return float(groups[column].sum() or 0)


def largest(groups: pl.DataFrame, column: str) -> int:
    """The largest of a column of whole numbers; 0 of no groups."""
    return int(groups[column].cast(pl.Int64).max() or 0)  # type: ignore[arg-type]


def _quarter(steps: Sequence[int]) -> int:
    return max(-(-len(steps) // 4), 1)


def _kind(spread: pl.Series) -> pl.Expr:
    return (
        pl.when(pl.col("scored") == 0)
        .then(pl.lit("unscored"))
        .when(pl.col("scored") == 1)
        .then(pl.lit("single"))
        .when(spread)
        .then(pl.lit("informative"))
        .when(pl.col("right") == pl.col("scored"))
        .then(pl.lit("all_high"))
        .otherwise(pl.lit("all_low"))
    )


def _normalised(rows: pl.LazyFrame, schema: pl.Schema, components: Sequence[str]) -> pl.LazyFrame:
    """The rows with all of COLUMNS, rewards that are finite or null, and keys for texts.

    `score` is the reward before shaping, where that is recorded; `advantage_given` says whether an advantage stands
    there, be it NaN; `prompt_key`, `text_key` are hashes of the prompt's id (else its text) and of the completion.
    """
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in COLUMNS.items() if name not in schema]
    known = [pl.col(name).cast(dtype, strict=False) for name, dtype in COLUMNS.items() if name in schema]
    kept = [pl.col(name) for name in schema if name not in COLUMNS and name not in OWN]
    scores = [f"reward_{name}" for name in components]
    prompt = pl.coalesce(pl.col("prompt_id"), pl.col("prompt"))
    return (
        rows.select(*known, *missing, *kept)
        .with_columns(pl.col(name).cast(pl.Float64, strict=False) for name in scores)
        .with_columns(
            *(_finite(name) for name in scores),
            pl.col("step").fill_null(0),
            step_given=pl.col("step").is_not_null(),
            reward=_finite("reward"),
            advantage_given=pl.col("advantage").is_not_null(),
            advantage=_finite("advantage"),
            used=pl.col("used").fill_null(True),
            prompt_key=pl.when(prompt.is_not_null()).then(prompt.hash()),
            text_key=pl.when(pl.col("completion").is_not_null()).then(pl.col("completion").hash()),
        )
        .with_columns(
            score=pl.when(pl.col("reward").is_not_null()).then(pl.coalesce(_finite("correctness"), "reward"))
        )
    )


def _finite(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)


def _group_table(rows: pl.LazyFrame, success: float) -> pl.DataFrame:
    reward, advantage, tokens = pl.col("reward"), pl.col("advantage"), pl.col("completion_tokens")
    right, wrong = pl.col("score") >= success, pl.col("score") < success
    cut, sampler = pl.col("finish_reason") == "length", pl.col("logprob_mean_sampler")
    gap = sampler - pl.col("logprob_mean_trainer")
    both = gap.is_not_null() & tokens.is_not_null()
    table = (
        rows.with_row_index("seen")
        .group_by(GROUP)
        .agg(
            pl.col("seen").min(),
            pl.col("prompt_key").first(),
            prompts=pl.col("prompt_key").drop_nulls().n_unique(),
            n=pl.len(),
            scored=reward.count(),
            reward_min=reward.min(),
            reward_max=reward.max(),
            reward_mean=reward.mean(),
            reward_std=reward.std(ddof=0),
            score_min=pl.col("score").min(),
            score_max=pl.col("score").max(),
            used=pl.col("used").any(),
            dropped_reason=pl.col("dropped_reason").drop_nulls().first(),
            right=right.sum(),
            wrong=wrong.sum(),
            tokens=tokens.sum(),
            tokens_known=tokens.count(),
            right_tokens=tokens.filter(right).sum(),
            wrong_tokens=tokens.filter(wrong).sum(),
            ended_known=pl.col("finish_reason").count(),
            truncated=cut.sum(),
            truncated_right=(cut & right).sum(),
            truncated_scored=(cut & reward.is_not_null()).sum(),
            empty=(pl.col("completion").str.strip_chars() == "").sum(),
            advantages=advantage.count(),
            advantage_bad=(reward.is_not_null() & advantage.is_null() & pl.col("used")).sum(),
            advantage_min=advantage.min(),
            advantage_max=advantage.max(),
            nll=(-sampler * tokens).sum(),
            nll_tokens=tokens.filter(sampler.is_not_null()).sum(),
            gap=(gap * tokens).sum(),
            gap_abs=(gap.abs() * tokens).sum(),
            gap_tokens=tokens.filter(both).sum(),
            likely=(sampler * tokens).exp().sum(),
            likely_known=(sampler * tokens).count(),
        )
        .collect(engine="streaming")
    )
    same = (
        rows.filter(pl.col("text_key").is_not_null())
        .group_by(*GROUP, "text_key")
        .agg(copies=pl.len().cast(pl.Int64))
        .group_by(GROUP)
        .agg(
            distinct=pl.len(),
            texts=pl.col("copies").sum(),
            same_pairs=(pl.col("copies") * (pl.col("copies") - 1)).sum(),
        )
        .collect(engine="streaming")
    )
    n = pl.col("n").cast(pl.Int64)
    known = (pl.col("likely_known") == n) & (pl.col("texts") == n)
    return (
        table.join(same, on=GROUP, how="left")
        .with_columns(
            pairs=n * (n - 1),
            expected_pairs=pl.when(known).then(pl.col("likely").clip(0.0) * (n - 1)),
        )
        .sort("step", "seen")
    )
