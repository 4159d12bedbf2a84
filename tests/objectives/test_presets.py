"""Presets are `policy_loss` with the paper's choices."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from grouprl import objectives
from grouprl.errors import InputError
from grouprl.objectives import dr_grpo_loss, grpo_loss, loss_denominator, policy_loss
from grouprl.objectives.presets import Shared
from grouprl.objectives.surrogates import SURROGATES

# What each paper says: surrogate, its numbers, how tokens become one number.
CHOICES: dict[str, dict[str, Any]] = {
    "grpo": {"surrogate": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence_mean"},
    "dr_grpo": {"surrogate": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant"},
    "dapo": {"surrogate": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"},
    "gspo": {"surrogate": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"},
    "cispo": {"surrogate": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token_mean"},
    "sapo": {
        "surrogate": "sapo",
        "tau_positive": 1.0,
        "tau_negative": 1.05,
        "aggregation": "sequence_mean",
    },
    "gmpo": {"surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4, "aggregation": "sequence_mean"},
    "reinforce": {"surrogate": "reinforce", "aggregation": "sequence_sum_mean"},
}
# By hand for A = 1 and −1, lengths 1 and 3, one update on fresh samples: −A over the count.
GRADIENTS = {
    "sequence_mean": (1 / 2, 1 / 6),
    "token_mean": (1 / 4, 1 / 4),
    "constant": (1 / 16, 1 / 16),
    "sequence_sum_mean": (1 / 2, 1 / 2),
}


def preset(name: str):
    return getattr(objectives, f"{name}_loss")


def extra(name: str) -> dict[str, Any]:
    return {"max_tokens": 8} if name == "dr_grpo" else {}


@pytest.mark.parametrize("name", CHOICES)
def test_gradient_on_fresh_samples_by_hand(name):
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.tensor([[True, False, False], [True, True, True]])
    loss, _ = preset(name)(logprobs, None, torch.tensor([1.0, -1.0]), mask, **extra(name))
    loss.backward()
    first, second = GRADIENTS[CHOICES[name]["aggregation"]]
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-first, 0.0, 0.0])
    assert logprobs.grad[1].tolist() == pytest.approx([second] * 3)


@pytest.mark.parametrize("name", CHOICES)
def test_it_is_policy_loss_with_the_papers_choices_and_passes_the_rest_on(name):
    torch.manual_seed(0)
    new, old, ref, entropy, sampler = -3 * torch.rand(5, 3, 5)
    advantages, mask = torch.randn(3), torch.rand(3, 5) < 0.8
    shared = {"ref_logprobs": ref, "beta": 0.05, "kl": "k2", "kl_weighted": True, "denominator": 7}
    shared |= {"entropy": entropy, "entropy_weight": 0.01, "sampler_logprobs": sampler}
    shared |= {"correction": "masked", "correction_level": "sequence"}
    shared |= {"correction_low": 0.1, "correction_high": 5.0}
    assert shared.keys() == Shared.__annotations__.keys()
    loss, metrics = preset(name)(new, old, advantages, mask, **shared)
    expected, expected_metrics = policy_loss(new, old, advantages, mask, **CHOICES[name], **shared)
    assert loss.item() == expected.item()
    assert {k: v.item() for k, v in metrics.items()} == {k: v.item() for k, v in expected_metrics.items()}


@pytest.mark.parametrize("name", CHOICES)
def test_it_takes_every_option_of_its_surrogate_with_the_published_value(name):
    """The two clips of DAPO are its own; everything else is the surrogate's."""
    parameters = inspect.signature(preset(name)).parameters
    for option, allowed in SURROGATES[CHOICES[name]["surrogate"]].options.items():
        if option == "dual_clip" and name != "dapo":
            assert option not in parameters
        else:
            assert parameters[option].default == CHOICES[name].get(option, allowed.default)


@pytest.mark.parametrize("name", CHOICES)
def test_options_reach_the_surrogate(name):
    """Ratios far from 1 on both sides, so that each number that is set changes the loss."""
    new = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]])
    old = new - torch.tensor([[2.0, 1.9, 1.8], [-2.0, -1.9, -1.8]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    arguments = (new, old, torch.tensor([1.0, -1.0]), mask)
    plain, _ = preset(name)(*arguments, **extra(name))
    for option in SURROGATES[CHOICES[name]["surrogate"]].options:
        if option in inspect.signature(preset(name)).parameters and option != "dual_clip":
            changed, _ = preset(name)(*arguments, **{option: 0.5}, **extra(name))
            assert changed.item() != plain.item(), option


def test_dapo_takes_a_dual_clip():
    """A = −1 and r = e^2: −r A is 7.389, at most 3 with dual_clip 3."""
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, _ = objectives.dapo_loss(
        torch.tensor([[-1.0]]), torch.tensor([[-3.0]]), -torch.ones(1), mask, dual_clip=3.0
    )
    assert loss.item() == 3.0


def test_dr_grpo_needs_the_length_or_the_denominator():
    mask = torch.ones(1, 2, dtype=torch.bool)
    arguments = (torch.full((1, 2), -1.0), None, torch.ones(1), mask)
    with pytest.raises(InputError, match="max_tokens=None, expected the most tokens"):
        dr_grpo_loss(*arguments)
    given, _ = dr_grpo_loss(*arguments, max_tokens=10)
    divided, _ = dr_grpo_loss(*arguments, denominator=loss_denominator(mask, "constant", max_tokens=10))
    assert given.item() == divided.item() == pytest.approx(-0.2)


def test_a_preset_keeps_its_choices():
    arguments = (torch.full((1, 2), -1.0), None, torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(TypeError, match="aggregation"):
        grpo_loss(*arguments, aggregation="token_mean")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="clip"):
        grpo_loss(*arguments, clip=0.2)  # type: ignore[call-arg]
