"""The shorter way in: rows of finite float32 rewards on a CPU, where small matrices would wait for torch's calls.

The arithmetic of `groups`, `numerics` and `algebra`, step for step and hence bit for bit, in NumPy, whose calls cost
a fraction. Groups are columns here, so that reductions and broadcasts run along contiguous memory.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grouprl.advantages.inputs import BLOCK, SINGLE, Array
from grouprl.advantages.numerics import pow2_ceil

Columns = NDArray[np.float64]

LARGEST = 64
"""Larger groups make short rows of columns, which torch reduces faster."""
SMALL = 256
"""Up to this many rewards one sort is cheaper than two reductions."""
MANY_ROWS = 8192
"""Rows computed at a time at most: fewer than make a dot product wake threads."""

_EXPONENT_BITS = np.array(0x7FF << 52, dtype=np.int64)
_ZERO, _INFINITY = np.array(0.0), np.array(math.inf)


def standardised_rows(rewards: object, eps: float, ddof: int, spread_ulps: float) -> Tensor | None:
    """(R − mean(R)) / (std(R) + eps) along the last axis; None where anything is unusual.

    Unusual is all but a plain dense float32 tensor on the CPU, outside a compiled graph, of 2 to LARGEST columns, with
    finite rewards alone.
    """
    if not (
        not torch.compiler.is_compiling()
        and type(rewards) is Tensor
        and rewards.dtype is torch.float32
        and rewards.is_cpu
        and rewards.layout is torch.strided
        and rewards.ndim
        and 2 <= (size := rewards.shape[-1]) <= LARGEST
        and not rewards.is_neg()
    ):
        return None
    rows = (rewards.detach() if rewards.requires_grad else rewards).numpy()
    if rewards.ndim != 2:
        rows = rows.reshape(-1, size)
    height = min(BLOCK // size, MANY_ROWS)
    if len(rows) <= height:
        out = _block(rows, eps, ddof, spread_ulps) if len(rows) else None
    else:
        parts = [_block(rows[i : i + height], eps, ddof, spread_ulps) for i in range(0, len(rows), height)]
        whole = [part for part in parts if part is not None]
        out = np.concatenate(whole) if len(whole) == len(parts) else None
    if out is None:
        return None
    result = torch.from_numpy(out)
    return result if rewards.ndim == 2 else result.view(rewards.shape)


def _block(rows: Array, eps: float, ddof: int, spread_ulps: float) -> Array | None:
    x = rows.T.astype(np.float64, order="C")
    count, degrees, pad, square_pad, eps_, tolerance = _constants(len(x), eps, ddof, spread_ulps)
    if x.size <= SMALL:
        ascending = x.copy()
        ascending.sort(0)  # NaN comes last
        low, high = ascending[0], ascending[-1]
    else:
        low, high = np.minimum.reduce(x), np.maximum.reduce(x)
    magnitude = np.maximum(high, -low)
    if not math.isfinite(magnitude.dot(magnitude)):
        return None
    extent = high - low
    floor = _pow2_floor(extent)
    x -= low
    total = _order_free_sum(x, floor * pad)
    total /= count
    x -= total
    std = _order_free_sum(x * x, floor * floor * square_pad)
    std /= degrees
    np.sqrt(std, std)
    std += eps_
    np.putmask(std, extent <= _pow2_floor(magnitude) * tolerance, _INFINITY)
    x /= std
    x += _ZERO  # −0 becomes 0
    return x.T.astype(np.float32, order="C")


def _pow2_floor(x: Columns) -> Columns:
    return (x.view(np.int64) & _EXPONENT_BITS).view(np.float64)


def _order_free_sum(x: Columns, grid: Columns) -> Columns:
    x = x + grid
    x -= grid
    return np.add.reduce(x)


@lru_cache
def _constants(size: int, eps: float, ddof: int, spread_ulps: float) -> tuple[Array, ...]:
    """0-d arrays, as a Python number costs a conversion in each call."""
    count = float(size)
    pad = 2.0 * pow2_ceil(count)
    numbers = (count, max(count - ddof, 1.0), pad, 2.0 * pad, eps, spread_ulps * SINGLE.ulp)
    return tuple(np.array(number, dtype=np.float64) for number in numbers)
