"""k1, k2, k3: values, signs, gradients, and the expectations they estimate; the penalty for rewards."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.errors import InputError
from grouprl.objectives import kl_penalty, summarise
from grouprl.objectives.kl import KL_ESTIMATORS, k1, k2, k3

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


def test_the_three_differ():
    """log π − log π_ref = ln 2: an option that falls through to k3 would be seen."""
    d = torch.tensor([[LN2]], dtype=torch.float64)
    values = [KL_ESTIMATORS[name](d).item() for name in ("k1", "k2", "k3")]
    assert values == pytest.approx([0.693147, 0.240227, 0.193147], abs=5e-7)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [(k1, 0.030300, (0.0, 0.0)), (k2, 0.029835, (0.1175, -0.1175)), (k3, 0.030300, (0.1225, -0.1225))],
)
def test_expectations_over_two_tokens(estimator, value, gradient):
    """Logits .3 and −.2, uniform reference, probabilities held fixed: KL(π ‖ ref) is .030300, its gradient
    ±.1175. k1 has no gradient, k2 the right one, k3 that of KL(ref ‖ π)."""
    logits = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(dim=0)
    estimate = (logprobs.detach().exp() * estimator((logprobs - math.log(0.5))[None])[0]).sum()
    (got,) = torch.autograd.grad(estimate, logits)
    assert estimate.item() == pytest.approx(value, abs=5e-7)
    assert got.tolist() == pytest.approx(gradient, abs=5e-5)


class TestPenalty:
    LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -1.0]])
    REFERENCE = torch.tensor([[-1.5, -1.0, math.nan], [-1.0, -3.0, -math.inf]])
    MASK = torch.tensor([[True, True, False], [True, True, False]])
    D = ((0.5, -1.0), (0.0, 2.0))

    @pytest.mark.parametrize(
        ("kl", "of"),
        [
            ("k1", lambda d: d),
            ("k2", lambda d: d * d / 2),
            ("k3", lambda d: math.exp(-d) + d - 1),
        ],
    )
    def test_by_hand(self, kl, of):
        token, _ = kl_penalty(self.LOGPROBS, self.REFERENCE, self.MASK, beta=0.1, kl=kl, level="token")
        sequence, sums = kl_penalty(self.LOGPROBS, self.REFERENCE, self.MASK, beta=0.1, kl=kl)
        expected = [[0.1 * of(d) for d in row] for row in self.D]
        for row, values in zip(token.tolist(), expected):
            assert row == pytest.approx([*values, 0.0], abs=1e-7)
        assert sequence.tolist() == pytest.approx([sum(row) for row in expected], abs=1e-7)
        assert summarise(sums) == pytest.approx(
            {
                "tokens": 4.0,
                "completions": 2.0,
                "kl_ref": sum(map(sum, expected)) / 0.4,
                "ref_clamped_share": 0.0,
            },
            abs=1e-6,
        )

    def test_k1_may_be_negative_and_that_is_right(self):
        """Its expectation is the KL; single tokens that the reference likes better earn a reward."""
        penalty, _ = kl_penalty(self.LOGPROBS, self.REFERENCE, self.MASK, beta=1.0)
        assert penalty[0].item() == pytest.approx(-0.5)

    def test_extremes_are_clamped_and_counted(self):
        penalty, sums = kl_penalty(
            torch.tensor([[0.0, -math.inf, -1.0]]),
            torch.tensor([[-100.0, -1.0, -math.inf]]),
            torch.ones(1, 3, dtype=torch.bool),
            beta=1.0,
            level="token",
        )
        assert penalty.tolist() == [[20.0, -20.0, 20.0]]
        assert sums["ref_clamped_tokens"].item() == 3

    def test_no_gradient_and_the_trainers_dtype(self):
        for dtype, narrow in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
            logprobs = self.LOGPROBS.to(narrow).requires_grad_()
            penalty, _ = kl_penalty(logprobs, self.LOGPROBS, self.MASK, beta=0.1)
            assert penalty.dtype == dtype
            assert not penalty.requires_grad

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"beta": -0.1}, "beta=-0.1, expected a finite number, 0 or more"),
            ({"beta": 0.1, "kl": "k4"}, "kl='k4', expected one of k1, k2, k3"),
            ({"beta": 0.1, "level": "turn"}, "level='turn', expected one of sequence, token"),
            ({"beta": 0.1, "ref_logprobs": torch.zeros(2, 2)}, r"ref_logprobs of shape \(2, 2\)"),
            ({"beta": 0.1, "completion_mask": torch.ones(2, 3)}, "completion_mask of torch.float32"),
        ],
    )
    def test_refusals(self, options, words):
        inputs = {
            "logprobs": self.LOGPROBS,
            "ref_logprobs": self.REFERENCE,
            "completion_mask": self.MASK,
        }
        with pytest.raises(InputError, match=f"^kl_penalty: {words}"):
            kl_penalty(**(inputs | options))

    def test_empty(self):
        nothing = torch.zeros(0, 3)
        penalty, _ = kl_penalty(nothing, nothing, nothing.bool(), beta=0.1)
        assert penalty.shape == (0,)


def test_found_by_name():
    assert dict(KL_ESTIMATORS) == {"k1": k1, "k2": k2, "k3": k3}
