"""`policy_loss`: log-probs and advantages → loss and metrics."""

from __future__ import annotations

import warnings

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
from grouprl.objectives.kl import KL_ESTIMATORS
from grouprl.objectives.metrics import surrogate_sums
from grouprl.objectives.ratio import bounded_logprobs, log_ratio
from grouprl.objectives.surrogates import SURROGATES, Tokens, choose_options


def policy_loss(
    logprobs: Float[Tensor, "b t"],
    old_logprobs: Float[Tensor, "b t"] | None,
    advantages: Float[Tensor, " b"] | Float[Tensor, "b t"],
    completion_mask: Bool[Tensor, "b t"],
    *,
    surrogate: str = "ppo_clip",
    clip_low: float | None = None,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    tau_positive: float | None = None,
    tau_negative: float | None = None,
    aggregation: str = "sequence_mean",
    max_tokens: int | None = None,
    denominator: Tensor | float | None = None,
    ref_logprobs: Float[Tensor, "b t"] | None = None,
    beta: float = 0.0,
    kl: str = "k3",
    kl_weighted: bool = False,
    entropy: Float[Tensor, "b t"] | None = None,
    entropy_weight: float = 0.0,
    sampler_logprobs: Float[Tensor, "b t"] | None = None,
    correction: str = "truncated",
    correction_level: str = "token",
    correction_low: float = 0.0,
    correction_high: float = 2.0,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The policy-gradient loss of a batch, or of one micro-batch of it.

        loss = aggregate over tokens of   w · surrogate(r, A) + beta · KL(d) − entropy_weight · H

        r = exp(log π − log π_old),    d = log π − log π_ref,    w = exp(log π_old − log π_sampler), held in bounds

        surrogate          a token's loss                                   published options
        ppo_clip           −min(r A, clip(r, 1 − clip_low, 1 + clip_high) A)  0.2, 0.2, no dual_clip
        gspo, gspo_token   the same of the completion's geometric mean of r   3e-4, 4e-4
        cispo              −stop(clip(r)) A log π                             1.0, 4.0
        sapo               −(4/τ) σ(τ (r − 1)) A                              1.0, 1.05
        gmpo               −A · geometric mean of r, each clipped on one side 0.4, 0.4 (nats)
        reinforce          −A log π

        sequence_mean:  1/B Σ_i 1/|o_i| Σ_t        token_mean:         1/(Σ_i |o_i|) Σ_i Σ_t
        constant:       1/(B max_tokens) Σ_i Σ_t   sequence_sum_mean:  1/B Σ_i Σ_t

    Args:
        logprobs: (B, T), any floating dtype: log π of each sampled token under the policy being trained, in
            nats, at the sampling temperature. It receives the gradient; so does `entropy`, where it is weighted.
        old_logprobs: (B, T), the same tokens under the policy that sampled them; None for one update on fresh
            samples, where they are `logprobs` themselves and every ratio is 1.
        advantages: (B,), one a completion, or (B, T), one a token.
        completion_mask: (B, T), True where a token is trained.
        surrogate: A name in `surrogates.SURROGATES`.
        clip_low: The surrogate's lower bound; for all but gmpo how far the ratio may fall below 1, 0 to 1, where 1
            switches the bound off. None takes the published value. So do the next four; one that the surrogate does
            not take is refused.
        clip_high: Its upper bound, 0 or more; inf switches it off.
        dual_clip: For ppo_clip: the ratio above 1 at which a token with A < 0 stops counting more. None: none.
        tau_positive: For sapo: steepness where A > 0.
        tau_negative: For sapo: steepness where A < 0.
        aggregation: A name in `aggregations.AGGREGATIONS`.
        max_tokens: For "constant": the most tokens a completion may have. Not needed with a denominator.
        denominator: What the whole batch divides by (`loss_denominator`), where this call sees a part of it:
            then losses and gradients of the parts add up to those of the whole. None takes this call's own
            count.
        ref_logprobs: (B, T), the same tokens under the frozen reference. With beta = 0 it is measured only.
        beta: Weight of the KL to the reference.
        kl: A name in `kl.KL_ESTIMATORS`: "k1", "k2" or "k3".
        kl_weighted: Multiply a token's KL by its ratio r, gradient included.
        entropy: (B, T), entropy of the policy at each position, nats.
        entropy_weight: Weight of the entropy bonus. With 0 the entropy is measured only; otherwise it must carry a
            gradient.
        sampler_logprobs: (B, T), what the sampler gave for the same tokens, where it is another engine than
            the trainer: then the surrogate, not KL and entropy, of each token is multiplied by the weight
            w, without gradient, held as the four options say. None: no weight.
        correction: "truncated": min(w, correction_high). "masked": w inside [correction_low, correction_high],
            else 0. "off": no weight, as without sampler_logprobs.
        correction_level: "token", or "sequence": the product of w over the completion's trained tokens.
        correction_low: Lower bound of "masked", 0 or more.
        correction_high: Upper bound, correction_low or more; inf switches it off.

    Returns:
        The loss, 0-d, float32 (float64 for float64 `logprobs`), and the metrics: 0-d detached **sums** over
        the trained tokens of this call, to be added over micro-batches and ranks and given to `summarise`.
        Counts (int64): tokens, completions (those with a trained token), clipped_low_tokens and
        clipped_high_tokens (where a bound of the surrogate was active), clamped_tokens. Sums: ratio_sum,
        surrogate_sum, kl_old_sum (k3 from old to new, nats). With dual_clip: clipped_dual_tokens. With a reference:
        kl_ref_sum (nats, by `kl`, without the ratio), ref_clamped_tokens. With `entropy`: entropy_sum (nats). With
        a correction: sampler_weight_sum (of the weights that were applied), corrected_tokens (whose weight was
        truncated or masked; of a whole completion for "sequence"), sampler_clamped_tokens.

    Raises:
        InputError: A wrong shape, dtype, device or option; beta > 0 without ref_logprobs; entropy_weight > 0 without
            an entropy that carries a gradient. Values are not looked at, so nothing waits for the device.

    Warns:
        UserWarning: k1 in the loss without the ratio (its expected gradient is 0); a surrogate with one ratio a
            completion under an aggregation that weighs completions by their length.

    Edges:
        - On fresh samples the ratio is exactly 1 and nothing is clipped; the loss may be 0, its gradient is
          not: −A over the count, for every surrogate.
        - Masked positions may hold anything (NaN, ±inf): they touch neither value nor gradient nor metrics.
        - Log-ratios are clamped to ±20 before exp and counted (clamped_tokens, ref_clamped_tokens). A clamped
          token has gradient 0 (not in cispo, which bounds its weight, nor in reinforce, which has no ratio). A −inf
          log-prob at a trained position is clamped likewise; NaN there gives a NaN loss. cispo and reinforce, whose
          value holds log π, bound it at −1000, with gradient 0 below, and count it in clamped_tokens.
        - Nothing trained (all masked, B = 0 or T = 0): the loss is exactly 0, and backward works and gives
          zeros.
        - A completion without a trained token keeps its place in B. A denominator of 0 acts as 1.
        - A sampler log-prob at a masked position touches nothing, at a trained one its log-weight is clamped to
          ±20 and counted; NaN there gives a NaN loss.
        - Completions with advantage 0 may be left out where beta and entropy_weight are 0: with the batch's
          `denominator`, loss and gradient stay the same. The metrics are of the tokens given.

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
    Schulman's note on k1, k2, k3, http://joschu.net/blog/kl-approx.html; DeepSeek-V3.2, arXiv 2512.02556 (the KL
    weighted by the ratio); Yao et al. (2025), https://fengyao.notion.site/off-policy-rl (the sampler's weight). The
    other surrogates and aggregations name theirs.
    """
    where = "policy_loss"
    surrogate_of = look_up(where, "surrogate", surrogate, SURROGATES)
    aggregate = look_up(where, "aggregation", aggregation, AGGREGATIONS)
    kl_of = look_up(where, "kl", kl, KL_ESTIMATORS)
    given = {
        "clip_low": clip_low,
        "clip_high": clip_high,
        "dual_clip": dual_clip,
        "tau_positive": tau_positive,
        "tau_negative": tau_negative,
    }
    options = choose_options(where, surrogate, surrogate_of, given)
    check_number(where, "beta", beta, finite=True)
    check_number(where, "entropy_weight", entropy_weight, finite=True)
    look_up(where, "correction", correction, {"off": None, **CORRECTIONS})
    look_up(where, "correction_level", correction_level, dict.fromkeys(LEVELS))
    check_bounds(where, "correction_low", correction_low, "correction_high", correction_high)
    check_mask(where, completion_mask)
    check_advantages(where, advantages, completion_mask)
    by_token = {
        "old_logprobs": old_logprobs,
        "ref_logprobs": ref_logprobs,
        "entropy": entropy,
        "sampler_logprobs": sampler_logprobs,
    }
    check_logprobs(where, "logprobs", logprobs, completion_mask)
    for name, value in by_token.items():
        if value is not None:
            check_logprobs(where, name, value, completion_mask)
    if beta > 0 and ref_logprobs is None:
        raise InputError(
            f"{where}: beta={beta} without ref_logprobs, expected the reference's log-probs; "
            "give ref_logprobs, or beta=0"
        )
    if entropy_weight > 0:
        _check_bonus(where, entropy_weight, entropy, logprobs)
    if denominator is None:
        denominator = loss_denominator(completion_mask, aggregation, max_tokens=max_tokens)
    check_denominator(where, denominator)
    for note in loss_notes(
        surrogate=surrogate, aggregation=aggregation, kl=kl, kl_weighted=kl_weighted, beta=beta
    ):
        warnings.warn(f"policy_loss: {note}", stacklevel=2)

    # bf16 holds three digits: too few for a ratio near 1.
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    logprobs = logprobs.to(dtype)
    old_logprobs = logprobs.detach() if old_logprobs is None else old_logprobs.detach().to(dtype)
    advantages = advantages.detach().to(dtype)
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    advantages = torch.where(completion_mask, advantages, 0.0)

    over_old, clamped = log_ratio(logprobs, old_logprobs, completion_mask)
    bounded, unlikely = bounded_logprobs(logprobs, completion_mask)
    tokens = Tokens(over_old, advantages, completion_mask, bounded)
    terms = surrogate_of.terms(tokens, **options)
    per_token, corrected = terms.loss, {}
    if sampler_logprobs is not None and correction != "off":
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
    held = clamped | unlikely if surrogate_of.of_logprobs else clamped
    metrics = surrogate_sums(tokens, per_token, terms, held) | corrected
    if ref_logprobs is not None:
        over_ref, ref_clamped = log_ratio(logprobs, ref_logprobs.detach().to(dtype), completion_mask)
        kl_ref = kl_of(over_ref)
        metrics["kl_ref_sum"] = kl_ref.detach().sum()
        metrics["ref_clamped_tokens"] = ref_clamped.sum()
        if beta > 0:
            per_token = per_token + beta * (_weigh(kl_ref, over_old, clamped) if kl_weighted else kl_ref)
    if entropy is not None:
        entropy = torch.where(completion_mask, entropy.to(dtype), 0.0)
        metrics["entropy_sum"] = entropy.detach().sum()
        if entropy_weight > 0:
            per_token = per_token - entropy_weight * entropy
    return _divide(aggregate.total(per_token, completion_mask), denominator), metrics


def _weigh(kl: Tensor, over_old: Tensor, clamped: Tensor) -> Tensor:
    """r · KL. A clamped ratio weighs up to e²⁰: here, too, it takes the token's gradient away."""
    weighted = over_old.exp() * kl
    return torch.where(clamped, weighted.detach(), weighted)


