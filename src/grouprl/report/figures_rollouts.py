"""The figures that need the rollouts themselves: pass rates over time, advantages, lengths, prompts × steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from grouprl.report.opening import polars
from grouprl.report.series import Series, decimal, mean, percent, present, rounded
from grouprl.report.sources import Source
from grouprl.report.tables import advantage_histogram
from grouprl.report.text import clip_head, safe_text

if TYPE_CHECKING:
    import polars as pl

PASS_RATES = ("0", "0 to ¼", "¼ to ½", "½ to ¾", "¾ to 1", "1")
"""Names of the classes of a group's pass rate: none right, in between (upper bound included but for 1), all right."""
MOST_COLUMNS = 60
MOST_PROMPTS = 40
PROMPT_CHARACTERS = 160
LABEL_CHARACTERS = 22


def pass_rate_figure(groups: pl.DataFrame) -> dict[str, Any] | None:
    """Which share of a step's groups had which pass rate; None where nothing is scored.

    class of a group = ceil(4 right / scored) in the middle, ends apart
    """
    pl = polars()
    scored = groups.filter(pl.col("scored") > 0)
    if not len(scored):
        return None
    right, count = pl.col("right"), pl.col("scored")
    middle = (4 * right / count).ceil().clip(1, 4)
    kind = pl.when(right == 0).then(0).when(right == count).then(5).otherwise(middle).cast(pl.Int64)
    steps = scored["step"].unique().sort().to_list()
    stretches = _stretches(steps)
    cells = [[0] * len(stretches) for _ in PASS_RATES]
    place = _place_of(stretches)
    for step, number, size in (
        scored.with_columns(kind.alias("class")).group_by("step", "class").agg(pl.len()).iter_rows()
    ):
        cells[number][place[step]] += size
    totals = [sum(column) for column in zip(*cells, strict=True)]
    shares: list[Series] = [[cell / total for cell, total in zip(row, totals, strict=True)] for row in cells]
    rates = (scored["right"] / scored["scored"]).to_list()
    first, last = _of_steps(scored, stretches[0]), _of_steps(scored, stretches[-1])
    ends = f"{percent(first)} at first, {percent(last)} at the end" if len(stretches) > 1 else percent(first)
    caption = (
        f"Each column is {'a step' if len(stretches) == len(steps) else 'a stretch of steps'}, from groups with "
        f"none right (bottom) to all right (top); the stronger its colour, the more of them. Pass rate {ends}; "
        f"{percent(mean([float(0 < rate < 1) for rate in rates]))} of groups lay between."
    )
    data = {
        "kind": "grid",
        "x": [_label(stretch) for stretch in stretches],
        "rows": list(PASS_RATES),
        "cells": [rounded(row, 3) for row in shares],
        "what": "of groups",
        "scale": "share",
    }
    return {"name": "pass-rates", "title": "Pass rates over time", "caption": caption, "data": data}


def advantage_figure(source: Source) -> dict[str, Any] | None:
    """The distribution of advantages, right and wrong completions apart."""
    if "advantage" in source.missing:
        return None
    histogram = advantage_histogram(source)
    if histogram is None:
        return None
    edges = histogram["edges"]
    caption = (
        f"{_count(histogram['total'])} completions, {percent(histogram['zero'] / histogram['total'])} of them with an "
        f"advantage of exactly 0, which are left out here; the largest |advantage| is {decimal(edges[-1])}."
    )
    data = {
        "kind": "bars",
        "edges": rounded(edges),
        "series": [
            {"name": "wrong", "color": "rust", "y": histogram["wrong"]},
            {"name": "right", "color": "teal", "y": histogram["right"]},
        ],
    }
    return {"name": "advantages", "title": "Advantages", "caption": caption, "data": data}


def length_series(steps: pl.DataFrame) -> dict[str, Series] | None:
    """Mean lengths of right and wrong completions a step; None where there are none of either."""
    series: dict[str, Series] = {
        "step": [float(step) for step in steps["step"]],
        "every": steps["tokens_mean"].to_list(),
        "right": steps["tokens_right_mean"].to_list(),
        "wrong": steps["tokens_wrong_mean"].to_list(),
        "truncated": steps["truncated_share"].to_list(),
    }
    return series if present(series["right"]) or present(series["wrong"]) else None


