"""Statistics of each completion's group."""

import math

import numpy as np
import pytest
import torch

import grouprl

NAN = math.nan
FIELDS = ("mean", "std", "count", "min", "max", "has_spread")


def as_lists(stats) -> dict:
    return {field: getattr(stats, field).tolist() for field in FIELDS}


def test_flat():
    stats = grouprl.group_stats(torch.tensor([1.0, 7.0, 5.0, NAN, NAN]), ["a", "b", "a", "b", "c"])
    assert as_lists(stats) == {
        "mean": [3, 7, 3, 7, 0],
        "std": [2, 0, 2, 0, 0],
        "count": [2, 1, 2, 1, 0],
        "min": [1, 7, 1, 7, 0],
        "max": [5, 7, 5, 7, 0],
        "has_spread": [True, False, True, False, False],
    }
    assert stats.mean.dtype == torch.float32
    assert stats.count.dtype == torch.int64
    assert stats.has_spread.dtype == torch.bool


def test_matrix():
    stats = grouprl.group_stats(torch.tensor([[1, 5], [3, 3]]))
    assert as_lists(stats) == {
        "mean": [[3, 3], [3, 3]],
        "std": [[2, 2], [0, 0]],
        "count": [[2, 2], [2, 2]],
        "min": [[1, 1], [3, 3]],
        "max": [[5, 5], [3, 3]],
        "has_spread": [[True, True], [False, False]],
    }
    stats.mean.zero_()  # every field is memory of its own
    assert stats.std.tolist() == [[2, 2], [0, 0]]


def test_ddof():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert grouprl.group_stats(rewards).std[0].item() == pytest.approx(math.sqrt(3) / 4)
    assert grouprl.group_stats(rewards, ddof=1).std.tolist() == [0.5] * 4
    assert grouprl.group_stats(rewards[:1], ddof=1).std.tolist() == [0.0]
    with pytest.raises(ValueError, match="group_stats: ddof is 3, expected 0 or 1"):
        grouprl.group_stats(rewards, ddof=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_numbers_saturate(dtype):
    largest = torch.finfo(dtype).max
    stats = grouprl.group_stats(torch.tensor([largest, -largest], dtype=dtype), ddof=1)
    assert stats.std.tolist() == [largest] * 2  # √2 of it
    assert stats.mean.tolist() == [0.0] * 2
    same = grouprl.group_stats(torch.tensor([largest, largest], dtype=dtype))
    assert same.mean.tolist() == [largest] * 2


def test_equal_rewards_have_their_value_as_mean_and_no_std():
    stats = grouprl.group_stats(torch.full((7,), 100.1))
    assert torch.equal(stats.mean, torch.full((7,), 100.1))
    assert stats.std.tolist() == [0.0] * 7


def test_arrays():
    stats = grouprl.group_stats(np.array([1.0, 5.0]))
    assert all(isinstance(getattr(stats, field), np.ndarray) for field in FIELDS)
    assert stats.mean.dtype == np.float64


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_nothing(shape):
    stats = grouprl.group_stats(torch.zeros(shape))
    assert all(getattr(stats, field).shape == shape for field in FIELDS)
    assert (stats.count.dtype, stats.has_spread.dtype) == (torch.int64, torch.bool)


def test_the_dead_group_flag_is_per_group():
    """Group A [1, 1], group B [1, 0]: over the batch there is spread, in A there is none."""
    stats = grouprl.group_stats(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert stats.has_spread[:, 0].tolist() == [False, True]