def _check_bonus(where: str, weight: float, entropy: Tensor | None, logprobs: Tensor) -> None:
    """Where log π carries a gradient so must an entropy that is to be raised: without one nothing would happen."""
    if entropy is None:
        raise InputError(
            f"{where}: entropy_weight={weight} without entropy, expected the policy's entropy at each token; "
            "give entropy, or entropy_weight=0"
        )
    if logprobs.requires_grad and not entropy.requires_grad:
        raise InputError(
            f"{where}: entropy_weight={weight} with an entropy that carries no gradient, expected one computed from "
            "the logits under autograd; compute it so, or give entropy_weight=0 to measure it only"
        )


def loss_notes(*, surrogate: str, aggregation: str, kl: str, kl_weighted: bool, beta: float) -> list[str]:
    """What a choice of these says that is allowed and rarely meant; `policy_loss` warns of each."""
    notes = []
    if SURROGATES[surrogate].per_sequence and aggregation in ("token_mean", "constant"):
        notes.append(
            f"surrogate={surrogate!r} has one ratio a completion, and aggregation={aggregation!r} weighs completions "
            "by their length; sequence_mean is the published one"
        )
    if beta > 0 and kl == "k1" and not kl_weighted:
        notes.append(
            'kl="k1" in the loss has an expected gradient of 0 on fresh samples; take "k2", kl_weighted=True, or k1 in '
            "the reward (kl_penalty)"
        )
    return notes


def _divide(total: Tensor, denominator: Tensor | float) -> Tensor:
    """total / denominator; a denominator of 0, which comes with a total of 0, acts as 1."""
    if isinstance(denominator, Tensor):
        denominator = denominator.detach().to(total.dtype)
        return total / torch.where(denominator > 0, denominator, 1.0)
    return total / (denominator or 1.0)
