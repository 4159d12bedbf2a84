"""The clipped surrogate: values and gradients worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grouprl.objectives.surrogates import SURROGATES, SurrogateTerms, Tokens, ppo_clip

INF = math.inf


def clip_of_ratios(
    ratios: list[float], advantage: float, clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[SurrogateTerms, Tensor]:
    """The terms for ratios that share an advantage, and the gradient of their sum with respect to log π."""
    log_ratio = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    advantages = torch.full_like(log_ratio, advantage)
    tokens = Tokens(log_ratio, advantages, torch.ones_like(advantages, dtype=torch.bool))
    terms = ppo_clip(tokens, clip_low=clip_low, clip_high=clip_high)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), log_ratio)
    return terms, gradient


# −min(r A, clip(r) A); its gradient is −A r where the first of the two is the smaller, else 0.
@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient", "low", "high"),
    [
        (+1.0, 0.5, -0.5, -0.5, False, False),  # fell though it was good: not clipped, it may come back
        (+1.0, 0.9, -0.9, -0.9, False, False),
        (+1.0, 1.0, -1.0, -1.0, False, False),
        (+1.0, 1.1, -1.1, -1.1, False, False),
        (+1.0, 1.5, -1.2, 0.0, False, True),
        (+2.0, 1.5, -2.4, 0.0, False, True),
        (-1.0, 0.5, +0.8, 0.0, True, False),
        (-2.0, 0.5, +1.6, 0.0, True, False),
        (-1.0, 0.9, +0.9, +0.9, False, False),
        (-1.0, 1.0, +1.0, +1.0, False, False),
        (-1.0, 1.1, +1.1, +1.1, False, False),
        (-1.0, 1.5, +1.5, +1.5, False, False),  # rose though it was bad: not clipped
        (0.0, 0.5, 0.0, 0.0, False, False),
        (0.0, 1.5, 0.0, 0.0, False, False),
    ],
)
def test_clip_table_of_both_signs(advantage, ratio, loss, gradient, low, high):
    terms, got = clip_of_ratios([ratio], advantage)
    assert terms.loss.item() == pytest.approx(loss, abs=1e-15)
    assert got.item() == pytest.approx(gradient, abs=1e-15)
    assert (terms.clipped_low.item(), terms.clipped_high.item()) == (low, high)


@pytest.mark.parametrize(
    ("advantage", "losses", "gradient"),
    [(1.0, [-1.1, -0.9, -1.2], [-1.1, -0.9, 0.0]), (-1.0, [1.1, 0.9, 1.5], [1.1, 0.9, 1.5])],
)
def test_each_token_has_its_own_ratio(advantage, losses, gradient):
    """Old probabilities .5, .4, .2, new ones .55, .36, .30: one ratio of the product would hide them."""
    terms, got = clip_of_ratios([0.55 / 0.5, 0.36 / 0.4, 0.30 / 0.2], advantage)
    assert terms.loss[0].tolist() == pytest.approx(losses)
    assert got[0].tolist() == pytest.approx(gradient)


def test_the_two_clips_are_apart():
    up, _ = clip_of_ratios([1.25, 1.4], 1.0, clip_low=0.2, clip_high=0.28)
    assert up.loss[0].tolist() == pytest.approx([-1.25, -1.28])
    assert up.clipped_high.tolist() == [[False, True]]
    down, _ = clip_of_ratios([0.85, 0.7], -1.0, clip_low=0.1, clip_high=0.28)
    assert down.loss[0].tolist() == pytest.approx([0.9, 0.9])
    assert down.clipped_low.tolist() == [[True, True]]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_bounds_of_one_and_infinity_switch_the_clip_off(advantage):
    ratios = [1e-6, 0.5, 2.0, 1e6]
    terms, gradient = clip_of_ratios(ratios, advantage, clip_low=1.0, clip_high=INF)
    assert terms.loss[0].tolist() == pytest.approx([-advantage * r for r in ratios])
    assert gradient[0].tolist() == pytest.approx([-advantage * r for r in ratios])
    assert not terms.clipped_low.any()
    assert not terms.clipped_high.any()


def test_zero_width_clip_keeps_the_gradient_at_ratio_one():
    """With both bounds at 1 the first update still learns: a clamp passes the gradient at its bounds."""
    _, gradient = clip_of_ratios([1.0], 1.0, clip_low=0.0, clip_high=0.0)
    assert gradient.item() == -1.0


def test_found_by_name():
    assert SURROGATES["ppo_clip"] is ppo_clip
