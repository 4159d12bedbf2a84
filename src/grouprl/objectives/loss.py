"""`policy_loss`: log-probs and advantages → loss and metrics."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.errors import InputError
from grouprl.objectives._checks import (
    check_advantages,
    check_bounds,
    check_denominator,
    check_logprobs,
    check_mask,
    check_number,
    look_up,
)
from grouprl.objectives.aggregations import AGGREGATIONS, loss_denominator
from grouprl.objectives.correction import CORRECTIONS, LEVELS, sampler_weights
from grouprl.objectives.kl import KL_ESTIMATORS, k3
from grouprl.objectives.ratio import log_ratio
from grouprl.objectives.surrogates import SURROGATES, SurrogateTerms, Tokens


def policy_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    surrogate: str = "ppo_clip",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "sequence_mean",
    ref_logprobs: Float[Tensor, "b t"] | None = None,
    beta: float = 0.0,
    kl: str = "k3",
    denominator: Tensor | float | None = None,
    entropy: Float[Tensor, "b t"] | None = None,
    sampler_logprobs: Float[Tensor, "b t"] | None = None,
    correction: str = "truncated",
    correction_level: str = "token",
    correction_low: float = 0.0,
    correction_high: float = 2.0,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The clipped policy-gradient loss of a batch, or of one micro-batch of it.

        loss = aggregate over tokens of   −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A)
                                          + beta · (e^(−d) + d − 1)

        r = exp(log π − log π_old),    d = log π − log π_ref
        sequence_mean:  1/B Σ_i 1/|o_i| Σ_t        token_mean:  1/(Σ_i |o_i|) Σ_i Σ_t

    Args:
        logprobs: (B, T), any floating dtype: log π of each sampled token under the policy being trained, in
            nats, at the sampling temperature. The only argument that receives a gradient.
        old_logprobs: (B, T), the same tokens under the policy that sampled them; None for one update on fresh
            samples, where they are `logprobs` themselves and every ratio is 1.
        advantages: (B,), one a completion, or (B, T), one a token.
        completion_mask: (B, T), True where a token is trained.
        surrogate: A name in `surrogates.SURROGATES`.
        clip_low: How far the ratio may fall below 1, 0 to 1; 1 switches the bound off.
        clip_high: How far it may rise above 1, 0 or more; inf switches the bound off.
        aggregation: A name in `aggregations.AGGREGATIONS`: "sequence_mean" or "token_mean".
        ref_logprobs: (B, T), the same tokens under the frozen reference. With beta = 0 it is measured only.
        beta: Weight of the KL to the reference.
        kl: A name in `kl.KL_ESTIMATORS`.
        denominator: What the whole batch divides by (`loss_denominator`), where this call sees a part of it:
            then losses and gradients of the parts add up to those of the whole. None takes this call's own
            count.
        entropy: (B, T), entropy of the policy at each position, nats; measured only.
        sampler_logprobs: (B, T), what the sampler gave for the same tokens, where it is another engine than
            the trainer: then the surrogate, not the KL, of each token is multiplied by the weight
            w = exp(log π_old − log π_sampler), without gradient, held as the four options say. None: no weight.
        correction: "truncated": min(w, correction_high). "masked": w inside [correction_low, correction_high],
            else 0. "none": no weight, as without sampler_logprobs.
        correction_level: "token", or "sequence": the product of w over the completion's trained tokens.
        correction_low: Lower bound of "masked", 0 or more.
        correction_high: Upper bound, correction_low or more; inf switches it off.

    Returns:
        The loss, 0-d, float32 (float64 for float64 `logprobs`), and the metrics: 0-d detached **sums** over
        the trained tokens of this call, to be added over micro-batches and ranks and given to `summarise`.
        Counts (int64): tokens, completions (those with a trained token), clipped_low_tokens (r < 1 − clip_low
        and A < 0), clipped_high_tokens (r > 1 + clip_high and A > 0), clamped_tokens. Sums: ratio_sum,
        surrogate_sum, kl_old_sum (k3 from old to new, nats). With a reference: kl_ref_sum (nats),
        ref_clamped_tokens. With `entropy`: entropy_sum (nats). With a correction: sampler_weight_sum (of the
        weights that were applied), corrected_tokens (whose weight was truncated or masked; of a whole
        completion for "sequence"), sampler_clamped_tokens.

    Raises:
        InputError: A wrong shape, dtype, device or option, or beta > 0 without ref_logprobs. Values are not
            looked at, so nothing waits for the device.

    Edges:
        - On fresh samples the ratio is exactly 1 and nothing is clipped; the loss may be 0, its gradient is
          not: −A over the count.
        - Masked positions may hold anything (NaN, ±inf): they touch neither value nor gradient nor metrics.
        - Log-ratios are clamped to ±20 before exp and counted (clamped_tokens, ref_clamped_tokens). A clamped
          token has gradient 0. A −inf log-prob at a trained position is clamped likewise; NaN there gives a
          NaN loss.
        - Nothing trained (all masked, B = 0 or T = 0): the loss is exactly 0, and backward works and gives
          zeros.
        - A completion without a trained token keeps its place in B of sequence_mean. A denominator of 0 acts
          as 1.
        - A sampler log-prob at a masked position touches nothing, at a trained one its log-weight is clamped to
          ±20 and counted; NaN there gives a NaN loss.
        - Completions with advantage 0 may be left out where beta is 0: with the batch's `denominator`, loss
          and gradient stay the same. The metrics are of the tokens given.

    >>> logprobs = torch.tensor([[0.55, 0.36, 0.30]]).log().requires_grad_()
    >>> old_logprobs = torch.tensor([[0.5, 0.4, 0.2]]).log()
    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> loss, metrics = policy_loss(logprobs, old_logprobs, torch.tensor([1.0]), mask)
    >>> loss.backward()
    >>> round(loss.item(), 4), metrics["clipped_high_tokens"].item()
    (-1.0667, 1)
    >>> logprobs.grad  # −A r / 3, and 0 where clipped
    tensor([[-0.3667, -0.3000,  0.0000]])

    Source: PPO, arXiv 1707.06347, equation 7; DeepSeekMath, arXiv 2402.03300, equations 3 and 4
    (sequence_mean, k3 in the loss); DAPO, arXiv 2503.14476, sections 3.1 and 3.3 (two clips, token_mean);
    Schulman's note on k3, http://joschu.net/blog/kl-approx.html; Yao et al. (2025),
    https://fengyao.notion.site/off-policy-rl (the sampler's weight).
    """
    where = "policy_loss"
    surrogate_of = look_up(where, "surrogate", surrogate, SURROGATES)
    aggregate = look_up(where, "aggregation", aggregation, AGGREGATIONS)
    kl_of = look_up(where, "kl", kl, KL_ESTIMATORS)
    check_number(where, "clip_low", clip_low, high=1.0)
    check_number(where, "clip_high", clip_high)
    check_number(where, "beta", beta, finite=True)
    look_up(where, "correction", correction, {"none": None, **CORRECTIONS})
    look_up(where, "correction_level", correction_level, dict.fromkeys(LEVELS))
    check_bounds(where, "correction_low", correction_low, "correction_high", correction_high)
    check_mask(where, completion_mask)
    check_advantages(where, advantages, completion_mask)
    check_logprobs(where, "logprobs", logprobs, completion_mask)
    optional = {
        "old_logprobs": old_logprobs,
        "ref_logprobs": ref_logprobs,
        "entropy": entropy,
        "sampler_logprobs": sampler_logprobs,
    }
    for name, value in optional.items():
        if value is not None:
            check_logprobs(where, name, value, completion_mask)
    if beta > 0 and ref_logprobs is None:
        raise InputError(
            f"{where}: beta={beta} without ref_logprobs, expected the reference's log-probs; "
            "give ref_logprobs, or beta=0"
        )
    if denominator is None:
        denominator = loss_denominator(completion_mask, aggregation)
    check_denominator(where, denominator)

    # bf16 holds three digits: too few for a ratio near 1.
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    logprobs = logprobs.to(dtype)
    old_logprobs = logprobs.detach() if old_logprobs is None else old_logprobs.detach().to(dtype)
    advantages = advantages.detach().to(dtype)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    advantages = torch.where(completion_mask, advantages, 0.0)

    over_old, clamped = log_ratio(logprobs, old_logprobs, completion_mask)
    tokens = Tokens(over_old, advantages, completion_mask)
    terms = surrogate_of(tokens, clip_low=clip_low, clip_high=clip_high)
    per_token, corrected = terms.loss, {}
    if sampler_logprobs is not None and correction != "none":
        sampler = sampler_weights(
            old_logprobs,
            sampler_logprobs.detach().to(dtype),
            completion_mask,
            correction=correction,
            level=correction_level,
            low=correction_low,
            high=correction_high,
        )
        per_token = sampler.weights * per_token
        corrected = sampler.sums(completion_mask)
    metrics = _surrogate_sums(tokens, per_token, terms, clamped) | corrected
    if ref_logprobs is not None:
        over_ref, ref_clamped = log_ratio(logprobs, ref_logprobs.detach().to(dtype), completion_mask)
        kl_ref = kl_of(over_ref)
        metrics["kl_ref_sum"] = kl_ref.detach().sum()
        metrics["ref_clamped_tokens"] = ref_clamped.sum()
        if beta > 0:
            per_token = per_token + beta * kl_ref
    if entropy is not None:
        metrics["entropy_sum"] = torch.where(completion_mask, entropy.detach().to(dtype), 0.0).sum()
    return _divide(aggregate.total(per_token, completion_mask), denominator), metrics


@torch.no_grad()
def _surrogate_sums(
    tokens: Tokens, per_token: Tensor, terms: SurrogateTerms, clamped: Tensor
) -> dict[str, Tensor]:
    """The sums over trained tokens that every call reports."""
    mask = tokens.completion_mask
    return {
        "tokens": mask.sum(),
        "completions": mask.any(dim=1).sum(),
        "clipped_low_tokens": terms.clipped_low.sum(),
        "clipped_high_tokens": terms.clipped_high.sum(),
        "clamped_tokens": clamped.sum(),
        "ratio_sum": torch.where(mask, tokens.log_ratio.exp(), 0.0).sum(),
        "surrogate_sum": torch.where(mask, per_token, 0.0).sum(),
        "kl_old_sum": k3(-tokens.log_ratio).sum(),
    }


def _divide(total: Tensor, denominator: Tensor | float) -> Tensor:
    """total / denominator; a denominator of 0, which comes with a total of 0, acts as 1."""
    if isinstance(denominator, Tensor):
        denominator = denominator.detach().to(total.dtype)
        return total / torch.where(denominator > 0, denominator, 1.0)
    return total / (denominator or 1.0)
