"""`policy_loss` with the choices of one paper."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives.loss import policy_loss


def grpo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ref_logprobs: Float[Tensor, "b t"] | None = None,
    beta: float = 0.0,
    denominator: Tensor | float | None = None,
    entropy: Float[Tensor, "b t"] | None = None,
    sampler_logprobs: Float[Tensor, "b t"] | None = None,
    correction: str = "truncated",
    correction_level: str = "token",
    correction_low: float = 0.0,
    correction_high: float = 2.0,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The loss of GRPO: PPO's clip, the mean over completions of their token means, k3 to the reference.

        1/B Σ_i 1/|o_i| Σ_t [ −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A) + beta · (e^(−d) + d − 1) ]

        r = exp(log π − log π_old),    d = log π − log π_ref

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1.
        ref_logprobs: (B, T), under the frozen reference.
        beta: Weight of the KL to the reference. The paper took 0.04; the default leaves the reference out.
        denominator: The whole batch's number of completions, where this call sees a part of it.
        entropy: (B, T), nats; measured only.
        sampler_logprobs: (B, T), as the sampler gave them, nats, where it is another engine; with
        correction: "truncated", "masked" or "none",
        correction_level: "token" or "sequence",
        correction_low: and
        correction_high: as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose edges hold here.

    Raises:
        InputError: As `policy_loss`.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = grpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.1667,  0.1667,  0.1667]]))

    Source: DeepSeekMath, arXiv 2402.03300, equation 3.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="ppo_clip",
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation="sequence_mean",
        ref_logprobs=ref_logprobs,
        beta=beta,
        kl="k3",
        denominator=denominator,
        entropy=entropy,
        sampler_logprobs=sampler_logprobs,
        correction=correction,
        correction_level=correction_level,
        correction_low=correction_low,
        correction_high=correction_high,
    )
