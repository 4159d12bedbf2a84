"""The advantage of a policy that is judged by the best of k."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from grouprl.advantages.groups import exceeds_rounding, measure, where_scored
from grouprl.advantages.inputs import ArrayLike, finite, non_negative, read_rewards
from grouprl.advantages.layout import Rows
from grouprl.advantages.registry import register
from grouprl.errors import InputError


@register(
    "pass_at_k",
    laws={
        "equal_is_zero",
        "single_is_zero",
        "zero_sum",
        "permutation_equivariant",
        "batch_independent",
        "bounded",
        "finite",
        "unscored_absent",
    },
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def pass_at_k(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    k: int = 2,
    high: float = 1.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Right and wrong answers, weighed by what each does for the best of k.

        ρ = 1 − C(n−c, k)/C(n, k),  s = √(ρ(1−ρ))        c of n are right
        right: (1 − ρ) / s        wrong: (1 − ρ − C(n−c−1, k−1)/C(n−1, k−1)) / s = −c/(n−c) · right

    Args:
        rewards: As for `grouprl.group_advantages`; binary, so only right and wrong are told apart.
        group_ids: As for `grouprl.group_advantages`.
        k: How many are drawn, at least 1. k = 1 is `grpo` with eps = 0.
        high: A reward is right from here on (but for rounding), else wrong.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: How much below `high` is rounding.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(n − 1). Exactly 0 where any k of the
        group hold a right one, where none is right, and in a group of fewer than k, which has no pass@k.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for a k below 1, or above the size of a matrix's rows.

    Example:
        >>> from grouprl import advantages
        >>> advantages.pass_at_k([1.0, 0.0, 0.0, 0.0], k=2)
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])

    Source: Pass@k Training, https://arxiv.org/abs/2508.10751, section 2.4.
    """
    where = "pass_at_k"
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"{where}: k is {k!r}, expected a whole number ≥ 1; choose how many are drawn")
    high = finite(where, "high", high)
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=batch.precision.out))
    if isinstance(batch.layout, Rows) and 1 < batch.layout.largest_group < k:
        raise InputError(
            f"{where}: k is {k} with groups of {batch.layout.largest_group}, expected k ≤ the group's size; "
            "sample more completions, or choose a smaller k"
        )
    groups = measure(batch, spread_ulps)
    layout = groups.layout
    x = torch.where(torch.isfinite(batch.values), batch.values.to(torch.float64), 0.0)
    below = exceeds_rounding(x.clamp_max(high), torch.full_like(x, high), spread_ulps, batch.precision)
    right = where_scored(groups.scored, layout.arrange(below.logical_not().to(torch.float64)))
    c, n = layout.sum(right), torch.zeros_like(groups.low) + groups.count
    none_right = _share_of_draws(n, c, k)  # 1 − ρ
    defined = (none_right > 0) & (none_right < 1)  # never with fewer than k
    up = torch.where(
        defined, (none_right / (1.0 - none_right).masked_fill_(defined.logical_not(), 1.0)).sqrt(), 0.0
    )
    down = up * c / (n - c).clamp_min_(1.0)
    result = torch.where(right > 0, layout.expand(up), -layout.expand(down))
    result = where_scored(groups.scored, result).add_(0.0)
    return batch.give(layout.restore(result.to(batch.precision.out)))


def _share_of_draws(
    n: Float64[Tensor, "*groups"], c: Float64[Tensor, "*groups"], k: int
) -> Float64[Tensor, "*groups"]:
    """C(n−c, k) / C(n, k), the share of draws of k without a right one, as a product of k fractions."""
    share = torch.ones_like(n)
    for j in range(k):
        share = share * ((n - c - j).clamp_min_(0.0) / (n - j).clamp_min_(1.0))
    return share
