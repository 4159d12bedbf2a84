"""`policy_loss` with the choices of one paper. What all of them take besides is in `Shared`."""

from __future__ import annotations

from typing import TypedDict, Unpack

from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives.loss import policy_loss

Loss = tuple[Float[Tensor, ""], dict[str, Tensor]]


class Shared(TypedDict, total=False):
    """Keywords that every preset passes on to `policy_loss`, which says what they mean."""

    denominator: Tensor | float | None
    ref_logprobs: Float[Tensor, "b t"] | None
    beta: float
    kl: str
    kl_weighted: bool
    entropy: Float[Tensor, "b t"] | None
    entropy_weight: float
    sampler_logprobs: Float[Tensor, "b t"] | None
    correction: str
    correction_level: str
    correction_low: float
    correction_high: float


def grpo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of GRPO: PPO's clip, the mean over completions of their token means.

        1/B Σ_i 1/|o_i| Σ_t [ −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A) + beta · (e^(−d) + d − 1) ]

        r = exp(log π − log π_old),    d = log π − log π_ref

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = grpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.1667,  0.1667,  0.1667]]))

    Source: DeepSeekMath, arXiv 2402.03300, equation 3; its beta is 0.04, where the default here has no reference.
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
        **shared,
    )


def dr_grpo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    max_tokens: int | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of Dr. GRPO: a constant divisor, so that long completions are not pushed less.

        1/(B max_tokens) Σ_i Σ_t −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A)

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        max_tokens: The most tokens a completion may have. Needed where no denominator is given.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = dr_grpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask, max_tokens=8)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.125, tensor([[-0.0625,  0.0000,  0.0000],
            [ 0.0625,  0.0625,  0.0625]]))

    Source: Dr. GRPO, arXiv 2503.20783. Its advantages are `grouprl.advantages.dr_grpo`.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="ppo_clip",
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation="constant",
        max_tokens=max_tokens,
        **shared,
    )


def dapo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of DAPO: a wider upper clip, the mean over all tokens.

        1/(Σ_i |o_i|) Σ_i Σ_t −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A)

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1.
        dual_clip: The ratio at which a token with A < 0 stops counting more; verl's recipe takes 10.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = dapo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.5, tensor([[-0.2500,  0.0000,  0.0000],
            [ 0.2500,  0.2500,  0.2500]]))

    Source: DAPO, arXiv 2503.14476, equation 8; no KL. Overlong filtering: `filter_overlong`.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="ppo_clip",
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        aggregation="token_mean",
        **shared,
    )


def gspo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of GSPO: one ratio a completion, clipped in a narrow band.

        1/B Σ_i −min(s A, clip(s, 1 − clip_low, 1 + clip_high) A),    s = exp(1/|o_i| Σ_t (log π − log π_old))

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: How far s may fall below 1.
        clip_high: How far it may rise above 1.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = gspo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.1667,  0.1667,  0.1667]]))

    Source: GSPO, arXiv 2507.18071, equation 5 and section 5.1 (the bounds).
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="gspo",
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation="sequence_mean",
        **shared,
    )


def cispo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of CISPO: the log-prob weighted by a clipped ratio, the mean over all tokens.

        1/(Σ_i |o_i|) Σ_i Σ_t −stop(clip(r, 1 − clip_low, 1 + clip_high)) A log π

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: The weight is at least 1 − clip_low; 1 switches the bound off, as the paper does.
        clip_high: The weight is at most 1 + clip_high. TRL's `epsilon_high` is 1 + clip_high.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = cispo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (-0.5, tensor([[-0.2500,  0.0000,  0.0000],
            [ 0.2500,  0.2500,  0.2500]]))

    Source: MiniMax-M1, arXiv 2506.13585, equation 4; the bound 5 is ScaleRL's, arXiv 2510.13786, and TRL's.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="cispo",
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation="token_mean",
        **shared,
    )


def sapo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of SAPO: a gate that fades with the ratio, in place of a clip.

        1/B Σ_i 1/|o_i| Σ_t −(4/τ) σ(τ (r − 1)) A

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        tau_positive: Steepness of the gate where A > 0.
        tau_negative: Where A < 0.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = sapo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask, tau_negative=1.0)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.1667,  0.1667,  0.1667]]))

    Source: SAPO, arXiv 2511.20347.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="sapo",
        tau_positive=tau_positive,
        tau_negative=tau_negative,
        aggregation="sequence_mean",
        **shared,
    )


def gmpo_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    **shared: Unpack[Shared],
) -> Loss:
    """The loss of GMPO: the geometric mean of a completion's ratios, each clipped on one side.

        1/B Σ_i −A exp(1/|o_i| Σ_t c_t),    c_t = min(log r_t, clip_high) where A > 0, else max(log r_t, −clip_low)

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        clip_low: How far log r may fall, nats.
        clip_high: How far log r may rise, nats.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = gmpo_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (0.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.1667,  0.1667,  0.1667]]))

    Source: GMPO, arXiv 2507.20673.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="gmpo",
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation="sequence_mean",
        **shared,
    )


def reinforce_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    **shared: Unpack[Shared],
) -> Loss:
    """The policy gradient itself: the mean over completions of A log π of the whole completion.

        1/B Σ_i Σ_t −A log π

    Args:
        logprobs: (B, T), log π of each sampled token, nats.
        old_logprobs: (B, T), under the policy that sampled them; None for one update on fresh samples.
        advantages: (B,) or (B, T).
        completion_mask: (B, T), True where a token is trained.
        shared: Denominator, reference, entropy and sampler, as in `policy_loss`.

    Returns:
        The loss and the metrics of `policy_loss`, whose errors and edges hold here.

    >>> import torch
    >>> logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    >>> mask = torch.tensor([[True, False, False], [True, True, True]])
    >>> loss, _ = reinforce_loss(logprobs, None, torch.tensor([1.0, -1.0]), mask)
    >>> loss.backward()
    >>> loss.item(), logprobs.grad
    (-1.0, tensor([[-0.5000,  0.0000,  0.0000],
            [ 0.5000,  0.5000,  0.5000]]))

    Source: Williams (1992); Ahmadian et al., arXiv 2402.14740. The ratio plays no part: for fresh samples.
    """
    return policy_loss(
        logprobs,
        old_logprobs,
        advantages,
        completion_mask,
        surrogate="reinforce",
        aggregation="sequence_sum_mean",
        **shared,
    )
