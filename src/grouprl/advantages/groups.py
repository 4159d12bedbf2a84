"""Groups, measured: how far each scored reward stands above its group's smallest, and whether the group has
spread.

Working on distances from a member of the group, not on the rewards themselves, makes a group of equal rewards
exactly 0 and keeps a large common offset from costing accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from grouprl.advantages.inputs import Precision, Rewards
from grouprl.advantages.layout import Layout, on_host
from grouprl.advantages.numerics import order_free_sum, pow2_floor, unit_scale


@dataclass(frozen=True)
class Groups:
    """What every estimator starts from. Values are float64, per completion in group order, or per group.

    Args:
        layout: The way between the two.
        precision: What the reward's type asks for.
        above: Distance of each reward from its group's lowest, times `scale`; 0 where unscored.
        scored: Which rewards count; None for all.
        count: Number of scored rewards of each group.
        low: Smallest scored reward of each group, times `scale`; 0 where nothing is scored.
        high: The largest, likewise.
        scale: Power of two by which a group's rewards were multiplied to keep float64 from overflow and
            underflow; 1.0 for the types that need none.
        has_spread: Whether the rewards of a group differ by more than rounding. An advantage may differ from
            0 only where they do.
    """

    layout: Layout
    precision: Precision
    above: Float64[Tensor, "*completions"]
    scored: Bool[Tensor, "*completions"] | None
    count: Float64[Tensor, "*groups"] | float
    low: Float64[Tensor, "*groups"]
    high: Float64[Tensor, "*groups"]
    scale: Float64[Tensor, "*groups"] | float
    has_spread: Bool[Tensor, "*groups"]

    @cached_property
    def mean_above(self) -> Float64[Tensor, "*groups"]:
        """Mean distance above the lowest."""
        return self._sum(self.above, self._spread_ceil) / _at_least_one(self.count)

    @cached_property
    def centred(self) -> Float64[Tensor, "*completions"]:
        """R − mean(R), times `scale`; 0 where unscored."""
        centred = self.above - self.layout.expand(self.mean_above)
        return centred if self.scored is None else torch.where(self.scored, centred, 0.0)

    def std(self, ddof: int) -> Float64[Tensor, "*groups"]:
        """√(Σ(R − mean(R))² / (n − ddof)), times `scale`; 0 where n ≤ ddof."""
        squares = self._sum(self.centred * self.centred, self._spread_ceil * self._spread_ceil)
        return squares.div_(_at_least_one(self.count - ddof)).sqrt_()

    @cached_property
    def _spread_ceil(self) -> Float64[Tensor, "*groups"]:
        """Power of two above the spread; 0 for none."""
        return 2.0 * pow2_floor(self.high - self.low)

    def _sum(
        self, x: Float64[Tensor, "*completions"], largest: Float64[Tensor, "*groups"]
    ) -> Float64[Tensor, "*groups"]:
        return order_free_sum(x, largest, self.count, self.layout, fine=self.precision.fine)


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
    above = x - layout.expand(low)
    if scored is not None:
        above = torch.where(scored, above, 0.0)
    return Groups(
        layout=layout,
        precision=precision,
        above=above,
        scored=scored,
        count=count,
        low=low,
        high=high,
        scale=scale,
        has_spread=exceeds_rounding(low, high, spread_ulps, precision),
    )


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


def _at_least_one(count: Tensor | float) -> Tensor | float:
    return count.clamp_min(1.0) if isinstance(count, Tensor) else max(count, 1.0)