def prompt_figure(source: Source, groups: pl.DataFrame) -> dict[str, Any] | None:
    """Pass rate of each prompt in each step, for the prompts drawn most often; None where none was drawn twice."""
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    scored = groups.filter(pl.col("scored") > 0)
    prompts = (
        scored.with_row_index("place")
        .group_by("prompt_key")
        .agg(
            pl.col("step").n_unique().alias("steps"),
            (pl.col("right").sum() / pl.col("scored").sum()).alias("rate"),
            pl.col("place").min(),
        )
        .filter(pl.col("steps") > 1)
    )
    if not len(prompts):
        return None
    every = scored["prompt_key"].n_unique()
    shown = prompts.sort(["steps", "place"], descending=[True, False]).head(MOST_PROMPTS)
    shown = shown.sort(["rate", "place"], descending=[True, False])
    keys = shown["prompt_key"].to_list()
    stretches = _stretches(scored["step"].unique().sort().to_list())
    place, row_of = _place_of(stretches), {key: i for i, key in enumerate(keys)}
    right = [[0] * len(stretches) for _ in keys]
    count = [[0] * len(stretches) for _ in keys]
    chosen = scored.filter(pl.col("prompt_key").is_in(keys))
    for key, step, good, size in chosen.select("prompt_key", "step", "right", "scored").iter_rows():
        right[row_of[key]][place[step]] += good
        count[row_of[key]][place[step]] += size
    cells: list[Series] = [
        [g / n if n else None for g, n in zip(goods, sizes, strict=True)]
        for goods, sizes in zip(right, count, strict=True)
    ]
    texts = dict(
        source.rollouts.filter(pl.col("prompt_key").is_in(keys))
        .group_by("prompt_key")
        .agg(
            pl.coalesce("prompt", "prompt_id")
            .drop_nulls()
            .first()
            .str.strip_chars()
            .str.tail(PROMPT_CHARACTERS)
        )
        .collect(engine="streaming")
        .iter_rows()
    )
    caption = (
        f"The {len(keys)} prompt{'' if len(keys) == 1 else 's'} drawn most often, of {_count(every)}, easiest on top: "
        "the share of right completions each time. Choose a cell to see its groups below."
    )
    data = {
        "kind": "grid",
        "x": [_label(stretch) for stretch in stretches],
        "steps": [[stretch[0], stretch[-1]] for stretch in stretches],
        "rows": [texts.get(key) or key for key in keys],
        "labels": short_labels([texts.get(key) or "" for key in keys]),
        "keys": keys,
        "cells": [rounded(row, 3) for row in cells],
        "what": "right",
        "scale": "rate",
    }
    return {"name": "prompts", "title": "Prompts × steps", "caption": caption, "data": data, "wide": True}


def short_labels(prompts: Sequence[str]) -> list[str]:
    """What tells prompts of one make apart, in a few characters: without the words that all begin or end with.

    Example:
        >>> short_labels(["What is 7 + 15? Be brief.", "What is 7 + 8? Be brief."])
        ['15', '8']
        >>> short_labels(["How long is the longest river in the world?"])
        ['…st river in the world']
    """
    words = [prompt.split() for prompt in prompts]
    shortest = min(map(len, words), default=0)
    if len(set(prompts)) > 1:
        first = next((i for i in range(shortest) if len({w[i] for w in words}) > 1), shortest)
        last = next(
            (i for i in range(shortest - first) if len({w[-1 - i] for w in words}) > 1), shortest - first
        )
        words = [own[first : len(own) - last] for own in words]
    return [clip_head(safe_text(" ".join(own).strip("?!.,:;")), LABEL_CHARACTERS) for own in words]


def _of_steps(scored: pl.DataFrame, stretch: list[int]) -> float | None:
    pl = polars()
    there = scored.filter(pl.col("step").is_between(stretch[0], stretch[-1]))
    total = int(there["scored"].sum())
    return int(there["right"].sum()) / total if total else None


def _stretches(steps: list[int]) -> list[list[int]]:
    """The steps in at most `MOST_COLUMNS` stretches of equal number."""
    if len(steps) <= MOST_COLUMNS:
        return [[step] for step in steps]
    bounds = [i * len(steps) // MOST_COLUMNS for i in range(MOST_COLUMNS + 1)]
    return [steps[a:b] for a, b in pairwise(bounds)]


def _place_of(stretches: list[list[int]]) -> dict[int, int]:
    return {step: i for i, stretch in enumerate(stretches) for step in stretch}


def _label(stretch: list[int]) -> str:
    return str(stretch[0]) if len(stretch) == 1 else f"{stretch[0]}–{stretch[-1]}"


def _count(value: int) -> str:
    return f"{value:,}"
