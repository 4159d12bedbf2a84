"""The groups of a page: which ones it holds, how surprising each completion is, and all of it in little space.

The page holds at most `MOST_COMPLETIONS` completions and `MOST_BYTES` of text. Where records have more, whole
groups are taken, as many from each step and evenly within it, and the page says how many that are.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grouprl.records.jsonl import clean_text
from grouprl.report.opening import polars
from grouprl.report.series import rounded
from grouprl.report.sources import Source
from grouprl.report.tables import group_table, least_right

if TYPE_CHECKING:
    import polars as pl

MOST_COMPLETIONS = 50_000
MOST_BYTES = 100_000_000
MOST_CHARACTERS = 20_000
"""Of one text. What is longer is cut, and the page says by how much."""


@dataclass(frozen=True, slots=True)
class Browser:
    """What the page's browser of groups works on.

    Args:
        data: Columns, as text that `browser.js` unpacks: base64 of gzip of JSON.
        groups: How many groups it holds.
        completions: How many completions.
        groups_on_record: How many groups there are on record.
        completions_on_record: How many completions.
    """

    data: str
    groups: int
    completions: int
    groups_on_record: int
    completions_on_record: int


def browser(
    source: Source, *, most_completions: int = MOST_COMPLETIONS, most_bytes: int = MOST_BYTES
) -> Browser:
    """The groups to show, packed.

    Args:
        source: The records.
        most_completions: At most so many (and at least one group, where there is one).
        most_bytes: At most so much text, prompts aside.
    """
    if source.rollouts is None:
        return Browser(pack({"groups": 0}), 0, 0, 0, 0)
    table = group_table(source)
    chosen = choose(table, most_completions)
    rows = _rows(source, chosen)
    size = int(rows["completion"].str.len_bytes().sum() or 0)
    if size > most_bytes and len(chosen) > 1:
        chosen = choose(chosen, max(int(len(rows) * most_bytes / size), 1))
        rows = rows.join(chosen.select("step", "group_id"), on=["step", "group_id"], how="semi")
    return Browser(
        data=pack(_columns(source, chosen, rows)),
        groups=len(chosen),
        completions=len(rows),
        groups_on_record=len(table),
        completions_on_record=int(table["completions"].sum()),
    )


def choose(table: pl.DataFrame, most: int) -> pl.DataFrame:
    """Whole groups with at most `most` completions together, evenly over the steps and within each.

    A step gets most / (number of steps) completions; what a small step leaves goes to the others. One group
    is taken in any case.
    """
    pl = polars()
    if int(table["completions"].sum()) <= most:
        return table
    starts = table["step"].rle_id().to_numpy()
    sizes = table["completions"].to_numpy()
    per_step = np.bincount(starts, weights=sizes)
    quota = _water_level(per_step, most)
    keep = np.zeros(len(table), bool)
    owed = 0.5  # parts of a group: where a step may have 1.5 groups, every second one gets 2
    for step in range(len(per_step)):
        members = _span(starts, step)
        total = sizes[members].sum()
        if total <= quota:
            keep[members] = True
            continue
        owed += quota * len(members) / total
        count = min(int(owed), len(members))
        owed -= count
        if count:
            keep[members[np.linspace(0, len(members) - 1, count).round().astype(int)]] = True
    if sizes[keep].sum() > most:  # groups of uneven size
        keep &= np.cumsum(sizes * keep) <= most
    if not keep.any():
        keep[0] = True
    return table.filter(pl.Series(keep))


def _water_level(amounts: np.ndarray[Any, Any], most: float) -> float:
    """The level at which Σ min(amount, level) = most."""
    level, left, rest = 0.0, float(most), np.sort(amounts)
    for i, amount in enumerate(rest):
        level = left / (len(rest) - i)
        if amount > level:
            return level
        left -= amount
    return float(rest[-1])


def _span(sorted_ids: np.ndarray[Any, Any], value: int) -> np.ndarray[Any, Any]:
    first, last = np.searchsorted(sorted_ids, [value, value + 1])
    return np.arange(first, last)


def _rows(source: Source, chosen: pl.DataFrame) -> pl.DataFrame:
    """The completions of the chosen groups, group by group in the order of `chosen`, by sample index within."""
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    keys = chosen.select("step", "group_id").with_row_index("group")
    text = pl.col("completion")
    return (
        source.rollouts.select(
            *("step", "group_id", "prompt_key", "sample_index", "reward", "score", "advantage"),
            *("completion_tokens", "finish_reason", *(f"reward_{name}" for name in source.components)),
            "completion",
        )
        .join(keys.lazy(), on=["step", "group_id"], how="inner")
        .collect(engine="streaming")
        .sort("group", "sample_index", nulls_last=True, maintain_order=True)
        .with_columns(text.str.len_chars().alias("characters"), text.str.slice(0, MOST_CHARACTERS))
    )


def _columns(source: Source, chosen: pl.DataFrame, rows: pl.DataFrame) -> dict[str, Any]:
    pl = polars()
    prompts, prompt_of = _prompts(source, chosen)
    surprise = _surprise(source, rows)
    texts = rows["completion"]
    lengths = rows["characters"]
    return {
        "groups": len(chosen),
        "success": source.success_reward,
        "missing": list(source.missing),
        "prompts": prompts,
        "step": chosen["step"].to_list(),
        "id": [clean_text(one) for one in chosen["group_id"].to_list()],
        "key": [clean_text(one) for one in chosen["prompt_key"].to_list()],
        "prompt": prompt_of,
        "kind": chosen["kind"].to_list(),
        "size": chosen["completions"].to_list(),
        "used": [int(one) for one in chosen["used"].to_list()],
        "dropped": chosen["dropped_reason"].to_list(),
        "right": rows.select((pl.col("score") >= least_right(source)).cast(pl.Int8))["score"].to_list(),
        "reward": rounded(rows["reward"].to_list(), 6),
        "components": {name: rounded(rows[f"reward_{name}"].to_list(), 6) for name in source.components}
        if len(source.components) > 1
        else {},
        "advantage": rounded(rows["advantage"].to_list(), 6),
        "tokens": rows["completion_tokens"].to_list(),
        "ended": rows["finish_reason"].to_list(),
        "surprise": rounded(surprise, 3),
        "text": texts.to_list(),
        "cut": {
            str(i): n - MOST_CHARACTERS
            for i, n in enumerate(lengths.to_list())
            if n is not None and n > MOST_CHARACTERS
        },
    }


def _prompts(source: Source, chosen: pl.DataFrame) -> tuple[list[str | None], list[int]]:
    """The different prompts' texts, each once, and for each group which one is its own."""
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    text = pl.col("prompt").str.strip_chars()
    of_group = (
        source.rollouts.join(chosen.lazy().select("step", "group_id"), on=["step", "group_id"], how="semi")
        .group_by("step", "group_id")
        .agg(text.drop_nulls().first().str.tail(MOST_CHARACTERS))
        .collect(engine="streaming")
    )
    listed = chosen.select("step", "group_id").join(
        of_group, on=["step", "group_id"], how="left", maintain_order="left"
    )["prompt"]
    numbers: dict[str | None, int] = {}
    places = [numbers.setdefault(prompt, len(numbers)) for prompt in listed.to_list()]
    return list(numbers), places


