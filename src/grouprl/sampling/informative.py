"""Which completions carry signal: those of groups whose rewards differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from grouprl.advantages.groups import exceeds_rounding, measure
from grouprl.advantages.inputs import Array, ArrayLike, finite, non_negative, read_rewards

A = TypeVar("A", Tensor, Array)


@dataclass(frozen=True, slots=True)
class Informative(Generic[A]):
    """Which completions to keep, and a count of the groups by kind. Each group is of one kind.

    Args:
        keep: Per completion, boolean: scored, in a group with spread. Elsewhere the advantage is exactly 0.
        all_low: Groups of two or more scored rewards without spread, below `high`: nobody succeeded.
        all_high: The same, at `high` or above: everybody did.
        single: Groups with one scored reward.
        unscored: Groups with none.
        informative: Groups with spread.
        total: All groups: the sum of the five.
    """

    keep: A
    all_low: A
    all_high: A
    single: A
    unscored: A
    informative: A
    total: A


@overload
def informative(
    rewards: Array,
    group_ids: ArrayLike | None = None,
    *,
    high: float = 1.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Informative[Array]: ...
@overload
def informative(
    rewards: Tensor | Sequence[Any],
    group_ids: ArrayLike | None = None,
    *,
    high: float = 1.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Informative[Tensor]: ...
def informative(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    high: float = 1.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Informative[Tensor] | Informative[Array]:
    """The completions whose group has spread, and how many groups have none, and why.

        keep_i = scored_i and max(R) − min(R) > rounding        R: the scored rewards of i's own group

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        high: From this reward on (but for rounding) a group without spread is all_high, below it all_low. The
            default suits 0/1 and −1/1 rewards; for others pass the task's highest reward. It is a fixed
            number, not the middle of the batch: in a batch in which every group fails there is nothing to
            compare with.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        `Informative`: `keep` of the shape of rewards, the counts as 0-d int64. Tensors stay on the device, so
        nothing waits for them until they are read.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for a high that is not finite.

    A group of one is single, also where its other rewards are unscored. No rewards: an empty mask and zeros.

    Example:
        >>> import grouprl, torch
        >>> groups = grouprl.sampling.informative(torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
        >>> groups.keep.tolist()
        [[True, True], [False, False], [False, False]]
        >>> int(groups.all_low), int(groups.all_high), int(groups.informative), int(groups.total)
        (1, 1, 1, 3)

    Source: ours; dropping groups without spread is DAPO's dynamic sampling, https://arxiv.org/abs/2503.14476,
    section 3.2.
    """
    where = "informative"
    high = finite(where, "high", high)
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        keep = torch.zeros_like(batch.values, dtype=torch.bool)
        zero = keep.sum()
        return Informative(batch.give(keep), *(batch.give(zero.clone()) for _ in range(6)))
    groups = measure(batch, spread_ulps)
    layout = groups.layout
    scored = torch.ones_like(groups.low).mul_(groups.count)
    members = torch.ones_like(groups.low).mul_(layout.count(None))
    reward = groups.high / groups.scale
    # Below high by more than rounding.
    failed = exceeds_rounding(
        reward.clamp_max(high), torch.zeros_like(reward) + high, spread_ulps, batch.precision
    )
    constant = groups.has_spread.logical_not() & (scored > 1)
    kinds = (
        constant & failed,
        constant & failed.logical_not(),
        scored == 1,
        (scored == 0) & (members > 0),
        groups.has_spread,
        members > 0,
    )
    keep = layout.expand(groups.has_spread).expand(batch.values.shape)
    if groups.scored is not None:
        keep = keep & groups.scored
    keep = layout.restore(keep.clone(memory_format=torch.contiguous_format))
    return Informative(batch.give(keep), *(batch.give(kind.sum()) for kind in kinds))
