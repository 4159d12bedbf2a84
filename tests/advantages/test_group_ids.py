"""Group ids of every kind say the same thing."""

import uuid

import numpy as np
import pytest
import torch

from grouprl import group_advantages
from grouprl.errors import InputError

REWARDS = torch.tensor([1.0, 10.0, 3.0, 10.0, 5.0])
PATTERN = [0, 1, 0, 1, 2]
WANT = [-1.0, 0.0, 1.0, 0.0, 0.0]


def named(*names):
    return [names[group] for group in PATTERN]


UUIDS = named(*(str(uuid.UUID(int=k)) for k in (9, 7, 8)))


@pytest.mark.parametrize(
    "ids",
    [
        PATTERN,
        tuple(PATTERN),
        UUIDS,
        [uuid.UUID(u) for u in UUIDS],
        np.array(UUIDS),
        np.array(UUIDS, dtype=object),
        named(-5, 3, -(2**63)),
        named(2**62, 2**62 + 1, -(2**62)),
        named(2**200, 2**200 + 1, 0),
        named(("a", 1), ("a", 2), ("b", 1)),
        named(1, "1", "2"),
        named(b"x", "x", ""),
        named(True, False, 2),
        range(5, 10) and named(*range(5, 8)),
        [torch.tensor(group) for group in PATTERN],
        [np.int64(group) for group in PATTERN],
    ],
)
def test_hashables(ids):
    assert group_advantages(REWARDS, ids, eps=0.0).tolist() == WANT
    assert group_advantages(REWARDS.numpy(), ids, eps=0.0).tolist() == WANT


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint64]
)
def test_integer_tensors(dtype):
    assert group_advantages(REWARDS, torch.tensor(PATTERN).to(dtype), eps=0.0).tolist() == WANT


def test_extreme_integers():
    for values in ([2**63 - 1, -(2**63), 0], [2**62, 2**62 + 1, 2**62 - 1]):
        ids = torch.tensor(values)[torch.tensor(PATTERN)]
        assert group_advantages(REWARDS, ids, eps=0.0).tolist() == WANT
    large = np.array([2**64 - 1, 2**63, 0], dtype=np.uint64)[PATTERN]
    assert group_advantages(REWARDS, large, eps=0.0).tolist() == WANT
    assert group_advantages(REWARDS, torch.from_numpy(large), eps=0.0).tolist() == WANT


def test_a_range_is_a_sequence():
    assert group_advantages(REWARDS, range(5)).tolist() == [0.0] * 5


def test_boolean_ids_are_two_groups():
    ids = torch.tensor([True, False, True, False])
    assert group_advantages(torch.tensor([1.0, 5.0, 3.0, 5.0]), ids, eps=0.0).tolist() == [
        -1.0,
        0.0,
        1.0,
        0.0,
    ]
    assert group_advantages([1.0, 5.0, 3.0, 5.0], ids.numpy(), eps=0.0).tolist() == [-1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1], r"group_ids has shape \(2,\), expected \(5,\)"),
        (torch.zeros(5, 1, dtype=torch.int64), r"group_ids has shape \(5, 1\), expected \(5,\)"),
        (np.zeros((1, 5), dtype=int), r"group_ids has shape \(1, 5\), expected \(5,\)"),
        (np.array([["a"] * 5]), r"group_ids has shape \(1, 5\), expected \(5,\)"),
        (torch.zeros(5), "group_ids are float32, expected integers or hashables"),
        (np.zeros(5), "group_ids are float64, expected integers or hashables"),
        (torch.zeros(5, dtype=torch.complex64), "group_ids are complex64"),
        ([0.0, 1.0, 0.0, 1.0, 2.0], "group_ids holds 0.0, expected integers"),
        (["a", None, "a", "b", "b"], "group_ids holds None"),
        ([[0], [1], [0], [1], [2]], "not hashable"),
        (["a", torch.tensor(1), "a", "b", "b"], "group_ids holds tensor"),
        ("abcde", "group_ids is a str"),
        (iter(PATTERN), "group_ids is a list_iterator|group_ids is a tuple_iterator"),
        ([torch.tensor(1), "a", "a", "b", "b"], "cannot be stacked"),
    ],
)
def test_unusable_ids(ids, message):
    with pytest.raises(InputError, match=f"^group_advantages: .*({message})"):
        group_advantages(REWARDS, ids)


def test_ids_need_flat_rewards():
    with pytest.raises(InputError, match=r"group_ids with rewards of shape \(2, 3\), expected 1-D rewards"):
        group_advantages(torch.ones(2, 3), [0, 1])