def _surprise(source: Source, rows: pl.DataFrame) -> list[float | None]:
    """How unexpected each completion's outcome was, in bits; None where it is unscored.

        surprise = −log2( share of the prompt's scored completions with the same outcome, right or wrong )

    over all its draws on record, this completion included, so that it is finite: one right completion in 64
    has 6 bits. Ours.
    """
    pl = polars()
    assert source.rollouts is not None  # noqa: S101
    right = pl.col("score") >= least_right(source)
    totals = (
        source.rollouts.group_by("prompt_key")
        .agg(right.sum().alias("right_all"), pl.col("reward").count().alias("scored_all"))
        .collect(engine="streaming")
    )
    same = (
        pl.when(right)
        .then(pl.col("right_all"))
        .otherwise(pl.col("scored_all").cast(pl.Int64) - pl.col("right_all").cast(pl.Int64))
    )
    bits = (pl.col("scored_all") / same).log(2.0)
    return (
        rows.select("prompt_key", "reward", "score")
        .join(totals, on="prompt_key", how="left", maintain_order="left")
        .select(pl.when(pl.col("reward").is_not_null()).then(bits).alias("bits"))["bits"]
        .to_list()
    )


def pack(columns: dict[str, Any]) -> str:
    """JSON, gzipped, in base64: nothing in it can end a script element, and equal data gives equal text."""
    text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(clean_text(text).encode(), compresslevel=4, mtime=0)).decode()
