"""Group-relative advantages: how far each completion's reward stands above its own group's mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from grouprl.advantages.algebra import (
    BASELINES,
    SCALES,
    Options,
    combine,
    refuse_negative,
    refuse_senseless,
)
from grouprl.advantages.extras import read_lengths
from grouprl.advantages.groups import measure
from grouprl.advantages.host_rows import standardised_rows
from grouprl.advantages.inputs import (
    Array,
    ArrayLike,
    Rewards,
    check_ddof,
    choose,
    finite,
    non_negative,
    read_rewards,
)
from grouprl.distributed import across_ranks
from grouprl.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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
    return compute("grpo_group_advantages", rewards, eps=eps)


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
    lengths: ArrayLike | None = None,
    quantile: float | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
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
    lengths: ArrayLike | None = None,
    quantile: float | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
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
    lengths: ArrayLike | None = None,
    quantile: float | None = None,
    spread_ulps: float = 4,
    process_group: ProcessGroup | None = None,
) -> Tensor | Array:
    """Advantages over groups of any size, given by id or as the last axis.

        A_i = (R_i − baseline(R)) / (scale(R) + eps)        R: the scored rewards of i's own group

    Args:
        rewards: Shape (N,) with `group_ids`, else (..., G) with the group on the last axis; in the reward's
            unit. Any real dtype. None (in a list), NaN and infinite rewards are unscored.
        group_ids: Shape (N,): integers of any kind, or hashables such as uuid strings. Groups may be of
            different sizes and interleaved.
        baseline: What is subtracted. The group's "mean", "median" or "quantile"; "leave_one_out", the mean of
            the other members; "length_weighted", the mean over tokens; or "none", nothing: with scale="none"
            alone, it leaves the scored rewards as they are, also in a group without spread.
        scale: What the deviation is divided by. The group's "std", "mean_abs" (mean |R − mean(R)|), "mad"
            (median |R − median(R)|, at least (max − min) / 32; where it is 0, nothing) or "mean" (rewards ≥ 0
            only); "batch_std", the std over every scored reward of the call; or "none", nothing (eps is not
            used). Always of all scored rewards, never of the others alone.
        eps: Added to the scale, in the reward's unit. 0 is safe.
        ddof: The std divides by n − ddof: 0 for the population, 1 for the sample std.
        valid: Boolean, of the rewards' shape. False makes a reward unscored.
        lengths: Tokens of each completion, of the rewards' shape; for baseline="length_weighted".
        quantile: For baseline="quantile", the share K of the group that its smallest such reward covers (the
            inverted CDF, without interpolation); 0.4 if not given.
        spread_ulps: A group whose rewards span at most this many units in the last place of its largest
            |reward| has no spread. The unit is float32's for float32 and narrower rewards, float64's for
            float64 and lists; whole numbers have no tolerance.
        process_group: Whose ranks make up the batch, so that a group may span them; each rank passes its own
            completions, or none, and gets their advantages, with the bits of one process that has them all, in
            the order of the ranks. None: this process alone. `torch.distributed.group.WORLD`: all; before
            init_process_group that is None.

    Returns:
        Advantages of the shape of rewards, without gradient: a tensor on the same device for a tensor, an
        array for an array, a tensor for a list. float32 for float32 and narrower floats, float64 for float64;
        for whole numbers and lists torch's default dtype, but float64 for arrays of whole numbers.

    Raises:
        InputError: For a single number, complex or ragged rewards; ids or a mask of another length or type;
            an unknown baseline or scale, or a pair without sense; missing or negative lengths; a quantile
            outside [0, 1]; negative rewards with scale="mean" (off the CPU such a group gets 0 instead, as
            looking would wait for the device); an eps or spread_ulps that is negative or not finite; another
            ddof. With a process_group on every rank alike, also for inputs of different kinds or dtypes.

    Exactly 0 for a group of one, for a group without spread, and where a reward is unscored; the scored ones
    are computed as though the unscored had never been sampled. No rewards: an empty result. Never NaN or
    infinite: with scale="none" or "mad" a deviation too large for its dtype becomes the largest number of it. A
    group's result has the same bits wherever it stands in the batch, in any order, as a row or flat
    (with scale="batch_std" it depends on the whole batch).

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
    inputs = {"rewards": rewards, "group_ids": group_ids, "valid": valid, "lengths": lengths}
    options = {
        "baseline": baseline,
        "scale": scale,
        "eps": eps,
        "ddof": ddof,
        "quantile": quantile,
        "spread_ulps": spread_ulps,
    }
    where = "group_advantages"
    return across_ranks(where, partial(compute, where), process_group, inputs, options)


def compute(
    where: str,
    rewards: ArrayLike,
    group_ids: ArrayLike | None = None,
    *,
    baseline: str = "mean",
    scale: str = "std",
    eps: float = 1e-6,
    ddof: int = 0,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    quantile: float | None = None,
    spread_ulps: float = 4,
) -> Any:
    """`group_advantages` under another public name."""
    refuse_senseless(where, baseline, scale)
    centre, divide = choose(where, "baseline", baseline, BASELINES), choose(where, "scale", scale, SCALES)
    eps = non_negative(where, "eps", eps)
    spread_ulps = non_negative(where, "spread_ulps", spread_ulps)
    check_ddof(where, ddof)
    if group_ids is None and valid is None and quantile is None and baseline == "mean" and scale == "std":
        plain = standardised_rows(rewards, eps, ddof, spread_ulps)
        if plain is not None:
            return plain
    options = Options(eps, ddof, _quantile(where, baseline, quantile), spread_ulps)
    batch = read_rewards(where, rewards, group_ids, valid)
    if baseline == "length_weighted":
        batch = replace(batch, lengths=read_lengths(where, lengths, batch.values))
    out = batch.precision.out
    if batch.values.numel() == 0:
        return batch.give(torch.zeros_like(batch.values, dtype=out))
    if centre is None:
        return batch.give(_scored_rewards(batch))
    parts = []
    whole = measure(batch.as_one_group(), spread_ulps) if divide.needs_batch else None
    for block in [batch] if divide.needs_batch else batch.blocks():
        groups = measure(block, spread_ulps)
        if whole is not None:
            groups = replace(groups, batch=whole)
        if scale == "mean":
            refuse_negative(where, groups)
        parts.append(block.layout.restore(combine(groups, centre, divide, options).to(out)))
    joined = parts[0] if len(parts) == 1 else torch.cat(parts).view(batch.values.shape)
    return batch.give(joined)


def _quantile(where: str, baseline: str, quantile: float | None) -> float:
    if quantile is None:
        return 0.4
    share = finite(where, "quantile", quantile)
    if baseline != "quantile" or not 0.0 <= share <= 1.0:
        raise InputError(
            f"{where}: quantile is {share} with baseline={baseline!r}, expected a share from 0 to 1 with "
            "baseline='quantile'; set both, or neither"
        )
    return share


def _scored_rewards(batch: Rewards) -> Tensor:
    """The rewards themselves, 0 where unscored."""
    scored = batch.values.isfinite()
    if batch.valid is not None:
        scored = scored & batch.valid
    out = torch.where(scored, batch.values, 0).to(torch.float64)
    return out.clamp_(-batch.precision.largest, batch.precision.largest).to(batch.precision.out).add_(0.0)
