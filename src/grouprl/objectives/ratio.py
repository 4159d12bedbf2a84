"""The log-ratio of two policies, token by token, bounded so that its exponential is finite."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ±this, in nats: e²⁰ ≈ 4.9e8, where float32's exp overflows at 88.7."""

MIN_LOGPROB = -1000.0
"""Where a loss holds log π itself, it is not less than this, in nats."""


def log_ratio(
    logprobs: Float[Tensor, "b t"],
    other_logprobs: Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
) -> tuple[Float[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """How much more likely, in nats, a token is under one policy than under the other.

        clamp(log π(t) − log π_other(t), −20, 20)

    Args:
        logprobs: (B, T), log π of each sampled token, in nats.
        other_logprobs: (B, T), the same tokens under the other policy.
        completion_mask: (B, T), True where a token is trained.

    Returns:
        The log-ratio (B, T), and where the clamp changed it (B, T) bool.

    Edges: a masked position gives 0, is not counted as clamped and gets gradient 0, whatever it holds (NaN,
    ±inf); it is replaced before the subtraction, because 0 · inf is NaN in the value and again in the
    gradient. A clamped token has gradient 0, as `torch.clamp` gives outside its bounds: a token e²⁰ times
    more or less likely than when it was sampled says nothing about where to move, and unclamped its gradient
    would drown all others. A −inf log-prob is clamped likewise; −inf under both policies gives 0. A NaN at a
    trained position stays NaN: it is a fault upstream, to be seen.

    >>> new = torch.tensor([[-1.0, -90.0, -float("inf"), float("nan")]])
    >>> old = torch.tensor([[-1.5, -1.0, -1.0, -1.0]])
    >>> log_ratio(new, old, torch.tensor([[True, True, True, False]]))
    (tensor([[  0.5000, -20.0000, -20.0000,   0.0000]]), tensor([[False,  True,  True, False]]))

    Source: the bound is ours.
    """
    logprobs = torch.where(completion_mask, logprobs, 0.0)
    other_logprobs = torch.where(completion_mask, other_logprobs, 0.0)
    # "not within" rather than "beyond", so that −inf − −inf = NaN counts.
    clamped = ~((logprobs - other_logprobs).detach().abs() <= MAX_LOG_RATIO)
    difference = _finite(logprobs) - _finite(other_logprobs)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), clamped


def bounded_logprobs(
    logprobs: Float[Tensor, "b t"], completion_mask: Bool[Tensor, "b t"]
) -> tuple[Float[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """log π for a loss that holds it outside a ratio.

        max(log π, −1000)

    Args:
        logprobs: (B, T), in nats.
        completion_mask: (B, T), True where a token is trained.

    Returns:
        The log-probs (B, T), and where the bound changed one (B, T) bool.

    Edges: a masked position gives 0 and is not counted. A bounded token has gradient 0. NaN at a trained position
    stays NaN.

    >>> bounded_logprobs(torch.tensor([[-2.0, -float("inf"), -1.0]]), torch.tensor([[True, True, False]]))
    (tensor([[   -2., -1000.,     0.]]), tensor([[False,  True, False]]))

    Source: ours.
    """
    logprobs = torch.where(completion_mask, logprobs, 0.0)
    return logprobs.clamp(min=MIN_LOGPROB), logprobs.detach() < MIN_LOGPROB


def _finite(value: Tensor) -> Tensor:
    """±inf → the dtype's largest number, with gradient 0; so inf − inf is 0, not NaN."""
    limits = torch.finfo(value.dtype)
    return value.clamp(limits.min, limits.max)
