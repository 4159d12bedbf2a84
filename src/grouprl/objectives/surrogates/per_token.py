"""Surrogates in which each token has its own ratio, or none."""

from __future__ import annotations

import torch

from grouprl.objectives.surrogates.interface import SurrogateTerms, Tokens


def ppo_clip(
    tokens: Tokens, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> SurrogateTerms:
    """The clipped surrogate of PPO, with its two bounds apart, and a third one.

        −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A),    r = exp(log π − log π_old)
        and at most −dual_clip · A where A < 0

        gradient with respect to log π:   0 where A > 0 and r > 1 + clip_high,
                                          0 where A < 0 and r < 1 − clip_low,
                                          0 where A < 0 and r > dual_clip,
                                          −r A elsewhere

    Args:
        tokens: Log-ratios and advantages.
        clip_low: How far below 1 the ratio earns a reward for falling; 1 or more switches the bound off.
        clip_high: How far above 1 it earns one for rising; inf switches the bound off.
        dual_clip: The ratio, above 1, at which a bad token that has become likelier stops being pushed down: its
            loss −r A grows without bound. None: no such bound.

    Returns:
        The loss of each token, and where the clip is active, (B, T) each.

    Edges: advantage 0 gives loss 0 and gradient 0 and is never counted as clipped. A ratio outside the bounds
    on the side where it does harm (A > 0 and r small, A < 0 and r large) is not clipped, so that it can come
    back.

    >>> ratio = torch.tensor([[1.1, 0.9, 1.5]])
    >>> ones = torch.ones(1, 3)
    >>> ppo_clip(Tokens(ratio.log(), ones, ones.bool(), ones), clip_low=0.2, clip_high=0.2).loss
    tensor([[-1.1000, -0.9000, -1.2000]])
    >>> ppo_clip(Tokens(ratio.log(), -ones, ones.bool(), ones), clip_low=0.2, clip_high=0.2).loss
    tensor([[1.1000, 0.9000, 1.5000]])

    Source: PPO, arXiv 1707.06347, equation 7; two bounds: DAPO, arXiv 2503.14476, section 3.1; the
    dual clip: Ye et al., arXiv 1912.09729, equation 5.
    """
    advantages = tokens.advantages
    ratio = tokens.log_ratio.exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    capped = None
    if dual_clip is not None:
        capped = (ratio > dual_clip) & (advantages < 0)
        loss = torch.where(capped, -dual_clip * advantages, loss)
    return SurrogateTerms(
        loss=loss,
        clipped_low=(ratio < low) & (advantages < 0),
        clipped_high=(ratio > high) & (advantages > 0),
        clipped_dual=capped,
    )


def cispo(tokens: Tokens, *, clip_low: float, clip_high: float) -> SurrogateTerms:
    """The log-prob weighted by a clipped ratio: a clipped token keeps a gradient.

        −stop(clip(r, 1 − clip_low, 1 + clip_high)) A log π,    r = exp(log π − log π_old)

        gradient with respect to log π:   −clip(r, 1 − clip_low, 1 + clip_high) A

    Rare tokens that turn a line of thought ("however", "wait") have large ratios after a first update. PPO's clip
    takes them out of all later ones; here their weight is bounded and they stay.

    Args:
        tokens: Log-ratios, advantages and log-probs.
        clip_low: The weight is at least 1 − clip_low; 1 or more switches the bound off.
        clip_high: The weight is at most 1 + clip_high.

    Returns:
        The loss of each token, and where its weight was limited (whatever the sign of A), (B, T) each.

    Edges: advantage 0 gives loss and gradient 0 and is never counted as clipped. A ratio beyond ±20 nats is
    clamped before the clip and keeps its gradient, by the paper's intent; a log-prob below −1000 has none.

    >>> ratio = torch.tensor([[0.5, 1.0, 8.0]])
    >>> ones = torch.ones(1, 3)
    >>> tokens = Tokens(ratio.log(), ones, ones.bool(), -ones)
    >>> cispo(tokens, clip_low=1.0, clip_high=4.0).loss
    tensor([[0.5000, 1.0000, 5.0000]])
    >>> cispo(tokens, clip_low=0.2, clip_high=0.2).loss
    tensor([[0.8000, 1.0000, 1.2000]])

    Source: MiniMax-M1, arXiv 2506.13585, equations 4 and 5, which leaves the lower bound off. TRL 1.16.0 names the
    upper bound itself, min(r, ε_high): its ε_high = 5 is clip_low=1, clip_high=4. verl 0.9.1 clips on both sides.
    """
    advantages = tokens.advantages
    ratio = tokens.log_ratio.detach().exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high
    return SurrogateTerms(
        loss=-ratio.clamp(low, high) * advantages * tokens.logprobs,
        clipped_low=(ratio < low) & (advantages != 0),
        clipped_high=(ratio > high) & (advantages != 0),
    )


def sapo(tokens: Tokens, *, tau_positive: float, tau_negative: float) -> SurrogateTerms:
    """A gate in place of the clip: the gradient fades on both sides of ratio 1, and never ends at once.

        −(4/τ) σ(τ (r − 1)) A,    τ = tau_positive where A > 0, else tau_negative

        gradient with respect to log π:   −4 σ(τ (r − 1)) (1 − σ(τ (r − 1))) r A,    −A at r = 1

    Args:
        tokens: Log-ratios and advantages.
        tau_positive: Steepness for A > 0, above 0.
        tau_negative: Steepness for A < 0; larger, so that pushing down fades faster: it raises all other tokens of
            the vocabulary at once.

    Returns:
        The loss of each token, (B, T). Nothing is ever clipped.

    Edges: advantage 0 gives loss and gradient 0. At ratio 1 the loss is −(2/τ) A, not −A: the value says nothing, the
    gradient is PPO's. A large ratio meets gradient 0 from above for both signs of A.

    >>> ones = torch.ones(1, 2)
    >>> tokens = Tokens(torch.tensor([[1.0, 3.0]]).log(), ones, ones.bool(), -ones)
    >>> sapo(tokens, tau_positive=1.0, tau_negative=1.05).loss
    tensor([[-2.0000, -3.5232]])

    Source: SAPO, arXiv 2511.20347, which takes τ = 1.0 and 1.05.
    """
    advantages = tokens.advantages
    # Two Python numbers would meet in float32.
    tau = torch.where(advantages > 0, torch.full_like(advantages, tau_positive), tau_negative)
    gate = 4.0 / tau * torch.sigmoid(tau * (tokens.log_ratio.exp() - 1.0))
    nowhere = torch.zeros_like(tokens.completion_mask)
    return SurrogateTerms(loss=-gate * advantages, clipped_low=nowhere, clipped_high=nowhere)


def reinforce(tokens: Tokens) -> SurrogateTerms:
    """The policy gradient itself, without a ratio.

        −A log π        gradient with respect to log π:   −A

    Args:
        tokens: Advantages and log-probs. The log-ratio is not used: samples must come from the policy that is
            trained (one update a rollout), or else be weighted by `sampler_logprobs`.

    Returns:
        The loss of each token, (B, T). Nothing is ever clipped.

    Edges: advantage 0 gives loss and gradient 0. A log-prob below −1000 is clamped there and has gradient 0.

    >>> ones = torch.ones(1, 2)
    >>> reinforce(Tokens(0 * ones, 2 * ones, ones.bool(), torch.tensor([[-0.5, -3.0]]))).loss
    tensor([[1., 6.]])

    Source: Williams, "Simple statistical gradient-following algorithms" (1992); for language models Ahmadian et
    al., arXiv 2402.14740.
    """
    nowhere = torch.zeros_like(tokens.completion_mask)
    return SurrogateTerms(-tokens.advantages * tokens.logprobs, nowhere, nowhere)
