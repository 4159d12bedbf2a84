"""Completions that were cut off, or nearly: out of the loss, or less reward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grouprl.errors import InputError
from grouprl.objectives._checks import check_mask, check_max_tokens, check_number


def filter_overlong(
    completion_mask: Bool[Tensor, "b t"], finish_reasons: Sequence[str]
) -> Bool[Tensor, "b t"]:
    """The loss mask without the completions that were cut off.

        mask_i = 0 where completion i was cut off

    A completion that met the token limit has no answer yet, and its reward says nothing about the tokens it has. Its
    reward stays in its group's mean and spread, and it counts (`counted` of `loss_denominator` stays as it is): it
    keeps its place for sequence_mean, sequence_sum_mean and constant, and loses its tokens for token_mean. So give
    the mask that this returns to `policy_loss` **and** to `loss_denominator`.

    Args:
        completion_mask: (B, T), True where a token is trained.
        finish_reasons: B strings, "stop" or "length" (cut off at the token limit).

    Returns:
        (B, T) bool, on the mask's device.

    Raises:
        InputError: A mask that is not (B, T) bool; another number of reasons, or another reason.

    Edges: where all were cut off nothing is trained, and the loss is 0. An empty batch stays empty.

    >>> filter_overlong(torch.ones(2, 3, dtype=torch.bool), ["stop", "length"])
    tensor([[ True,  True,  True],
            [False, False, False]])

    Source: DAPO, arXiv 2503.14476, section 3.4.
    """
    where = "filter_overlong"
    check_mask(where, completion_mask)
    rows = completion_mask.shape[0]
    if isinstance(finish_reasons, str) or len(finish_reasons) != rows:
        raise InputError(
            f"{where}: {len(finish_reasons)} finish_reasons, expected {rows}, one a completion; "
            "give them in the order of completion_mask"
        )
    for reason in finish_reasons:
        if reason not in ("stop", "length"):
            raise InputError(
                f'{where}: finish reason {reason!r}, expected "stop" or "length"; name a completion that ended by '
                'itself "stop", one that was cut off "length"'
            )
    whole = torch.tensor([reason == "stop" for reason in finish_reasons], dtype=torch.bool)
    return completion_mask & whole.to(completion_mask.device)[:, None]


def soft_overlong_penalty(
    completion_tokens: Int[Tensor, " n"], *, max_tokens: int, buffer_tokens: int, factor: float = 1.0
) -> Float[Tensor, " n"]:
    """What to add to the reward of a completion that comes near the token limit: 0, falling to −factor.

        factor · clamp((L_max − L_cache − |o|) / L_cache, −1, 0)

    Args:
        completion_tokens: (N,), |o|, integers.
        max_tokens: L_max, where a completion is cut off.
        buffer_tokens: L_cache, the last tokens before it, over which the penalty grows; at most max_tokens.
        factor: The penalty at the limit, as a reward.

    Returns:
        (N,), float32, 0 or less. Add it after looking for groups with spread (dynamic sampling looks at
        correctness): it gives a spread to groups that have none.

    Raises:
        InputError: A shape, dtype or number that does not fit.

    Edges: 0 up to L_max − L_cache tokens, −factor from L_max on.

    >>> soft_overlong_penalty(torch.tensor([70, 80, 90, 100, 101]), max_tokens=100, buffer_tokens=20)
    tensor([ 0.0000,  0.0000, -0.5000, -1.0000, -1.0000])

    Source: DAPO, arXiv 2503.14476, equation 13.
    """
    where = "soft_overlong_penalty"
    check_max_tokens(where, max_tokens, needed=True)
    check_number(where, "factor", factor, finite=True)
    if (
        isinstance(buffer_tokens, bool)
        or not isinstance(buffer_tokens, int)
        or not 1 <= buffer_tokens <= max_tokens
    ):
        raise InputError(
            f"{where}: buffer_tokens={buffer_tokens!r}, expected a whole number from 1 to max_tokens={max_tokens}; "
            "give how many tokens before the limit the penalty begins"
        )
    if (
        not isinstance(completion_tokens, Tensor)
        or completion_tokens.dim() != 1
        or completion_tokens.is_floating_point()
        or completion_tokens.dtype == torch.bool
    ):
        given = (
            f"a tensor of shape {tuple(completion_tokens.shape)} and {completion_tokens.dtype}"
            if isinstance(completion_tokens, Tensor)
            else type(completion_tokens).__name__
        )
        raise InputError(
            f"{where}: completion_tokens is {given}, expected an integer tensor of shape (N,); "
            "give the number of tokens of each completion"
        )
    room = (max_tokens - buffer_tokens - completion_tokens).to(torch.float32)
    return factor * (room / buffer_tokens).clamp(-1.0, 0.0)
