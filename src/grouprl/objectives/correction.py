"""What sampler and trainer disagree on: an importance weight for each token, kept small by force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives.ratio import MAX_LOG_RATIO, log_ratio

LEVELS = ("token", "sequence")

Limit = Callable[[Tensor, float, float], tuple[Tensor, Tensor]]


class SamplerWeights(NamedTuple):
    """What `sampler_weights` gives, (B, T) each."""

    weights: Float[Tensor, "b t"]
    """By what the surrogate is multiplied; 1 at masked positions, no gradient."""
    corrected: Bool[Tensor, "b t"]
    """Where the weight was truncated or masked; never at a masked position."""
    clamped: Bool[Tensor, "b t"]
    """Where a log-weight lay outside ±20; never at a masked position."""

    def sums(self, completion_mask: Bool[Tensor, "b t"]) -> dict[str, Tensor]:
        """What `policy_loss` reports of them, over the trained tokens."""
        return {
            "sampler_weight_sum": torch.where(completion_mask, self.weights, 0.0).sum(),
            "corrected_tokens": self.corrected.sum(),
            "sampler_clamped_tokens": self.clamped.sum(),
        }


def truncate(weights: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """min(w, high), and where that changed it. `low` plays no part."""
    del low
    return weights.clamp(max=high), weights > high


def drop(weights: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """w inside [low, high], 0 outside, and where it is outside. NaN is not outside: it stays, to be seen."""
    outside = (weights < low) | (weights > high)
    return torch.where(outside, 0.0, weights), outside


CORRECTIONS: Mapping[str, Limit] = MappingProxyType({"truncated": truncate, "masked": drop})


@torch.no_grad()
def sampler_weights(
    old_logprobs: Float[Tensor, "b t"],
    sampler_logprobs: Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    correction: str,
    level: str,
    low: float,
    high: float,
) -> SamplerWeights:
    """The weight that makes samples of one engine count as samples of another.

        w_t = exp(log π_old(t) − log π_sampler(t))                     level "token"
        w_i = Π_t w_t, over the trained tokens of completion i         level "sequence"

        truncated:  min(w, high)            masked:  w where low ≤ w ≤ high, else 0

    A sampler with another kernel or another precision draws from π_sampler, not from the π_old that the trainer
    computes for the same weights. The policy gradient is an expectation over π_old, so each sample weighs w.
    A few large w would carry the whole batch, so they are held: truncated keeps every token and is biased
    towards the sampler, masked leaves out what the two engines see too differently.

    Args:
        old_logprobs: (B, T), the trainer's log-probs with the weights that sampled, nats.
        sampler_logprobs: (B, T), what the sampler gave for the same tokens, nats.
        completion_mask: (B, T), True where a token is trained.
        correction: A name in `CORRECTIONS`.
        level: "token" or "sequence" (the product, not the geometric mean: it is the unbiased weight, and for
            long completions it soon leaves the bounds).
        low: Lower bound of "masked".
        high: Upper bound.

    Returns:
        Weights, and where they were corrected and clamped, without gradient.

    Edges: masked positions get weight 1 and touch nothing, whatever they hold (NaN, ±inf). A token's log-weight
    is clamped to ±20, and so is a completion's sum of them; a −inf from the sampler counts as e²⁰. Where the sum
    is clamped all trained tokens of the completion count. NaN at a trained position gives a NaN weight (in
    "sequence" to its whole completion): a fault upstream, to be seen.

    >>> old = torch.tensor([[-1.0, -1.0, -1.0]])
    >>> sampler = old - torch.tensor([[0.5, 3.0, 1.0]]).log()  # w = .5, 3 and 1
    >>> mask = torch.tensor([[True, True, True]])
    >>> options = dict(low=0.0, high=2.0)
    >>> sampler_weights(old, sampler, mask, correction="truncated", level="token", **options).weights
    tensor([[0.5000, 2.0000, 1.0000]])
    >>> sampler_weights(old, sampler, mask, correction="masked", level="token", **options).weights
    tensor([[0.5000, 0.0000, 1.0000]])
    >>> sampler_weights(old, sampler, mask, correction="masked", level="sequence", **options).weights
    tensor([[1.5000, 1.5000, 1.5000]])

    Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025),
    https://fengyao.notion.site/off-policy-rl (truncated, per token); Liu, Li et al., "When Speed Kills Stability:
    Demystifying RL Collapse from the Training-Inference Mismatch" (2025), https://yingru.notion.site (masked, and
    per sequence). Counting and the clamp are ours.
    """
    log_weights, clamped = log_ratio(old_logprobs, sampler_logprobs, completion_mask)
    if level == "sequence":
        total = log_weights.sum(dim=1, keepdim=True)
        clamped = clamped | (completion_mask & (total.abs() > MAX_LOG_RATIO))
        log_weights = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expand_as(log_weights)
    weights, corrected = CORRECTIONS[correction](log_weights.exp(), low, high)
    return SamplerWeights(torch.where(completion_mask, weights, 1.0), corrected & completion_mask, clamped)
