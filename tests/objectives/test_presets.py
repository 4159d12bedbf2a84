"""Presets are `policy_loss` with the paper's choices."""

from __future__ import annotations

import inspect

import pytest
import torch

from grouprl.objectives import grpo_loss, policy_loss


def test_grpo_is_the_mean_over_completions_of_their_means():
    """Fresh samples, A = ±1, lengths 1 and 3: −1/2 + 1/2 = 0; gradient −A / (2 |o_i|)."""
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    loss, _ = grpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == [-0.5, 0.0, 0.0]
    assert logprobs.grad[1].tolist() == pytest.approx([1 / 6] * 3)


def test_grpo_passes_every_option_on():
    torch.manual_seed(0)
    new, old, ref, entropy, sampler = -3 * torch.rand(5, 3, 5)
    advantages, mask = torch.randn(3), torch.rand(3, 5) < 0.8
    options = {"clip_low": 0.1, "clip_high": 0.3, "ref_logprobs": ref, "beta": 0.05}
    options |= {"denominator": 7, "entropy": entropy, "sampler_logprobs": sampler}
    options |= {"correction": "masked", "correction_level": "sequence"}
    options |= {"correction_low": 0.1, "correction_high": 5.0}
    loss, metrics = grpo_loss(new, old, advantages, mask, **options)
    expected, expected_metrics = policy_loss(
        new, old, advantages, mask, aggregation="sequence_mean", **options
    )
    assert loss.item() == expected.item()
    assert {k: v.item() for k, v in metrics.items()} == {k: v.item() for k, v in expected_metrics.items()}


def test_grpo_has_the_defaults_of_policy_loss():
    general = inspect.signature(policy_loss).parameters
    for name, parameter in inspect.signature(grpo_loss).parameters.items():
        assert parameter.default == general[name].default
        assert parameter.kind == general[name].kind
