"""The shorter way in gives the general way's bits, and leaves to it whatever is unusual."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import grouprl
from grouprl.advantages import core
from grouprl.advantages.host_rows import LARGEST, MANY_ROWS, standardised_rows
from grouprl.advantages.inputs import BLOCK

OPTIONS = (1e-6, 0, 4.0)


def both(rewards, **options):
    """What the public function gives, and what it gives without the shorter way."""
    mine = grouprl.group_advantages(rewards, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "standardised_rows", lambda *_: None)
        return mine, grouprl.group_advantages(rewards, **options)


def same_bits(a, b):
    assert a.dtype == b.dtype == torch.float32
    assert a.shape == b.shape
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))  # −0 is not 0


finite = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 100.1, 1e-45, 3e38, -3e38]),
    st.integers(0, 3).map(lambda i: 0.7 + i * 2.0**-24),
)
shapes = st.tuples(st.integers(1, 40), st.integers(2, 12))


@given(
    arrays.arrays(np.float32, shapes, elements=finite),
    st.sampled_from([0.0, 1e-6, 1e-4, 0.5]),
    st.sampled_from([0, 1]),
    st.sampled_from([0, 4, 100.0]),
)
def test_the_bits_of_the_general_way(rewards, eps, ddof, spread_ulps):
    rewards = torch.from_numpy(rewards)
    assert standardised_rows(rewards, eps, ddof, float(spread_ulps)) is not None
    same_bits(*both(rewards, eps=eps, ddof=ddof, spread_ulps=spread_ulps))


@pytest.mark.parametrize(
    "shape",
    [
        *((2,), (7,), (LARGEST,), (2, 3, 4), (1, 1, 2), (5, 1, LARGEST)),
        *((MANY_ROWS, 2), (MANY_ROWS + 1, 2), (BLOCK // 16 + 1, 16), (3, BLOCK // 16, 16)),
    ],
    ids=str,
)
def test_all_shapes(shape):
    rewards = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    rewards.view(-1, shape[-1])[::3] = 0.1
    assert standardised_rows(rewards, *OPTIONS) is not None
    same_bits(*both(rewards))


def test_any_strides_and_gradients():
    base = torch.rand(12, 20, 2, generator=torch.Generator().manual_seed(2))
    for rewards in (base[..., 0], base[..., 0].T, base[::2, ::3, 1], base[:, :1, 0].expand(12, 5)):
        before = rewards.clone()
        same_bits(*both(rewards))
        assert torch.equal(rewards, before)
    result = grouprl.group_advantages(base[..., 0].clone().requires_grad_())
    assert not result.requires_grad
    same_bits(result, grouprl.group_advantages(base[..., 0]))


def test_the_result_is_the_callers_own():
    rewards = torch.rand(3, 4)
    first, before = grouprl.group_advantages(rewards), rewards.clone()
    kept = first.clone()
    first.add_(1.0)
    assert torch.equal(rewards, before)
    assert torch.equal(grouprl.group_advantages(rewards), kept)


@pytest.mark.parametrize(
    "rewards",
    [
        torch.rand(3, 4).double(),
        torch.rand(3, 4).bfloat16(),
        torch.ones(3, 4, dtype=torch.int64),
        torch.rand(3, 1),
        torch.rand(3, LARGEST + 1),
        torch.rand(0, 4),
        torch.rand(3, 0),
        torch.tensor(1.0),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.rand(3, 4)),
        torch.empty(3, 4, device="meta"),
        np.ones((3, 4), np.float32),
        [[1.0, 0.0]],
    ],
    ids=str,
)
def test_what_is_unusual_goes_the_general_way(rewards):
    assert standardised_rows(rewards, *OPTIONS) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", [(2, 8), (999, 16), (9000, 8)], ids=str)
def test_one_reward_that_is_not_finite_is_enough(value, shape):
    for place in (0, -1):
        rewards = torch.rand(shape, generator=torch.Generator().manual_seed(3))
        rewards.view(-1)[place] = value
        assert standardised_rows(rewards, *OPTIONS) is None
        rewards[0] = value  # a whole row
        assert standardised_rows(rewards, *OPTIONS) is None
        assert grouprl.group_advantages(rewards).isfinite().all()
