"""k3: values, sign, gradient, and the expectation it estimates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.objectives.kl import KL_ESTIMATORS, k3

LN2 = math.log(2.0)


# Named by log π_ref − log π, the exponent: e^x − x − 1.
@pytest.mark.parametrize(
    ("ref_minus_policy", "expected"),
    [
        (0.0, 0.0),
        (1.0, 0.718282),  # e − 2
        (-1.0, 0.367879),  # 1/e
        (LN2, 0.306853),  # 2 − ln 2 − 1
        (-LN2, 0.193147),  # 1/2 + ln 2 − 1
    ],
)
def test_values(ref_minus_policy, expected):
    value = k3(torch.tensor([[-ref_minus_policy]], dtype=torch.float64))
    assert value.item() == pytest.approx(expected, abs=5e-7)


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40))
def test_never_negative(log_ratios):
    assert (k3(torch.tensor([log_ratios], dtype=torch.float32)) >= 0).all()


def test_gradient_is_one_minus_the_inverse_ratio():
    log_ratio = torch.tensor([[-3.0, -LN2, 0.0, LN2, 3.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(k3(log_ratio).sum(), log_ratio)
    assert gradient[0].tolist() == pytest.approx([1 - math.exp(-d) for d in log_ratio[0].tolist()], abs=1e-15)
    assert torch.autograd.gradcheck(k3, (log_ratio,))


def test_small_divergences_are_not_rounded_away():
    """d = 1e-3 in float32: d²/2 = 5e-7, of which e^(−d) + d − 1 in float32 keeps no digit or one."""
    d = torch.tensor([[1e-3]], dtype=torch.float32)
    exact = sum((-d.item()) ** n / math.factorial(n) for n in range(2, 10))
    assert k3(d).item() == pytest.approx(exact, rel=1e-3)


def test_expectation_is_the_reverse_kl_and_the_gradient_is_not():
    """Two tokens, logits .3 and −.2, uniform reference, the expectation taken exactly.

    The value is KL(π ‖ ref). The gradient through the log-probs alone is Σ π (1 − ref/π) ∇ log π, which is
    −Σ ref ∇ log π, that of the forward KL(ref ‖ π): π − ref at each logit.
    """
    logits = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(dim=0)
    probabilities = logprobs.detach().exp()
    estimate = (probabilities * k3((logprobs - math.log(0.5))[None])[0]).sum()
    (gradient,) = torch.autograd.grad(estimate, logits)
    p = 1 / (1 + math.exp(-0.5))
    reverse_kl = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert estimate.item() == pytest.approx(reverse_kl, abs=1e-12)
    assert estimate.item() == pytest.approx(0.030300, abs=5e-7)
    assert gradient.tolist() == pytest.approx([p - 0.5, 0.5 - p], abs=1e-12)
    assert gradient.tolist() == pytest.approx([0.1225, -0.1225], abs=5e-5)


def test_found_by_name():
    assert KL_ESTIMATORS["k3"] is k3
