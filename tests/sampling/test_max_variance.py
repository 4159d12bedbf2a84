"""The m completions with the largest reward variance: against every subset, in exact arithmetic."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from grouprl.errors import InputError
from grouprl.sampling import max_variance


def variance(values):
    """Population variance, exact."""
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    return sum((v - mean) ** 2 for v in exact) / len(exact)


def largest_variance(rewards, size):
    return max(variance(subset) for subset in itertools.combinations(rewards, size))


groups = st.integers(1, 9).flatmap(
    lambda n: st.lists(
        st.sampled_from([0.0, 0.5, 1.0]) | st.integers(-40, 40).map(lambda i: i / 8), min_size=n, max_size=n
    )
)


@given(st.lists(groups, min_size=1, max_size=4), st.integers(2, 7), st.booleans())
def test_no_subset_has_a_larger_variance(batch, size, on_device):
    flat = [r for group in batch for r in group]
    ids = [i for i, group in enumerate(batch) for _ in group]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: on_device)
        keep = max_variance(torch.tensor(flat, dtype=torch.float64), torch.tensor(ids), size=size).tolist()
    for i, group in enumerate(batch):
        kept = [r for r, own, k in zip(flat, ids, keep) if own == i and k]
        assert len(kept) == min(size, len(group))
        assert variance(kept) == largest_variance(group, len(kept))
        assert {min(group), max(group)} <= set(kept) or len(group) == 1


@settings(max_examples=50)
@given(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=8), st.integers(2, 5))
def test_any_floats(rewards, size):
    keep = max_variance(torch.tensor(rewards, dtype=torch.float64), size=size).tolist()
    kept = [r for r, k in zip(rewards, keep) if k]
    best = largest_variance(rewards, len(kept))
    assert variance(kept) >= best * (1 - Fraction(1, 10**12))


@given(groups, st.integers(2, 5), st.randoms())
def test_neither_the_order_nor_the_other_groups_matter(group, size, random):
    """Of equal rewards another may be taken, of the rewards themselves none."""
    alone = max_variance(torch.tensor(group), size=size).tolist()
    mixed = [(0, r) for r in group] + [(1, 1.0 - r) for r in group] + [(2, 7.0)]
    random.shuffle(mixed)
    keep = max_variance(
        torch.tensor([r for _, r in mixed]), torch.tensor([i for i, _ in mixed]), size=size
    ).tolist()
    taken = sorted(r for (i, r), k in zip(mixed, keep) if i == 0 and k)
    assert taken == sorted(r for r, k in zip(group, alone) if k)


def test_half_right_half_wrong_where_both_are_there():
    """Of 0/1 rewards the variance is largest at half and half; a tie gives the odd one to the right ones."""
    rewards = torch.tensor([[1, 0, 0, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0, 0, 0]])
    assert (rewards * max_variance(rewards, size=4)).sum(-1).tolist() == [2, 1]
    assert (rewards * max_variance(rewards, size=5)).sum(-1).tolist() == [3, 1]
    assert max_variance(rewards, size=4).sum(-1).tolist() == [4, 4]


def test_matrix_and_flat_agree_and_arrays_stay_arrays():
    torch.manual_seed(0)
    rewards = torch.rand(5, 8)
    ids = torch.arange(5).repeat_interleave(8)
    matrix = max_variance(rewards, size=3)
    assert torch.equal(matrix.reshape(-1), max_variance(rewards.reshape(-1), ids, size=3))
    array = max_variance(rewards.numpy(), size=3)
    assert isinstance(array, np.ndarray)
    assert array.dtype == bool
    assert (array == matrix.numpy()).all()


def test_unscored_completions_are_never_kept():
    rewards = torch.tensor([[math.nan, 1.0, 0.0, math.inf, 0.0], [math.nan] * 5])
    keep = max_variance(rewards, size=4, valid=torch.tensor([[True, True, False, True, True], [True] * 5]))
    assert keep.tolist() == [[False, True, False, False, True], [False] * 5]


def test_edges():
    assert max_variance(torch.zeros(2, 6), size=3).sum(-1).tolist() == [3, 3]
    assert max_variance(torch.tensor([0.5]), size=2).tolist() == [True]
    assert max_variance(torch.zeros(0), size=2).shape == (0,)
    assert max_variance(torch.zeros(0), torch.zeros(0, dtype=torch.long), size=2).shape == (0,)
    for size in (1, 0, True, 2.0, None):
        with pytest.raises(InputError, match="expected a whole number of 2 or more"):
            max_variance(torch.zeros(2, 6), size=size)


def test_what_is_kept_has_its_own_advantages():
    """Computed on the kept completions alone, whether the others are masked or gone."""
    rewards = torch.tensor([[0.0, 0.25, 1.0, 0.5, 0.75, 0.0]])
    keep = max_variance(rewards, size=4)
    masked = grouprl.grpo_group_advantages(rewards[keep])
    assert torch.equal(grouprl.group_advantages(rewards, valid=keep)[keep], masked)
