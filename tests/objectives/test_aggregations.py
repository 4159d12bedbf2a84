"""Aggregations and denominators: by hand, and independent of how a batch is cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grouprl.errors import InputError
from grouprl.objectives import loss_denominator, policy_loss
from grouprl.objectives.aggregations import AGGREGATIONS

NAMES = ["sequence_mean", "token_mean", "constant", "sequence_sum_mean"]
MAX_TOKENS = 8


def denominator_of(name: str, mask: Tensor, **options: Any) -> Tensor:
    return loss_denominator(mask, name, max_tokens=MAX_TOKENS if name == "constant" else None, **options)


def aggregate(name: str, per_token: list[list[float]], lengths: list[int]) -> float:
    """A loss per token → the loss, on a batch whose completion i has the first lengths[i] tokens."""
    values = torch.tensor(per_token, dtype=torch.float64)
    completion_mask = torch.arange(values.shape[1])[None] < torch.tensor(lengths)[:, None]
    total = AGGREGATIONS[name].total(values, completion_mask)
    return (total / denominator_of(name, completion_mask)).item()


class TestByHand:
    TWO_ROWS = ([[2.0] * 2 + [9.0] * 6, [1.0] * 6 + [9.0] * 2], [2, 6])

    def test_sequence_mean(self):
        assert aggregate("sequence_mean", *self.TWO_ROWS) == 1.5  # (2 + 1) / 2

    def test_token_mean(self):
        assert aggregate("token_mean", *self.TWO_ROWS) == 1.25  # (2·2 + 6·1) / 8

    def test_token_mean_counts_tokens_that_add_nothing(self):
        assert (
            aggregate("token_mean", [[4.0] * 2 + [0.0] * 4, [0.0] * 6], [2, 6]) == 1.0
        )  # 8 / 8, not (4 + 0) / 2

    def test_constant_divides_by_the_places(self):
        assert aggregate("constant", *self.TWO_ROWS) == 0.625  # (2·2 + 6·1) / (2 · 8)

    def test_sequence_sum_mean(self):
        assert aggregate("sequence_sum_mean", *self.TWO_ROWS) == 5.0  # (4 + 6) / 2

    def test_masked_row_keeps_its_place_in_the_two_that_count_completions(self):
        assert aggregate("constant", [[1.0] * 4, [1.0] * 4], [4, 0]) == 0.25  # 4 / (2 · 8)
        assert aggregate("sequence_sum_mean", [[1.0] * 4, [1.0] * 4], [4, 0]) == 2.0

    def test_masked_row_leaves_both_sides_of_token_mean(self):
        assert aggregate("token_mean", [[1.0] * 4, [1.0] * 4], [4, 0]) == 1.0  # 4 / 4, not 4 / 8

    def test_masked_row_keeps_its_place_in_sequence_mean(self):
        assert aggregate("sequence_mean", [[1.0] * 4, [1.0] * 4], [4, 0]) == 0.5

    @pytest.mark.parametrize("name", NAMES)
    def test_masked_values_do_not_matter(self, name):
        expected = 3.0 / MAX_TOKENS if name == "constant" else 3.0
        assert aggregate(name, [[3.0, math.nan], [3.0, math.inf]], [1, 1]) == expected


class TestDenominator:
    MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])

    def test_counts(self):
        assert loss_denominator(self.MASK, "sequence_mean").item() == 3
        assert loss_denominator(self.MASK, "token_mean").item() == 4
        assert loss_denominator(self.MASK, "sequence_sum_mean").item() == 3
        assert loss_denominator(self.MASK, "constant", max_tokens=8).item() == 24

    def test_the_constant_does_not_follow_the_padding(self):
        assert loss_denominator(self.MASK[:, :1], "constant", max_tokens=8).item() == 24

    def test_unscored_completions_leave_it(self):
        counted = torch.tensor([True, False, True])
        assert loss_denominator(self.MASK, "sequence_mean", counted).item() == 2
        assert loss_denominator(self.MASK, "token_mean", counted).item() == 3
        assert loss_denominator(self.MASK, "constant", counted, max_tokens=8).item() == 16

    @pytest.mark.parametrize("given", [0, -1, 2.5, True, "8", torch.tensor(8)])
    @pytest.mark.parametrize("name", NAMES)
    def test_max_tokens_is_a_number_of_tokens(self, name, given):
        with pytest.raises(InputError, match=r"max_tokens=.*, expected the most tokens"):
            loss_denominator(self.MASK, name, max_tokens=given)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
    def test_empty(self, shape):
        completion_mask = torch.ones(shape, dtype=torch.bool)
        assert loss_denominator(completion_mask, "sequence_mean").item() == shape[0]
        assert loss_denominator(completion_mask, "token_mean").item() == 0

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((MASK, "mean"), "aggregation='mean', expected one of sequence_mean, token_mean, constant"),
            ((MASK.float(), "token_mean"), "completion_mask of torch.float32"),
            ((MASK[0], "token_mean"), r"completion_mask of shape \(3,\)"),
            (([[True]], "token_mean"), "completion_mask is list"),
            ((MASK, "constant"), "max_tokens=None, expected the most tokens"),
            ((MASK, "token_mean", torch.tensor([True, False])), r"counted of shape \(2,\)"),
            ((MASK, "token_mean", torch.tensor([1, 0, 1])), "counted of .* torch.int64"),
        ],
    )
    def test_refusals(self, arguments, words):
        with pytest.raises(InputError, match=rf"^loss_denominator: {words}") as error:
            loss_denominator(*arguments)
        assert ", expected " in str(error.value)
        assert "; " in str(error.value)


def random_batch(seed: int, rows: int, width: int) -> dict[str, Tensor]:
    """Some tokens clipped, some rows possibly masked whole."""
    generator = torch.Generator().manual_seed(seed)
    new = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return {
        "logprobs": new,
        "old_logprobs": new + 0.3 * noise,
        "ref_logprobs": new - 0.2 * noise.flip(0),
        "advantages": torch.randn(rows, generator=generator, dtype=torch.float64),
        "completion_mask": torch.rand(rows, width, generator=generator) < 0.7,
    }


def loss_and_gradient(batch: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    logprobs = batch["logprobs"].clone().requires_grad_()
    loss, metrics = policy_loss(**{**batch, "logprobs": logprobs}, max_tokens=MAX_TOKENS, **options)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient, metrics


def rows_of(batch: dict[str, Tensor], rows: Any) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in batch.items()}


class TestCutsOfABatch:
    @given(
        seed=st.integers(0, 2**31),
        sizes=st.lists(st.integers(0, 3), min_size=1, max_size=5),
        width=st.integers(0, 6),
        name=st.sampled_from(NAMES),
        beta=st.sampled_from([0.0, 0.1]),
    )
    @settings(deadline=None)
    def test_micro_batches_add_up_to_the_batch(self, seed, sizes, width, name, beta):
        batch = random_batch(seed, sum(sizes), width)
        whole_loss, whole_gradient, whole_metrics = loss_and_gradient(batch, aggregation=name, beta=beta)
        denominator = denominator_of(name, batch["completion_mask"])
        loss, gradients, metrics = torch.zeros((), dtype=torch.float64), [], []
        start = 0
        for size in sizes:
            part = rows_of(batch, slice(start, start + size))
            part_loss, gradient, sums = loss_and_gradient(
                part, aggregation=name, beta=beta, denominator=denominator
            )
            loss += part_loss
            gradients.append(gradient)
            metrics.append(sums)
            start += size
        torch.testing.assert_close(loss, whole_loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(torch.cat(gradients), whole_gradient, rtol=1e-12, atol=1e-14)
        for key, value in whole_metrics.items():
            added = sum((sums[key] for sums in metrics), start=torch.zeros_like(value))
            torch.testing.assert_close(added, value, rtol=1e-12, atol=1e-12)

    @given(seed=st.integers(0, 2**31), name=st.sampled_from(NAMES))
    @settings(deadline=None)
    def test_the_order_of_completions_does_not_matter(self, seed, name):
        batch = random_batch(seed, 6, 5)
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        loss, gradient, _ = loss_and_gradient(batch, aggregation=name)
        shuffled_loss, shuffled_gradient, _ = loss_and_gradient(rows_of(batch, order), aggregation=name)
        torch.testing.assert_close(shuffled_loss, loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(shuffled_gradient, gradient[order], rtol=1e-12, atol=1e-14)

    @given(seed=st.integers(0, 2**31), padding=st.integers(1, 4), name=st.sampled_from(NAMES))
    @settings(deadline=None)
    def test_padding_does_not_matter(self, seed, padding, name):
        batch = random_batch(seed, 4, 5)
        padded = {
            key: value if value.dim() == 1 else torch.nn.functional.pad(value, (0, padding))
            for key, value in batch.items()
        }
        loss, gradient, _ = loss_and_gradient(batch, aggregation=name, beta=0.1)
        padded_loss, padded_gradient, _ = loss_and_gradient(padded, aggregation=name, beta=0.1)
        torch.testing.assert_close(padded_loss, loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(padded_gradient[:, :5], gradient, rtol=1e-12, atol=1e-14)
        assert not padded_gradient[:, 5:].any()

    @given(seed=st.integers(0, 2**31), alive=st.lists(st.booleans(), min_size=5, max_size=5))
    @settings(deadline=None)
    def test_completions_without_advantage_may_be_left_out(self, seed, alive):
        """With no KL they carry no gradient; their place in the denominator stays."""
        batch = random_batch(seed, 5, 6)
        keep = torch.tensor(alive)
        batch["advantages"] = torch.where(keep, batch["advantages"], 0.0)
        for name in NAMES:
            loss, gradient, _ = loss_and_gradient(batch, aggregation=name)
            assert not gradient[~keep].any()
            denominator = denominator_of(name, batch["completion_mask"])
            kept_loss, kept_gradient, _ = loss_and_gradient(
                rows_of(batch, keep), aggregation=name, denominator=denominator
            )
            torch.testing.assert_close(kept_loss, loss, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(kept_gradient, gradient[keep], rtol=0, atol=1e-15)

    @pytest.mark.parametrize("name", NAMES)
    def test_unscored_completions_act_as_never_sampled(self, name):
        batch = random_batch(3, 5, 6)
        scored = torch.tensor([True, False, True, True, False])
        denominator = denominator_of(name, batch["completion_mask"], counted=scored)
        only = rows_of(batch, scored)
        batch["completion_mask"] = batch["completion_mask"] & scored[:, None]
        loss, gradient, _ = loss_and_gradient(batch, aggregation=name, denominator=denominator)
        only_loss, only_gradient, _ = loss_and_gradient(only, aggregation=name)
        torch.testing.assert_close(loss, only_loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradient[scored], only_gradient, rtol=1e-12, atol=1e-14)
        assert not gradient[~scored].any()

    @pytest.mark.parametrize("name", NAMES)
    def test_ranks_that_average_gradients_divide_the_denominator_by_their_number(self, name):
        batch = random_batch(4, 6, 5)
        _, whole, _ = loss_and_gradient(batch, aggregation=name)
        denominator = denominator_of(name, batch["completion_mask"]) / 2
        halves = [rows_of(batch, slice(0, 1)), rows_of(batch, slice(1, 6))]
        scaled = [loss_and_gradient(half, aggregation=name, denominator=denominator)[1] for half in halves]
        torch.testing.assert_close(torch.cat(scaled) / 2, whole, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize(
        "denominator", [7, 7.0, torch.tensor(7), torch.tensor(7.0), torch.tensor(7.0).double()]
    )
    def test_denominators_of_every_kind(self, denominator):
        batch = random_batch(5, 3, 4)
        one, one_gradient, _ = loss_and_gradient(batch, denominator=1)
        loss, gradient, _ = loss_and_gradient(batch, denominator=denominator)
        torch.testing.assert_close(loss, one / 7)
        torch.testing.assert_close(gradient, one_gradient / 7)

    @pytest.mark.parametrize("denominator", [0, 0.0, torch.tensor(0), torch.tensor(0.0)])
    def test_a_denominator_of_nothing_gives_nothing(self, denominator):
        batch = random_batch(6, 3, 4)
        batch["completion_mask"] = torch.zeros(3, 4, dtype=torch.bool)
        loss, gradient, _ = loss_and_gradient(batch, denominator=denominator)
        assert loss.item() == 0.0
        assert not gradient.any()

    def test_a_denominator_below_one_is_kept(self):
        """Two completions over four averaging ranks: 0.5."""
        batch = random_batch(7, 1, 4)
        one, _, _ = loss_and_gradient(batch, denominator=1)
        for half in (0.5, torch.tensor(0.5)):
            torch.testing.assert_close(loss_and_gradient(batch, denominator=half)[0], 2 * one)
