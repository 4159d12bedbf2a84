"""Aggregations: a loss per token → one number, a total over a denominator.

    name                total                      denominator
    sequence_mean       Σ_i (Σ_t loss) / |o_i|     completions
    token_mean          Σ_i Σ_t loss               tokens
    constant            Σ_i Σ_t loss               completions · max_tokens
    sequence_sum_mean   Σ_i Σ_t loss               completions

The denominator is that of the whole batch. Totals of micro-batches over the denominator of the whole add up
to the loss of the whole; means of micro-batches do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grouprl.objectives._checks import check_counted, check_mask, check_max_tokens, look_up

Total = Callable[[Tensor, Tensor], Tensor]
Denominator = Callable[[Tensor, Tensor, int], Tensor]


class Aggregation(NamedTuple):
    """loss = total(per_token, completion_mask) / denominator(completion_mask, counted, max_tokens)."""

    total: Total
    denominator: Denominator
    needs_max_tokens: bool = False


def total_of_sequence_means(
    per_token: Float[Tensor, "b t"], completion_mask: Bool[Tensor, "b t"]
) -> Float[Tensor, ""]:
    """Σ_i of the mean over the tokens of completion i; one without tokens adds 0."""
    lengths = completion_mask.sum(dim=1).clamp(min=1)
    return (torch.where(completion_mask, per_token, 0.0).sum(dim=1) / lengths).sum()


def total_of_tokens(
    per_token: Float[Tensor, "b t"], completion_mask: Bool[Tensor, "b t"]
) -> Float[Tensor, ""]:
    """Σ_i Σ_t."""
    return torch.where(completion_mask, per_token, 0.0).sum()


def count_completions(
    completion_mask: Bool[Tensor, "b t"], counted: Bool[Tensor, " b"], max_tokens: int
) -> Int[Tensor, ""]:
    """Completions that count, also those without a trained token."""
    del completion_mask, max_tokens
    return counted.sum()


def count_tokens(
    completion_mask: Bool[Tensor, "b t"], counted: Bool[Tensor, " b"], max_tokens: int
) -> Int[Tensor, ""]:
    """Trained tokens of the completions that count."""
    del max_tokens
    return (completion_mask & counted[:, None]).sum()


def count_places(
    completion_mask: Bool[Tensor, "b t"], counted: Bool[Tensor, " b"], max_tokens: int
) -> Int[Tensor, ""]:
    """Tokens that the completions that count could have had."""
    del completion_mask
    return counted.sum() * max_tokens


AGGREGATIONS: Mapping[str, Aggregation] = MappingProxyType(
    {
        "sequence_mean": Aggregation(total_of_sequence_means, count_completions),
        "token_mean": Aggregation(total_of_tokens, count_tokens),
        "constant": Aggregation(total_of_tokens, count_places, needs_max_tokens=True),
        "sequence_sum_mean": Aggregation(total_of_tokens, count_completions),
    }
)


def loss_denominator(
    completion_mask: Bool[Tensor, "b t"],
    aggregation: str = "sequence_mean",
    counted: Bool[Tensor, " b"] | None = None,
    *,
    max_tokens: int | None = None,
) -> Int[Tensor, ""]:
    """What the loss of a whole batch is divided by, to be given to every micro-batch of it.

        sequence_mean, sequence_sum_mean:   the number of completions that count
        token_mean:                         the number of their trained tokens
        constant:                           the number of completions that count, times max_tokens

    Args:
        completion_mask: (B, T), True where a token is trained, of the **whole** batch.
        aggregation: "sequence_mean", "token_mean", "constant" or "sequence_sum_mean".
        counted: (B,), False where a completion is unscored (it has no reward) and so leaves both numerator
            and denominator; clear its row of the mask given to `policy_loss`, too. All count by default.
            Completions of groups without spread do count, also where nothing is computed for them.
        max_tokens: For "constant": the most tokens a completion may have, whatever the batch holds.

    Returns:
        A 0-d int64 tensor on the mask's device. Over ranks: sum it.

    Raises:
        InputError: A mask that is not (B, T) bool, `counted` that is not (B,) bool, an unknown aggregation, "constant"
            without max_tokens.

    Edges: a completion whose tokens are all masked (cut off and filtered, say) adds nothing for token_mean and
    keeps its place for the others. An empty batch gives 0.

    >>> mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    >>> loss_denominator(mask, "sequence_mean"), loss_denominator(mask, "token_mean")
    (tensor(3), tensor(4))
    >>> loss_denominator(mask, "token_mean", counted=torch.tensor([True, False, True]))
    tensor(3)

    Source: DeepSeekMath, arXiv 2402.03300, equation 3 (sequence_mean); DAPO, arXiv 2503.14476, section
    3.3 (token_mean); Dr. GRPO, arXiv 2503.20783 (constant); sequence_sum_mean is the policy gradient's own.
    What counts is ours.
    """
    where = "loss_denominator"
    chosen = look_up(where, "aggregation", aggregation, AGGREGATIONS)
    check_mask(where, completion_mask)
    if counted is None:
        counted = completion_mask.new_ones(completion_mask.shape[0])
    check_counted(where, counted, completion_mask)
    check_max_tokens(where, max_tokens, needed=chosen.needs_max_tokens)
    return chosen.denominator(completion_mask, counted, max_tokens or 0)
