"""Sums that add up, and their means."""

from __future__ import annotations

import json
import math

import pytest
import torch

from grouprl.objectives import policy_loss, summarise


def test_every_sum_by_hand():
    """Ratios 1.5 (clipped) and 1 with A = 1, .5 and e^−30 (both clipped) with A = −1; the rest masked."""
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    new = old + torch.tensor([[math.log(1.5), 0.0, math.nan], [math.log(0.5), -30.0, -math.inf]])
    ref = torch.tensor(
        [[-1.0 + math.log(1.5) - math.log(2.0), -1.0, 0.0], [-1.0 + math.log(0.5), -31.0, 0.0]]
    )
    completion_mask = torch.tensor([[True, True, False], [True, True, False]])
    entropy = torch.tensor([[1.0, 2.0, math.nan], [3.0, 4.0, 100.0]])
    _, metrics = policy_loss(
        new, old, torch.tensor([1.0, -1.0]), completion_mask, ref_logprobs=ref.double(), entropy=entropy
    )
    tiny = math.exp(-20.0)
    old_to_new = [0.5 - math.log(1.5), 0.0, -0.5 + math.log(2.0), tiny + 20.0 - 1.0]  # r − 1 − log r
    expected = {
        "tokens": 4,
        "completions": 2,
        "clipped_low_tokens": 2,
        "clipped_high_tokens": 1,
        "clamped_tokens": 1,
        "ratio_sum": 1.5 + 1.0 + 0.5 + tiny,
        "surrogate_sum": -1.2 - 1.0 + 0.8 + 0.8,
        "kl_old_sum": sum(old_to_new),
        "kl_ref_sum": 0.5 + math.log(2.0) - 1.0,  # k3(ln 2); the others are 0
        "ref_clamped_tokens": 0,
        "entropy_sum": 10.0,
    }
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected, abs=1e-6)
    assert summarise(metrics) == pytest.approx(
        {
            "tokens": 4.0,
            "completions": 2.0,
            "clip_low_share": 0.5,
            "clip_high_share": 0.25,
            "clamped_share": 0.25,
            "ratio_mean": (3.0 + tiny) / 4,
            "surrogate": -0.15,
            "kl_old": sum(old_to_new) / 4,
            "kl_ref": (0.5 + math.log(2.0) - 1.0) / 4,
            "ref_clamped_share": 0.0,
            "entropy": 2.5,
        },
        abs=1e-6,
    )


def test_they_are_scalars_without_gradient():
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    entropy = torch.ones(2, 3, requires_grad=True)
    _, metrics = policy_loss(
        logprobs,
        None,
        torch.ones(2),
        torch.ones(2, 3, dtype=torch.bool),
        ref_logprobs=logprobs,
        entropy=entropy,
    )
    assert all(value.dim() == 0 and not value.requires_grad for value in metrics.values())


def test_only_what_was_measured_is_reported():
    new, mask = torch.full((1, 2), -1.0), torch.ones(1, 2, dtype=torch.bool)
    _, metrics = policy_loss(new, None, torch.ones(1), mask)
    assert not {"kl_ref_sum", "ref_clamped_tokens", "entropy_sum"} & metrics.keys()
    assert not {"kl_ref", "ref_clamped_share", "entropy"} & summarise(metrics).keys()


def test_a_completion_without_tokens_is_no_trained_completion():
    mask = torch.tensor([[True, True], [False, False]])
    _, metrics = policy_loss(torch.full((2, 2), -1.0), None, torch.ones(2), mask)
    assert metrics["completions"].item() == 1


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_nothing_trained_gives_zeros_that_json_can_hold(shape):
    new, mask = torch.full(shape, -1.0), torch.zeros(shape, dtype=torch.bool)
    _, metrics = policy_loss(new, new, torch.ones(shape[0]), mask, ref_logprobs=new, entropy=new)
    means = summarise(metrics)
    assert set(means.values()) == {0.0}
    json.dumps(means, allow_nan=False)


def test_the_mean_of_two_calls_is_that_of_their_tokens():
    """One token with ratio 3 and three with ratio 1: 1.5, not the mean of means 2."""
    old = torch.zeros(1, 3)
    _, first = policy_loss(
        torch.full((1, 3), math.log(3.0)), old, torch.ones(1), torch.tensor([[True, False, False]])
    )
    _, second = policy_loss(torch.zeros(1, 3), old, torch.ones(1), torch.ones(1, 3, dtype=torch.bool))
    means = summarise({name: first[name] + second[name] for name in first})
    assert means["ratio_mean"] == pytest.approx(1.5)
