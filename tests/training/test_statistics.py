"""pass@k and the accuracy's interval, against counting and published values."""

from itertools import combinations

import pytest

from grouprl.errors import InputError
from grouprl.training.statistics import accuracy_interval, pass_at_k


@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_pass_at_k_equals_counting_subsets(n):
    for correct in range(n + 1):
        for k in range(1, n + 1):
            subsets = list(combinations(range(n), k))
            hits = sum(any(i < correct for i in s) for s in subsets)
            assert pass_at_k(n, correct, k) == pytest.approx(hits / len(subsets))


def test_more_than_was_sampled_is_refused():
    """164 problems, one sample each: pass@10 does not exist (the count of problems is no count of samples)."""
    assert sum(pass_at_k(1, c, 1) for c in [1] * 50 + [0] * 114) / 164 == pytest.approx(0.3049, abs=5e-5)
    with pytest.raises(InputError, match="k is 10 with 1 samples a problem"):
        pass_at_k(1, 1, 10)
    with pytest.raises(InputError, match="3 right of 2"):
        pass_at_k(2, 3, 1)


def test_one_sample_a_problem_is_the_wilson_interval():
    """Wilson at 10 of 20: (0.2993, 0.7007). The sample variance over n − 1 leaves an effective 19 here."""
    p, low, high = accuracy_interval([1] * 10 + [0] * 10, [1] * 20)
    assert p == 0.5
    z2, n = 1.959963984540054**2, 19.0
    half = (z2 * (0.25 / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


def test_alike_completions_of_a_problem_count_once():
    """Four samples that always agree say no more than one: the interval is that of twenty problems."""
    once = accuracy_interval([1] * 10 + [0] * 10, [1] * 20)
    four = accuracy_interval([4] * 10 + [0] * 10, [4] * 20)
    assert four == pytest.approx(once)


def test_edges():
    p, low, high = accuracy_interval([4, 4], [4, 4])
    assert (p, high) == (1.0, 1.0)
    assert low < 0.5
    p, low, high = accuracy_interval([0] * 100, [4] * 100)
    assert (p, low) == (0.0, 0.0)
    assert high == pytest.approx(0.037, abs=1e-3)  # Wilson at 0 of 100: z² / (n + z²)
    p, low, high = accuracy_interval([1], [4])  # one problem still has a mean and an interval
    assert p == 0.25
    assert 0 < low < p < high < 1
    assert accuracy_interval([0, 3], [0, 4])[0] == 0.75  # nothing scored: left out
    assert accuracy_interval([], []) == accuracy_interval([0], [0]) == (None, None, None)
