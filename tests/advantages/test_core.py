"""Values worked out by hand, and inputs that went wrong elsewhere. The laws are in tests/properties."""

import math

import numpy as np
import pytest
import torch

import grouprl

NAN, INF = math.nan, math.inf
SQRT_3_2 = math.sqrt(1.5)  # 1 / std of [1, 2, 3]


def close(got: torch.Tensor, want: list, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), torch.tensor(want, dtype=torch.float64), rtol=0, atol=tolerance)


def test_the_equation():
    close(grouprl.grpo_group_advantages(torch.tensor([[1.0, 2.0, 3.0]])), [[-SQRT_3_2, 0.0, SQRT_3_2]])


def test_eps_is_added_to_the_std():
    close(grouprl.grpo_group_advantages(torch.tensor([0.0, 2.0]), eps=1.0), [-0.5, 0.5])
    close(grouprl.grpo_group_advantages(torch.tensor([0.0, 2.0]), 3.0), [-0.25, 0.25])


@pytest.mark.parametrize(
    ("keywords", "right", "wrong"),
    [
        ({"ddof": 1}, 1.2076, -0.7246),  # std √(15/56): .625 / .51755
        ({"ddof": 0}, 1.2910, -0.7746),  # std √(15/64): .625 / .48412
        ({"scale": "none"}, 0.625, -0.375),
    ],
)
def test_three_of_eight_right(keywords, right, wrong):
    rewards = torch.tensor([1.0] * 3 + [0.0] * 5)
    close(grouprl.group_advantages(rewards, **keywords), [right] * 3 + [wrong] * 5, 5e-5)


def test_ddof_is_population_by_default():
    one_of_four = torch.tensor([1.0, 0.0, 0.0, 0.0])
    root3 = math.sqrt(3)
    close(grouprl.grpo_group_advantages(one_of_four), [root3, -1 / root3, -1 / root3, -1 / root3])
    close(grouprl.group_advantages(one_of_four, ddof=1), [1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("value", "size"), [(0.1, 7), (0.7, 11), (100.1, 7), (1000.1, 7), (0.1, 6), (0.1, 3)]
)
def test_equal_rewards_give_exactly_zero(value, size, dtype):
    row = torch.full((size,), value, dtype=dtype)
    matrix = torch.stack([torch.arange(size).to(dtype), row, row])
    ids = torch.arange(3).repeat_interleave(size)
    for eps in (1e-6, 0.0):
        assert not grouprl.grpo_group_advantages(row, eps).any()
        assert not grouprl.grpo_group_advantages(matrix, eps)[1:].any()
        assert not grouprl.group_advantages(matrix.flatten(), ids, eps=eps).view(3, -1)[1:].any()


@pytest.mark.parametrize("size", range(1, 65))
def test_a_fifth_in_any_group_size_is_exactly_zero(size):
    assert not grouprl.grpo_group_advantages(torch.full((size,), 0.2)).any()
    assert not grouprl.grpo_group_advantages([0.2] * size).any()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e38, NAN, INF])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_group_of_one_is_exactly_zero(value, ddof):
    assert grouprl.group_advantages(torch.tensor([value]), ddof=ddof).tolist() == [0.0]
    assert grouprl.group_advantages(torch.tensor([[value], [2.0]]), ddof=ddof).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_no_rewards_give_an_empty_result_of_their_shape(shape, dtype):
    rewards = torch.zeros(shape, dtype=dtype)
    result = grouprl.grpo_group_advantages(rewards)
    assert result.shape == shape
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    valid = torch.ones(shape, dtype=torch.bool)
    assert grouprl.group_advantages(rewards, valid=valid).shape == shape


def test_no_rewards_with_no_ids():
    assert grouprl.group_advantages(torch.tensor([]), []).shape == (0,)
    assert grouprl.group_advantages([], [], valid=[]).shape == (0,)
    assert grouprl.group_advantages([], torch.tensor([], dtype=torch.int64)).dtype == torch.float32


def test_unscored_rewards():
    close(grouprl.grpo_group_advantages(torch.tensor([1.0, NAN, 3.0])), [-1, 0, 1])
    close(grouprl.grpo_group_advantages(torch.tensor([INF, 1.0, 3.0, -INF])), [0, -1, 1, 0])
    assert grouprl.grpo_group_advantages(torch.tensor([NAN, NAN])).tolist() == [0, 0]
    assert grouprl.group_advantages([1.0, None, None, None], ddof=1).tolist() == [0, 0, 0, 0]
    valid = torch.tensor([True, False, True])
    close(grouprl.group_advantages(torch.tensor([1, 7, 3]), valid=valid), [-1, 0, 1])


