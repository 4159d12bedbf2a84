"""The share of groups without spread that pass rates lead to expect."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import InputError
from grouprl.sampling import expected_dead_share, informative


@pytest.mark.parametrize(("size", "share"), [(2, 0.7024), (4, 0.4490), (8, 0.2007), (16, 0.0403)])
def test_the_worked_case(size, share):
    """p = 0.1819, p^G + (1 − p)^G by hand."""
    assert expected_dead_share([0.1819], size) == pytest.approx(share, abs=5e-5)


@given(st.lists(st.fractions(0, 1), min_size=1, max_size=6), st.integers(1, 12))
def test_the_formula_in_exact_arithmetic(rates, size):
    exact = sum(p**size + (1 - p) ** size for p in rates) / len(rates)
    share = expected_dead_share([float(p) for p in rates], size)
    assert share == pytest.approx(float(exact), abs=1e-12)
    mean = sum(rates, Fraction()) / len(rates)
    assert share >= expected_dead_share([float(mean)], size) - 1e-12  # convex: too low at the mean


def test_sampled_groups_come_out_like_it():
    """A million Bernoulli groups: within four standard errors."""
    generator = torch.Generator().manual_seed(0)
    rates = torch.tensor([0.05, 0.5, 0.9]).repeat(100_000)
    rewards = (torch.rand(300_000, 4, generator=generator) < rates[:, None]).float()
    counts = informative(rewards)
    dead = 1 - int(counts.informative) / int(counts.total)
    expected = expected_dead_share(rates, 4)
    assert dead == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 300_000) ** 0.5)


def test_edges_and_kinds():
    assert expected_dead_share([0.3, 0.8], 1) == 1.0
    assert expected_dead_share([0.0, 1.0], 8) == 1.0
    for given_as in (np.array([[0.5]]), torch.tensor(0.5), [0.5], torch.tensor([0.5], dtype=torch.bfloat16)):
        share = expected_dead_share(given_as, 2)
        assert share == 0.5
        assert type(share) is float


@pytest.mark.parametrize(
    ("rates", "size", "said"),
    [
        ([], 4, "no pass_rates"),
        ([1.5], 4, r"a pass rate is 1\.5"),
        ([float("nan")], 4, "a pass rate is nan"),
        (["x"], 4, "cannot be read"),
        ([0.5], 0, "group_size is 0"),
        ([0.5], 2.0, r"group_size is 2\.0"),
    ],
)
def test_what_is_refused(rates, size, said):
    with pytest.raises(InputError, match=said):
        expected_dead_share(rates, size)
