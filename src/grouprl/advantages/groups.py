"""Groups, measured: how far each scored reward stands above its group's smallest, and whether the group has
spread.

Working on distances from a member of the group, not on the rewards themselves, makes a group of equal rewards
exactly 0 and keeps a large common offset from costing accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from grouprl.advantages.inputs import Precision, Rewards
from grouprl.advantages.layout import Layout, on_host
from grouprl.advantages.numerics import order_free_sum, pow2_floor, unit_scale


@dataclass(frozen=True, slots=True)
class Groups:
    """What every estimator starts from. Values are float64, per completion in group order, or per group.

    Args:
        layout: The way between the two.
        precision: What the reward's type asks for.
        scored: Which rewards count; None for all.
        count: Number of scored rewards of each group.
        scale: Power of two by which a group's rewards were multiplied to keep float64 from overflow and
            underflow; 1.0 for the types that need none.
        low: Smallest scored reward of each group, times `scale`; 0 where nothing is scored.
        high: The largest, likewise.
        ceiling: Power of two above high − low; 0 where they are equal.
        has_spread: Whether the rewards of a group differ by more than rounding. An advantage may differ from 0
            only where they do.
        mean_above: mean(R) − min(R), times `scale`.
        above: R − min(R), times `scale`; 0 where unscored.
        centred: R − mean(R), times `scale`; 0 where unscored.
        lengths: Each completion's length in tokens, where the estimator asked for them.
        batch: The whole batch measured as one group, where the scale is the batch's.
    """

    layout: Layout
    precision: Precision
    scored: Bool[Tensor, "*completions"] | None
    count: Float64[Tensor, "*groups"] | float
    scale: Float64[Tensor, "*groups"] | float
    low: Float64[Tensor, "*groups"]
    high: Float64[Tensor, "*groups"]
    ceiling: Float64[Tensor, "*groups"]
    has_spread: Bool[Tensor, "*groups"]
    mean_above: Float64[Tensor, "*groups"]
    above: Float64[Tensor, "*completions"]
    centred: Float64[Tensor, "*completions"]
    lengths: Float64[Tensor, "*completions"] | None = None
    batch: Groups | None = None


def measure(rewards: Rewards, spread_ulps: float) -> Groups:
    """Find what is scored, each group's extent, and whether that extent is more than rounding.

    Args:
        rewards: Validated; at least one.
        spread_ulps: As for `exceeds_rounding`.
    """
    layout, precision = rewards.layout, rewards.precision
    x = layout.arrange(rewards.values.to(torch.float64))
    scored = _scored(x, None if rewards.valid is None else layout.arrange(rewards.valid))
    low, high = layout.min_max(x, scored)
    count = layout.count(scored)
    if isinstance(count, Tensor):  # some groups may have nothing in them
        low, high = torch.where(count > 0, low, 0.0), torch.where(count > 0, high, 0.0)
    scale: Tensor | float = 1.0
    if precision.rescale:
        scale = unit_scale(torch.maximum(high, -low))
        x, low, high = x * layout.expand(scale), low * scale, high * scale
    above = where_scored(scored, x - layout.expand(low))
    ceiling = 2.0 * pow2_floor(high - low)
    total = order_free_sum(above, ceiling, count, layout, fine=precision.fine)
    mean_above = total / at_least_one(count)
    return Groups(
        layout=layout,
        precision=precision,
        scored=scored,
        count=count,
        scale=scale,
        low=low,
        high=high,
        ceiling=ceiling,
        has_spread=exceeds_rounding(low, high, spread_ulps, precision),
        mean_above=mean_above,
        above=above,
        centred=where_scored(scored, above - layout.expand(mean_above)),
        lengths=None if rewards.lengths is None else layout.arrange(rewards.lengths),
    )


def standard_deviation(groups: Groups, ddof: int) -> Float64[Tensor, "*groups"]:
    """√(Σ(R − mean(R))² / (n − ddof)), times the groups' `scale`; 0 where n ≤ ddof."""
    squares, largest = groups.centred * groups.centred, groups.ceiling * groups.ceiling
    total = order_free_sum(squares, largest, groups.count, groups.layout, fine=groups.precision.fine)
    return total.div_(at_least_one(groups.count - ddof)).sqrt_()


def exceeds_rounding(
    low: Float64[Tensor, "*groups"],
    high: Float64[Tensor, "*groups"],
    spread_ulps: float,
    precision: Precision,
) -> Bool[Tensor, "*groups"]:
    """Whether rewards from low to high differ by more than rounding: the one place that decides it.

        high − low > spread_ulps · ulp · 2^floor(log2 max(|low|, |high|))

    Args:
        low: Smallest reward of each group.
        high: Largest.
        spread_ulps: How many units in the last place of the larger magnitude are rounding.
        precision: Gives ulp: 2^-23 for float32 and narrower, 2^-52 for float64, 0 for whole numbers.
    """
    return high - low > pow2_floor(torch.maximum(high, -low)) * (spread_ulps * precision.ulp)


def _scored(
    x: Float64[Tensor, "*completions"], valid: Bool[Tensor, "*completions"] | None
) -> Bool[Tensor, "*completions"] | None:
    """Which rewards are finite and valid; None for all, where finding that out is free."""
    if valid is None and on_host(x) and math.isfinite(x.sum().item()):
        return None
    finite = x.isfinite()
    return finite if valid is None else finite & valid


def where_scored(
    scored: Bool[Tensor, "*completions"] | None, x: Float64[Tensor, "*completions"]
) -> Float64[Tensor, "*completions"]:
    """x, and 0 where unscored."""
    return x if scored is None else torch.where(scored, x, 0.0)


def at_least_one(count: Tensor | float) -> Tensor | float:
    """The count, as a divisor."""
    return count.clamp_min(1.0) if isinstance(count, Tensor) else max(count, 1.0)
