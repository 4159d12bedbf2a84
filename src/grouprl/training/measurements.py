"""What is measured while a batch is trained on: sums over micro-batches and passes, read once at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from grouprl.objectives import explained_variance, summarise
from grouprl.objectives.kl import k3
from grouprl.objectives.ratio import log_ratio

UPDATE_METRICS = (
    "loss",
    "loss_denominator",
    "entropy",
    "ratio_mean",
    "ratio_max",
    "clip_low_share",
    "clip_high_share",
    "clip_dual_share",
    "clamped_share",
    "kl_sampler_trainer",
    "sampler_weight_mean",
    "sampler_corrected_share",
    "sampler_clamped_share",
    "kl_old",
    "kl_ref",
    "ref_clamped_share",
    "overlong_filtered_share",
)
"""What metrics.jsonl holds of the updates of a step; null where it was not measured."""


CRITIC_METRICS = ("value_loss", "value_mean", "return_mean", "value_clip_share", "explained_variance")
"""What it holds besides where there is a critic."""


class Measurements:
    """Sums of `policy_loss`, added up on the device; and what sampler and trainer say before the first update."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._ratio_max: Tensor | None = None
        self._means: list[tuple[tuple[int, ...], Tensor]] = []
        self._kl_sampler: list[Tensor] = []
        self._first_tokens: list[Tensor] = []

    @torch.no_grad()
    def add(
        self,
        sums: Mapping[str, Tensor],
        logprobs: Float[Tensor, "b t"],
        old_logprobs: Float[Tensor, "b t"] | None,
        completion_mask: Bool[Tensor, "b t"],
    ) -> None:
        """A micro-batch of an update. Ratio and kl_old are measured here, since not every surrogate has a ratio."""
        old = logprobs if old_logprobs is None else old_logprobs
        over_old, _ = log_ratio(logprobs, old, completion_mask)
        ratio = torch.where(completion_mask, over_old.exp(), 0.0)
        sums = {**sums, "ratio_sum": ratio.sum(), "kl_old_sum": k3(-over_old).sum()}
        for name, value in sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        largest = ratio.amax()
        self._ratio_max = largest if self._ratio_max is None else torch.maximum(self._ratio_max, largest)

    @torch.no_grad()
    def compare_with_sampler(
        self,
        indices: tuple[int, ...],
        sampler_logprobs: Float[Tensor, "b t"],
        logprobs: Float[Tensor, "b t"],
        completion_mask: Bool[Tensor, "b t"],
    ) -> None:
        """KL(sampler ‖ trainer) by k3 and each completion's mean log-prob, with the weights that sampled."""
        difference, _ = log_ratio(sampler_logprobs, logprobs, completion_mask)
        self._kl_sampler.append(torch.where(completion_mask, k3(difference), 0).sum())
        self._first_tokens.append(completion_mask.sum())
        means = torch.where(completion_mask, logprobs, 0).sum(-1) / completion_mask.sum(-1).clamp(min=1)
        self._means.append((indices, means))

    def on_host(self) -> Measurements:
        """The same in float64 on the CPU, for other ranks."""
        host = Measurements()
        host._sums = {name: value.double().cpu() for name, value in self._sums.items()}
        host._ratio_max = None if self._ratio_max is None else self._ratio_max.cpu()
        host._means = [(indices, values.cpu()) for indices, values in self._means]
        host._kl_sampler = [value.double().cpu() for value in self._kl_sampler]
        host._first_tokens = [value.cpu() for value in self._first_tokens]
        return host

    @classmethod
    def together(cls, parts: Sequence[Measurements]) -> Measurements:
        """What several ranks measured, each on its share; a rank without one measured nothing."""
        whole = cls()
        for part in parts:
            for name, value in part._sums.items():
                whole._sums[name] = whole._sums[name] + value if name in whole._sums else value
            if part._ratio_max is not None:
                highest = part._ratio_max
                whole._ratio_max = (
                    highest if whole._ratio_max is None else torch.maximum(whole._ratio_max, highest)
                )
            whole._means += part._means
            whole._kl_sampler += part._kl_sampler
            whole._first_tokens += part._first_tokens
        return whole

    def logprob_means(self, count: int) -> list[float | None]:
        """The mean log-prob of each of the batch's completions, None where it was not computed."""
        means: list[float | None] = [None] * count
        for indices, values in self._means:
            for i, value in zip(indices, values.tolist()):
                means[i] = value
        return means

    def summary(self, *, updates: int) -> dict[str, float | None]:
        """Means over the trained tokens of all passes; of the first one for the comparison with the sampler. The loss
        is a mean over the updates that were tried."""
        if not self._sums:
            return {"loss": 0.0}
        means = summarise(self._sums)
        del means["tokens"], means["completions"]
        assert self._ratio_max is not None  # noqa: S101  (set with the sums)
        return {
            "loss": float(self._sums["loss"]) / max(updates, 1),
            "kl_sampler_trainer": float(sum(self._kl_sampler)) / max(float(sum(self._first_tokens)), 1.0),
            "ratio_max": float(self._ratio_max),
            **means,
            **self._critic_summary(updates),
        }

    def _critic_summary(self, updates: int) -> dict[str, float | None]:
        """`CRITIC_METRICS`, means over the trained tokens of all passes; nothing where there is no critic."""
        if "value_tokens" not in self._sums:
            return {}
        return critic_summary({name: float(value) for name, value in self._sums.items()}, updates=updates)


def critic_summary(sums: Mapping[str, float], *, updates: int) -> dict[str, float | None]:
    """What metrics.jsonl says of a critic, out of the sums of `value_loss` over a step."""
    count = max(sums["value_tokens"], 1.0)
    return {
        "value_loss": sums["value_loss_sum"] / max(updates, 1),
        "value_mean": sums["value_sum"] / count,
        "return_mean": sums["return_sum"] / count,
        "value_clip_share": sums["value_clipped_tokens"] / count,
        "explained_variance": explained_variance(
            count=sums["value_tokens"],
            total=sums["return_sum"],
            square=sums["return_square_sum"],
            error=sums["value_error_sum"],
            error_square=sums["value_error_square_sum"],
        ),
    }
