"""Other frameworks' settings: their numbers on healthy groups, the contract on sick ones."""

import math

import pytest
import torch

from grouprl import advantages
from grouprl.advantages.conventions import CONVENTIONS
from grouprl.errors import InputError

HEALTHY = torch.tensor([[1.0, 0.0, 0.0, 0.5], [0.2, 0.9, 0.4, 0.4]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "ddof", "eps"),
    [
        ("trl", 1, 1e-4),
        ("trl_async", 0, 1e-8),
        ("verl", 1, 1e-6),
        ("skyrl", 1, 1e-6),
        ("openrlhf", 1, 1e-9),
        ("roll", 1, 1e-6),
        ("ms_swift", 1, 1e-4),
        ("art", 0, 1e-6),
        ("open_instruct", 0, 1e-8),
        ("tunix", 1, 1e-6),
        ("torchtitan", 0, 1e-6),
    ],
)
def test_healthy_groups_get_the_frameworks_numbers(name, ddof, eps):
    centred = HEALTHY - HEALTHY.mean(-1, keepdim=True)
    want = centred / (HEALTHY.std(-1, correction=ddof, keepdim=True) + eps)
    torch.testing.assert_close(advantages.grpo(HEALTHY, convention=name), want, rtol=1e-12, atol=1e-12)


def test_prime_rl_only_centres():
    assert torch.equal(advantages.grpo(HEALTHY, convention="prime_rl"), advantages.dr_grpo(HEALTHY))


@pytest.mark.parametrize("name", CONVENTIONS)
def test_sick_groups_get_the_contract(name):
    sick = torch.tensor([[100.1] * 7, [0.1] * 6 + [math.nan]])
    assert not advantages.grpo(sick, convention=name).any()
    assert advantages.grpo([1.0], convention=name).tolist() == [0.0]


def test_an_own_number_goes_before_the_conventions():
    want = advantages.grpo(HEALTHY, eps=0.5, ddof=1)
    assert torch.equal(advantages.grpo(HEALTHY, convention="verl", eps=0.5), want)
    assert torch.equal(advantages.grpo(HEALTHY, convention="art", eps=0.5, ddof=1), want)


def test_unknown_ones():
    with pytest.raises(InputError, match="convention is 'tlr', expected one of 'trl'"):
        advantages.grpo([1.0, 0.0], convention="tlr")
    with pytest.raises(InputError, match="expected one with a bound"):
        advantages.grpo([1.0, 0.0], convention="nemo_rl")
