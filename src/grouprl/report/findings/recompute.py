"""Advantages from the recorded rewards, again: what the named estimator gives, and what others would have given.

Everything works on arrays of a stretch of steps, at most `ROWS` completions at a time, so memory does not grow with
the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from grouprl.report.findings.data import RunData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROWS = 1_000_000
RELATIVE = 1e-3
"""Float32 arithmetic is ten thousand times closer; another ddof is further off up to G = 500."""
ABSOLUTE = 1e-5
LARGEST_EPS = 1e-4
"""Of the frameworks in `advantages.CONVENTIONS`: where eps is not recorded it may be any up to this."""

IN_GROUP = ("population_std", "sample_std", "no_scale", "leave_one_out")
OVER_BATCH = ("batch_std", "batch_std_population", "whole_batch", "whole_batch_population")
CONVENTIONS = IN_GROUP + OVER_BATCH


@dataclass(frozen=True)
class Block:
    """The completions of a stretch of steps that advantages were recorded for, in the order of the records.

    Args:
        frame: Their rows.
        step: Number of the step, from 0 in this block.
        group: A number for each group (a hash).
        rewards: NaN where unscored.
        advantages: As recorded.
        place: Place in the step, from 0.
    """

    frame: pl.DataFrame
    step: Ints
    group: Ints
    rewards: Floats
    advantages: Floats
    place: Ints


def blocks(run: RunData) -> Iterator[Block]:
    """The run's groups whose scored completions all have an advantage, a stretch of steps at a time."""
    counts = run.groups.group_by("step").agg(pl.col("n").sum()).sort("step")
    whole = run.groups.filter((pl.col("advantages") > 0) & (pl.col("advantage_bad") == 0)).select(
        "step", "group_id"
    )
    if whole.is_empty():
        return
    needed = ["step", "group_id", "reward", "advantage", "advantage_estimator", "advantage_options"]
    needed += ["trained_tokens", "greedy_reward", *(f"reward_{name}" for name in run.components)]
    for first, last in _stretches(counts):
        rows = run.rows.filter(pl.col("step").is_between(first, last) & pl.col("used"))
        frame = (
            rows.select(needed)
            .with_columns(place=pl.int_range(pl.len()).over("step"))
            .join(whole.lazy(), on=["step", "group_id"], how="semi", maintain_order="left")
            .with_columns(group=pl.struct("step", "group_id").hash().reinterpret(signed=True))
            .collect()
        )
        if len(frame):
            steps = frame["step"].to_numpy()
            yield Block(
                frame,
                np.unique(steps, return_inverse=True)[1].astype(np.int64),
                frame["group"].to_numpy(),
                _numbers(frame["reward"]),
                np.nan_to_num(_numbers(frame["advantage"])),
                frame["place"].cast(pl.Int64).to_numpy(),
            )


def claimed(block: Block, components: list[str]) -> Floats | None:
    """What the estimators that the rows name give; NaN where they name none, or one that cannot be called again.

    Returns:
        One advantage a completion; None where no row names an estimator that can be called.
    """
    from grouprl import advantages

    result = np.full(len(block.rewards), np.nan)
    named = (
        block.frame.select("advantage_estimator", "advantage_options")
        .unique()
        .drop_nulls("advantage_estimator")
    )
    for name, options in named.iter_rows():
        if name not in advantages.names():
            continue
        estimator = advantages.get(name)
        if estimator.scope not in ("group", "batch"):
            continue
        match = pl.col("advantage_estimator").eq(name) & pl.col("advantage_options").eq_missing(
            pl.lit(options)
        )
        chosen = block.frame.select(match).to_series().fill_null(False).to_numpy()
        try:
            given = json.loads(options) if options else {}
            result[chosen] = _called(estimator, given, block, chosen, components)
        except Exception:  # noqa: S112  (options of another version, data that no row has, or somebody's own code)
            continue  # not to be compared
    return None if np.isnan(result).all() else result


def _called(
    estimator: Any, options: dict[str, Any], block: Block, chosen: Bools, components: list[str]
) -> Floats:
    frame = block.frame.filter(pl.Series(chosen))
    data: dict[str, Any] = {}
    if "lengths" in estimator.needs:
        data["lengths"] = _numbers(frame["trained_tokens"])
    if "greedy_rewards" in estimator.needs:
        data["greedy_rewards"] = _numbers(frame["greedy_reward"])
    if "components" in estimator.needs:
        data["components"] = {name: _numbers(frame[f"reward_{name}"]) for name in components}
    rewards, group, step = block.rewards[chosen], block.group[chosen], block.step[chosen]
    if estimator.scope == "group":
        return _advantages(estimator, rewards, group, options, data)
    result = np.empty(len(rewards))
    for one in np.unique(step):
        there = step == one
        part = {
            key: {name: values[there] for name, values in value.items()}
            if isinstance(value, dict)
            else value[there]
            for key, value in data.items()
        }
        result[there] = _advantages(estimator, rewards[there], group[there], options, part)
    return result


