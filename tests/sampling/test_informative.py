"""Which completions carry signal, and why the others do not."""

import itertools
import math

import numpy as np
import pytest
import torch

import grouprl
from grouprl.sampling import informative

NAN = math.nan
KINDS = ("all_low", "all_high", "single", "unscored", "informative", "total")


def counts(result) -> dict[str, int]:
    return {kind: int(getattr(result, kind)) for kind in KINDS}


def test_each_kind_once():
    rewards = torch.tensor([[0, 0, 0], [1, 1, 1], [1, NAN, NAN], [NAN, NAN, NAN], [1, 0, NAN]])
    result = informative(rewards)
    assert counts(result) == dict.fromkeys(KINDS, 1) | {"total": 5}
    assert result.keep.tolist() == [[False] * 3] * 4 + [[True, True, False]]
    assert result.total.shape == ()
    assert result.total.dtype == torch.int64


@pytest.mark.parametrize("on_device", [False, True])
def test_flat_groups(on_device, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: on_device)
    ids = torch.tensor([5, -1, 5, 7, -1, 8, 8])
    result = informative(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]), ids)
    assert result.keep.tolist() == [True, False, True, False, False, False, False]
    assert counts(result) == {
        "all_low": 1, "all_high": 1, "single": 1, "unscored": 0, "informative": 1, "total": 4,
    }  # fmt: skip


def test_keep_is_where_the_advantage_may_differ_from_zero():
    rewards = torch.tensor([[0.1] * 7, [0.1] * 6 + [0.2], [0.3] * 7])
    keep = informative(rewards).keep
    assert torch.equal(keep, grouprl.grpo_group_advantages(rewards) != 0)


@pytest.mark.parametrize(
    ("value", "high", "kind"),
    [
        (1.0, 1.0, "all_high"),
        (0.0, 1.0, "all_low"),
        (-1.0, 1.0, "all_low"),
        (0.5, 1.0, "all_low"),
        (2.0, 1.0, "all_high"),
        (1 - 2**-24, 1.0, "all_high"),  # rounding
        (1 - 2**-20, 1.0, "all_low"),
        (0.9, 0.9, "all_high"),
        (-2.0, -3.0, "all_high"),
        (-4.0, -3.0, "all_low"),
        (7.0, 10.0, "all_low"),
        (1e38, 10.0, "all_high"),
        (-1e38, 10.0, "all_low"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_or_high(value, high, kind, dtype):
    if dtype == torch.float64 and value == 1 - 2**-24:
        value = 1 - 2**-53
    result = informative(torch.full((2, 3), value, dtype=dtype), high=high)
    assert counts(result)[kind] == 2


def test_a_batch_in_which_all_fail_or_all_succeed():
    assert counts(informative(torch.zeros(4, 8)))["all_low"] == 4
    assert counts(informative(torch.ones(4, 8)))["all_high"] == 4
    assert counts(informative(torch.ones(4, 8, dtype=torch.bool)))["all_high"] == 4
    assert counts(informative(torch.ones(4, 1)))["single"] == 4


@pytest.mark.parametrize(("size", "share"), [(2, 0.7024), (4, 0.4490), (8, 0.2007), (16, 0.0403)])
def test_share_of_dead_groups(size, share):
    """At success rate p a group is dead with probability p^G + (1 − p)^G: sum it over every outcome."""
    p = 0.1819
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=size)))
    right = outcomes.sum(1).double()
    probability = p**right * (1 - p) ** (size - right)
    dead = ~informative(outcomes).keep[:, 0]
    assert probability[dead].sum().item() == pytest.approx(share, abs=5e-5)
    assert probability[dead].sum().item() == pytest.approx(p**size + (1 - p) ** size)


def test_arrays_and_lists():
    result = informative(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert isinstance(result.keep, np.ndarray)
    assert result.keep.tolist() == [[True, True], [False, False]]
    assert counts(result)["all_low"] == 1
    assert informative([1.0, None, 0.0], ["a"] * 3).keep.tolist() == [True, False, True]


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_nothing(shape):
    result = informative(torch.zeros(shape))
    assert result.keep.shape == shape
    assert counts(result) == dict.fromkeys(KINDS, 0)


@pytest.mark.parametrize("high", [NAN, math.inf, None, "one"])
def test_high_must_be_a_number(high):
    with pytest.raises(ValueError, match=r"informative: high is .*, expected a finite number"):
        informative(torch.ones(2), high=high)
