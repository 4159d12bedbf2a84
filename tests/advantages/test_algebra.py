"""Every baseline over every scale, against fractions; and the pairs that make no sense."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch

from grouprl import group_advantages
from grouprl.errors import InputError

BASELINES = ["mean", "leave_one_out", "median", "length_weighted", "quantile"]
SCALES = ["std", "batch_std", "mean_abs", "mad", "mean", "none"]
PAIRS = list(product(BASELINES, SCALES))
ROWS = [
    [1, 0, 0, 0],
    [3, 1, 4, 1, 5, 9, 2, 6],
    [0, 7, 7],
    [2, 3],
    [10, 20, 30, 40, 50],
    [0, 0, 0, 1, 1, 2, 8],
]
LENGTHS = [[k * k % 7 + 1 for k in range(len(row))] for row in ROWS]


def middle(values):
    ordered, n = sorted(values), len(values)
    return Fraction(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def mean(values):
    return Fraction(sum(values)) / len(values)


def baselines(row, lengths, i):
    n = len(row)
    return {
        "mean": mean(row),
        "leave_one_out": mean(row[:i] + row[i + 1 :]),
        "median": middle(row),
        "length_weighted": Fraction(sum(a * b for a, b in zip(row, lengths)), sum(lengths)),
        # the smallest reward that at least 40 % do not exceed
        "quantile": next(x for x in sorted(row) if 10 * sum(y <= x for y in row) >= 4 * n),
    }


def scales(row, batch):
    m = mean(row)
    deviation = middle([abs(r - middle(row)) for r in row])
    if deviation:
        deviation = max(deviation, Fraction(max(row) - min(row), 32))
    return {
        "std": math.sqrt(mean([(r - m) ** 2 for r in row])),
        "batch_std": math.sqrt(mean([(r - mean(batch)) ** 2 for r in batch])),
        "mean_abs": mean([abs(r - m) for r in row]),
        "mad": deviation or 1,
        "mean": m,
        "none": 1,
    }


@pytest.mark.parametrize(("baseline", "scale"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_every_pair_by_its_definition(baseline, scale, dtype):
    flat = [r for row in ROWS for r in row]
    want = [
        float((row[i] - baselines(row, lengths, i)[baseline]) / scales(row, flat)[scale])
        for row, lengths in zip(ROWS, LENGTHS)
        for i in range(len(row))
    ]
    ids = torch.arange(len(ROWS)).repeat_interleave(torch.tensor([len(row) for row in ROWS]))
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([n for row in LENGTHS for n in row])
    got = group_advantages(
        torch.tensor(flat).to(dtype)[order],
        ids[order],
        baseline=baseline,
        scale=scale,
        eps=0.0,
        lengths=lengths[order],
    )
    tolerance = 1e-13 if dtype == torch.float64 else 3e-7
    wanted = torch.tensor(want, dtype=torch.float64)[order]
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("baseline", "scale"), PAIRS)
def test_matrix_flat_and_blocks_agree_to_the_bit(baseline, scale):
    generator = torch.Generator().manual_seed(1)
    rewards = torch.rand(5000, 8, generator=generator).round(decimals=1)  # several blocks
    rewards[::7] = 0.3
    rewards[::11, 2] = math.nan
    lengths = torch.randint(1, 50, rewards.shape, generator=generator)
    keywords = {"baseline": baseline, "scale": scale}
    matrix = group_advantages(rewards, lengths=lengths, **keywords)
    ids = torch.arange(5000).repeat_interleave(8)
    order = torch.randperm(rewards.numel(), generator=generator)
    flat = group_advantages(
        rewards.flatten()[order], ids[order], lengths=lengths.flatten()[order], **keywords
    )
    assert torch.equal(matrix.flatten()[order], flat)
    assert matrix.isfinite().all()
    assert not matrix[::7].any()


def test_without_baseline_the_scored_rewards_come_back():
    rewards = torch.tensor([0.3, 0.3, math.nan, 1e38])
    got = group_advantages(rewards, baseline="none", scale="none", valid=[True, False, True, True])
    assert got.tolist() == torch.tensor([0.3, 0.0, 0.0, 1e38]).tolist()
    assert group_advantages(torch.tensor([2, 3]), baseline="none", scale="none").tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"baseline": "none"}, "baseline='none' with scale='std'"),
        ({"baseline": "none", "scale": "mad"}, "baseline='none' with scale='mad'"),
        ({"baseline": "leave_one_out", "scale": "leave_one_out_std"}, "scale of the whole group"),
        ({"baseline": "length_weighted"}, "lengths is missing"),
        ({"baseline": "length_weighted", "lengths": [1, -1]}, "negative"),
        ({"baseline": "length_weighted", "lengths": [1, math.nan]}, "missing or infinite"),
        ({"baseline": "length_weighted", "lengths": [1]}, "lengths has shape"),
        ({"quantile": 0.3}, "quantile is 0.3 with baseline='mean'"),
        ({"baseline": "quantile", "quantile": 1.5}, "expected a share from 0 to 1"),
    ],
)
def test_senseless_options_say_so(keywords, message):
    with pytest.raises(InputError, match=message):
        group_advantages([1.0, 0.0], **keywords)


def test_negative_rewards_have_no_mean_to_divide_by():
    with pytest.raises(InputError, match="negative"):
        group_advantages([[1.0, 0.0], [-1.0, 1.0]], scale="mean")
    assert group_advantages([1.0, 0.0, -1.0], scale="mean", valid=[True, True, False]).any()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.28, 0.55, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("n", [2, 3, 7, 10, 25, 30, 100])
def test_the_quantile_is_the_inverted_cdf(share, n):
    """Exact ranks: 0.28 · 25 comes out above 7 in floating point."""
    row = list(range(n))
    numerator = round(share * 100)
    rank = max(-(-numerator * n // 100), 1)
    got = group_advantages(torch.tensor(row), baseline="quantile", quantile=share, scale="none")
    assert got.tolist() == [float(r - (rank - 1)) for r in row]


def test_no_token_in_a_group_counts_every_completion_once():
    assert group_advantages(
        [1.0, 0.0], baseline="length_weighted", scale="none", lengths=[0, 0]
    ).tolist() == [
        0.5,
        -0.5,
    ]


def test_where_looking_would_wait_a_length_that_is_none_counts_as_nothing(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    lengths = torch.tensor([-5.0, math.nan, 1.0, 3.0])
    keywords = {"baseline": "length_weighted", "scale": "none"}
    assert group_advantages(torch.tensor([9.0, 9.0, 1.0, 5.0]), lengths=lengths, **keywords).tolist() == [
        5.0,
        5.0,
        -3.0,
        1.0,
    ]
    negative = group_advantages(torch.tensor([[1.0, 0.0], [1.0, -1.0]]), scale="mean", eps=0.0)
    assert negative.tolist() == [[1.0, -1.0], [0.0, 0.0]]


def test_a_winner_beside_equal_losers_does_not_explode():
    """Leave-one-out over a leave-one-out std gave it a million."""
    one_of_four = [1.0, 0.0, 0.0, 0.0]
    got = group_advantages(one_of_four, baseline="leave_one_out", scale="none")
    torch.testing.assert_close(got, torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3]))
    for eps in (1e-6, 0.0):
        over_std = group_advantages(one_of_four, baseline="leave_one_out", eps=eps)
        assert over_std.abs().max().item() <= 4 / math.sqrt(3) + 1e-6


def test_a_majority_with_one_reward_has_no_median_deviation():
    got = group_advantages(torch.tensor([5.0, 1.0, 1.0]), baseline="median", scale="mad")
    assert got.tolist() == [4.0, 0.0, 0.0]
    nearly = torch.tensor([100.0, 0.5, 0.501, 0.499, 0.5005])
    assert group_advantages(nearly, baseline="median", scale="mad").abs().max().item() <= 32.0
