"""Which m of a group's completions to train on: those whose rewards differ most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from grouprl.advantages.groups import Groups, measure
from grouprl.advantages.inputs import Array, ArrayLike, read_rewards
from grouprl.errors import InputError


@overload
def max_variance(
    rewards: Array, group_ids: ArrayLike | None = None, *, size: int, valid: ArrayLike | None = None
) -> Array: ...
@overload
def max_variance(
    rewards: Tensor | Sequence[Any],
    group_ids: ArrayLike | None = None,
    *,
    size: int,
    valid: ArrayLike | None = None,
) -> Tensor: ...
def max_variance(
    rewards: ArrayLike, group_ids: ArrayLike | None = None, *, size: int, valid: ArrayLike | None = None
) -> Tensor | Array:
    """The `size` completions of each group whose rewards have the largest variance: some highest, the rest lowest.

        S = argmax over |S| = m of Var(R_S) = the k highest and the m − k lowest,  for the best k in 1 … m − 1

    Some subset of largest variance is of that form: variance is convex in each member, so one that lies between two
    that were left out can be exchanged for one of the two without loss. So m − 1 subsets are compared, not C(n, m).

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        size: m, 2 or more. A group with fewer scored rewards keeps all of them.
        valid: As for `grouprl.group_advantages`.

    Returns:
        A boolean mask of the shape of rewards, True where the completion is kept. Tensors stay on the device, and
        nothing waits for them.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for a size that is no whole number of 2 or more.

    Edges: unscored completions are never kept. Among subsets of equal variance that with k nearest to m / 2 is
    taken, with more of the highest rather than fewer; among equal rewards the earlier completion counts as the
    lower. So a group without spread keeps m of its scored completions. A group with spread keeps its spread: its
    highest and its lowest reward are always among the kept. No rewards: an empty mask.

    Advantages are then computed on what is kept, as the group's own: leave the rest out of the batch, or pass the
    mask as `valid`.

    Example:
        >>> import grouprl, torch
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.5, 0.0]])
        >>> keep = grouprl.sampling.max_variance(rewards, size=2)
        >>> keep.tolist()
        [[True, False, True, False, False, False]]
        >>> grouprl.group_advantages(rewards, valid=keep, scale="none").tolist()
        [[-0.5, 0.0, 0.5, 0.0, 0.0, 0.0]]

    Source: PODS, https://arxiv.org/abs/2504.13818 (max-variance down-sampling); the choice among equals is ours.
    """
    where = "max_variance"
    if isinstance(size, bool) or not isinstance(size, int) or size < 2:
        raise InputError(
            f"{where}: size is {size!r}, expected a whole number of 2 or more; one completion has no variance"
        )
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=torch.bool))
    groups = measure(batch, spread_ulps=0)
    layout, shape = groups.layout, batch.values.shape
    extent = groups.high - groups.low
    place_in_range = groups.above / layout.expand(torch.where(extent > 0, extent, 1.0))
    if groups.scored is not None:  # behind all that are scored
        place_in_range = torch.where(groups.scored, place_in_range, 2.0)
    count = (torch.zeros_like(extent) + groups.count).long()
    highest = _number_of_highest(groups, place_in_range, count, size)
    rank = _rank(groups, place_in_range).reshape(shape)
    all_kept = count <= size
    lowest = torch.where(all_kept, count, size - highest)
    top_from = torch.where(all_kept, count, count - highest)
    keep = (rank < layout.expand(lowest)) | (rank >= layout.expand(top_from))
    if groups.scored is not None:
        keep = keep & groups.scored
    return batch.give(layout.restore(keep))


def _number_of_highest(groups: Groups, values: Tensor, count: Tensor, size: int) -> Tensor:
    """k for each group: how many of its highest to keep. Any number where it has no more than `size`.

    In m² Var = m Σx² − (Σx)², x being each reward's place between the group's lowest (0) and highest (1): with two
    distinct rewards all sums are whole numbers, so equal variances are equal to the bit.
    """
    ordered = groups.layout.sort(values)
    zero = torch.zeros_like(groups.low)
    low, high = [(zero, zero)], [(zero, zero)]
    for i in range(size - 1):
        for sums, place in (
            (low, torch.full_like(count, i).minimum((count - 1).clamp_min(0))),
            (high, (count - 1 - i).clamp_min(0)),
        ):
            x = groups.layout.pick(ordered, place)
            total, squares = sums[-1]
            sums.append((total + x, squares + x * x))
    best, chosen = torch.full_like(zero, -1.0), torch.zeros_like(count)
    for k in sorted(range(1, size), key=lambda k: (abs(2 * k - size), -k)):
        (total_low, squares_low), (total_high, squares_high) = low[size - k], high[k]
        variance = size * (squares_low + squares_high) - (total_low + total_high) ** 2
        better = variance > best
        best, chosen = torch.where(better, variance, best), torch.where(better, k, chosen)
    return chosen


def _rank(groups: Groups, values: Tensor) -> Tensor:
    """Each completion's place in its group by value, from 0, the earlier first among equals; flat, in group order."""
    numbers = torch.arange(groups.low.numel(), device=values.device).reshape(groups.low.shape)
    segment = groups.layout.expand(numbers).expand(values.shape).reshape(-1).contiguous()
    by_value = values.reshape(-1).argsort(stable=True)
    order = by_value.index_select(0, segment.index_select(0, by_value).argsort(stable=True))
    place = torch.arange(len(segment), device=values.device) - torch.searchsorted(segment, segment)
    return torch.empty_like(place).scatter_(0, order, place)
