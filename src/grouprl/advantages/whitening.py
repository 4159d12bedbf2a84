"""Advantages that are compared over the whole batch: one unit, one mean and one std for all groups."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from grouprl.advantages.algebra import Options, length_weighted, quotient, token_counts
from grouprl.advantages.groups import Groups, measure, standard_deviation
from grouprl.advantages.inputs import Precision, Rewards
from grouprl.advantages.layout import Rows
from grouprl.advantages.numerics import order_free_sum, pow2_floor, unit_scale


def batch_scale(groups: Groups) -> Tensor | float:
    """Power of two that takes the whole batch's largest |reward| near 1; 1.0 for types that need none."""
    if not isinstance(groups.scale, Tensor):
        return groups.scale
    return unit_scale((torch.maximum(groups.high, -groups.low) / groups.scale).max())


def group_deviations(groups: Groups) -> tuple[Float64[Tensor, "*completions"], Tensor | float]:
    """R − mean of its group, in group order, in units of the batch's scale; and that scale.

    Exactly 0 in groups without spread.
    """
    scale = batch_scale(groups)
    factor = torch.where(groups.has_spread, scale / groups.scale, 0.0)
    return groups.centred * groups.layout.expand(factor), scale


def as_batch(
    batch: Rewards, values: Float64[Tensor, "*completions"], scored: Bool[Tensor, "*completions"]
) -> Groups:
    """Values in the caller's order, measured as one group. Any difference between them counts as spread."""
    precision = Precision(batch.precision.out, ulp=0.0, rescale=True)
    return measure(
        replace(batch, values=values, valid=scored, precision=precision).as_one_group(), spread_ulps=0.0
    )


def whiten(groups: Groups, eps: Tensor | float) -> Float64[Tensor, "*completions"]:
    """(x − mean) / (std + eps) over one group; over its tokens where it has lengths.

    Args:
        groups: The batch as one group; where it has lengths, all scored ones are positive.
        eps: In the unit of the values that were measured.
    """
    if groups.lengths is None:
        return quotient(groups, groups.centred, _divisor(groups, standard_deviation(groups, 0), eps), True)
    tokens, longest, total = token_counts(groups)
    deviation = length_weighted(groups, Options())
    squares = order_free_sum(
        tokens * deviation.square(),
        longest * groups.ceiling.square(),
        groups.count,
        groups.layout,
        fine=groups.precision.fine,
    )
    std = (squares / total.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
    return quotient(groups, deviation, _divisor(groups, std, eps), True)


def scale_to_unit(
    groups: Groups, values: Float64[Tensor, "*completions"], eps: Tensor | float
) -> Float64[Tensor, "*completions"]:
    """x / (std + eps) over one group of values whose mean is 0 by construction, so that 0 stays 0."""
    divisor = _divisor(groups, standard_deviation(groups, 0), eps)
    return quotient(groups, values.reshape(groups.above.shape) * groups.scale, divisor, True)


def scored_of(batch: Rewards) -> Bool[Tensor, "*completions"]:
    """Which rewards are finite and valid."""
    finite = batch.values.isfinite()
    return finite if batch.valid is None else finite & batch.valid


def total(x: Float64[Tensor, "*groups"]) -> Float64[Tensor, " 1"]:
    """Sum of numbers ≥ 0, the same in any order."""
    x = x.reshape(-1)
    largest = 2.0 * pow2_floor(x.amax(-1, keepdim=True))
    return order_free_sum(x, largest, float(x.shape[0]), Rows(x.shape[0]), fine=True)


def _divisor(groups: Groups, std: Float64[Tensor, " 1"], eps: Tensor | float) -> Float64[Tensor, " 1"]:
    return std + groups.scale * eps
