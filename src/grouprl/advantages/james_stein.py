"""The baseline that shrinks a prompt's own mean towards those of the other prompts."""

from __future__ import annotations

from typing import Any

import torch

from grouprl.advantages.algebra import Options, leave_one_out
from grouprl.advantages.groups import at_least_one, measure, standard_deviation, where_scored
from grouprl.advantages.inputs import ArrayLike, non_negative, read_rewards
from grouprl.advantages.registry import register
from grouprl.advantages.whitening import batch_scale, total


@register(
    "jspo",
    scope="batch",
    laws={"single_is_zero", "shift_invariant", "permutation_equivariant", "finite", "unscored_absent"},
)
def jspo(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against the mean of the others in its group, shrunk towards the mean of the other prompts.

        b_i = (1−λ) · mean_{j≠i}(R_j) + λ · mean of the other prompts' means
        A_i = R_i − b_i        λ = v / (v + s)
        v: mean over the other prompts of var(R)/n        s: their means' mean squared deviation from its mean

    Args:
        rewards: As for `grouprl.group_advantages`; prompts that inform each other in one call.
        group_ids: As for `grouprl.group_advantages`.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit. Neither b_i nor λ looks at R_i, so the
        policy gradient stays unbiased. A group of one gets 0. A group of equal rewards keeps its distance from
        the other prompts, λ times. With fewer than three prompts s cannot be measured, and λ = 0: that is
        `rloo`.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    s is taken as measured: it contains the noise of the means themselves, so λ is smaller than the one with the
    least error, (n−1)/n · v / (v + τ²) with τ² the prompts' true variance. var is the sample variance.

    Example:
        >>> from grouprl import advantages
        >>> advantages.jspo([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        tensor([[ 0.5000, -0.5000],
                [ 0.5000, -0.5000],
                [ 0.5000, -0.5000]])

    Source: JSPO, https://arxiv.org/abs/2511.03710.
    """
    where = "jspo"
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=batch.precision.out))
    groups = measure(batch, spread_ulps)
    layout, scale = groups.layout, batch_scale(groups)
    unit = torch.zeros_like(groups.low) + scale / groups.scale
    n = torch.zeros_like(groups.low) + groups.count
    present, several = n > 0, (n > 1) & (n > 0)
    prompts, measured = total(present.double()), total(several.double())

    # Everything relative to the batch's smallest reward, in one unit.
    lowest = torch.where(present, groups.low * unit, torch.inf).min()
    base = torch.where(present, groups.low * unit - lowest, 0.0)
    mean = torch.where(present, base + groups.mean_above * unit, 0.0)
    others = (total(mean) - mean) / at_least_one(prompts - 1.0)

    noise = (standard_deviation(groups, 1) * unit).square() / at_least_one(n)
    noise = torch.where(several & groups.has_spread, noise, 0.0)
    v = (total(noise) - noise).clamp_min_(0.0) / at_least_one(measured - several.double())
    away = torch.where(present, (mean - total(mean) / at_least_one(prompts)).square(), 0.0)
    s = (total(away) - away * (prompts / at_least_one(prompts - 1.0))).clamp_min_(0.0)
    s = s / at_least_one(prompts - 1.0)
    shrinkage = torch.where((prompts > 2.0) & (v > 0.0), v / (v + s).clamp_min(1e-300), 0.0)

    own = torch.where(groups.has_spread, (1.0 - shrinkage) * unit, 0.0)
    outside = groups.above * layout.expand(unit) + layout.expand(base - others)
    result = leave_one_out(groups, Options()) * layout.expand(own) + layout.expand(shrinkage) * outside
    result = torch.where(layout.expand(several), where_scored(groups.scored, result) / scale, 0.0).add_(0.0)
    result = result.clamp_(-batch.precision.largest, batch.precision.largest)
    return batch.give(layout.restore(result.to(batch.precision.out)))
