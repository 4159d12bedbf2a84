"""Group-relative advantages: how far each completion's reward stands above its own group's mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from grouprl.advantages.estimators import BASELINES, SCALES, advantages
from grouprl.advantages.groups import measure
from grouprl.advantages.inputs import Array, ArrayLike, check_ddof, choose, non_negative, read_rewards


@overload
def grpo_group_advantages(rewards: Array, eps: float = 1e-6) -> Array: ...
@overload
def grpo_group_advantages(rewards: Tensor | Sequence[Any], eps: float = 1e-6) -> Tensor: ...
def grpo_group_advantages(rewards: ArrayLike, eps: float = 1e-6) -> Tensor | Array:
    """GRPO's advantage: each reward, standardised within its group, the last axis.

        A_i = (R_i − mean(R)) / (std(R) + eps)        population std

    Args:
        rewards: Shape (..., G), in the reward's unit: one row per prompt, one column per completion. Any real
            dtype. None (in a list), NaN and infinite rewards are unscored.
        eps: Added to the standard deviation, in the reward's unit. 0 is safe.

    Returns:
        Advantages, without unit, of the same shape: see `group_advantages`.

    Raises:
        InputError: For a single number, complex or ragged rewards, or an eps that is negative or not finite.

    A group of one, and a group whose rewards are all equal, gets exactly 0. An unscored reward gets 0 and
    leaves the others as though it had never been sampled. No groups, or groups of no members: an empty
    result.

    Example:
        >>> import grouprl, torch
        >>> grouprl.grpo_group_advantages(torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1]]))
        tensor([[-1.2247,  0.0000,  1.2247],
                [ 0.0000,  0.0000,  0.0000]])

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.2 (outcome supervision).
    """
    return _advantages("grpo_group_advantages", rewards, eps=eps)


@overload
def group_advantages(
    rewards: Array,
    group_ids: ArrayLike | None = None,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Array: ...
@overload
def group_advantages(
    rewards: Tensor | Sequence[Any],
    group_ids: ArrayLike | None = None,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Tensor: ...
def group_advantages(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Tensor | Array:
    """Advantages over groups of any size, given by id or as the last axis.

        A_i = (R_i − baseline(R)) / (scale(R) + eps)        R: the scored rewards of i's own group

    Args:
        rewards: Shape (N,) with `group_ids`, else (..., G) with the group on the last axis; in the reward's
            unit. Any real dtype. None (in a list), NaN and infinite rewards are unscored.
        group_ids: Shape (N,): integers of any kind, or hashables such as uuid strings. Groups may be of
            different sizes and interleaved.
        baseline: "mean", the group's mean.
        scale: "std", the group's standard deviation; or "none", which divides by nothing (eps is not used).
        eps: Added to the scale, in the reward's unit. 0 is safe.
        ddof: The std divides by n − ddof: 0 for the population, 1 for the sample std.
        valid: Boolean, of the rewards' shape. False makes a reward unscored.
        spread_ulps: A group whose rewards span at most this many units in the last place of its largest
            |reward| has no spread. The unit is float32's for float32 and narrower rewards, float64's for
            float64 and lists; whole numbers have no tolerance.

    Returns:
        Advantages of the shape of rewards, without gradient: a tensor on the same device for a tensor, an
        array for an array, a tensor for a list. float32 for float32 and narrower floats, float64 for float64;
        for whole numbers and lists torch's default dtype, but float64 for arrays of whole numbers.

    Raises:
        InputError: For a single number, complex or ragged rewards; ids or a mask of another length or type;
            an unknown baseline or scale; an eps or spread_ulps that is negative or not finite; another ddof.

    Exactly 0 for a group of one, for a group without spread, and where a reward is unscored; the scored ones
    are computed as though the unscored had never been sampled. No rewards: an empty result. Never NaN or
    infinite: with scale="none" a deviation too large for its dtype becomes the largest number of it. A
    group's result has the same bits wherever it stands in the batch, in any order, as a row or flat.

    Example:
        >>> import grouprl, torch
        >>> rewards = torch.tensor([1.0, 5.0, 0.0, 5.0])
        >>> grouprl.group_advantages(rewards, ["p1", "p2", "p1", "p2"], scale="none")
        tensor([ 0.5000,  0.0000, -0.5000,  0.0000])
        >>> grouprl.group_advantages([1.0, None, 3.0]).round(decimals=3)
        tensor([-1.,  0.,  1.])

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.2; scale="none" is Dr. GRPO,
    https://arxiv.org/abs/2503.20783, section 3.2.
    """
    return _advantages(
        "group_advantages",
        rewards,
        group_ids,
        baseline=baseline,
        scale=scale,
        eps=eps,
        ddof=ddof,
        valid=valid,
        spread_ulps=spread_ulps,
    )


def _advantages(
    where: str,
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Tensor | Array:
    centre, divide = choose(where, "baseline", baseline, BASELINES), choose(where, "scale", scale, SCALES)
    eps = non_negative(where, "eps", eps)
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    check_ddof(where, ddof)
    batch = read_rewards(where, rewards, group_ids, valid)
    out = batch.precision.out
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=out))
    parts = []
    for block in batch.blocks():
        result = advantages(measure(block, spread_ulps), centre, divide, eps, ddof)
        parts.append(block.layout.restore(result.to(out)))
    whole = parts[0] if len(parts) == 1 else torch.cat(parts).view(batch.values.shape)
    return batch.give(whole)
