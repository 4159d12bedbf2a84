"""Aggregations: a loss per token → one number, a total over a denominator.

    name            total                          denominator
    sequence_mean   Σ_i (Σ_t loss) / |o_i|         completions
    token_mean      Σ_i Σ_t loss                   tokens

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

from grouprl.objectives._checks import check_counted, check_mask, look_up

Total = Callable[[Tensor, Tensor], Tensor]
Denominator = Callable[[Tensor, Tensor], Tensor]


class Aggregation(NamedTuple):
    """loss = total(per_token, completion_mask) / denominator(completion_mask, counted)."""

    total: Total
    denominator: Denominator


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


def count_completions(completion_mask: Bool[Tensor, "b t"], counted: Bool[Tensor, " b"]) -> Int[Tensor, ""]:
    """Completions that count, also those without a trained token."""
    del completion_mask
    return counted.sum()


def count_tokens(completion_mask: Bool[Tensor, "b t"], counted: Bool[Tensor, " b"]) -> Int[Tensor, ""]:
    """Trained tokens of the completions that count."""
    return (completion_mask & counted[:, None]).sum()


AGGREGATIONS: Mapping[str, Aggregation] = MappingProxyType(
    {
        "sequence_mean": Aggregation(total_of_sequence_means, count_completions),
        "token_mean": Aggregation(total_of_tokens, count_tokens),
    }
)


def loss_denominator(
    completion_mask: Bool[Tensor, "b t"],
    aggregation: str = "sequence_mean",
    counted: Bool[Tensor, " b"] | None = None,
) -> Int[Tensor, ""]:
    """What the loss of a whole batch is divided by, to be given to every micro-batch of it.

        sequence_mean:  the number of completions that count
        token_mean:     the number of their trained tokens

    Args:
        completion_mask: (B, T), True where a token is trained, of the **whole** batch.
        aggregation: "sequence_mean" or "token_mean".
        counted: (B,), False where a completion is unscored (it has no reward) and so leaves both numerator
            and denominator; clear its row of the mask given to `policy_loss`, too. All count by default.
            Completions of groups without spread do count, also where nothing is computed for them.

    Returns:
        A 0-d int64 tensor on the mask's device. Over ranks: sum it.

    Raises:
        InputError: A mask that is not (B, T) bool, `counted` that is not (B,) bool, an unknown aggregation.

    Edges: a completion whose tokens are all masked (cut off and filtered, say) keeps its place for
    sequence_mean and adds nothing for token_mean. An empty batch gives 0.

    >>> mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    >>> loss_denominator(mask, "sequence_mean"), loss_denominator(mask, "token_mean")
    (tensor(3), tensor(4))
    >>> loss_denominator(mask, "token_mean", counted=torch.tensor([True, False, True]))
    tensor(3)

    Source: DeepSeekMath, arXiv 2402.03300, equation 3 (sequence_mean); DAPO, arXiv 2503.14476, section
    3.3 (token_mean). What counts is ours.
    """
    where = "loss_denominator"
    chosen = look_up(where, "aggregation", aggregation, AGGREGATIONS)
    check_mask(where, completion_mask)
    if counted is None:
        counted = completion_mask.new_ones(completion_mask.shape[0])
    check_counted(where, counted, completion_mask)
    return chosen.denominator(completion_mask, counted)
