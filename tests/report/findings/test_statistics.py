"""Intervals: against closed forms, and by how often they hold the truth."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from grouprl.report.findings.finding import stretches
from grouprl.report.findings.statistics import Interval, Z, difference, mean, quotient, ratio, share


def test_z_is_the_quantile_it_says():
    from statistics import NormalDist

    assert pytest.approx(NormalDist().inv_cdf(0.999), rel=1e-12) == Z


def test_a_share_of_independent_ones_is_wilson_s():
    """Clusters of one: 30 of 100, se² = p(1 − p)/n · n/(n − 1), so 99 effective draws."""
    found = share([1] * 30 + [0] * 70, [1] * 100)
    n, p = 99, 0.3
    centre = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), rel=1e-9)


def test_completions_of_a_cluster_that_agree_count_once():
    """30 of 100 clusters, each of eight equal ones: as 30 of 100."""
    one, eight = share([1] * 30 + [0] * 70, [1] * 100), share([8] * 30 + [0] * 70, [8] * 100)
    assert (eight.low, eight.high) == pytest.approx((one.low, one.high))


def test_nothing_seen_is_not_never():
    """The rule of three: of 100 clusters without one, the share may be 1 − 0.001^(1/100) = 0.067, or a little more."""
    found = share([0] * 100, [8] * 100)
    assert found.value == found.low == 0.0
    assert 0.067 < found.high < 0.1
    assert share([], []) is None
    assert share([0], [0]) is None


def test_an_interval_misses_the_truth_as_seldom_as_it_says():
    """20,000 made-up runs of 40 groups of 8, their rates from Beta(1, 1): 1 in 500, or fewer."""
    rng = np.random.default_rng(0)
    rates = rng.beta(1, 1, (20_000, 40))
    right = rng.binomial(8, rates)
    found = [share(row, np.full(40, 8)) for row in right]
    missed = np.mean([not i.low <= 0.5 <= i.high for i in found])
    assert missed < 0.005
    width = np.mean([i.high - i.low for i in found])
    # Var of a group's share: Var(p) + E[p(1 − p)]/8 = 1/12 + 1/48.
    assert width == pytest.approx(2 * Z * sqrt((1 / 12 + 1 / 48) / 40), rel=0.1)


def test_a_mean_of_few_has_no_interval():
    assert mean(range(9)) is None
    found = mean(range(10))
    assert found.value == 4.5
    assert found.high - found.value == pytest.approx(
        Z * sqrt(55 / 6 / 10)
    )  # sample variance of 0 to 9: 82.5/9


def test_a_ratio_of_sums():
    found = ratio([10.0] * 20, [2] * 20)
    assert (found.value, found.low, found.high) == (5.0, 5.0, 5.0)


def test_a_difference_of_shares_stays_within_one():
    low, high = Interval(0.0, 0.0, 0.5, 5), Interval(1.0, 0.5, 1.0, 5)
    found = difference(high, low)
    assert found.value == 1.0
    assert found.low == pytest.approx(1 - sqrt(0.5))
    assert found.high == 1.0


def test_a_quotient_is_a_difference_of_logarithms():
    found = quotient(Interval(8.0, 4.0, 16.0, 20), Interval(2.0, 2.0, 2.0, 20))
    assert (found.value, found.low, found.high) == pytest.approx((4.0, 2.0, 8.0))
    assert quotient(Interval(1.0, -1.0, 3.0, 20), Interval(2.0, 1.0, 3.0, 20)) is None


@pytest.mark.parametrize(
    ("steps", "known", "expected"),
    [
        ([], [1, 2], ()),
        ([2], [1, 2, 3], ((2, 2),)),
        ([10, 20, 30], [10, 20, 30, 40], ((10, 30),)),
        ([1, 3], [1, 2, 3], ((1, 1), (3, 3))),
        ([7], [], ((7, 7),)),
    ],
)
def test_stretches(steps, known, expected):
    assert stretches(steps, known) == expected
