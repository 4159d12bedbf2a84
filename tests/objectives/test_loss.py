"""policy_loss: worked values with their gradients, edges, dtypes, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grouprl.errors import InputError
from grouprl.objectives import policy_loss

INF, NAN = math.inf, math.nan


def loss_and_gradient(
    logprobs: Tensor, *arguments: Any, **options: Any
) -> tuple[float, Tensor, dict[str, Any]]:
    logprobs = logprobs.clone().requires_grad_()
    loss, metrics = policy_loss(logprobs, *arguments, **options)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient, {name: value.item() for name, value in metrics.items()}


class TestWorkedValues:
    OLD = torch.tensor([[0.5, 0.4, 0.2]]).log()
    NEW = torch.tensor([[0.55, 0.36, 0.30]]).log()
    ALL = torch.ones(1, 3, dtype=torch.bool)

    @pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
    def test_good_completion(self, aggregation):
        loss, gradient, metrics = loss_and_gradient(
            self.NEW, self.OLD, torch.tensor([1.0]), self.ALL, aggregation=aggregation
        )
        assert loss == pytest.approx(-(1.1 + 0.9 + 1.2) / 3)
        assert gradient[0].tolist() == pytest.approx([-1.1 / 3, -0.9 / 3, 0.0])
        assert (metrics["clipped_low_tokens"], metrics["clipped_high_tokens"]) == (0, 1)

    @pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
    def test_bad_completion_is_not_clipped_where_it_rose(self, aggregation):
        loss, gradient, metrics = loss_and_gradient(
            self.NEW, self.OLD, torch.tensor([-1.0]), self.ALL, aggregation=aggregation
        )
        assert loss == pytest.approx((1.1 + 0.9 + 1.5) / 3)
        assert gradient[0].tolist() == pytest.approx([1.1 / 3, 0.9 / 3, 1.5 / 3])
        assert (metrics["clipped_low_tokens"], metrics["clipped_high_tokens"]) == (0, 0)

    @pytest.mark.parametrize("give_old", [False, True])
    def test_fresh_samples_have_ratio_one_and_a_gradient(self, give_old):
        """Nothing is clipped, the loss is 0, and d loss / d log π = −A / n all the same."""
        new = torch.tensor([[-0.3, -2.0], [-1.7, -0.1]])
        loss, gradient, metrics = loss_and_gradient(
            new, new if give_old else None, torch.tensor([1.0, -1.0]), torch.ones(2, 2, dtype=torch.bool)
        )
        assert loss == 0.0
        assert gradient.tolist() == [[-0.25, -0.25], [0.25, 0.25]]
        assert metrics["ratio_sum"] == 4.0
        assert (
            metrics["clipped_low_tokens"] == metrics["clipped_high_tokens"] == metrics["clamped_tokens"] == 0
        )
        assert metrics["kl_old_sum"] == 0.0

    def test_padding_is_not_counted(self):
        """A = ±1, lengths 1 and 3: −(1 − 3) / 4. With the pads counted it would be 0 always."""
        mask = torch.tensor([[True, False, False], [True, True, True]])
        loss, gradient, _ = loss_and_gradient(
            torch.full((2, 3), -1.0), None, torch.tensor([1.0, -1.0]), mask, aggregation="token_mean"
        )
        assert loss == 0.5
        assert gradient.tolist() == [[-0.25, 0.0, 0.0], [0.25, 0.25, 0.25]]

    def test_advantages_by_token(self):
        loss, gradient, _ = loss_and_gradient(
            torch.full((1, 3), -1.0),
            None,
            torch.tensor([[1.0, -2.0, NAN]]),
            torch.tensor([[True, True, False]]),
        )
        assert loss == 0.5
        assert gradient.tolist() == [[-0.5, 1.0, 0.0]]

    def test_square_batch_takes_one_advantage_a_completion(self):
        """B = T: (B,) runs down the completions, never along the tokens."""
        _, gradient, _ = loss_and_gradient(
            torch.full((2, 2), -1.0), None, torch.tensor([1.0, 0.0]), torch.ones(2, 2, dtype=torch.bool)
        )
        assert gradient.tolist() == [[-0.25, -0.25], [0.0, 0.0]]

    def test_kl_to_the_reference(self):
        """A = 0 leaves beta · k3 alone: d = ln 2 and −ln 2; the gradient is beta (1 − e^(−d)) / n."""
        ln2, beta = math.log(2.0), 0.1
        new = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
        ref = new - torch.tensor([[ln2, -ln2]])
        loss, gradient, metrics = loss_and_gradient(
            new, None, torch.zeros(1), torch.ones(1, 2, dtype=torch.bool), ref_logprobs=ref, beta=beta
        )
        assert loss == pytest.approx(beta * (0.193147 + 0.306853) / 2, abs=1e-7)
        assert gradient[0].tolist() == pytest.approx([beta * 0.5 / 2, beta * -1.0 / 2])
        assert metrics["kl_ref_sum"] == pytest.approx(0.5, abs=1e-6)

    def test_a_far_reference_is_clamped_and_counted(self):
        """log π = −90 where the reference has −1: e^89 overflows float32."""
        loss, gradient, metrics = loss_and_gradient(
            torch.tensor([[-90.0]]),
            None,
            torch.ones(1),
            torch.ones(1, 1, dtype=torch.bool),
            ref_logprobs=torch.tensor([[-1.0]]),
            beta=0.5,
        )
        assert loss == pytest.approx(-1.0 + 0.5 * (math.expm1(20.0) - 20.0))
        assert gradient.tolist() == [[-1.0]]  # the surrogate's alone
        assert metrics["ref_clamped_tokens"] == 1

    def test_without_beta_the_reference_is_measured_only(self):
        arguments = (self.NEW, self.OLD, torch.tensor([1.0]), self.ALL)
        plain, plain_gradient, _ = loss_and_gradient(*arguments)
        loss, gradient, metrics = loss_and_gradient(*arguments, ref_logprobs=self.OLD)
        assert loss == plain
        assert torch.equal(gradient, plain_gradient)
        # d = log 1.1, log .9, log 1.5; e^(−d) + d − 1
        assert metrics["kl_ref_sum"] == pytest.approx(
            sum(1 / r + math.log(r) - 1 for r in (1.1, 0.9, 1.5)), rel=1e-5
        )

    def test_without_beta_a_broken_reference_cannot_reach_the_loss(self):
        arguments = (self.NEW, self.OLD, torch.tensor([1.0]), self.ALL)
        plain, plain_gradient, _ = loss_and_gradient(*arguments)
        loss, gradient, metrics = loss_and_gradient(*arguments, ref_logprobs=torch.full((1, 3), NAN))
        assert loss == plain
        assert torch.equal(gradient, plain_gradient)
        assert math.isnan(metrics["kl_ref_sum"])

    def test_two_updates_on_the_same_samples(self):
        """A step of gradient descent moves the ratio off 1; a large one meets the clip, and the pull ends."""
        old = torch.full((1, 2), -1.0)
        mask, advantages = torch.ones(1, 2, dtype=torch.bool), torch.ones(1)
        _, first, metrics = loss_and_gradient(old, old, advantages, mask)
        assert metrics["clipped_high_tokens"] == 0
        _, second, metrics = loss_and_gradient(old - first, old, advantages, mask)  # log-ratio .5
        assert metrics["clipped_high_tokens"] == 2
        assert metrics["ratio_sum"] == pytest.approx(2 * math.exp(0.5))
        assert not second.any()

    def test_only_logprobs_receive_a_gradient(self):
        new, old, ref, entropy = (torch.full((1, 2), -1.0, requires_grad=True) for _ in range(4))
        advantages = torch.ones(1, requires_grad=True)
        loss, _ = policy_loss(
            new,
            old,
            advantages,
            torch.ones(1, 2, dtype=torch.bool),
            ref_logprobs=ref,
            beta=0.1,
            entropy=entropy,
        )
        loss.backward()
        assert new.grad is not None
        assert all(x.grad is None for x in (old, ref, entropy, advantages))


class TestNothingTrained:
    @pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
    @pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0), (0, 0)])
    @pytest.mark.parametrize("fill", [-1.0, NAN, -INF])
    def test_loss_is_zero_and_backward_works(self, shape, fill, aggregation):
        logprobs = torch.full(shape, fill, requires_grad=True)
        mask = torch.zeros(shape, dtype=torch.bool)
        filled = torch.full(shape, fill)
        advantages = torch.full((shape[0],), NAN)
        loss, metrics = policy_loss(
            logprobs, filled, advantages, mask, aggregation=aggregation, ref_logprobs=filled, beta=0.1
        )
        loss.backward()
        assert loss.item() == 0.0
        assert logprobs.grad is not None
        assert torch.equal(logprobs.grad, torch.zeros(shape))
        assert metrics["tokens"].item() == metrics["completions"].item() == 0

    def test_a_masked_row_adds_nothing(self):
        mask = torch.tensor([[True, True], [False, False]])
        new = torch.tensor([[-1.0, -2.0], [NAN, -INF]])
        loss, gradient, _ = loss_and_gradient(
            new, None, torch.tensor([1.0, -5.0]), mask, aggregation="token_mean"
        )
        assert loss == -1.0
        assert gradient.tolist() == [[-0.5, -0.5], [0.0, 0.0]]


class TestNumbers:
    @given(
        seed=st.integers(0, 2**31),
        garbage=st.lists(st.sampled_from([NAN, INF, -INF, 1e30, -1e30, 0.0]), min_size=5, max_size=5),
        aggregation=st.sampled_from(["sequence_mean", "token_mean"]),
    )
    @settings(deadline=None)
    def test_masked_garbage_changes_nothing(self, seed, garbage, aggregation):
        generator = torch.Generator().manual_seed(seed)
        new, old, ref, entropy, advantages = torch.randn(5, 3, 4, generator=generator).unbind(0)
        mask = torch.rand(3, 4, generator=generator) < 0.6
        dirty = [torch.where(mask, x, bad) for x, bad in zip((new, old, advantages, ref, entropy), garbage)]
        options = {"aggregation": aggregation, "beta": 0.1}
        clean_loss, clean_gradient, clean = loss_and_gradient(
            new, old, advantages, mask, ref_logprobs=ref, entropy=entropy, **options
        )
        loss, gradient, metrics = loss_and_gradient(
            *dirty[:3], mask, ref_logprobs=dirty[3], entropy=dirty[4], **options
        )
        assert loss == clean_loss
        assert torch.equal(gradient, clean_gradient)
        assert not gradient[~mask].any()
        assert metrics == clean

    @pytest.mark.parametrize("advantage", [1.0, -1.0])
    @pytest.mark.parametrize(
        ("new", "old"), [(0.0, -100.0), (-100.0, 0.0), (-INF, -1.0), (-1.0, -INF), (-INF, -INF)]
    )
    @pytest.mark.parametrize("clips", [(0.2, 0.2), (1.0, INF)])
    def test_extreme_ratios_stay_finite_and_are_counted(self, new, old, advantage, clips):
        loss, gradient, metrics = loss_and_gradient(
            torch.tensor([[new, -1.0]]),
            torch.tensor([[old, -1.0]]),
            torch.tensor([advantage]),
            torch.ones(1, 2, dtype=torch.bool),
            clip_low=clips[0],
            clip_high=clips[1],
            ref_logprobs=torch.tensor([[old, -1.0]]),
            beta=0.1,
        )
        assert math.isfinite(loss)
        assert gradient.tolist() == [[0.0, -advantage / 2]]
        assert metrics["clamped_tokens"] == metrics["ref_clamped_tokens"] == 1
        assert all(math.isfinite(value) for value in metrics.values())

    def test_the_loss_of_a_clamped_token(self):
        """A = −1 and a ratio of e^100: e²⁰ stands in, without a gradient."""
        loss, gradient, _ = loss_and_gradient(
            torch.zeros(1, 1), torch.full((1, 1), -100.0), -torch.ones(1), torch.ones(1, 1, dtype=torch.bool)
        )
        assert loss == pytest.approx(math.exp(20.0))
        assert gradient.item() == 0.0

    def test_nan_at_a_trained_position_is_seen(self):
        loss, _ = policy_loss(
            torch.tensor([[NAN, -1.0]]), None, torch.ones(1), torch.ones(1, 2, dtype=torch.bool)
        )
        assert loss.isnan()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        torch.manual_seed(0)
        new, old, ref = (-3 * torch.rand(3, 4, 5)).to(dtype).unbind(0)
        advantages, mask = torch.randn(4).to(dtype), torch.rand(4, 5) < 0.8
        half = new.clone().requires_grad_()
        loss, metrics = policy_loss(half, old, advantages, mask, ref_logprobs=ref, beta=0.1)
        loss.backward()
        wide_loss, wide_gradient, wide = loss_and_gradient(
            new.float(), old.float(), advantages.float(), mask, ref_logprobs=ref.float(), beta=0.1
        )
        assert loss.dtype == torch.float32
        assert loss.item() == wide_loss
        assert half.grad is not None
        assert torch.equal(half.grad, wide_gradient.to(dtype))
        assert {name: value.item() for name, value in metrics.items()} == wide

    def test_half_precision_samplers_do_not_narrow_the_trainer(self):
        new = torch.tensor([[-1.001]])
        _, metrics = policy_loss(
            new,
            torch.tensor([[-1.0]], dtype=torch.bfloat16),
            torch.ones(1),
            torch.ones(1, 1, dtype=torch.bool),
        )
        assert metrics["ratio_sum"].item() == pytest.approx(math.exp(-0.001), rel=1e-6)

    def test_float64_stays_float64(self):
        new = torch.full((1, 2), -1.0, dtype=torch.float64)
        loss, _ = policy_loss(new, new.float(), torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
        assert loss.dtype == torch.float64

    @pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
    @pytest.mark.parametrize("beta", [0.0, 0.3])
    def test_gradcheck(self, aggregation, beta):
        """Log-ratios well away from the kinks at log .8 and log 1.2, on each side of both."""
        generator = torch.Generator().manual_seed(1)
        old = -3 * torch.rand(3, 4, generator=generator, dtype=torch.float64)
        steps = torch.tensor([[0.0, 0.1, -0.1, 0.5], [-0.5, 0.05, 0.6, -0.6], [0.3, -0.3, 0.15, -0.15]])
        ref = old + 0.4 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
        advantages = torch.tensor([1.5, -0.7, -1.1], dtype=torch.float64)
        mask = torch.tensor([[True, True, True, True], [True, True, True, False], [True, False, True, True]])

        def loss_of(logprobs: Tensor) -> Tensor:
            return policy_loss(
                logprobs, old, advantages, mask, aggregation=aggregation, ref_logprobs=ref, beta=beta
            )[0]

        assert torch.autograd.gradcheck(loss_of, ((old + steps).requires_grad_(),))

    def test_no_value_is_looked_at(self):
        """On the meta device there are none: any wait for a value raises."""
        with torch.device("meta"):
            new = torch.empty(2, 3, requires_grad=True)
            loss, metrics = policy_loss(
                new,
                torch.empty(2, 3),
                torch.empty(2),
                torch.ones(2, 3, dtype=torch.bool),
                aggregation="token_mean",
                ref_logprobs=torch.empty(2, 3),
                beta=0.1,
                denominator=torch.tensor(7),
                entropy=torch.empty(2, 3),
            )
            loss.backward()
        assert loss.device.type == "meta"
        assert all(value.device.type == "meta" for value in metrics.values())

    def test_inputs_are_left_as_they_are(self):
        inputs = [torch.tensor([[-1.0, NAN]]) for _ in range(4)] + [
            torch.ones(1),
            torch.tensor([[True, False]]),
        ]
        before = [x.clone() for x in inputs]
        new, old, ref, entropy, advantages, mask = inputs
        policy_loss(new, old, advantages, mask, ref_logprobs=ref, beta=0.1, entropy=entropy)
        for value, original in zip(inputs, before):
            torch.testing.assert_close(value, original, equal_nan=True, rtol=0, atol=0)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"aggregation": "mean"},
                "aggregation='mean', expected one of sequence_mean, token_mean, constant",
            ),
            ({"surrogate": "ppo"}, "surrogate='ppo', expected one of ppo_clip, gspo"),
            ({"kl": "k4"}, "kl='k4', expected one of k1, k2, k3"),
            ({"dual_clip": 1.0}, "dual_clip=1.0, expected a number, above 1"),
            ({"tau_positive": 1.0}, "tau_positive=1.0 with surrogate='ppo_clip', expected only options"),
            ({"surrogate": "reinforce", "clip_low": 0.2}, r"clip_low=0.2 with .*reinforce.* \(none\)"),
            (
                {"surrogate": "sapo", "tau_negative": 0.0},
                "tau_negative=0.0, expected a finite number, above 0",
            ),
            ({"surrogate": "cispo", "dual_clip": 3.0}, "dual_clip=3.0 with surrogate='cispo'"),
            ({"entropy_weight": -1.0}, "entropy_weight=-1.0"),
            ({"entropy_weight": 0.1}, "entropy_weight=0.1 without entropy"),
            ({"clip_low": -0.1}, "clip_low=-0.1, expected a number, from 0 to 1"),
            ({"clip_low": 1.5}, "clip_low=1.5"),
            ({"clip_low": NAN}, "clip_low=nan"),
            ({"clip_low": True}, "clip_low=True"),
            ({"clip_high": -0.1}, "clip_high=-0.1, expected a number, 0 or more"),
            ({"clip_high": "0.2"}, "clip_high='0.2'"),
            ({"beta": -1.0}, "beta=-1.0, expected a finite number, 0 or more"),
            ({"beta": INF}, "beta=inf"),
            ({"beta": NAN}, "beta=nan"),
            ({"beta": 0.1}, "beta=0.1 without ref_logprobs"),
            ({"logprobs": torch.zeros(2, 4)}, r"logprobs of shape \(2, 4\), expected \(2, 3\)"),
            ({"logprobs": torch.zeros(2, 3, 5)}, r"logprobs of shape \(2, 3, 5\)"),
            ({"logprobs": torch.zeros(2, 3, dtype=torch.long)}, "logprobs of torch.int64"),
            ({"logprobs": [[0.0]]}, "logprobs is list"),
            ({"logprobs": None}, "logprobs is NoneType"),
            ({"logprobs": torch.zeros(2, 3, device="meta")}, "logprobs on meta, expected cpu"),
            ({"old_logprobs": torch.zeros(3, 2)}, r"old_logprobs of shape \(3, 2\)"),
            ({"ref_logprobs": torch.zeros(1, 3)}, r"ref_logprobs of shape \(1, 3\)"),
            ({"entropy": torch.zeros(2)}, r"entropy of shape \(2,\)"),
            ({"advantages": torch.zeros(3)}, r"advantages of shape \(3,\), expected \(2,\) or \(2, 3\)"),
            ({"advantages": torch.zeros(2, 1)}, r"advantages of shape \(2, 1\)"),
            ({"advantages": torch.zeros(())}, r"advantages of shape \(\)"),
            ({"advantages": torch.zeros(2, dtype=torch.long)}, "advantages of torch.int64"),
            ({"completion_mask": torch.ones(2, 3)}, "completion_mask of torch.float32, expected torch.bool"),
            ({"completion_mask": torch.ones(3, dtype=torch.bool)}, r"completion_mask of shape \(3,\)"),
            ({"denominator": -1}, "denominator is -1"),
            ({"denominator": NAN}, "denominator is nan"),
            ({"denominator": True}, "denominator is True"),
            ({"denominator": "8"}, "denominator is '8'"),
            ({"denominator": torch.tensor([8.0])}, r"denominator is a tensor of shape \(1,\)"),
            ({"denominator": torch.tensor(True)}, "denominator is a tensor of .* torch.bool"),
        ],
    )
    def test_one_line_says_what_was_given_and_expected(self, changes, words):
        inputs: dict[str, Any] = {
            "logprobs": torch.zeros(2, 3),
            "old_logprobs": None,
            "advantages": torch.zeros(2),
            "completion_mask": torch.ones(2, 3, dtype=torch.bool),
        }
        with pytest.raises(InputError, match=rf"^policy_loss: {words}") as error:
            policy_loss(**{**inputs, **changes})
        message = str(error.value)
        assert ", expected " in message
        assert "; " in message
        assert "\n" not in message
