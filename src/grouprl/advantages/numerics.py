"""Powers of two, and sums that come out the same whatever the order of their terms.

A float64 sum depends on the order of its terms, so the same group would get other bits as a row of a matrix,
as a flat segment, shuffled, or on another device. Rounding every term to one grid first makes the sum exact,
hence the same in any order: with a power of two c ≥ Σx, (x + c) − c is x rounded to a multiple of 2^-52·c,
and sums of such multiples below 2c are exact. What was rounded off is summed the same way on a second, finer
grid.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from grouprl.advantages.layout import Layout

MANTISSA = 2.0**-52
SMALLEST_NORMAL = 2.0**-1022
LARGE_GROUP = 4096
"""Up to this many members one grid is finer than float32 needs; beyond it the second grid is added too."""

_EXPONENT_BITS = 0x7FF << 52


def pow2_floor(x: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """The largest power of two ≤ |x|, exactly; 0 for 0 and for subnormal x. Not for infinity or NaN.

    Example:
        >>> pow2_floor(torch.tensor([5.0, -0.3, 0.0], dtype=torch.float64)).tolist()
        [4.0, 0.25, 0.0]
    """
    return (x.view(torch.int64) & _EXPONENT_BITS).view(torch.float64)


def pow2_ceil(count: Float64[Tensor, "*shape"] | float) -> Float64[Tensor, "*shape"] | float:
    """The smallest power of two ≥ a whole number ≥ 1, exactly; 1 for 0.

    Example:
        >>> pow2_ceil(torch.tensor([0.0, 1.0, 5.0, 8.0], dtype=torch.float64)).tolist()
        [1.0, 1.0, 8.0, 8.0]
        >>> pow2_ceil(5.0)
        8.0
    """
    if isinstance(count, Tensor):
        return pow2_floor(2.0 * count - 1.0)
    return 2.0 ** math.frexp(2.0 * count - 1.0)[1] / 2.0


def unit_scale(magnitude: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """The power of two that takes a magnitude into [2, 4), exactly. Subnormals and 0 go below 2.

    Example:
        >>> unit_scale(torch.tensor([1.0, 5.0, 1.7e308], dtype=torch.float64)).log2().tolist()
        [1.0, -1.0, -1022.0]
    """
    bits = magnitude.clamp_min(SMALLEST_NORMAL).view(torch.int64) & _EXPONENT_BITS
    return (_EXPONENT_BITS - bits).view(torch.float64)


def order_free_sum(
    x: Float64[Tensor, "*completions"],
    largest: Float64[Tensor, "*groups"],
    count: Float64[Tensor, "*groups"] | float,
    layout: Layout,
    *,
    fine: bool,
) -> Float64[Tensor, "*groups"]:
    """Sum of n terms within each group, with the same bits in any order.

    Error below n²·2^-51·largest, and below n³·2^-103·largest (with one last rounding) on two grids.

    Args:
        x: Terms ≥ 0, in group order, 0 where they are to be left out.
        largest: Power of two ≥ every term of the group; or 0 where all are 0.
        count: How many are not left out.
        layout: Which terms belong together.
        fine: Use two grids in every group, not in large ones alone.
    """
    count_ceil = pow2_ceil(count)
    ceiling = largest * count_ceil
    grid = layout.expand(ceiling)
    coarse = (x + grid).sub_(grid)
    total = layout.sum(coarse)
    if not fine and layout.largest_group <= LARGE_GROUP:
        return total
    # What is left has either sign and is at most 2^-53·ceiling; 1.5 keeps the sum within one binade.
    grid = layout.expand(ceiling * count_ceil * (1.5 * MANTISSA))
    rest = layout.sum((x - coarse).add_(grid).sub_(grid))
    if not fine and isinstance(
        count, Tensor
    ):  # by a group's own size, so that it has one result in every batch
        rest = torch.where(count > LARGE_GROUP, rest, 0.0)
    return total + rest
