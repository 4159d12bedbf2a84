"""Rollouts as small tables: one row a group, one row a step, and how advantages are spread.

Each is one streaming pass over the columns that it needs, so rollouts may be larger than memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grouprl.report.opening import polars
from grouprl.report.sources import Source

if TYPE_CHECKING:
    import polars as pl

    from grouprl.report.findings.data import RunData

KINDS = ("informative", "all_high", "all_low", "single", "unscored")


def group_table(source: Source) -> pl.DataFrame:
    """One row a group, by step and name: `RunData.every_group` under the page's names.

    Returns:
        step, group_id, prompt_key, completions, scored, right (counts), std (population; of rewards), used (whether
        some completion was trained on), dropped_reason, truncated (count), advantage_max_abs, kind (one of `KINDS`, by
        rewards before shaping).
    """
    pl = polars()
    run = _run(source)
    alone = pl.format("{}/{}", pl.col("step"), "group_id")
    return run.every_group.select(
        "step",
        "group_id",
        pl.coalesce(pl.col("prompt_key").cast(pl.String), alone).alias("prompt_key"),
        pl.col("n").cast(pl.Int64).alias("completions"),
        pl.col("scored", "right", "truncated").cast(pl.Int64),
        pl.col("reward_std").alias("std"),
        "used",
        "dropped_reason",
        pl.max_horizontal(pl.col("advantage_min", "advantage_max").abs()).alias("advantage_max_abs"),
        pl.col("task_kind").alias("kind"),
    ).sort("step", "group_id")


def _run(source: Source) -> RunData:
    assert source.run is not None  # noqa: S101
    return source.run


def step_table(source: Source) -> pl.DataFrame:
    """One row a step: how long right and wrong completions were, and how many were truncated.

    Returns:
        step, completions, scored, reward_mean, tokens_mean, tokens_right_mean, tokens_wrong_mean,
        truncated_share, right_share; null where there is no such completion.
    """
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    reward, tokens = pl.col("reward"), pl.col("completion_tokens")
    right = pl.col("score") >= least_right(source)
    return (
        source.rollouts.group_by("step")
        .agg(
            pl.len().cast(pl.Int64).alias("completions"),
            reward.count().cast(pl.Int64).alias("scored"),
            reward.mean().alias("reward_mean"),
            tokens.mean().alias("tokens_mean"),
            tokens.filter(right).mean().alias("tokens_right_mean"),
            tokens.filter(~right).mean().alias("tokens_wrong_mean"),
            (pl.col("finish_reason") == "length").mean().alias("truncated_share"),
            right.mean().alias("right_share"),
        )
        .sort("step")
        .collect(engine="streaming")
    )


def step_metrics(source: Source) -> list[dict[str, Any]]:
    """Records such as those of metrics.jsonl, as far as rollouts alone give them."""
    if source.rollouts is None:
        return []
    pl = polars()
    steps = step_table(source)
    groups = group_table(source)
    shares = groups.group_by("step").agg(
        *((pl.col("kind") == kind).mean().alias(f"groups_{kind}_share") for kind in KINDS),
        pl.col("std").mean().alias("reward_group_std"),
        (pl.col("advantage_max_abs") > 0).mean().alias("groups_with_advantage_share"),
    )
    known = "group_id" not in source.missing
    records = []
    for row in steps.join(shares, on="step", how="left").sort("step").iter_rows(named=True):
        record = {
            "step": row["step"],
            "reward_mean": row["reward_mean"],
            "completion_tokens_mean": row["tokens_mean"],
            "truncated_share": row["truncated_share"],
        }
        if known:
            record |= {f"groups_{kind}_share": row[f"groups_{kind}_share"] for kind in KINDS}
            record["reward_group_std"] = row["reward_group_std"]
            record["groups_with_advantage_share"] = row["groups_with_advantage_share"]
        records.append(record)
    return records


def advantage_histogram(source: Source, bins: int = 40) -> dict[str, Any] | None:
    """How many completions have which advantage, right and wrong apart.

    Returns:
        edges (bins + 1), right, wrong (counts a bin), zero and total (counts); None where no row has an
        advantage other than 0. Advantages of exactly 0 are counted in `zero` alone.
    """
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    advantage = pl.col("advantage")
    facts = (
        source.rollouts.select(
            advantage.abs().max().alias("most"),
            (advantage == 0).sum().alias("zero"),
            advantage.count().alias("total"),
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    most = facts["most"]
    if not most:
        return None
    place = ((advantage / most + 1) / 2 * bins).floor().clip(0, bins - 1).cast(pl.Int64)
    counts = (
        source.rollouts.filter(advantage.is_not_null() & (advantage != 0))
        .group_by(
            place.alias("bin"),
            (pl.col("score") >= least_right(source)).fill_null(False).alias("right"),
        )
        .agg(pl.len().alias("count"))
        .collect(engine="streaming")
    )
    filled = {True: [0] * bins, False: [0] * bins}
    for row in counts.iter_rows(named=True):
        filled[row["right"]][row["bin"]] = row["count"]
    edges = [most * (2 * i / bins - 1) for i in range(bins + 1)]
    return {
        "edges": edges,
        "right": filled[True],
        "wrong": filled[False],
        "zero": facts["zero"],
        "total": facts["total"],
    }


def least_right(source: Source) -> float:
    """From here on a reward is right: the success reward, less what is rounding."""
    return _run(source).least_right
