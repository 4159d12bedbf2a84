"""KL to a reference from log-probs of sampled tokens: estimators by name, and the penalty for rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives._checks import check_logprobs, check_mask, check_number, look_up
from grouprl.objectives.ratio import log_ratio


def k1(log_ratio: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """The log-ratio itself: unbiased, of either sign, and no loss.

        k1(d) = d,    d = log π − log π_ref        gradient with respect to log π:   1

    Args:
        log_ratio: (B, T), d of tokens sampled from π, in nats.

    Returns:
        (B, T), nats.

    Edges: on fresh samples its gradient is Σ ∇ log π, whose expectation is 0: as a loss it is noise. It belongs into
    the reward (`kl_penalty`), or into the loss with the ratio as its weight.

    >>> k1(torch.tensor([[0.0, -1.0, 1.0]]))
    tensor([[ 0., -1.,  1.]])

    Source: Schulman, as k3.
    """
    return log_ratio


def k2(log_ratio: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """Half the square: biased in value, right in gradient.

        k2(d) = d²/2,    d = log π − log π_ref        gradient with respect to log π:   d

    Args:
        log_ratio: (B, T), d of tokens sampled from π, in nats.

    Returns:
        (B, T), nats.

    Edges: 0 at d = 0, never negative. On fresh samples the expectation of its gradient is that of KL(π ‖ π_ref).

    >>> k2(torch.tensor([[0.0, -1.0, 2.0]]))
    tensor([[0.0000, 0.5000, 2.0000]])

    Source: Schulman, as k3.
    """
    return 0.5 * log_ratio * log_ratio


def k3(log_ratio: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """An unbiased estimate of KL(π ‖ π_ref) that is never negative.

        k3(d) = e^(−d) + d − 1,    d = log π − log π_ref,    computed as expm1(−d) + d

        gradient with respect to log π:   1 − e^(−d)

    Args:
        log_ratio: (B, T), d of tokens sampled from π, in nats, |d| ≤ 20 as `ratio.log_ratio` gives it.

    Returns:
        (B, T), nats.

    Edges: 0 at d = 0. `expm1` keeps the small values that e^(−d) − 1 would round away.

    >>> k3(torch.tensor([[0.0, -1.0, 1.0]]))
    tensor([[0.0000, 0.7183, 0.3679]])

    Source: DeepSeekMath, arXiv 2402.03300, equation 4; John Schulman, "Approximating KL divergence" (2020),
    http://joschu.net/blog/kl-approx.html, where it is called k3.
    """
    return torch.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})


@torch.no_grad()
def kl_penalty(
    logprobs: Float[Tensor, "b t"],
    ref_logprobs: Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    beta: float,
    kl: str = "k1",
    level: str = "sequence",
) -> tuple[Float[Tensor, " b"] | Float[Tensor, "b t"], dict[str, Tensor]]:
    """The KL to a reference as a cost: what to subtract from rewards, before advantages are made of them.

        beta · Σ_t k(d_t)   level "sequence"            beta · k(d_t)   level "token",        d = log π − log π_ref

    Args:
        logprobs: (B, T), log π of each sampled token, under the policy that sampled, nats.
        ref_logprobs: (B, T), under the frozen reference, nats.
        completion_mask: (B, T), True where a token is trained.
        beta: Reward for a nat.
        kl: A name in `KL_ESTIMATORS`. k1 is unbiased in value, and in the reward that makes the gradient right.
        level: "sequence", to be subtracted from a completion's reward, or "token", from token-level rewards.

    Returns:
        The penalty, (B,) or (B, T), float32 (float64 for float64 log-probs), without gradient, and the sums tokens,
        completions, kl_ref_sum (nats, without beta) and ref_clamped_tokens, for `summarise`.

    Raises:
        InputError: A wrong shape, dtype, device or option.

    Edges: masked positions may hold anything and give 0. d is clamped to ±20 nats and counted; k3 of −20 is 4.9e8, a
    reason to take k1 here. A group of completions without spread in their rewards has one after the subtraction.

    >>> logprobs, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    >>> penalty, _ = kl_penalty(logprobs, reference, torch.ones(1, 2).bool(), beta=0.1)
    >>> penalty  # .1 · (.5 − 1)
    tensor([-0.0500])

    Source: InstructGPT, arXiv 2203.02155, equation 2 (k1, a completion); Schulman, as k3.
    """
    where = "kl_penalty"
    estimate = look_up(where, "kl", kl, KL_ESTIMATORS)
    look_up(where, "level", level, dict.fromkeys(("sequence", "token")))
    check_number(where, "beta", beta, finite=True)
    check_mask(where, completion_mask)
    check_logprobs(where, "logprobs", logprobs, completion_mask)
    check_logprobs(where, "ref_logprobs", ref_logprobs, completion_mask)
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    over_ref, clamped = log_ratio(logprobs.to(dtype), ref_logprobs.to(dtype), completion_mask)
    per_token = estimate(over_ref)
    sums = {
        "tokens": completion_mask.sum(),
        "completions": completion_mask.any(dim=1).sum(),
        "kl_ref_sum": per_token.sum(),
        "ref_clamped_tokens": clamped.sum(),
    }
    return beta * (per_token.sum(dim=1) if level == "sequence" else per_token), sums
