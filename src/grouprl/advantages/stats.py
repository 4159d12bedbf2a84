"""Statistics of each completion's group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from grouprl.advantages.groups import Groups, measure, standard_deviation
from grouprl.advantages.inputs import Array, ArrayLike, Rewards, check_ddof, non_negative, read_rewards
from grouprl.distributed import across_ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

A = TypeVar("A", Tensor, Array)


@dataclass(frozen=True, slots=True)
class GroupStats(Generic[A]):
    """For each completion, its group's statistics over what is scored; unscored completions have them too.

    Args:
        mean: Mean reward; 0 where nothing is scored.
        std: Standard deviation; 0 for a group of one, or where nothing is scored.
        count: Number of scored rewards, int64.
        min: Smallest reward; 0 where nothing is scored.
        max: Largest reward; 0 where nothing is scored.
        has_spread: Whether the rewards differ by more than rounding. False: every advantage of the group is
            0.
    """

    mean: A
    std: A
    count: A
    min: A
    max: A
    has_spread: A


@overload
def group_stats(
    rewards: Array,
    group_ids: ArrayLike | None = None,
    *,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
) -> GroupStats[Array]: ...
@overload
def group_stats(
    rewards: Tensor | Sequence[Any],
    group_ids: ArrayLike | None = None,
    *,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
) -> GroupStats[Tensor]: ...
def group_stats(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
) -> GroupStats[Tensor] | GroupStats[Array]:
    """Mean, std, count, min, max and spread of each completion's group.

        mean = Σ R / n        std = √(Σ (R − mean)² / (n − ddof))        over the group's n scored rewards

    Args:
        rewards: As for `group_advantages`.
        group_ids: As for `group_advantages`.
        ddof: 0 for the population std, 1 for the sample std.
        valid: As for `group_advantages`.
        spread_ulps: As for `group_advantages`.
        process_group: As for `group_advantages`.

    Returns:
        `GroupStats`, each field of the shape of rewards; mean, std, min and max in the reward's unit and in
        the dtype that `group_advantages` gives.

    Raises:
        InputError: As for `group_advantages`.

    A group in which nothing is scored: zeros, count 0. A group of one: std 0. No rewards: empty fields. Never
    NaN or infinite: what is too large for its dtype becomes the largest number of it.

    Example:
        >>> import grouprl
        >>> stats = grouprl.group_stats([1.0, 0.0, 0.7, 0.7], ["a", "a", "b", "b"])
        >>> stats.mean, stats.has_spread
        (tensor([0.5000, 0.5000, 0.7000, 0.7000]), tensor([ True,  True, False, False]))

    Source: ours.
    """
    inputs = {"rewards": rewards, "group_ids": group_ids, "valid": valid}
    options = {"ddof": ddof, "spread_ulps": spread_ulps}
    return across_ranks("group_stats", _group_stats, process_group, inputs, options)


def _group_stats(
    rewards: ArrayLike,
    group_ids: ArrayLike | None,
    valid: ArrayLike | None,
    ddof: int,
    spread_ulps: float,
) -> GroupStats[Any]:
    where = "group_stats"
    check_ddof(where, ddof)
    batch = read_rewards(where, rewards, group_ids, valid)
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    if batch.values.numel() == 0:
        empty = torch.zeros_like(batch.values, dtype=batch.precision.out)
        count, has_spread = empty.to(torch.int64), empty.to(torch.bool)
        return GroupStats(*(batch.give(field) for field in (empty, empty, count, empty, empty, has_spread)))
    groups = measure(batch, spread_ulps)
    return GroupStats(
        mean=_reward(batch, groups, groups.low + groups.mean_above),
        std=_reward(batch, groups, standard_deviation(groups, ddof)),
        count=_per_completion(batch, torch.ones_like(groups.low).mul_(groups.count).to(torch.int64)),
        min=_reward(batch, groups, groups.low),
        max=_reward(batch, groups, groups.high),
        has_spread=_per_completion(batch, groups.has_spread),
    )


def _reward(batch: Rewards, groups: Groups, per_group: Tensor) -> Any:
    """A value in units of the scaled reward, back in the reward's own unit and dtype."""
    largest = batch.precision.largest
    return _per_completion(
        batch, (per_group / groups.scale).clamp_(-largest, largest).to(batch.precision.out)
    )


def _per_completion(batch: Rewards, per_group: Tensor) -> Any:
    arranged = batch.layout.expand(per_group).expand(batch.values.shape)
    return batch.give(batch.layout.restore(arranged).clone(memory_format=torch.contiguous_format))
