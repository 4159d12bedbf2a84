"""Completions that were cut off: out of the mask, or less reward."""

from __future__ import annotations

import math

import pytest
import torch

from grouprl.errors import InputError
from grouprl.objectives import filter_overlong, loss_denominator, policy_loss, soft_overlong_penalty
from grouprl.objectives.aggregations import AGGREGATIONS

MASK = torch.tensor([[True, True, False, True], [True, True, True, True], [True, False, False, False]])


class TestFilter:
    def test_a_cut_off_completion_loses_its_tokens_and_others_keep_their_gaps(self):
        filtered = filter_overlong(MASK, ["stop", "length", "stop"])
        assert filtered.tolist() == [MASK[0].tolist(), [False] * 4, MASK[2].tolist()]

    @pytest.mark.parametrize(
        # A loss of 1 a token, two rows of four, the second cut off, at most 8 tokens.
        ("aggregation", "loss"),
        [
            ("token_mean", 1.0),  # 4 / 4, not 4 / 8
            ("sequence_mean", 0.5),  # 1 of 2 completions
            ("constant", 0.25),  # 4 / (2 · 8)
            ("sequence_sum_mean", 2.0),  # 4 / 2
        ],
    )
    def test_what_it_does_to_the_loss(self, aggregation, loss):
        mask = filter_overlong(torch.ones(2, 4, dtype=torch.bool), ["stop", "length"])
        logprobs = torch.full((2, 4), -1.0, requires_grad=True)
        got, _ = policy_loss(logprobs, None, -torch.ones(2), mask, aggregation=aggregation, max_tokens=8)
        got.backward()
        assert got.item() == loss
        assert logprobs.grad is not None
        assert logprobs.grad[0].all()
        assert not logprobs.grad[1].any()

    def test_unscored_completions_are_another_matter(self):
        """Filtered ones count, unscored ones do not."""
        filtered = filter_overlong(MASK, ["stop", "length", "stop"])
        scored = torch.tensor([True, True, False])
        assert loss_denominator(filtered, "sequence_mean", scored).item() == 2
        assert loss_denominator(filtered, "token_mean", scored).item() == 3

    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    def test_all_cut_off_is_no_loss(self, aggregation):
        mask = filter_overlong(MASK, ["length"] * 3)
        loss, _ = policy_loss(
            torch.full((3, 4), -1.0, requires_grad=True),
            None,
            torch.ones(3),
            mask,
            aggregation=aggregation,
            max_tokens=8,
        )
        loss.backward()
        assert loss.item() == 0.0

    def test_the_mask_given_is_left_as_it_is(self):
        before = MASK.clone()
        filter_overlong(MASK, ["length"] * 3)
        assert torch.equal(MASK, before)

    def test_empty(self):
        assert filter_overlong(torch.zeros(0, 4, dtype=torch.bool), []).shape == (0, 4)

    @pytest.mark.parametrize(
        ("mask", "reasons", "words"),
        [
            (MASK, ["stop"], "1 finish_reasons, expected 3"),
            (MASK, "abc", "3 finish_reasons, expected 3, one a completion"),
            (MASK, ["stop", "length", "abort"], 'finish reason \'abort\', expected "stop" or "length"'),
            (MASK, ["stop", "length", None], "finish reason None"),
            (MASK.float(), ["stop"] * 3, "completion_mask of torch.float32"),
        ],
    )
    def test_refusals(self, mask, reasons, words):
        with pytest.raises(InputError, match=f"^filter_overlong: {words}"):
            filter_overlong(mask, reasons)


class TestPenalty:
    def test_dapo_with_its_own_numbers(self):
        """L_max 20480, L_cache 4096: 0 to 16384 tokens, then a straight line to −1."""
        lengths = [0, 16384, 16385, 18432, 20479, 20480, 30000]
        penalty = soft_overlong_penalty(torch.tensor(lengths), max_tokens=20480, buffer_tokens=4096)
        assert penalty.tolist() == pytest.approx([0, 0, -1 / 4096, -0.5, -4095 / 4096, -1, -1])
        assert penalty.dtype == torch.float32

    def test_the_factor_scales_it(self):
        penalty = soft_overlong_penalty(torch.tensor([8, 9, 10]), max_tokens=10, buffer_tokens=2, factor=0.5)
        assert penalty.tolist() == [0.0, -0.25, -0.5]

    def test_a_buffer_of_everything(self):
        penalty = soft_overlong_penalty(torch.tensor([0, 5, 10]), max_tokens=10, buffer_tokens=10)
        assert penalty.tolist() == [0.0, -0.5, -1.0]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"max_tokens": 0}, "max_tokens=0"),
            ({"buffer_tokens": 0}, "buffer_tokens=0, expected a whole number from 1 to max_tokens=10"),
            ({"buffer_tokens": 11}, "buffer_tokens=11"),
            ({"buffer_tokens": 2.0}, "buffer_tokens=2.0"),
            ({"factor": -1.0}, "factor=-1.0"),
            ({"factor": math.nan}, "factor=nan"),
            ({"completion_tokens": [1, 2]}, "completion_tokens is list"),
            (
                {"completion_tokens": torch.tensor([1.0])},
                "completion_tokens is a tensor of shape .* torch.float32",
            ),
            ({"completion_tokens": torch.tensor([[1]])}, r"completion_tokens is a tensor of shape \(1, 1\)"),
        ],
    )
    def test_refusals(self, options, words):
        inputs = {"completion_tokens": torch.tensor([1, 2]), "max_tokens": 10, "buffer_tokens": 2}
        with pytest.raises(InputError, match=f"^soft_overlong_penalty: {words}"):
            soft_overlong_penalty(**(inputs | options))
