"""Arrays of other libraries over DLPack, read where they are and given back as they came.

The two classes here keep to the protocols that JAX and CuPy keep to; with JAX itself: tests/integrations/test_tunix.py.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import grouprl
from grouprl import advantages
from grouprl.errors import InputError


class Array:
    """An array of another library: the array API's namespace and DLPack, and no way to NumPy."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __array_namespace__(self, api_version=None):
        return SimpleNamespace(from_dlpack=lambda x: Array(torch.from_dlpack(x)))

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__()

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __array__(self, *_args, **_options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


class Old(Array):
    """As CuPy's arrays before version 14, whose namespace is only the module's."""

    __array_namespace__ = property()  # type: ignore[assignment]


Old.__module__ = "cupy"


class Spread(Array):
    """On several devices."""

    def __dlpack__(self, **options):
        raise ValueError("DLPack is only supported for arrays\nthat are fully on one device")


REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0]
IDS = [7, 7, -3, -3, -3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_the_numbers_are_those_of_tensors_and_come_back_as_they_came(dtype):
    rewards, ids = torch.tensor(REWARDS).to(dtype), torch.tensor(IDS)
    found = grouprl.group_advantages(Array(rewards), Array(ids))
    assert isinstance(found, Array)
    assert found.tensor.equal(grouprl.group_advantages(rewards, ids))
    matrix = grouprl.grpo_group_advantages(Array(rewards[None]))
    assert matrix.tensor.equal(grouprl.grpo_group_advantages(rewards[None]))


def test_masks_and_lengths_may_be_such_arrays_beside_tensors():
    rewards, ids = torch.tensor(REWARDS), torch.tensor(IDS)
    valid, lengths = torch.tensor([True, True, True, False, True]), torch.tensor([1, 3, 1, 1, 2])
    assert grouprl.group_advantages(rewards, ids, valid=Array(valid)).equal(
        grouprl.group_advantages(rewards, ids, valid=valid)
    )
    assert advantages.opo(rewards, Array(ids), lengths=Array(lengths)).equal(
        advantages.opo(rewards, ids, lengths=lengths)
    )


def test_nothing_is_copied_on_the_way_in():
    from grouprl.advantages.dlpack import as_tensor

    tensor = torch.tensor(REWARDS)
    assert as_tensor("here", "rewards", Array(tensor)).data_ptr() == tensor.data_ptr()


def test_rewards_are_left_as_they_were():
    tensor = torch.tensor([1.0, float("nan"), 0.0])
    grouprl.grpo_group_advantages(Array(tensor))
    assert tensor[0] == 1.0
    assert tensor[1].isnan()
    assert tensor[2] == 0.0


def test_a_library_that_names_no_namespace_is_found_by_its_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=lambda x: Old(torch.from_dlpack(x))))
    found = grouprl.grpo_group_advantages(Old(torch.tensor([1.0, 0.0])))
    assert isinstance(found, Old)
    assert found.tensor.tolist() == pytest.approx([1.0, -1.0], abs=1e-5)


def test_what_dlpack_cannot_hand_over_is_refused_in_one_line():
    for argument in ({"rewards": Spread(torch.tensor(REWARDS))}, {"group_ids": Spread(torch.tensor(IDS))}):
        given = {"rewards": torch.tensor(REWARDS), "group_ids": torch.tensor(IDS)} | argument
        with pytest.raises(InputError) as caught:
            grouprl.group_advantages(**given)
        said = str(caught.value)
        assert said.startswith(
            f"group_advantages: {next(iter(argument))} is a Spread that cannot be read (DLPack is"
        )
        assert "expected an array on one device" in said
        assert "\n" not in said


def test_numpy_stays_numpy():
    assert isinstance(grouprl.grpo_group_advantages(np.array([1.0, 0.0])), np.ndarray)
