"""Estimators with a reward from outside the group: the greedy completion's, or the highest there is."""

from __future__ import annotations

import math
from typing import Any

import torch

from grouprl.advantages.extras import read_numbers
from grouprl.advantages.groups import (
    at_least_one,
    exceeds_rounding,
    measure,
    standard_deviation,
    where_scored,
)
from grouprl.advantages.inputs import ArrayLike, finite, non_negative, read_rewards
from grouprl.advantages.numerics import unit_scale
from grouprl.advantages.registry import register
from grouprl.errors import InputError


@register(
    "remax",
    needs={"greedy_rewards"},
    laws={"permutation_equivariant", "batch_independent", "finite", "unscored_absent"},
)
def remax(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    greedy_rewards: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against that of the greedy completion of the same prompt.

        A_i = R_i − R(greedy)

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`; not looked at, as each completion brings its baseline.
        greedy_rewards: Reward of the greedy completion of each completion's prompt, of the rewards' shape; for
            a matrix (..., 1), one for each row, will do.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: A difference of at most this many units in the last place of the larger |reward| is 0.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit; 0 where the greedy completion is
        unscored. A group of one, or of equal rewards, keeps its distance from the greedy reward.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for missing greedy rewards.

    Example:
        >>> from grouprl import advantages
        >>> advantages.remax([[1.0, 0.0], [1.0, 1.0]], greedy_rewards=[[0.5], [1.0]])
        tensor([[ 0.5000, -0.5000],
                [ 0.0000,  0.0000]])

    Source: ReMax, https://arxiv.org/abs/2310.10505, section 4.1.
    """
    where = "remax"
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    greedy = read_numbers(
        where, "greedy_rewards", greedy_rewards, batch.values, why="the greedy completion's reward"
    )
    x = batch.values.to(torch.float64)
    scored = x.isfinite() & greedy.isfinite()
    if batch.valid is not None:
        scored = scored & batch.valid
    x, greedy = where_scored(scored, x), where_scored(scored, greedy)
    differ = exceeds_rounding(
        torch.minimum(x, greedy), torch.maximum(x, greedy), spread_ulps, batch.precision
    )
    largest = batch.precision.largest
    result = torch.where(differ, x - greedy, 0.0).clamp_(-largest, largest)
    return batch.give(result.to(batch.precision.out))


@register(
    "ngrpo",
    needs={"max_reward"},
    laws={"permutation_equivariant", "batch_independent", "bounded", "finite", "unscored_absent"},
    bound=lambda n: math.sqrt(n),
)
def ngrpo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    max_reward: float | None = None,
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """GRPO with a virtual completion of the task's highest reward: an all-wrong group pushes down.

        A_i = (R_i − mean(R ∪ {R_max})) / (std(R ∪ {R_max}) + eps)

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        max_reward: R_max, the highest reward of the task (not of the group).
        eps: Added to the std, in the reward's unit.
        ddof: 0 for the population std, 1 for the sample std, of the n + 1.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`, for the n + 1.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √n. Exactly 0 for a group in which every
        reward is R_max. A group of one is compared with R_max.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for a missing max_reward.

    Example:
        >>> from grouprl import advantages
        >>> advantages.ngrpo([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], max_reward=1.0)
        tensor([[-0.5773, -0.5773, -0.5773],
                [ 0.0000,  0.0000,  0.0000]])

    Source: NGRPO, https://arxiv.org/abs/2509.18851.
    """
    where = "ngrpo"
    if max_reward is None:
        raise InputError(
            f"{where}: max_reward is missing, expected the task's highest reward; pass max_reward=…"
        )
    highest = finite(where, "max_reward", max_reward)
    eps, spread_ulps = non_negative(where, "eps", eps), non_negative(where, "spread_ulps", spread_ulps)
    if ddof not in (0, 1):
        raise InputError(f"{where}: ddof is {ddof!r}, expected 0 or 1; choose 0 for the population std")
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=batch.precision.out))
    groups = measure(batch, spread_ulps)
    layout = groups.layout
    # The virtual reward may be larger by orders of magnitude: all goes into units that hold both.
    scale = torch.zeros_like(groups.low) + groups.scale
    shared = torch.minimum(scale, unit_scale(torch.full_like(scale, abs(highest))))
    shrink = shared / scale
    low, top, n = groups.low * shrink, highest * shared, groups.count
    virtual = top - low
    mean = (n * (groups.mean_above * shrink) + virtual) / (n + 1.0)
    variance = (standard_deviation(groups, 0) * shrink).square() * n
    variance = variance + n * (groups.mean_above * shrink - mean).square() + (virtual - mean).square()
    std = (variance / at_least_one(n + (1.0 - ddof))).sqrt()
    lowest, largest = torch.minimum(low, top), torch.maximum(groups.high * shrink, top)
    spread = exceeds_rounding(lowest, largest, spread_ulps, batch.precision)
    divisor = torch.where(spread, std + shared * eps, torch.inf)
    deviation = groups.above * layout.expand(shrink) - layout.expand(mean)
    result = where_scored(groups.scored, deviation / layout.expand(divisor)).add_(0.0)
    return batch.give(layout.restore(result.to(batch.precision.out)))
