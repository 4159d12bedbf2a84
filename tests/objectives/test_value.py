"""The critic's loss: values by hand, gradients by finite differences, parts that add up to the whole."""

from __future__ import annotations

import math

import pytest
import torch

from grouprl.errors import InputError
from grouprl.objectives import explained_variance, loss_denominator, value_loss
from grouprl.objectives.aggregations import AGGREGATIONS

ONE = torch.ones(1, 1, dtype=torch.bool)


def token(value: float, old: float, goal: float, clip: float | None = 0.2) -> tuple[float, float, int]:
    """Loss, gradient and clipped count of a single token."""
    v = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    loss, sums = value_loss(
        v, torch.tensor([[old]]).double(), torch.tensor([[goal]]).double(), ONE, value_clip=clip
    )
    loss.backward()
    assert v.grad is not None
    return loss.item(), v.grad.item(), int(sums["value_clipped_tokens"])


@pytest.mark.parametrize(
    ("value", "old", "goal", "clip", "loss", "gradient", "clipped"),
    [
        (0.6, 0.5, 1.0, 0.2, 0.08, -0.4, 0),  # inside the bounds: ½ (V − R)²
        (0.9, 0.5, 1.0, 0.2, 0.045, 0.0, 1),  # towards R, beyond the bound: ½ (0.7 − 1)², no more to gain
        (0.1, 0.5, 1.0, 0.2, 0.405, -0.9, 0),  # away from R: the whole error, as always
        (1.5, 0.5, 1.0, 0.2, 0.125, 0.5, 0),  # past R by more than the bound keeps away from it
        (0.9, 0.5, 1.0, None, 0.005, -0.1, 0),
        (0.9, 0.5, 1.0, math.inf, 0.005, -0.1, 0),
        (0.9, 0.5, 1.0, 0.0, 0.125, 0.0, 1),  # a critic that may not move
    ],
)
def test_one_token_by_hand(value, old, goal, clip, loss, gradient, clipped):
    got = token(value, old, goal, clip)
    assert got[0] == pytest.approx(loss, abs=1e-12)
    assert got[1] == pytest.approx(gradient, abs=1e-12)
    assert got[2] == clipped


def batch(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    values, old, returns = (torch.randn(5, 6, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(6) < torch.tensor([6, 1, 0, 4, 3])[:, None]
    return values, old, returns, mask


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_add_up_to_the_whole(aggregation):
    values, old, returns, mask = batch()
    whole = values.clone().requires_grad_()
    loss, sums = value_loss(whole, old, returns, mask, aggregation=aggregation, max_tokens=8)
    loss.backward()
    denominator = loss_denominator(mask, aggregation, max_tokens=8)
    parts = values.clone().requires_grad_()
    total, added = 0.0, dict.fromkeys(sums, 0.0)
    for rows in ([0], [1, 2], [3, 4]):
        part, part_sums = value_loss(
            parts[rows],
            old[rows],
            returns[rows],
            mask[rows],
            aggregation=aggregation,
            denominator=denominator,
        )
        part.backward()
        total += part.item()
        added = {name: added[name] + float(value) for name, value in part_sums.items()}
    torch.testing.assert_close(torch.tensor(total, dtype=torch.float64), loss.detach())
    torch.testing.assert_close(parts.grad, whole.grad)
    assert added == pytest.approx({name: float(value) for name, value in sums.items()})


def test_gradient_is_that_of_finite_differences():
    values, old, returns, mask = batch(1)
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old, returns, mask)[0], values.requires_grad_(), eps=1e-7
    )


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_is_masked_touches_nothing(junk):
    values, old, returns, mask = batch(2)
    clean = values.clone().requires_grad_()
    loss, sums = value_loss(clean, old, returns, mask)
    loss.backward()
    dirty = torch.where(mask, values, junk).requires_grad_()
    same, same_sums = value_loss(dirty, torch.where(mask, old, junk), torch.where(mask, returns, junk), mask)
    same.backward()
    assert same.item() == loss.item()
    assert torch.equal(dirty.grad, clean.grad)
    assert {k: float(v) for k, v in same_sums.items()} == {k: float(v) for k, v in sums.items()}


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)])
def test_nothing_trained_is_no_loss(shape):
    values = torch.randn(shape, requires_grad=True)
    mask = torch.zeros(shape, dtype=torch.bool)
    loss, _ = value_loss(values, values.detach(), values.detach() + 1, mask)
    loss.backward()
    assert loss.item() == 0.0
    assert not values.grad.any()


def test_explained_variance_is_that_of_the_definition():
    values, _, returns, mask = batch(3)
    _, sums = value_loss(values, values, returns, mask)
    r, v = returns[mask], values[mask]
    expected = 1 - (r - v).var(correction=0) / r.var(correction=0)
    got = explained_variance(
        count=float(sums["value_tokens"]),
        total=float(sums["return_sum"]),
        square=float(sums["return_square_sum"]),
        error=float(sums["value_error_sum"]),
        error_square=float(sums["value_error_square_sum"]),
    )
    assert got == pytest.approx(float(expected))
    assert explained_variance(count=3, total=3.0, square=3.0, error=0.0, error_square=0.0) is None
    assert explained_variance(count=0, total=0.0, square=0.0, error=0.0, error_square=0.0) is None


def test_what_it_refuses():
    values, old, returns, mask = batch()
    with pytest.raises(InputError, match=r"value_clip=-1"):
        value_loss(values, old, returns, mask, value_clip=-1)
    with pytest.raises(InputError, match=r"returns of shape"):
        value_loss(values, old, returns[:, :2], mask)
    with pytest.raises(InputError, match=r"aggregation='mean'"):
        value_loss(values, old, returns, mask, aggregation="mean")
