"""Surrogates in which all tokens of a completion share one ratio."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives.surrogates.interface import SurrogateTerms, Tokens
from grouprl.objectives.surrogates.per_token import ppo_clip


def gspo(tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """PPO's clip on the completion's ratio, the geometric mean over its tokens.

        −min(s A, clip(s, 1 − clip_low, 1 + clip_high) A),    s = exp(1/|o| Σ_t (log π − log π_old))

        gradient of the sum over the completion's tokens, with respect to log π_t:
                                          0 where A > 0 and s > 1 + clip_high,
                                          0 where A < 0 and s < 1 − clip_low,
                                          −s A elsewhere (with an advantage a token: −s times their mean)

    A completion is sampled, rewarded and now also clipped as a whole. s moves |o| times less than a token's ratio:
    hence the narrow bounds.

    Args:
        tokens: Log-ratios, advantages and mask.
        clip_low: As in `ppo_clip`, of s.
        clip_high: As in `ppo_clip`, of s.

    Returns:
        The loss of each token, and where its completion is clipped, (B, T) each.

    Edges: a completion without a trained token has s = 1 and loss 0. A token whose log-ratio was clamped counts as
    ±20 nats in s and has gradient 0; its siblings keep theirs.

    >>> log_ratio = torch.tensor([[0.2, -0.1, -0.1], [0.3, 0.0, 0.0]])
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> tokens = Tokens(log_ratio, mask.float(), mask, -mask.float())
    >>> gspo(tokens, clip_low=3e-4, clip_high=4e-4).loss  # s = 1, and e^.15 clipped
    tensor([[-1.0000, -1.0000, -1.0000],
            [-1.0004, -1.0004, -0.0000]])

    Source: GSPO, arXiv 2507.18071, equations 5 and 7.
    """
    shared = _mean_over_tokens(tokens.log_ratio, tokens.completion_mask)
    return ppo_clip(
        tokens._replace(log_ratio=shared.expand_as(tokens.log_ratio)), clip_low=clip_low, clip_high=clip_high
    )


def gspo_token(tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """The values of `gspo`, with each token's gradient its own.

        s_t = stop(s) π / stop(π),    −min(s_t A_t, clip(s_t, 1 − clip_low, 1 + clip_high) A_t)

        gradient with respect to log π_t:   that of `gspo` with A_t in place of the completion's mean

    With one advantage a completion it is `gspo`, in value and gradient; it is for an advantage a token.

    Args:
        tokens: Log-ratios, advantages and mask.
        clip_low: As in `gspo`.
        clip_high: As in `gspo`.

    Returns:
        The loss of each token, and where it is clipped, (B, T) each.

    Edges: as `gspo`.

    >>> log_ratio = torch.tensor([[0.2, -0.1, -0.1]])
    >>> tokens = Tokens(log_ratio, torch.tensor([[1.0, 2.0, -1.0]]), torch.ones(1, 3).bool(), log_ratio)
    >>> gspo_token(tokens, clip_low=3e-4, clip_high=4e-4).loss
    tensor([[-1., -2.,  1.]])

    Source: GSPO, arXiv 2507.18071, equations 13 and 14.
    """
    shared = _mean_over_tokens(tokens.log_ratio.detach(), tokens.completion_mask)
    own = tokens.log_ratio - tokens.log_ratio.detach()
    return ppo_clip(tokens._replace(log_ratio=shared + own), clip_low=clip_low, clip_high=clip_high)


def gmpo(tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """The geometric mean over a completion's tokens of ratios that are clipped one by one, on one side.

        −A exp(1/|o| Σ_t c_t),    c_t = min(log r_t, clip_high) where A > 0, max(log r_t, −clip_low) where A < 0

        gradient of the sum over the completion's tokens, with respect to log π_t:
                                          0 where the token is clipped, −A exp(1/|o| Σ c) elsewhere

    A single wild token moves a geometric mean less than an arithmetic one, so the bounds can be wide.

    Args:
        tokens: Log-ratios, advantages and mask. With an advantage a token A is their mean over the completion, and
            the side of the clip is that of the token's own.
        clip_low: How far log r may fall, in **nats**; inf switches the bound off.
        clip_high: How far it may rise, in nats.

    Returns:
        The loss of each token, and where it is clipped, (B, T) each.

    Edges: a completion without a trained token gives 0. A token whose log-ratio was clamped has gradient 0.

    >>> log_ratio = torch.tensor([[0.6, 0.0]])
    >>> ones = torch.ones(1, 2)
    >>> gmpo(Tokens(log_ratio, ones, ones.bool(), -ones), clip_low=0.4, clip_high=0.4).loss  # −e^.2
    tensor([[-1.2214, -1.2214]])

    Source: GMPO, arXiv 2507.20673, with the bounds e^±0.4.
    """
    mask, advantages = tokens.completion_mask, tokens.advantages
    clipped_high = (tokens.log_ratio > clip_high) & (advantages > 0)
    clipped_low = (tokens.log_ratio < -clip_low) & (advantages < 0)
    one_sided = torch.where(
        advantages > 0, tokens.log_ratio.clamp(max=clip_high), tokens.log_ratio.clamp(min=-clip_low)
    )
    ratio = _mean_over_tokens(one_sided, mask).exp()
    loss = torch.where(mask, -ratio * _mean_over_tokens(advantages, mask), 0.0)
    return SurrogateTerms(loss, clipped_low, clipped_high)


def _mean_over_tokens(
    values: Float[Tensor, "b t"], completion_mask: Bool[Tensor, "b t"]
) -> Float[Tensor, "b 1"]:
    """The mean over a completion's trained tokens of values that are 0 elsewhere; 0 where there is none."""
    return values.sum(dim=1, keepdim=True) / completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