def test_an_unscored_group_does_not_touch_its_neighbours():
    rewards = torch.tensor([[NAN, NAN, NAN], [1.0, 2.0, 3.0]])
    close(grouprl.grpo_group_advantages(rewards), [[0, 0, 0], [-SQRT_3_2, 0, SQRT_3_2]])


def test_bf16_is_not_computed_in_bf16():
    rewards = torch.tensor([1, 1, 1, 1.0078125], dtype=torch.bfloat16)
    result = grouprl.grpo_group_advantages(rewards, eps=0.0)
    assert result.dtype == torch.float32
    close(result, [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)])


def test_fp16_does_not_overflow():
    rewards = torch.tensor([6e4, 6e4, -6e4], dtype=torch.float16)
    close(grouprl.grpo_group_advantages(rewards), [1 / math.sqrt(2), 1 / math.sqrt(2), -math.sqrt(2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_magnitudes_are_as_small_ones(dtype):
    rewards = torch.tensor([1e20, 2e20, 3e20], dtype=dtype)
    close(grouprl.grpo_group_advantages(rewards), [-SQRT_3_2, 0, SQRT_3_2], 1e-6)
    close(grouprl.grpo_group_advantages(torch.tensor([1e38, -1e38], dtype=dtype)), [1, -1], 1e-6)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_the_ends_of_float64(eps):
    largest = torch.finfo(torch.float64).max
    rewards = torch.tensor([largest, -largest, 0.0], dtype=torch.float64)
    close(grouprl.grpo_group_advantages(rewards, eps), [SQRT_3_2, -SQRT_3_2, 0], 1e-15)
    tiny = torch.tensor([0.0, 5e-324, 1e-323], dtype=torch.float64)
    close(grouprl.grpo_group_advantages(tiny, 0.0), [-SQRT_3_2, 0, SQRT_3_2], 1e-15)
    assert not grouprl.grpo_group_advantages(tiny, 1e-6).abs().gt(1e-300).any()
    assert not grouprl.grpo_group_advantages(tiny, 1e300).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_unscaled_deviation_saturates(dtype):
    largest = torch.finfo(dtype).max
    rewards = torch.tensor([largest, -largest, -largest], dtype=dtype)
    result = grouprl.group_advantages(rewards, scale="none")
    assert result[0].item() == largest  # 4/3 of it
    torch.testing.assert_close(result[1:] / largest, torch.tensor([-2 / 3, -2 / 3], dtype=dtype))


def test_a_wide_range_within_one_group():
    result = grouprl.grpo_group_advantages(torch.tensor([1.0, 2.0, 1e-20, 1e30]))
    close(result, [-1 / math.sqrt(3)] * 3 + [math.sqrt(3)])


@pytest.mark.parametrize(
    ("rewards", "want"),
    [
        (torch.tensor([True, False]), [1, -1]),
        (torch.tensor([3, 1, 2]), [SQRT_3_2, -SQRT_3_2, 0]),
        (torch.tensor([200, 0], dtype=torch.uint8), [1, -1]),
        (torch.tensor([2**62, -(2**62)]), [1, -1]),
        (torch.tensor([2**52, 2**52 + 1]), [-1, 1]),  # no tolerance for whole numbers
    ],
)
def test_whole_numbers(rewards, want):
    result = grouprl.grpo_group_advantages(rewards)
    assert result.dtype == torch.get_default_dtype()
    close(result, want)


def test_whole_numbers_follow_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        assert grouprl.grpo_group_advantages(torch.tensor([1, 2])).dtype == torch.float64
        assert grouprl.grpo_group_advantages([0.5, 2]).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_same_bits_alone_in_a_matrix_flat_and_shuffled():
    group = torch.tensor([0.1, 0.7, 0.3, 0.9])
    alone = grouprl.grpo_group_advantages(group)
    others = torch.tensor([[5.0, 1e30, -2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    matrix = torch.cat([others, group[None]])
    assert torch.equal(grouprl.grpo_group_advantages(matrix)[2], alone)
    ids = torch.tensor([2] * 4 + [0] * 4 + [1] * 4)
    assert torch.equal(grouprl.group_advantages(matrix.flatten(), ids)[8:], alone)
    order = torch.tensor([8, 3, 11, 0, 9, 1, 4, 10, 2, 5, 6, 7])
    shuffled = grouprl.group_advantages(matrix.flatten()[order], ids[order])
    assert torch.equal(shuffled[order.argsort()][8:], alone)


def test_groups_are_by_id_not_by_place():
    """Two prompts stored P1, P2, P1, P2: a reshape would pair P1 with P2."""
    assert grouprl.group_advantages([1.0, 0.0, 1.0, 0.0], ["P1", "P2", "P1", "P2"]).tolist() == [0, 0, 0, 0]


def test_the_baseline_is_the_groups_not_the_batchs():
    assert not grouprl.grpo_group_advantages(torch.tensor([[1.0, 1.0], [0.0, 0.0]])).any()


def test_any_leading_shape():
    rewards = torch.arange(24.0).view(2, 3, 4) ** 2
    result = grouprl.grpo_group_advantages(rewards)
    assert torch.equal(result[1, 2], grouprl.grpo_group_advantages(rewards[1, 2]))
    assert torch.equal(grouprl.group_advantages(rewards, valid=torch.ones(2, 3, 4, dtype=torch.bool)), result)


@pytest.mark.parametrize("masked", [False, True])
def test_a_batch_larger_than_a_block(masked):
    """On a CPU rows are computed in blocks; the last one is not full."""
    rewards = torch.rand(3, 5000, 7, generator=torch.Generator().manual_seed(0))
    valid = rewards > 0.1 if masked else None
    result = grouprl.group_advantages(rewards, valid=valid)
    for where in [(0, 0), (0, 4680), (0, 4681), (1, 2500), (2, 4999)]:
        row = grouprl.group_advantages(rewards[where], valid=None if valid is None else valid[where])
        assert torch.equal(result[where], row)


def test_the_caller_keeps_rewards_and_gradient():
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([1.0, 2.0, 4.0], dtype=dtype, requires_grad=True)
        before = rewards.detach().clone()
        result = grouprl.grpo_group_advantages(rewards)
        assert not result.requires_grad
        assert torch.equal(rewards, before)
        mutable = before.clone()
        grouprl.group_advantages(mutable, [0, 0, 1])
        assert torch.equal(mutable, before)


def test_no_negative_zero():
    rewards = torch.tensor([1.0, 1.0 + 2**-23, 1.0, -1.0, -1.0, -2.0], dtype=torch.float32)
    result = grouprl.group_advantages(rewards, [0, 0, 0, 1, 1, 2])
    assert not result.any()
    assert not torch.signbit(result).any()


def test_it_can_be_compiled():
    compiled = torch.compile(grouprl.grpo_group_advantages, backend="eager", fullgraph=True)
    rewards = torch.tensor([[0.1, 0.7, 0.3, 0.9], [0.1] * 4, [NAN, 1.0, 2.0, INF]])
    assert torch.equal(compiled(rewards), grouprl.grpo_group_advantages(rewards))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"eps": -1e-6}, r"group_advantages: eps is -1e-06, expected a finite number ≥ 0"),
        ({"eps": NAN}, "eps is nan, expected a finite number"),
        ({"eps": INF}, "eps is inf, expected a finite number"),
        ({"eps": "small"}, "eps is 'small', expected a finite number"),
        ({"eps": None}, "eps is None, expected a finite number"),
        ({"spread_ulps": -1}, "spread_ulps is -1.0, expected a finite number ≥ 0"),
        ({"ddof": 2}, "ddof is 2, expected 0 or 1"),
        ({"ddof": None}, "ddof is None, expected 0 or 1"),
        ({"baseline": "media"}, "baseline is 'media', expected one of 'mean', 'leave_one_out', "),
        ({"scale": "var"}, "scale is 'var', expected one of 'std', 'batch_std', "),
        ({"scale": None}, "scale is None, expected one of 'std', 'batch_std', "),
    ],
)
def test_unusable_options_say_what_is_expected(keywords, message):
    with pytest.raises(ValueError, match=message) as error:
        grouprl.group_advantages(torch.tensor([1.0, 2.0]), **keywords)
    assert isinstance(error.value, grouprl.errors.InputError)
    assert "\n" not in str(error.value)


def test_numpy_and_torch_agree():
    rewards = np.array([[0.1, 0.7, 0.3, 0.9], [1, 1, 1, 1]], dtype=np.float32)
    result = grouprl.grpo_group_advantages(rewards)
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, grouprl.grpo_group_advantages(torch.from_numpy(rewards)).numpy())
