"""The log-ratio: masked before arithmetic, clamped, finite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grouprl.objectives.ratio import MAX_LOG_RATIO, MIN_LOGPROB, bounded_logprobs, log_ratio

INF, NAN = math.inf, math.nan


def ratio_and_gradient(
    new: list[float], old: list[float], mask: list[bool] | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """log-ratio, clamped flags, and the gradient of Σ exp(log-ratio) with respect to the new log-probs."""
    logprobs = torch.tensor([new], dtype=dtype, requires_grad=True)
    old_logprobs = torch.tensor([old], dtype=dtype)
    completion_mask = torch.tensor([mask or [True] * len(new)])
    value, clamped = log_ratio(logprobs, old_logprobs, completion_mask)
    (gradient,) = torch.autograd.grad(value.exp().sum(), logprobs)
    return value.detach(), clamped, gradient


def test_masked_overflow_leaves_value_and_gradient_alone():
    """exp(200) · 0 is NaN, and so is its gradient; filled before exp it is neither."""
    value, clamped, gradient = ratio_and_gradient([200.0, 0.1], [0.0, 0.0], [False, True])
    assert value[0].tolist() == pytest.approx([0.0, 0.1])
    assert gradient[0].tolist() == pytest.approx([0.0, math.exp(0.1)])
    assert clamped.tolist() == [[False, False]]


@pytest.mark.parametrize("new", [NAN, INF, -INF, 1e30, -1e30])
@pytest.mark.parametrize("old", [NAN, INF, -INF, 1e30, -1e30])
def test_masked_garbage_gives_zero(new, old):
    value, clamped, gradient = ratio_and_gradient([new, -1.0], [old, -1.5], [False, True])
    assert value[0].tolist() == [0.0, 0.5]
    assert gradient[0].tolist() == pytest.approx([0.0, math.exp(0.5)])
    assert not clamped.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [20.001, 89.0, 100.0, 1e4, 1e30])
def test_extreme_ratios_are_clamped_counted_and_without_gradient(distance, dtype):
    value, clamped, gradient = ratio_and_gradient([0.0, -distance], [-distance, 0.0], dtype=dtype)
    assert value[0].tolist() == [MAX_LOG_RATIO, -MAX_LOG_RATIO]
    assert clamped.tolist() == [[True, True]]
    assert gradient[0].tolist() == [0.0, 0.0]


def test_the_bound_itself_is_not_clamped():
    value, clamped, gradient = ratio_and_gradient([20.0, -20.0], [0.0, 0.0], dtype=torch.float64)
    assert value[0].tolist() == [20.0, -20.0]
    assert not clamped.any()
    assert gradient[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [(-INF, -1.0, -20.0), (-1.0, -INF, 20.0), (-INF, -INF, 0.0)],
)
def test_infinite_logprobs_at_trained_positions(new, old, expected):
    value, clamped, gradient = ratio_and_gradient([new, -1.0], [old, -1.0])
    assert value[0].tolist() == [expected, 0.0]
    assert clamped.tolist() == [[True, False]]
    assert gradient[0].tolist() == [0.0, 1.0]


def test_nan_at_a_trained_position_is_not_hidden():
    value, clamped, _ = ratio_and_gradient([NAN, -1.0], [-1.0, -1.0])
    assert value.isnan().tolist() == [[True, False]]
    assert clamped.tolist() == [[True, False]]


class TestBoundedLogprobs:
    def test_trained_positions_are_bounded_and_counted_and_lose_their_gradient(self):
        logprobs = torch.tensor([[-2.0, -999.0, -1001.0, -INF]], requires_grad=True)
        bounded, changed = bounded_logprobs(logprobs, torch.ones(1, 4, dtype=torch.bool))
        assert bounded[0].tolist() == [-2.0, -999.0, MIN_LOGPROB, MIN_LOGPROB]
        assert changed.tolist() == [[False, False, True, True]]
        (gradient,) = torch.autograd.grad(bounded.sum(), logprobs)
        assert gradient[0].tolist() == [1.0, 1.0, 0.0, 0.0]

    @pytest.mark.parametrize("bad", [NAN, INF, -INF, -1e30])
    def test_masked_positions_give_zero(self, bad):
        logprobs = torch.tensor([[bad, -1.0]], requires_grad=True)
        bounded, changed = bounded_logprobs(logprobs, torch.tensor([[False, True]]))
        assert bounded[0].tolist() == [0.0, -1.0]
        assert not changed.any()
        (gradient,) = torch.autograd.grad(bounded.sum(), logprobs)
        assert gradient[0].tolist() == [0.0, 1.0]

    def test_nan_at_a_trained_position_is_not_hidden(self):
        bounded, changed = bounded_logprobs(torch.tensor([[NAN]]), torch.ones(1, 1, dtype=torch.bool))
        assert bounded.isnan().all()
        assert not changed.any()
