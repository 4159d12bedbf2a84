"""Intervals for what is estimated from groups of completions that belong together.

All at z = 3.09: one-sided 99.9 %. Some twenty checks look at a run, so at 95 % every healthy run would have a
finding; at 99.9 % one in fifty would that lies exactly on every threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, hypot, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Z = 3.090232306167813
"""99.9 % quantile of the standard normal distribution."""

Z_95 = 1.959963984540054

FEWEST = 10
"""Clusters below which a mean has no interval: its standard error is not known well enough."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and where the truth lies: below `low` once in a thousand, above `high` once in a thousand.

    Args:
        value: The estimate.
        low, high: The interval.
        clusters: How many independent ones it comes from.
    """

    value: float
    low: float
    high: float
    clusters: int


def share(successes: ArrayLike, totals: ArrayLike) -> Interval | None:
    """A share over clusters, such as the truncated ones of each group's completions.

        p = Σs / Σn        se² = k/(k−1) · Σ(s_i − p n_i)² / (Σn)²

    with the Wilson score interval at the effective number p(1 − p)/se² of independent draws. Where se says nothing
    (all clusters alike, or a single one) the number of clusters stands for it: if the share of clusters that differ
    were more than about 9.5/k, one would have been seen.

    Args:
        successes: s of each cluster.
        totals: n of each; clusters without any are left out.

    Returns:
        The interval; None where there is no cluster.

    Example:
        >>> found = share([1, 0, 0, 1] * 25, [1] * 100)
        >>> found.value, round(found.low, 2), round(found.high, 2)
        (0.5, 0.35, 0.65)

    Source: Wilson 1927; the effective number is Kish's (1965), the variance that of a ratio estimator
    (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    s, n = _floats(successes), _floats(totals)
    s, n = s[n > 0], n[n > 0]
    k = len(n)
    if k == 0:
        return None
    p = min(max(float(s.sum() / n.sum()), 0.0), 1.0)
    effective = float(k)
    if k > 1 and 0 < p < 1:
        squared_error = float(((s - p * n) ** 2).sum()) / float(n.sum()) ** 2 * k / (k - 1)
        if squared_error > 0:
            effective = min(p * (1 - p) / squared_error, float(n.sum()))
    return Interval(p, *_wilson(p, effective), k)


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """Σx / Σn over clusters, such as tokens over completions, ± z standard errors.

    Returns:
        The interval; None with fewer than `FEWEST` clusters.
    """
    x, n = _floats(numerators), _floats(denominators)
    kept = (n > 0) & np.isfinite(x)
    x, n = x[kept], n[kept]
    k = len(n)
    if k < FEWEST:
        return None
    value = float(x.sum() / n.sum())
    error = sqrt(float(((x - value * n) ** 2).sum()) * k / (k - 1)) / float(n.sum())
    return Interval(value, value - Z * error, value + Z * error, k)


def mean(values: ArrayLike) -> Interval | None:
    """The mean of independent values ± z standard errors; None with fewer than `FEWEST`."""
    x = _floats(values)
    return ratio(x, np.ones_like(x))


def difference(later: Interval, earlier: Interval) -> Interval:
    """later − earlier of independent estimates.

        low = d − √((x − x_low)² + (y_high − y)²)        high = d + √((x_high − x)² + (y − y_low)²)

    Intervals need not be symmetrical: that of a difference of shares stays within −1 and 1.

    Source: Newcombe 1998, method 10 (MOVER).
    """
    value = later.value - earlier.value
    low = value - hypot(later.value - later.low, earlier.high - earlier.value)
    high = value + hypot(later.high - later.value, earlier.value - earlier.low)
    return Interval(value, low, high, min(later.clusters, earlier.clusters))


def quotient(later: Interval, earlier: Interval) -> Interval | None:
    """later / earlier: `difference` of the logarithms. None where one is not clearly above 0."""
    if min(later.low, earlier.low) <= 0:
        return None
    logs = (Interval(log(i.value), log(i.low), log(i.high), i.clusters) for i in (later, earlier))
    change = difference(*logs)
    return Interval(exp(change.value), exp(change.low), exp(change.high), change.clusters)


def widened(value: float, low: float, high: float) -> tuple[float, float]:
    """A share's Wilson interval at 95 % as one at 99.8 %.

    With a = z²/n and h its half width,  h²(1 + a)² = a p(1 − p) + a²/4  gives the effective n.

    Args:
        value, low, high: The share and its interval.

    Example:
        >>> [round(bound, 3) for bound in widened(0.5, 0.4038, 0.5962)]  # 50 of 100
        [0.352, 0.648]
    """
    half_squared, variance = ((high - low) / 2) ** 2, value * (1 - value)
    if half_squared >= 0.25:
        return 0.0, 1.0
    square, linear = 0.25 - half_squared, variance - 2 * half_squared
    a = (sqrt(linear**2 + 4 * square * half_squared) - linear) / (2 * square)
    return _wilson(value, Z_95**2 / a) if a > 0 else (low, high)


def _floats(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _wilson(p: float, n: float) -> tuple[float, float]:
    z2 = Z**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return (0.0 if p == 0 else max(0.0, centre - half)), (1.0 if p == 1 else min(1.0, centre + half))
