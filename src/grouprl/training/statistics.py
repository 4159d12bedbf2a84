"""Held-out statistics: pass@k and an interval for an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, fsum, sqrt
from statistics import fmean, pstdev, variance

from grouprl.errors import InputError

Z_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k completions is right, estimated without bias from n ≥ k samples.

        pass@k = 1 − C(n − c, k) / C(n, k)

    Args:
        samples: n, completions sampled for the problem.
        correct: c, how many of them are right.
        k: How many one would draw.

    Raises:
        InputError: k > n (it cannot be estimated from fewer samples), or c not in 0..n, or k < 1.

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 0, 4)
    (0.25, 0.5, 0.0)
    """
    if not 1 <= k <= samples:
        raise InputError(
            f"pass_at_k: k is {k} with {samples} samples a problem, expected 1 ≤ k ≤ samples; sample more completions"
        )
    if not 0 <= correct <= samples:
        raise InputError(f"pass_at_k: {correct} right of {samples}, expected 0 to {samples}")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def mean(values: Sequence[float]) -> float | None:
    """The mean of finite numbers, None of none; no sum on the way overflows."""
    return fsum(v / len(values) for v in values) if values else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """The population standard deviation of finite numbers, None of none; no square on the way overflows."""
    largest = max(map(abs, values), default=None)
    if largest is None or largest == 0:
        return largest
    return largest * pstdev([v / largest for v in values])


def accuracy_interval(
    correct: Sequence[int], samples: Sequence[int]
) -> tuple[float, float, float] | tuple[None, None, None]:
    """Accuracy over problems with a 95 % interval that knows completions of one problem belong together.

    The mean over problems of c/n, and the Wilson score interval at the effective sample size p(1 − p)/se², se
    being the standard error over problems. Where se says nothing (all problems alike, or a single one)
    the number of problems, or of the single one's samples, stands for it.

    Args:
        correct: c of each problem.
        samples: n of each problem; problems with n = 0 (nothing scored) are left out.

    Returns:
        (accuracy, low, high), or three None where nothing was scored.

    Source: Wilson 1927; the effective sample size is Kish's (1965).
    """
    rates = [c / n for c, n in zip(correct, samples, strict=True) if n]
    if not rates:
        return None, None, None
    p = fmean(rates)
    effective: float = len(rates) if len(rates) > 1 else max(samples)
    if len(rates) > 1 and 0 < p < 1:
        squared_error = variance(rates, p) / len(rates)
        if squared_error > 0:
            effective = min(p * (1 - p) / squared_error, sum(samples))
    return p, *_wilson(p, effective)


def _wilson(p: float, n: float) -> tuple[float, float]:
    z2 = Z_95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return (0.0 if p == 0 else max(0.0, centre - half)), (1.0 if p == 1 else min(1.0, centre + half))
