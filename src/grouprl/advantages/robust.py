"""Named estimators with another scale or centre than mean and std; one call of the core each.

All take rewards and group_ids as `grouprl.group_advantages` does, and give what it gives: exactly 0 for a group of
one, for a group without spread and for an unscored reward; never NaN or infinite; an empty result for no rewards.
"""

from __future__ import annotations

import math
from typing import Any

from grouprl.advantages.core import compute
from grouprl.advantages.inputs import ArrayLike
from grouprl.advantages.presets import OWN_GROUP
from grouprl.advantages.registry import register


@register(
    "maxrl",
    laws=(OWN_GROUP - {"shift_invariant"}) | {"zero_sum", "scale_invariant", "bounded"},
    bound=lambda n: float(max(n - 1, 0)),
)
def maxrl(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    eps: float = 0.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, over that mean: hard prompts weigh most.

        A_i = (R_i − mean(R)) / (mean(R) + eps)        rewards ≥ 0

    Args:
        rewards: As for `grouprl.group_advantages`, none of them negative.
        group_ids: As for `grouprl.group_advantages`.
        eps: Added to the mean, in the reward's unit.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ n − 1.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for a negative reward. Off the CPU, where looking
            would wait for the device, a group with one gets 0 instead.

    Example:
        >>> from grouprl import advantages
        >>> advantages.maxrl([1.0, 0.0, 0.0, 0.0])
        tensor([ 3., -1., -1., -1.])

    Source: MaxRL, https://arxiv.org/abs/2602.02710.
    """
    return compute("maxrl", rewards, group_ids, scale="mean", eps=eps, valid=valid, spread_ulps=spread_ulps)


@register(
    "mean_abs", laws=OWN_GROUP | {"zero_sum", "scale_invariant", "bounded"}, bound=lambda n: n / 2.0 * (n > 1)
)
def mean_abs(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    eps: float = 0.0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, over the mean distance from it: all prompts weigh the same.

        A_i = (R_i − mean(R)) / (mean|R − mean(R)| + eps)

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        eps: Added to the mean distance, in the reward's unit.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ n/2.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.mean_abs([1.0, 0.0, 0.0, 0.0])
        tensor([ 2.0000, -0.6667, -0.6667, -0.6667])

    Source: DGPO, https://arxiv.org/abs/2601.20614.
    """
    return compute(
        "mean_abs", rewards, group_ids, scale="mean_abs", eps=eps, valid=valid, spread_ulps=spread_ulps
    )


@register("median", laws=OWN_GROUP)
def median(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's median, over the median distance from it: one outlier moves neither.

        A_i = (R_i − median(R)) / (MAD + eps)        MAD = median|R − median(R)|

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        eps: Added to the MAD, in the reward's unit.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind. The median of an even group is the midpoint of its middle two.
        A MAD below (max − min) / 32 is taken as that, so |A| ≤ 32. Where more than half share one reward the
        MAD is 0 (but for rounding) and A_i = R_i − median(R), in the reward's unit: then the bound is max − min,
        and A(c·R, c·eps) = c·A(R, eps).

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.median([1.0, 2.0, 3.0, 100.0])
        tensor([-0.4848, -0.1616,  0.1616, 31.5151])
        >>> advantages.median([1.0, 0.0, 0.0])
        tensor([1., 0., 0.])

    Source: MC-GRPO, https://arxiv.org/abs/2601.22582; the floor of 1/32 is ours.
    """
    return compute(
        "median",
        rewards,
        group_ids,
        baseline="median",
        scale="mad",
        eps=eps,
        valid=valid,
        spread_ulps=spread_ulps,
    )


@register(
    "quantile",
    laws=OWN_GROUP | {"scale_invariant", "bounded"},
    bound=lambda n: math.sqrt(2.0 * n) * (n > 1),
)
def quantile(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    quantile: float = 0.4,
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against a quantile of its group, over the std: hard prompts push up, easy ones down.

        A_i = (R_i − b_K) / (std(R) + eps)        b_K: the smallest R with a share ≥ K of the group at or below it

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        quantile: K, from 0 (the smallest reward) to 1 (the largest).
        eps: Added to the std, in the reward's unit.
        ddof: 0 for the population std, 1 for the sample std.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(2n). With 0/1 rewards a group with at
        most 1 − K right has baseline 0 and pushes its right answers up; another has 1 and pushes its wrong
        ones down.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.quantile([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
        tensor([[ 2.3094,  0.0000,  0.0000,  0.0000],
                [ 0.0000,  0.0000,  0.0000, -2.3094]])

    Source: QAE, https://arxiv.org/abs/2509.22611.
    """
    return compute(
        "quantile",
        rewards,
        group_ids,
        baseline="quantile",
        quantile=quantile,
        eps=eps,
        ddof=ddof,
        valid=valid,
        spread_ulps=spread_ulps,
    )