def _advantages(
    estimator: Any, rewards: Floats, group: Ints, options: dict[str, Any], data: dict[str, Any]
) -> Floats:
    """An estimator's advantages. It is given tensors, as in a run: one's own may know nothing else."""
    import torch

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensors(one) for name, one in value.items()}
        return torch.from_numpy(np.ascontiguousarray(value))

    found = estimator(tensors(rewards), tensors(group), **options, **{k: tensors(v) for k, v in data.items()})
    return np.asarray(torch.as_tensor(found), dtype=np.float64)


def convention(name: str, rewards: Floats, group: Ints, step: Ints) -> Floats:
    """What a way of normalising gives, of `CONVENTIONS`."""
    from grouprl.advantages import group_advantages

    if name == "population_std":
        return np.asarray(group_advantages(rewards, group))
    if name == "sample_std":
        return np.asarray(group_advantages(rewards, group, ddof=1))
    if name == "no_scale":
        return np.asarray(group_advantages(rewards, group, scale="none"))
    if name == "leave_one_out":
        return np.asarray(group_advantages(rewards, group, baseline="leave_one_out", scale="none"))
    mean, std = _moments(rewards, step, ddof=0 if name.endswith("_population") else 1)
    if name.startswith("batch_std"):
        centred = np.asarray(group_advantages(rewards, group, scale="none"))
    else:
        centred = np.nan_to_num(rewards - mean)
    return np.divide(centred, std, out=np.zeros_like(centred), where=std > 0)


def agrees(recorded: Floats, expected: Floats, std: Floats | None = None) -> Bools:
    """Whether recorded advantages are the expected ones, but for float32 arithmetic.

    Args:
        recorded, expected: (N,); NaN expected agrees with everything.
        std: Of the group, where eps is not known.
    """
    slack = RELATIVE * np.ones_like(expected)
    if std is not None:
        slack = slack + LARGEST_EPS / np.maximum(std, 1e-12)
    near = np.abs(recorded - expected) <= slack * np.abs(expected) + ABSOLUTE
    answer: Bools = near | np.isnan(expected)
    return answer


def stds(block: Block) -> Floats:
    """Of each completion's group, of the population."""
    from grouprl.advantages import group_stats

    return np.asarray(group_stats(block.rewards, block.group).std, dtype=np.float64)


def by_group(group: Ints, bad: Bools) -> Bools:
    """For each completion, whether any of its group is bad."""
    _, codes = np.unique(group, return_inverse=True)
    answer: Bools = (np.bincount(codes, weights=bad) > 0)[codes]
    return answer


def regroupings(block: Block, size: int) -> Iterator[tuple[str, Ints]]:
    """Groups by place instead of by id: ("mixed" or "torn", a number for each completion's group)."""
    rows = np.bincount(block.step)[block.step]
    stride = block.step * (1 << 40)
    for k in dict.fromkeys([size, size // 2, size // 4, 2 * size]):
        if k < 2:
            continue
        yield ("torn" if k < size else "mixed"), stride + block.place // k
        if (rows % k == 0).all():
            yield "mixed", stride + block.place % np.maximum(rows // k, 1)


def shifted(block: Block, expected: Floats, by: int) -> Floats:
    """The expected advantages moved by so many rows within each step, as though rows had lost their neighbours."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(block.step))])[block.step]
    rows = np.bincount(block.step)[block.step]
    order = np.argsort(block.step, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    source = starts + (rank - starts + by) % rows
    moved: Floats = expected[order][source]
    return moved


def _moments(rewards: Floats, step: Ints, *, ddof: int) -> tuple[Floats, Floats]:
    """Mean and std of the scored rewards of each completion's step."""
    scored = np.isfinite(rewards)
    filled = np.where(scored, rewards, 0.0)
    count = np.bincount(step, weights=scored)
    mean = np.bincount(step, weights=filled) / np.maximum(count, 1)
    squares = np.bincount(step, weights=np.where(scored, filled - mean[step], 0.0) ** 2)
    return mean[step], np.sqrt(squares / np.maximum(count - ddof, 1))[step]


def _stretches(counts: pl.DataFrame) -> Iterator[tuple[int, int]]:
    first, rows, last = None, 0, None
    for step, n in counts.iter_rows():
        if first is not None and last is not None and rows + n > ROWS:
            yield first, last
            first, rows = None, 0
        first, last, rows = (step if first is None else first), step, rows + n
    if first is not None and last is not None:
        yield first, last


def _numbers(values: pl.Series) -> Floats:
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
