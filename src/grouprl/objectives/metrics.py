"""What a loss reports: sums over tokens, which add up over micro-batches and ranks, and their means."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grouprl.objectives.kl import k3
from grouprl.objectives.surrogates import SurrogateTerms, Tokens

MEANS: Mapping[str, str] = {
    "clip_low_share": "clipped_low_tokens",
    "clip_high_share": "clipped_high_tokens",
    "clip_dual_share": "clipped_dual_tokens",
    "clamped_share": "clamped_tokens",
    "ratio_mean": "ratio_sum",
    "surrogate": "surrogate_sum",
    "kl_old": "kl_old_sum",
    "kl_ref": "kl_ref_sum",
    "ref_clamped_share": "ref_clamped_tokens",
    "entropy": "entropy_sum",
    "sampler_weight_mean": "sampler_weight_sum",
    "sampler_corrected_share": "corrected_tokens",
    "sampler_clamped_share": "sampler_clamped_tokens",
}
"""Name of a mean over trained tokens → the sum it is made of."""


def summarise(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Means over trained tokens, out of the sums of `policy_loss` (added up over micro-batches and ranks).

        mean = sum / tokens

    Args:
        metrics: The sums, 0-d tensors; `tokens` among them.

    Returns:
        Plain floats: `tokens` and `completions` as they are; `clip_low_share`, `clip_high_share`,
        `clamped_share` (0 to 1); `ratio_mean`; `surrogate` (the mean over tokens, whatever the aggregation of
        the loss); `kl_old` (KL between the sampling policy and this one, nats); and, where they were
        measured, `clip_dual_share`, `kl_ref` (nats), `ref_clamped_share`, `entropy` (nats), and
        `sampler_weight_mean` (of the weights as they were applied), `sampler_corrected_share`,
        `sampler_clamped_share`.

    Edges: without a trained token every mean is 0, and `tokens` 0 says why. This is the place that waits for
    the device: call it once a step.

    >>> from grouprl.objectives import policy_loss
    >>> new, old = torch.tensor([[0.55, 0.36, 0.30]]).log(), torch.tensor([[0.5, 0.4, 0.2]]).log()
    >>> _, sums = policy_loss(new, old, torch.tensor([1.0]), torch.ones(1, 3, dtype=torch.bool))
    >>> means = summarise({name: value + value for name, value in sums.items()})  # two micro-batches alike
    >>> round(means["ratio_mean"], 4), round(means["clip_high_share"], 4), means["tokens"]
    (1.1667, 0.3333, 6.0)

    Source: ours; kl_old is Schulman's k3 (http://joschu.net/blog/kl-approx.html).
    """
    tokens = float(metrics["tokens"])
    means = {
        name: float(metrics[total]) / max(tokens, 1.0) for name, total in MEANS.items() if total in metrics
    }
    return {"tokens": tokens, "completions": float(metrics["completions"]), **means}


@torch.no_grad()
def surrogate_sums(
    tokens: Tokens, per_token: Tensor, terms: SurrogateTerms, clamped: Tensor
) -> dict[str, Tensor]:
    """The sums over trained tokens that every call of `policy_loss` reports."""
    mask = tokens.completion_mask
    sums = {
        "tokens": mask.sum(),
        "completions": mask.any(dim=1).sum(),
        "clipped_low_tokens": terms.clipped_low.sum(),
        "clipped_high_tokens": terms.clipped_high.sum(),
        "clamped_tokens": clamped.sum(),
        "ratio_sum": torch.where(mask, tokens.log_ratio.exp(), 0.0).sum(),
        "surrogate_sum": torch.where(mask, per_token, 0.0).sum(),
        "kl_old_sum": k3(-tokens.log_ratio).sum(),
    }
    if terms.clipped_dual is not None:
        sums["clipped_dual_tokens"] = terms.clipped_dual.sum()
    return sums
