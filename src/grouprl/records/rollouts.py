"""Rollouts on disk: one Parquet file a step, one row a completion, the same schema in every file.

A row stands on its own: with its group's other rows it holds what the advantage was computed from
(rewards, the estimator and its options), so a reader can compute it again and compare.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.errors import InputError, RunError
from grouprl.parquet import BombError, check_unpacked
from grouprl.records.columns import as_list, check_length, polars, to_series
from grouprl.records.files import atomic_write
from grouprl.records.jsonl import plain
from grouprl.types import Completion, Group

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = 1
"""Grows when a column changes its meaning or goes; a new column does not change it."""


def rollout_schema(*, components: Iterable[str] = (), tokens: bool = False) -> dict[str, pl.DataType]:
    """The columns of a rollout file and their polars types, in order.

    Args:
        components: The reward functions' names; each has a column `reward_<name>`.
        tokens: With token ids, sampler log-probs and loss mask, one list a row.

    Example:
        >>> list(rollout_schema(components=["format"]))[7:10]
        ['reward', 'reward_format', 'scored']
    """
    pl = polars()
    text, whole, real = pl.String(), pl.Int64(), pl.Float64()
    schema: dict[str, pl.DataType] = {
        "schema_version": whole,
        "step": whole,
        "group_id": text,
        "prompt_id": text,
        "sample_index": whole,
        "prompt": text,
        "completion": text,
        "reward": real,
        **{f"reward_{name}": real for name in components},
        "scored": pl.Boolean(),
        "correctness": real,
        "used": pl.Boolean(),
        "dropped_reason": text,
        "advantage": real,
        "advantage_estimator": text,
        "advantage_options": text,
        "prompt_tokens": whole,
        "completion_tokens": whole,
        "finish_reason": text,
        "logprob_mean_sampler": real,
        "logprob_mean_trainer": real,
    }
    if tokens:
        schema |= {
            "prompt_token_ids": pl.List(pl.Int64()),
            "token_ids": pl.List(pl.Int64()),
            "logprobs_sampler": pl.List(real),
            "loss_mask": pl.List(pl.Boolean()),
        }
    return schema


def rollout_rows(
    step: int,
    groups: Sequence[Group],
    *,
    rewards: Sequence[float | None],
    advantages: Sequence[float | None],
    components: Mapping[str, Sequence[float | None]] | None = None,
    correctness: Sequence[float | None] | None = None,
    dropped_reasons: Sequence[str | None] | None = None,
    trainer_logprobs_mean: Sequence[float | None] | None = None,
    estimator: str | None = None,
    estimator_options: Mapping[str, Any] | None = None,
    extra: Mapping[str, Sequence[Any]] | None = None,
    tokens: bool = False,
) -> dict[str, list[Any]]:
    """The columns of one step's rollout file.

    Each sequence holds one value a completion, in the order of the groups and, within a group, of its
    completions: a list, a NumPy array or a torch tensor (on any device, of shape (N,) or (prompts, G)).

    Args:
        step: The step that these completions were sampled in.
        groups: The groups, as the rollout engine gave them.
        rewards: What the advantages were computed from. None, NaN and ±inf mean unscored.
        advantages: What the loss was computed from; None where the completion was not trained on.
        components: Each reward function's own score, before weights; None where it gave none, so that a
            mean over the column is a mean over those present.
        correctness: The rewards before shaping (a punishment of length, say); the rewards where left out.
        dropped_reasons: Why a completion was not trained on, None where it was; all were where left out.
        trainer_logprobs_mean: Mean log-prob of each completion's trained tokens under the policy before
            the step's first update, in nats a token; None where it was not computed.
        estimator: Name of the advantage estimator ("grpo").
        estimator_options: The keywords it was called with (scale, eps, ddof, …).
        extra: Further columns of your own, of any values; those that are no scalar become text.
        tokens: Also write token ids, sampler log-probs and loss mask.

    Returns:
        Columns for `write_rollouts`. No groups give columns of length 0.

    Raises:
        RunError: A sequence has another length than there are completions, or an extra column takes the
            name of another column; the message names it.
    """
    members = [(group, index, one) for group in groups for index, one in enumerate(group.completions)]
    completions = [one for _, _, one in members]
    count = len(completions)

    def column(name: str, values: Any) -> list[Any]:
        listed = as_list(values.reshape(-1) if hasattr(values, "reshape") else values)
        check_length(name, listed, count, "completions")
        return listed

    score = [_finite(value) for value in column("reward", rewards)]
    nothing: list[Any] = [None] * count
    dropped = column("dropped_reason", nothing if dropped_reasons is None else dropped_reasons)
    if trainer_logprobs_mean is None:
        trainer_logprobs_mean = nothing
    options = None
    if estimator_options is not None:
        options = json.dumps(plain(estimator_options), sort_keys=True, allow_nan=False)
    rows: dict[str, list[Any]] = {
        "schema_version": [SCHEMA_VERSION] * count,
        "step": [step] * count,
        "group_id": [group.group_id for group, _, _ in members],
        "prompt_id": [group.prompt.prompt_id for group, _, _ in members],
        "sample_index": [index for _, index, _ in members],
        "prompt": [group.prompt_text for group, _, _ in members],
        "completion": [one.text for one in completions],
        "reward": score,
    }
    for name, values in (components or {}).items():
        rows[f"reward_{name}"] = column(f"reward_{name}", values)
    rows |= {
        "scored": [value is not None for value in score],
        "correctness": score
        if correctness is None
        else [_finite(value) for value in column("correctness", correctness)],
        "used": [reason is None for reason in dropped],
        "dropped_reason": dropped,
        "advantage": column("advantage", advantages),
        "advantage_estimator": [estimator] * count,
        "advantage_options": [options] * count,
        "prompt_tokens": [len(group.prompt_token_ids) for group, _, _ in members],
        "completion_tokens": [len(one.token_ids) for one in completions],
        "finish_reason": [one.finish_reason for one in completions],
        "logprob_mean_sampler": [_mean_logprob(one) for one in completions],
        "logprob_mean_trainer": column("logprob_mean_trainer", trainer_logprobs_mean),
    }
    if tokens:
        rows |= {
            "prompt_token_ids": [list(group.prompt_token_ids) for group, _, _ in members],
            "token_ids": [list(one.token_ids) for one in completions],
            "logprobs_sampler": [list(one.logprobs) for one in completions],
            "loss_mask": [list(one.loss_mask) for one in completions],
        }
    for name, values in (extra or {}).items():
        if name in rows:
            raise RunError(f"rollouts: extra column {name!r} is one of grouprl's own; choose another name")
        rows[name] = column(name, values)
    return rows


def write_rollouts(path: str | Path, rows: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> None:
    """Write rollouts as a Parquet file, whole or not at all.

    Args:
        path: The file; its folder is made where it is missing.
        rows: Columns (as from `rollout_rows`), or one mapping a row, in which a name may be absent.

    Columns of `rollout_schema` and all `reward_<name>` have its types, also where every value is null. Of
    the others, one of numbers becomes Float64, one of bools Boolean, anything else text: lists and mappings
    as JSON, other objects as their repr. NaN becomes null; lone surrogates in text become U+FFFD.

    Raises:
        RunError: A column has another length than the rest, or values of another type than its schema; the
            message names it, and nothing is written.
    """
    pl = polars()
    columns = _columns(rows)
    known = rollout_schema(tokens=True)
    count = len(next(iter(columns.values()), ()))
    series = []
    for name, values in columns.items():
        check_length(name, values, count, "rows")
        dtype = known.get(name) or (pl.Float64() if name.startswith("reward_") else None)
        series.append(to_series(name, values, dtype))
    buffer = BytesIO()
    pl.DataFrame(series).write_parquet(buffer, compression="zstd")
    atomic_write(path, buffer.getvalue())


def scan_rollouts(paths: str | Path | Iterable[str | Path]) -> pl.LazyFrame:
    """Rollout files as one polars LazyFrame; a column that a file lacks is null in its rows.

    Raises:
        RunError: A file is missing, is not Parquet, or would unpack to many times its size; the message names it.
    """
    pl = polars()
    frames = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        try:
            check_unpacked(Path(path))
            frame = pl.scan_parquet(path, glob=False)
            frame.collect_schema()
        except FileNotFoundError:
            raise RunError(f"{path}: missing, expected a Parquet file of rollouts") from None
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            BombError,
            OSError,
            TypeError,  # a path not in UTF-8
        ) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"{path}: not readable as Parquet ({reason}); remove it") from error
        frames.append(frame)
    if not frames:
        raise InputError("scan_rollouts: no paths, expected at least one Parquet file")
    return pl.concat(frames, how="diagonal_relaxed")


def _columns(rows: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    if isinstance(rows, Mapping):
        return {
            name: values.tolist() if hasattr(values, "tolist") else list(values)
            for name, values in rows.items()
        }
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _mean_logprob(completion: Completion) -> float | None:
    """Mean over the trained tokens; None where there are none."""
    trained = [
        logprob for logprob, train in zip(completion.logprobs, completion.loss_mask, strict=True) if train
    ]
    return math.fsum(trained) / len(trained) if trained else None
