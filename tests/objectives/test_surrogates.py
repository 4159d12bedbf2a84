"""The clipped surrogate: values and gradients worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grouprl.objectives.surrogates import (
    SURROGATES,
    SurrogateTerms,
    Tokens,
    cispo,
    gmpo,
    gspo,
    gspo_token,
    ppo_clip,
    reinforce,
    sapo,
)

INF = math.inf


def clip_of_ratios(
    ratios: list[float], advantage: float, clip_low: float = 0.2, clip_high: float = 0.2, **options: float
) -> tuple[SurrogateTerms, Tensor]:
    """The terms for ratios that share an advantage, and the gradient of their sum with respect to log π."""
    log_ratio = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    advantages = torch.full_like(log_ratio, advantage)
    tokens = Tokens(log_ratio, advantages, torch.ones_like(advantages, dtype=torch.bool), log_ratio - 2.0)
    terms = ppo_clip(tokens, clip_low=clip_low, clip_high=clip_high, **options)
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


@pytest.mark.parametrize(
    ("ratio", "loss", "gradient", "capped"),
    [
        (0.5, 0.8, 0.0, False),  # the lower clip, as without
        (1.5, 1.5, 1.5, False),
        (2.9, 2.9, 2.9, False),
        (4.0, 3.0, 0.0, True),
        (1e6, 3.0, 0.0, True),
    ],
)
def test_dual_clip_bounds_the_loss_of_a_bad_token(ratio, loss, gradient, capped):
    terms, got = clip_of_ratios([ratio], -1.0, dual_clip=3.0)
    assert terms.loss.item() == pytest.approx(loss)
    assert got.item() == pytest.approx(gradient)
    assert terms.clipped_dual is not None
    assert terms.clipped_dual.item() is capped


@pytest.mark.parametrize("ratio", [0.5, 1.1, 1.5, 4.0])
@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_dual_clip_leaves_good_tokens_alone(ratio, advantage):
    terms, gradient = clip_of_ratios([ratio], advantage, dual_clip=3.0)
    plain, plain_gradient = clip_of_ratios([ratio], advantage)
    assert torch.equal(terms.loss, plain.loss)
    assert torch.equal(gradient, plain_gradient)
    assert terms.clipped_dual is not None
    assert not terms.clipped_dual.any()


OLD = -2.0


def terms_of(surrogate, ratios, advantages, **options) -> tuple[SurrogateTerms, Tensor]:
    """The terms of one completion, and the gradient of the sum of its losses with respect to log π. Old log-probs
    are −2; a ratio of None is a masked position."""
    mask = torch.tensor([[r is not None for r in ratios]])
    logprobs = torch.tensor(
        [[OLD + math.log(r) if r is not None else 0.0 for r in ratios]], dtype=torch.float64
    ).requires_grad_()
    if isinstance(advantages, float):
        advantages = [advantages] * len(ratios)
    tokens = Tokens(
        torch.where(mask, logprobs - OLD, 0.0),
        torch.where(mask, torch.tensor([advantages], dtype=torch.float64), 0.0),
        mask,
        torch.where(mask, logprobs, 0.0),
    )
    terms = surrogate(tokens, **options)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    return terms, gradient


# −clip(r) A log π with log π = −2 + log r, gradient −clip(r) A. Both conventions.
@pytest.mark.parametrize(
    ("clips", "ratio", "weight", "low", "high"),
    [
        ((1.0, 4.0), 0.01, 0.01, False, False),
        ((1.0, 4.0), 1.0, 1.0, False, False),
        ((1.0, 4.0), 4.9, 4.9, False, False),
        ((1.0, 4.0), 8.0, 5.0, False, True),
        ((0.2, 0.2), 0.01, 0.8, True, False),
        ((0.2, 0.2), 1.1, 1.1, False, False),
        ((0.2, 0.2), 8.0, 1.2, False, True),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -1.0])
def test_cispo(clips, ratio, weight, low, high, advantage):
    terms, gradient = terms_of(cispo, [ratio], advantage, clip_low=clips[0], clip_high=clips[1])
    assert terms.loss.item() == pytest.approx(-weight * advantage * (OLD + math.log(ratio)))
    assert gradient.item() == pytest.approx(-weight * advantage)
    assert (terms.clipped_low.item(), terms.clipped_high.item()) == (low, high)


# 4/τ σ(τ (r − 1)): at r = 1 it is 2/τ, with slope 1; at r = 3, τ = 1: σ(2) = 1/(1 + e⁻²), slope 4 σ (1 − σ) · 3.
@pytest.mark.parametrize(("tau_positive", "tau_negative"), [(1.0, 1.05), (2.0, 0.5)])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 2.5, -0.3])
@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.0, 1.3, 3.0])
def test_sapo(ratio, advantage, tau_positive, tau_negative):
    tau = tau_positive if advantage > 0 else tau_negative
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    terms, gradient = terms_of(sapo, [ratio], advantage, tau_positive=tau_positive, tau_negative=tau_negative)
    assert terms.loss.item() == pytest.approx(-4 / tau * gate * advantage)
    assert gradient.item() == pytest.approx(-4 * gate * (1 - gate) * ratio * advantage)
    assert not terms.clipped_low.any()
    assert not terms.clipped_high.any()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_sapo_at_ratio_one_has_the_gradient_of_ppo(advantage):
    _, gradient = terms_of(sapo, [1.0], advantage, tau_positive=1.0, tau_negative=1.05)
    assert gradient.item() == pytest.approx(-advantage, rel=1e-12)


def test_reinforce():
    terms, gradient = terms_of(reinforce, [1.0, 3.0, None], [2.0, -1.0, 9.0])
    assert terms.loss[0].tolist() == pytest.approx([4.0, OLD + math.log(3.0), 0.0])
    assert gradient[0].tolist() == pytest.approx([-2.0, 1.0, 0.0])


BAND = {"clip_low": 0.1, "clip_high": 0.2}


@pytest.mark.parametrize("surrogate", [gspo, gspo_token])
@pytest.mark.parametrize(
    # logs of the ratios: their mean .1 is inside (s = 1.105), .3 above (1.35), −.2 below (.819)
    ("logs", "advantage", "ratio", "clipped"),
    [
        ((0.3, -0.1, 0.1), 1.0, math.exp(0.1), None),
        ((0.3, -0.1, 0.1), -2.0, math.exp(0.1), None),
        ((0.9, 0.0, 0.0), 1.0, 1.2, "high"),
        ((0.9, 0.0, 0.0), -1.0, math.exp(0.3), None),
        ((-0.6, 0.0, 0.0), -1.0, 0.9, "low"),
        ((-0.6, 0.0, 0.0), 1.0, math.exp(-0.2), None),
    ],
)
def test_gspo_clips_the_geometric_mean(surrogate, logs, advantage, ratio, clipped):
    """A fourth position is masked, and does not count in the mean."""
    ratios = [*map(math.exp, logs), None]
    terms, gradient = terms_of(surrogate, ratios, advantage, **BAND)
    assert terms.loss[0].tolist() == pytest.approx([-ratio * advantage] * 3 + [0.0])
    slope = 0.0 if clipped else -ratio * advantage
    assert gradient[0].tolist() == pytest.approx([slope] * 3 + [0.0])
    assert terms.clipped_low[0].tolist() == [clipped == "low"] * 3 + [False]
    assert terms.clipped_high[0].tolist() == [clipped == "high"] * 3 + [False]


def test_gspo_spreads_advantages_by_token_and_gspo_token_keeps_them_apart():
    """s = e^.1 and A = 3, −1, 1: gspo gives every token −s times their mean 1, gspo_token −s A_t."""
    ratios, advantages, s = [*map(math.exp, (0.3, -0.1, 0.1))], [3.0, -1.0, 1.0], math.exp(0.1)
    spread, spread_gradient = terms_of(gspo, ratios, advantages, **BAND)
    apart, apart_gradient = terms_of(gspo_token, ratios, advantages, **BAND)
    assert spread.loss[0].tolist() == apart.loss[0].tolist() == pytest.approx([-s * a for a in advantages])
    assert spread_gradient[0].tolist() == pytest.approx([-s] * 3)
    assert apart_gradient[0].tolist() == pytest.approx([-s * a for a in advantages])


@pytest.mark.parametrize(
    # For A > 0 log r is cut at .4 from above alone: .9, −.9, .1 → .4, −.9, .1; for A < 0 at −.4 from below alone.
    ("advantage", "cut", "low", "high"),
    [
        (1.0, (0.4, -0.9, 0.1), [0, 0, 0], [1, 0, 0]),
        (-2.0, (0.9, -0.4, 0.1), [0, 1, 0], [0, 0, 0]),
    ],
)
def test_gmpo_clips_each_ratio_on_one_side(advantage, cut, low, high):
    terms, gradient = terms_of(
        gmpo, [*map(math.exp, (0.9, -0.9, 0.1)), None], advantage, clip_low=0.4, clip_high=0.4
    )
    value = -advantage * math.exp(sum(cut) / 3)
    assert terms.loss[0].tolist() == pytest.approx([value] * 3 + [0.0])
    kept = [not (a or b) for a, b in zip(low, high)]
    assert gradient[0].tolist() == pytest.approx([value * k for k in kept] + [0.0])
    assert terms.clipped_low[0].tolist() == [*map(bool, low), False]
    assert terms.clipped_high[0].tolist() == [*map(bool, high), False]


def test_gmpo_with_an_advantage_a_token_takes_their_mean():
    terms, _ = terms_of(gmpo, [math.e, math.e**-1, None], [3.0, -1.0, 5.0], clip_low=0.4, clip_high=0.4)
    assert terms.loss[0].tolist() == pytest.approx([-1.0, -1.0, 0.0])  # cut: .4 and −.4, mean 0; mean A 1


@pytest.mark.parametrize("name", SURROGATES)
def test_advantage_zero_gives_nothing_and_counts_nowhere(name):
    options = {option: allowed.default for option, allowed in SURROGATES[name].options.items()}
    terms, gradient = terms_of(SURROGATES[name].terms, [0.01, 1.0, 50.0], 0.0, **options)
    assert not terms.loss.any()
    assert not gradient.any()
    assert not terms.clipped_low.any()
    assert not terms.clipped_high.any()


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_at_ratio_one_every_gradient_is_minus_the_advantage(name, advantage):
    options = {option: allowed.default for option, allowed in SURROGATES[name].options.items()}
    terms, gradient = terms_of(SURROGATES[name].terms, [1.0, 1.0, 1.0, None], advantage, **options)
    assert gradient[0].tolist() == pytest.approx([-advantage] * 3 + [0.0], rel=1e-12)
    assert not terms.clipped_low.any()
    assert not terms.clipped_high.any()


def test_found_by_name():
    functions = (ppo_clip, gspo, gspo_token, cispo, sapo, gmpo, reinforce)
    assert {name: entry.terms for name, entry in SURROGATES.items()} == {f.__name__: f for f in functions}


def test_published_options():
    defaults = {
        name: {option: allowed.default for option, allowed in entry.options.items()}
        for name, entry in SURROGATES.items()
    }
    assert defaults == {
        "ppo_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None},
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "gspo_token": {"clip_low": 3e-4, "clip_high": 4e-4},
        "cispo": {"clip_low": 1.0, "clip_high": 4.0},
        "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
        "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
        "reinforce": {},
    }
