"""Surrogates: what one token adds to the loss. One function each, looked up by name in `SURROGATES`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Tokens(NamedTuple):
    """What a surrogate sees. Masked positions hold log-ratio 0 and advantage 0."""

    log_ratio: Float[Tensor, "b t"]
    """log π − log π_old, clamped (`ratio.log_ratio`); carries the gradient."""
    advantages: Float[Tensor, "b t"]
    completion_mask: Bool[Tensor, "b t"]


class SurrogateTerms(NamedTuple):
    """What a surrogate gives."""

    loss: Float[Tensor, "b t"]
    clipped_low: Bool[Tensor, "b t"]
    """Where the lower clip took the token's gradient away."""
    clipped_high: Bool[Tensor, "b t"]
    """Where the upper clip did."""


class Surrogate(Protocol):
    """The signature of every entry of `SURROGATES`."""

    def __call__(self, tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms: ...


def ppo_clip(tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """The clipped surrogate of PPO, with its two bounds apart.

        −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A),    r = exp(log π − log π_old)

        gradient with respect to log π:   0 where A > 0 and r > 1 + clip_high,
                                          0 where A < 0 and r < 1 − clip_low,
                                          −r A elsewhere

    Args:
        tokens: Log-ratio, advantages and mask, (B, T) each.
        clip_low: How far below 1 the ratio earns a reward for falling; 1 or more switches the bound off.
        clip_high: How far above 1 it earns one for rising; inf switches the bound off.

    Returns:
        The loss of each token, and where the clip is active, (B, T) each.

    Edges: advantage 0 gives loss 0 and gradient 0 and is never counted as clipped. A ratio outside the bounds
    on the side where it does harm (A > 0 and r small, A < 0 and r large) is not clipped, so that it can come
    back.

    >>> ratio = torch.tensor([[1.1, 0.9, 1.5]])
    >>> ones = torch.ones(1, 3)
    >>> ppo_clip(Tokens(ratio.log(), ones, ones.bool()), clip_low=0.2, clip_high=0.2).loss
    tensor([[-1.1000, -0.9000, -1.2000]])
    >>> ppo_clip(Tokens(ratio.log(), -ones, ones.bool()), clip_low=0.2, clip_high=0.2).loss
    tensor([[1.1000, 0.9000, 1.5000]])

    Source: PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, arXiv 2503.14476, section 3.1.
    """
    advantages = tokens.advantages
    ratio = tokens.log_ratio.exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return SurrogateTerms(
        loss=loss,
        clipped_low=(ratio < low) & (advantages < 0),
        clipped_high=(ratio > high) & (advantages > 0),
    )


SURROGATES: Mapping[str, Surrogate] = MappingProxyType({"ppo_clip": ppo_clip})
