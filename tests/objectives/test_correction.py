"""The weight for what sampler and trainer see differently: worked values, gradients, edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.errors import InputError
from grouprl.objectives import loss_denominator, policy_loss, summarise
from grouprl.objectives.correction import sampler_weights

INF, NAN = math.inf, math.nan
MASK = torch.tensor([[True, True, True], [True, True, False]])
# w = π_old / π_sampler: .5, 3, 1 (product 1.5) and 2, .1 (product .2)
WEIGHTS = torch.tensor([[0.5, 3.0, 1.0], [2.0, 0.1, 1.0]], dtype=torch.float64)
OLD = torch.full((2, 3), -1.0, dtype=torch.float64)
SAMPLER = OLD - WEIGHTS.log()


def weights_of(correction, level, low=0.0, high=2.0, sampler=SAMPLER, mask=MASK):
    return sampler_weights(OLD, sampler, mask, correction=correction, level=level, low=low, high=high)


# The masked sixth entry is 1 and never corrected.
WORKED = [
    ("truncated", "token", 0.0, 2.0, [[0.5, 2.0, 1.0], [2.0, 0.1, 1.0]], [[0, 1, 0], [0, 0, 0]]),
    ("truncated", "token", 0.4, 2.0, [[0.5, 2.0, 1.0], [2.0, 0.1, 1.0]], [[0, 1, 0], [0, 0, 0]]),
    ("truncated", "token", 0.0, INF, [[0.5, 3.0, 1.0], [2.0, 0.1, 1.0]], [[0, 0, 0], [0, 0, 0]]),
    ("masked", "token", 0.0, 2.5, [[0.5, 0.0, 1.0], [2.0, 0.1, 1.0]], [[0, 1, 0], [0, 0, 0]]),
    ("masked", "token", 0.3, 2.5, [[0.5, 0.0, 1.0], [2.0, 0.0, 1.0]], [[0, 1, 0], [0, 1, 0]]),
    ("truncated", "sequence", 0.0, 1.2, [[1.2, 1.2, 1.2], [0.2, 0.2, 1.0]], [[1, 1, 1], [0, 0, 0]]),
    ("masked", "sequence", 0.0, 2.0, [[1.5, 1.5, 1.5], [0.2, 0.2, 1.0]], [[0, 0, 0], [0, 0, 0]]),
    ("masked", "sequence", 0.3, 2.0, [[1.5, 1.5, 1.5], [0.0, 0.0, 1.0]], [[0, 0, 0], [1, 1, 0]]),
]


@pytest.mark.parametrize(("correction", "level", "low", "high", "weights", "corrected"), WORKED)
def test_worked_weights(correction, level, low, high, weights, corrected):
    got = weights_of(correction, level, low, high)
    torch.testing.assert_close(got.weights, torch.tensor(weights, dtype=torch.float64), rtol=1e-12, atol=0)
    assert got.corrected.tolist() == [[bool(x) for x in row] for row in corrected]
    assert not got.clamped.any()


def test_the_bounds_themselves_are_inside():
    sampler = torch.full((1, 2), -1.0)
    old = sampler.clone()  # w is exactly 1
    for low, high in ((1.0, 1.0), (0.0, 1.0), (1.0, INF)):
        got = sampler_weights(
            old,
            sampler,
            torch.ones(1, 2, dtype=torch.bool),
            correction="masked",
            level="token",
            low=low,
            high=high,
        )
        assert got.weights.tolist() == [[1.0, 1.0]]
        assert not got.corrected.any()


@pytest.mark.parametrize(("correction", "level", "low", "high", "weights", "corrected"), WORKED)
def test_loss_and_gradient_are_the_surrogates_times_the_weight(
    correction, level, low, high, weights, corrected
):
    """At ratio 1 the gradient of a token is −A over the count, times w; five tokens, A = 2 and −1."""
    logprobs = OLD.clone().requires_grad_()
    loss, metrics = policy_loss(
        logprobs,
        None,
        torch.tensor([2.0, -1.0]),
        MASK,
        aggregation="token_mean",
        sampler_logprobs=SAMPLER,
        correction=correction,
        correction_level=level,
        correction_low=low,
        correction_high=high,
    )
    loss.backward()
    rows = [[-2.0 * w / 5 for w in weights[0]], [1.0 * w / 5 for w in weights[1][:2]] + [0.0]]
    assert loss.item() == pytest.approx(sum(map(sum, rows)))
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor(rows, dtype=torch.float64))
    assert metrics["sampler_weight_sum"].item() == pytest.approx(sum(weights[0]) + sum(weights[1][:2]))
    assert metrics["corrected_tokens"].item() == sum(map(sum, corrected))
    assert metrics["sampler_clamped_tokens"].item() == 0
    means = summarise(metrics)
    assert means["sampler_weight_mean"] == pytest.approx((sum(weights[0]) + sum(weights[1][:2])) / 5)
    assert means["sampler_corrected_share"] == pytest.approx(sum(map(sum, corrected)) / 5)
    assert means["sampler_clamped_share"] == 0.0


def test_the_weight_is_of_the_old_policy_not_of_the_one_being_trained():
    """r = 1.1 over old; w = 3 of old over sampler, truncated to 2: −A · 2 · 1.1, and not (1.1 · 3) anywhere."""
    old, mask = torch.full((1, 1), -1.0, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    logprobs = (old + math.log(1.1)).requires_grad_()
    loss, metrics = policy_loss(logprobs, old, torch.ones(1), mask, sampler_logprobs=old - math.log(3.0))
    loss.backward()
    assert loss.item() == pytest.approx(-2.2)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-2.2)
    assert metrics["sampler_weight_sum"].item() == pytest.approx(2.0)


def test_the_kl_is_not_weighted():
    """A = 0 leaves beta · k3 alone, whatever the weight: d = ln 2, k3 = .5 + ln 2 − 1."""
    logprobs = torch.full((1, 1), -1.0, dtype=torch.float64)
    arguments = (logprobs, None, torch.zeros(1), torch.ones(1, 1, dtype=torch.bool))
    reference = logprobs - math.log(2.0)
    for sampler in (logprobs, logprobs + 3.0, logprobs - 3.0):
        loss, _ = policy_loss(*arguments, ref_logprobs=reference, beta=0.5, sampler_logprobs=sampler)
        assert loss.item() == pytest.approx(0.5 * (0.5 + math.log(2.0) - 1.0))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_a_sampler_that_agrees_changes_no_bit(correction, level):
    torch.manual_seed(0)
    logprobs, old = (-2 * torch.rand(2, 4, 6)).unbind(0)
    advantages, mask = torch.randn(4), torch.rand(4, 6) < 0.8
    plain, _ = policy_loss(logprobs, old, advantages, mask)
    loss, metrics = policy_loss(
        logprobs,
        old,
        advantages,
        mask,
        sampler_logprobs=old,
        correction=correction,
        correction_level=level,
        correction_low=0.5,
    )
    assert torch.equal(loss, plain)
    assert summarise(metrics)["sampler_weight_mean"] == 1.0


@pytest.mark.parametrize(("correction", "sampler"), [("off", SAMPLER), ("truncated", None)])
def test_without_a_correction_nothing_is_applied_or_reported(correction, sampler):
    logprobs = OLD.clone()
    plain, expected = policy_loss(logprobs, None, torch.tensor([2.0, -1.0]), MASK)
    loss, metrics = policy_loss(
        logprobs, None, torch.tensor([2.0, -1.0]), MASK, sampler_logprobs=sampler, correction=correction
    )
    assert torch.equal(loss, plain)
    assert metrics.keys() == expected.keys()
    assert not {"sampler_weight_mean", "sampler_corrected_share"} & summarise(metrics).keys()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", ["truncated", "masked"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30, -1e30])
def test_masked_positions_touch_nothing(bad, correction, level):
    def result(sampler):
        logprobs = OLD.clone().requires_grad_()
        loss, metrics = policy_loss(
            logprobs,
            None,
            torch.tensor([2.0, -1.0]),
            MASK,
            sampler_logprobs=sampler,
            correction=correction,
            correction_level=level,
        )
        loss.backward()
        return loss, logprobs.grad, metrics

    loss, gradient, metrics = result(torch.where(MASK, SAMPLER, bad))
    clean_loss, clean_gradient, clean = result(SAMPLER)
    assert torch.equal(loss, clean_loss)
    assert torch.equal(gradient, clean_gradient)
    assert metrics == clean


@pytest.mark.parametrize(("correction", "too_large"), [("truncated", 2.0), ("masked", 0.0)])
@pytest.mark.parametrize("sampler", [-101.0, -INF])
def test_extreme_weights_above_are_clamped_and_counted(sampler, correction, too_large):
    got = sampler_weights(
        torch.tensor([[-1.0, -1.0]]),
        torch.tensor([[sampler, -1.0]]),
        torch.ones(1, 2, dtype=torch.bool),
        correction=correction,
        level="token",
        low=0.0,
        high=2.0,
    )
    assert got.weights.tolist() == [[too_large, 1.0]]
    assert got.corrected.tolist() == got.clamped.tolist() == [[True, False]]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_without_an_upper_bound_the_clamp_holds(level):
    """Two tokens of log-weight 60 each: e²⁰ for the token, and e²⁰ for the product, not e⁴⁰."""
    got = sampler_weights(
        torch.full((1, 2), -1.0),
        torch.full((1, 2), -61.0),
        torch.ones(1, 2, dtype=torch.bool),
        correction="truncated",
        level=level,
        low=0.0,
        high=INF,
    )
    assert got.weights[0].tolist() == pytest.approx([math.exp(20.0)] * 2)
    assert got.clamped.all()
    assert not got.corrected.any()


def test_a_long_completion_is_clamped_by_its_product():
    """30 tokens with log-weight −1: none is extreme, e^−30 together is; the masked tail is not counted."""
    old = torch.zeros(1, 31)
    mask = torch.arange(31)[None] < 30
    got = sampler_weights(old, old + 1.0, mask, correction="truncated", level="sequence", low=0.0, high=2.0)
    assert got.weights[mask].tolist() == pytest.approx([math.exp(-20.0)] * 30)
    assert torch.equal(got.clamped, mask)


@pytest.mark.parametrize("correction", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_nan_at_a_trained_position_is_seen(level, correction):
    loss, _ = policy_loss(
        OLD,
        None,
        torch.ones(2),
        MASK,
        sampler_logprobs=SAMPLER + torch.tensor([[NAN, 0.0, 0.0], [0.0, 0.0, 0.0]]),
        correction=correction,
        correction_level=level,
    )
    assert loss.isnan()


@given(
    seed=st.integers(0, 2**31),
    correction=st.sampled_from(["truncated", "masked"]),
    level=st.sampled_from(["token", "sequence"]),
    aggregation=st.sampled_from(["sequence_mean", "token_mean"]),
    cut=st.integers(0, 5),
)
@settings(deadline=None)
def test_micro_batches_add_up(seed, correction, level, aggregation, cut):
    generator = torch.Generator().manual_seed(seed)
    logprobs, old, sampler = (
        torch.randn(3, 5, 4, generator=generator, dtype=torch.float64) * 0.3 - 2
    ).unbind(0)
    advantages = torch.randn(5, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 4, generator=generator) < 0.7
    options = {
        "aggregation": aggregation,
        "correction": correction,
        "correction_level": level,
        "correction_low": 0.6,
        "correction_high": 1.5,
        "denominator": loss_denominator(mask, aggregation),
    }
    whole, sums = policy_loss(logprobs, old, advantages, mask, sampler_logprobs=sampler, **options)
    parts = [
        policy_loss(logprobs[s], old[s], advantages[s], mask[s], sampler_logprobs=sampler[s], **options)
        for s in (slice(0, cut), slice(cut, 5))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole)
    for name, value in sums.items():
        torch.testing.assert_close(parts[0][1][name] + parts[1][1][name], value)


def test_neither_sampler_nor_weight_carries_a_gradient():
    logprobs, sampler = OLD.clone().requires_grad_(), SAMPLER.clone().requires_grad_()
    loss, _ = policy_loss(logprobs, None, torch.ones(2), MASK, sampler_logprobs=sampler)
    loss.backward()
    assert sampler.grad is None


def test_half_precision_samplers_are_read_in_float32():
    old = torch.full((1, 1), -1.0)
    loss, _ = policy_loss(
        old,
        None,
        torch.ones(1),
        torch.ones(1, 1, dtype=torch.bool),
        sampler_logprobs=torch.full((1, 1), -1.5, dtype=torch.bfloat16),
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.exp(0.5), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"correction": "clip"}, "correction='clip', expected one of off, truncated, masked"),
        ({"correction_level": "turn"}, "correction_level='turn', expected one of token, sequence"),
        ({"correction_low": -0.1}, "correction_low=-0.1"),
        ({"correction_low": NAN}, "correction_low=nan"),
        ({"correction_low": INF}, "correction_low=inf"),
        ({"correction_high": "2"}, "correction_high='2'"),
        ({"correction_low": 3.0}, "correction_low=3.0 and correction_high=2.0"),
        ({"sampler_logprobs": torch.zeros(2, 4)}, r"sampler_logprobs of shape \(2, 4\)"),
        ({"sampler_logprobs": torch.zeros(2, 3, dtype=torch.long)}, "sampler_logprobs of torch.int64"),
        ({"sampler_logprobs": [0.0]}, "sampler_logprobs is list"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=rf"^policy_loss: {words}") as error:
        policy_loss(OLD, None, torch.ones(2), MASK, **options)
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)


def test_no_value_is_looked_at():
    with torch.device("meta"):
        mask = torch.ones(2, 3, dtype=torch.bool)
        for level in ("token", "sequence"):
            for correction in ("truncated", "masked"):
                loss, _ = policy_loss(
                    torch.empty(2, 3),
                    None,
                    torch.empty(2),
                    mask,
                    sampler_logprobs=torch.empty(2, 3),
                    correction=correction,
                    correction_level=level,
                )
                assert loss.is_meta
