"""Named estimators that look at the whole batch: everything that shares a mean, a std or a count goes in one call.

All take rewards and group_ids as `grouprl.group_advantages` does: unscored rewards get exactly 0 and are left out
of every statistic; no rewards give an empty result; nothing is ever NaN or infinite.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grouprl.advantages.algebra import Options as Numbers
from grouprl.advantages.algebra import none, quotient
from grouprl.advantages.extras import read_lengths
from grouprl.advantages.groups import measure
from grouprl.advantages.inputs import (
    ArrayLike,
    Rewards,
    non_negative,
    read_rewards,
)
from grouprl.advantages.presets import OWN_GROUP
from grouprl.advantages.registry import register
from grouprl.advantages.whitening import (
    as_batch,
    group_deviations,
    scale_to_unit,
    scored_of,
    whiten,
)

BATCH = {"permutation_equivariant", "shift_invariant", "finite", "unscored_absent"}


@register(
    "reinforce_plus_plus",
    scope="batch",
    needs={"lengths"},
    laws=BATCH | {"scale_invariant", "bounded"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def reinforce_plus_plus(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    eps: float = 1e-6,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward, whitened over the batch's tokens, without groups.

        A_i = (R_i − m) / (s + eps)        m, s: mean and std over the batch, R_j counted |o_j| times

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`; they change nothing.
        lengths: Tokens of each completion, of the rewards' shape; without them each completion counts once.
        eps: Added to the std, in the reward's unit.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`, for the batch.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(tokens − 1). Exactly 0 where the whole
        batch has no spread, and for a completion without tokens. A group of equal rewards gets how far it stands
        from the batch.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for negative or infinite lengths.

    Example:
        >>> from grouprl import advantages
        >>> advantages.reinforce_plus_plus([[1.0, 1.0], [0.0, 0.0]])
        tensor([[ 1.0000,  1.0000],
                [-1.0000, -1.0000]])

    Source: REINFORCE++, https://arxiv.org/abs/2501.03262.
    """
    where = "reinforce_plus_plus"
    eps, spread_ulps = non_negative(where, "eps", eps), non_negative(where, "spread_ulps", spread_ulps)
    batch = _with_tokens(where, read_rewards(where, rewards, group_ids, valid), lengths)
    if batch.values.numel() == 0:
        return empty(batch)
    return give(batch, whiten(measure(batch.as_one_group(), spread_ulps), eps))


@register(
    "reinforce_plus_plus_baseline",
    scope="batch",
    needs={"lengths"},
    laws=BATCH | {"scale_invariant", "bounded"},
    bound=lambda n: math.sqrt(max(n - 1, 0)),
)
def reinforce_plus_plus_baseline(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    lengths: ArrayLike | None = None,
    eps: float = 1e-6,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, then whitened over the batch's tokens.

        d_i = R_i − mean(R)        A_i = (d_i − m) / (s + eps)        m, s over the batch, d_j counted |o_j| times

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        lengths: Tokens of each completion, of the rewards' shape; without them each completion counts once,
            m is 0, and a group without spread gets exactly 0.
        eps: Added to the std, in the reward's unit.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, without unit: |A| ≤ √(tokens − 1). Exactly 0 where no group of
        the batch has spread, and for a completion without tokens. Else a group without spread, and a group of
        one, gets −m/(s + eps), as each of its tokens stands where its group does.

    Raises:
        InputError: As for `grouprl.group_advantages`; or for negative or infinite lengths.

    Example:
        >>> from grouprl import advantages
        >>> advantages.reinforce_plus_plus_baseline([[1.0, 0.0], [0.5, 0.5]])
        tensor([[ 1.4142, -1.4142],
                [ 0.0000,  0.0000]])

    Source: REINFORCE++, https://arxiv.org/abs/2501.03262, the variant with a group baseline.
    """
    where = "reinforce_plus_plus_baseline"
    eps, spread_ulps = non_negative(where, "eps", eps), non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return empty(batch)
    groups = measure(batch, spread_ulps)
    deviations, scale = group_deviations(groups)
    deviations = groups.layout.restore(deviations)
    counted = _with_tokens(where, batch, lengths)
    whole = as_batch(counted, deviations, scored_of(counted))
    if lengths is None:
        return give(batch, scale_to_unit(whole, deviations, scale * eps))
    return give(batch, whiten(whole, scale * eps))


@register("gpg", scope="batch", laws=(OWN_GROUP - {"batch_independent"}) | {"zero_sum"})
def gpg(
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    valid: ArrayLike | None = None,
    spread_ulps: float = 4,
) -> Any:
    """Each reward against its group's mean, enlarged for the groups that carry no signal.

        A_i = α (R_i − mean(R))        α = groups / groups with spread

    Args:
        rewards: As for `grouprl.group_advantages`.
        group_ids: As for `grouprl.group_advantages`.
        valid: As for `grouprl.group_advantages`.
        spread_ulps: As for `grouprl.group_advantages`.

    Returns:
        Advantages of the rewards' shape and kind, in the reward's unit. A group in which nothing is scored does
        not count; a group of one counts as one without spread.

    Raises:
        InputError: As for `grouprl.group_advantages`.

    Example:
        >>> from grouprl import advantages
        >>> advantages.gpg([[1.0, 0.0], [1.0, 1.0]])
        tensor([[ 1., -1.],
                [ 0.,  0.]])

    Source: GPG, https://arxiv.org/abs/2504.02546.
    """
    where = "gpg"
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if batch.values.numel() == 0:
        return empty(batch)
    groups = measure(batch, spread_ulps)
    present = (torch.zeros_like(groups.low) + groups.count > 0).sum().to(torch.float64)
    alpha = present / groups.has_spread.sum().clamp_min(1)
    result = quotient(groups, groups.centred, none(groups, Numbers()), False) * alpha
    largest = batch.precision.largest
    return give(batch, groups.layout.restore(result.clamp_(-largest, largest)))


def _with_tokens(where: str, batch: Rewards, lengths: ArrayLike | None) -> Rewards:
    """The batch with lengths; a completion without tokens is left out."""
    if lengths is None:
        return batch
    read = read_lengths(where, lengths, batch.values)
    present = read > 0
    return replace(batch, lengths=read, valid=present if batch.valid is None else batch.valid & present)


def give(batch: Rewards, result: Tensor) -> Any:
    """A float64 result in the caller's shape and kind."""
    return batch.give(result.reshape(batch.values.shape).to(batch.precision.out))


def empty(batch: Rewards) -> Any:
    """The result for no rewards."""
    return batch.give(torch.zeros_like(batch.values, dtype=batch.precision.out))
