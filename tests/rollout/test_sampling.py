"""Drawing a token by inverting the cumulative distribution."""

import math

import pytest
import torch

from grouprl.rollout import Sampling
from grouprl.rollout.sampling import draw, uniforms

LOGITS = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()


def drawn(u, logits=LOGITS, **options):
    tokens, logprobs = draw(
        logits.expand(len(u), -1), torch.tensor(u, dtype=torch.float64), Sampling(**options)
    )
    return tokens.tolist(), logprobs.tolist()


def test_the_cumulative_distribution_is_inverted():
    """Cumulative 0.1, 0.3, 0.6, 1: u in [0, 0.1) is token 0, in [0.1, 0.3) token 1, …"""
    tokens, logprobs = drawn([0.0, 0.099, 0.101, 0.299, 0.301, 0.599, 0.601, 0.999999])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert logprobs == pytest.approx([math.log(p) for p in (0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4)])


def test_temperature_sharpens():
    """At T = 0.5 probabilities go with their squares: 1, 4, 9, 16 of 30."""
    tokens, logprobs = drawn([0.03, 0.04, 0.17, 0.47], temperature=0.5)
    assert tokens == [0, 1, 2, 3]
    assert logprobs == pytest.approx([math.log(k / 30) for k in (1, 4, 9, 16)], abs=1e-6)


def test_top_k_and_top_p_rule_out_and_leave_logprobs_alone():
    grid = [k / 50 for k in range(50)]
    assert set(drawn(grid, top_k=2)[0]) == {2, 3}
    assert set(drawn(grid, top_p=0.4)[0]) == {3}
    assert set(drawn(grid, top_p=0.41)[0]) == {2, 3}
    assert set(drawn(grid, top_p=1e-9)[0]) == {3}
    assert set(drawn(grid, top_k=3, top_p=0.99)[0]) == {1, 2, 3}
    assert drawn([0.5], top_p=0.4)[1] == pytest.approx([math.log(0.4)])


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    assert set(drawn([0.0, 0.25, 0.5, 0.75, 1 - 1e-16], logits)[0]) == {1, 3}


def test_greedy_takes_the_best_and_reports_temperature_one():
    tokens, logprobs = drawn([0.0, 0.9], temperature=0.0)
    assert tokens == [3, 3]
    assert logprobs == pytest.approx([math.log(0.4)] * 2)


def test_frequencies_follow_the_probabilities():
    u = uniforms(seed=0, stream="s", key="k", sample_index=0, count=20_000)
    tokens, _ = drawn(u.tolist())
    for token, p in enumerate((0.1, 0.2, 0.3, 0.4)):
        assert tokens.count(token) / 20_000 == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 20_000))


def test_each_argument_changes_the_numbers():
    base = {"seed": 0, "stream": "train/1", "key": "p", "sample_index": 0}
    streams = [
        base,
        base | {"seed": 1},
        base | {"stream": "train/2"},
        base | {"key": "q"},
        base | {"sample_index": 1},
    ]
    assert len({tuple(uniforms(**s, count=3)) for s in streams}) == 5
    u = uniforms(**base, count=1000)
    assert u.min() >= 0
    assert u.max() < 1


def test_keys_cannot_be_confused():
    """("a", "b/c") and ("a/b", "c") would be one text if they were only joined."""
    assert uniforms(seed=1, stream="a", key="b/c", sample_index=0, count=1) != uniforms(
        seed=1, stream="a/b", key="c", sample_index=0, count=1
    )


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 4096])
def test_a_vocabulary_of_any_size_is_searched_as_a_whole(size):
    """Against one cumulative sum in float64; where u falls on a boundary rounding may choose either side."""
    generator = torch.Generator().manual_seed(size)
    logits = 4 * torch.randn(200, size, generator=generator)
    u = torch.rand(200, generator=generator, dtype=torch.float64)
    tokens, logprobs = draw(logits, u, Sampling())
    cumulative = logits.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(cumulative, u[:, None], right=True)[:, 0].clamp(max=size - 1)
    differ = tokens != expected
    distance = (cumulative.gather(-1, expected[:, None])[:, 0] - u).abs()
    before = (cumulative.gather(-1, (expected - 1).clamp(min=0)[:, None])[:, 0] - u).abs()
    assert (torch.minimum(distance, before)[differ] < 1e-5).all()
    own = logits.double().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), own, rtol=0, atol=1e-5)


def test_the_ends_of_the_unit_interval():
    logits = torch.full((2, 700), -math.inf)
    logits[:, [3, 690]] = 0.0
    tokens, _ = draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), Sampling())
    assert tokens.tolist() == [3, 690]
