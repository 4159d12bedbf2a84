"""Named estimators that are a baseline over a scale: one call of the core each.

All take rewards and group_ids as `grouprl.group_advantages` does, and give what it gives: exactly 0 for a group of
one, for a group without spread and for an unscored reward; never NaN or infinite; an empty result for no rewards.
"""

from __future__ import annotations

import math
from typing import Any

from grouprl.advantages.conventions import convention_of
from grouprl.advantages.core import compute
from grouprl.advantages.inputs import ArrayLike
from grouprl.advantages.registry import register

OWN_GROUP = {
    "equal_is_zero",
    "single_is_zero",
    "shift_invariant",
    "permutation_equivariant",
    "batch_independent",
    "finite",
    "unscored_absent",
}
"""What every estimator holds that looks at rewards relative to their own group alone."""


@register(
    "grpo",
    laws=OWN_GROUP | {"zero_sum", "scale_invariant", "bounded"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def grpo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    eps: float | None = None,
    ddof: int | None = None,
    convention: str | None = None,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward, standardised within its group.

        A_i = (R_i − mean(R)) / (std(R) + eps)

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        eps: Added to the std, in the reward's unit; 1e-6, or the convention's.
        ddof: 0 for the population std, 1 for the sample std; 0, or the convention's.
        convention: A framework's name, such as "trl", "verl" or "openrlhf": its ddof and eps, so that healthy
            groups get its numbers. Sick groups get what is documented here.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(n − 1).

    Raises:
        InputError: As for `grouprl.group_advantages`; or for an unknown convention.

    Example:
        >>> from grouprl import advantages
        >>> advantages.grpo([1.0, 0.0, 0.0, 0.0])
        tensor([ 1.7320, -0.5773, -0.5773, -0.5773])
        >>> advantages.grpo([1.0, 0.0, 0.0, 0.0], convention="trl")
        tensor([ 1.4997, -0.4999, -0.4999, -0.4999])

    Source: DeepSeekMath, https://arxiv.org/abs/2402.03300, section 4.1.2.
    """
    like = None if convention is None else convention_of("grpo", convention)
    return compute(
        "grpo",
        rewards,
        group_ids,
        scale=like.scale if like else "std",
        eps=eps if eps is not None else like.eps if like else 1e-6,
        ddof=ddof if ddof is not None else like.ddof if like else 0,
        valid=valid,
        spread_ulps=spread_ulps,
    )


@register("dr_grpo", laws=OWN_GROUP | {"zero_sum"})
def dr_grpo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, not divided by anything.

        A_i = R_i − mean(R)

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit. Dr. GRPO sums the loss over tokens and
        divides by a constant length: see `grouprl.objectives.dr_grpo_loss`.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.dr_grpo([1.0, 0.0, 0.0, 0.0])
        tensor([ 0.7500, -0.2500, -0.2500, -0.2500])

    Source: Dr. GRPO, https://arxiv.org/abs/2503.20783, section 3.2.
    """
    return compute("dr_grpo", rewards, group_ids, scale="none", valid=valid, spread_ulps=spread_ulps)


@register("rloo", laws=OWN_GROUP | {"zero_sum"})
def rloo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against the mean of the others in its group.

        A_i = R_i − mean_{j≠i}(R_j) = n/(n−1) · (R_i − mean(R))

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.rloo([1.0, 0.0, 0.0, 0.0])
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333])

    Source: Back to Basics, https://arxiv.org/abs/2402.14740, section 2.2.
    """
    return compute(
        "rloo",
        rewards,
        group_ids,
        baseline="leave_one_out",
        scale="none",
        valid=valid,
        spread_ulps=spread_ulps,
    )


@register(
    "batch_std",
    scope="batch",
    laws=(OWN_GROUP - {"batch_independent"}) | {"zero_sum", "scale_invariant", "bounded"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def batch_std(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, over the std of the whole batch's rewards.

        A_i = (R_i − mean(R)) / (std(all R) + eps)

    Args:
        rewards: As for `grouprl.group_advantages`; all groups that share the std in one call.
        group_ids: As for `grouprl.group_advantages`.
        eps: Added to the std, in the reward's unit.
        ddof: 0 for the population std, 1 for the sample std.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(N − 1), N the batch's scored rewards.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.batch_std([[1.0, 0.0], [1.0, 1.0]])
        tensor([[ 1.1547, -1.1547],
                [ 0.0000,  0.0000]])

    Source: Lite PPO, https://arxiv.org/abs/2508.08221.
    """
    return compute(
        "batch_std",
        rewards,
        group_ids,
        scale="batch_std",
        eps=eps,
        ddof=ddof,
        valid=valid,
        spread_ulps=spread_ulps,
    )


@register("opo", needs={"lengths"}, laws=OWN_GROUP)
def opo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean over tokens: the baseline with the least variance.

        A_i = R_i − Σ_j |o_j| R_j / Σ_j |o_j|

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        lengths: Tokens of each completion, of the rewards' shape.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit; weighted by length they sum to 0. In a
        group without a single token every completion counts the same.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for missing, negative or infinite lengths.

    Example:
        >>> from grouprl import advantages
        >>> advantages.opo([1.0, 0.0], lengths=[300, 100])
        tensor([ 0.2500, -0.7500])

    Source: OPO, https://arxiv.org/abs/2505.23585, section 3.
    """
    return compute(
        "opo",
        rewards,
        group_ids,
        baseline="length_weighted",
        scale="none",
        lengths=lengths,
        valid=valid,
        spread_ulps=spread_ulps,
    )
