"""Exact powers of two, and sums without an order."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.advantages.layout import Rows
from grouprl.advantages.numerics import order_free_sum, pow2_ceil, pow2_floor, unit_scale


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.floats(min_value=2.0**-1022, allow_infinity=False))
def test_pow2_floor(x):
    power = pow2_floor(f64(x, -x))[0].item()
    assert power <= x < 2 * Fraction(power)
    assert math.frexp(power)[0] == 0.5
    assert pow2_floor(f64(-x)).item() == power


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 2**40 + 1])
def test_pow2_ceil(count):
    want = 2.0 ** (count - 1).bit_length()
    assert pow2_ceil(float(count)) == want
    assert pow2_ceil(f64(count)).item() == want


def test_pow2_ceil_of_nothing():
    assert pow2_ceil(f64(0.0)).item() == 1.0


@given(st.floats(min_value=0, allow_infinity=False))
def test_unit_scale(x):
    scale = unit_scale(f64(x)).item()
    assert math.frexp(scale)[0] == 0.5
    assert x * scale < 4
    assert x < 2.0**-1022 or x * scale >= 2
    assert Fraction(x * scale) == Fraction(x) * Fraction(scale)


@given(st.lists(st.floats(0, 1.0), min_size=1, max_size=50), st.randoms(use_true_random=False), st.booleans())
def test_order_free_sum(terms, random, fine):
    n = len(terms)
    largest = f64(2.0 ** math.frexp(max(terms))[1] if max(terms) else 0.0)
    total = order_free_sum(f64(*terms), largest, float(n), Rows(n), fine=fine)
    exact = sum(map(Fraction, terms))
    bound = n**3 * 2.0**-103 if fine else n**2 * 2.0**-51
    assert abs(Fraction(total.item()) - exact) <= Fraction(bound) * Fraction(largest.item()) + exact / 2**53
    random.shuffle(terms)
    padded = f64(*terms, 0.0, 0.0, 0.0)
    assert torch.equal(order_free_sum(padded, largest, f64(n), Rows(n + 3), fine=fine), total)
    if fine:
        assert total.item() == pytest.approx(math.fsum(terms), rel=2.0**-52, abs=0)


@pytest.mark.parametrize("part", [0.49, -0.49])
def test_terms_below_the_first_grid_have_no_order_either(part):
    """1 and 999 terms that the first grid (2^-42) rounds off whole, all to one side: the worst for the second."""
    generator = torch.Generator().manual_seed(0)
    tiny = (1 + 0.01 * torch.rand(999, generator=generator, dtype=torch.float64)) * part * 2.0**-42
    terms = torch.cat([f64(1.0), tiny + (2.0**-42 if part < 0 else 0.0)])
    totals = {
        order_free_sum(terms[order], f64(1.0), 1000.0, Rows(1000), fine=True).item()
        for order in (torch.randperm(1000, generator=generator) for _ in range(20))
    }
    assert totals == {math.fsum(terms.tolist())}


def test_large_groups_are_summed_on_two_grids_for_float32_too():
    """One 1 among 65,535 small terms: one grid alone would be off by more than float32's rounding."""
    n = 2**16
    terms = torch.full((n,), 0.49 * 2.0**-36, dtype=torch.float64)
    terms[0] = 1.0
    total = order_free_sum(terms, f64(1.0), float(n), Rows(n), fine=False)
    assert total.item() == pytest.approx(math.fsum(terms.tolist()), rel=2.0**-50, abs=0)
