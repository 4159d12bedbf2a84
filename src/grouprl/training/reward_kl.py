"""The KL to the reference as a cost in the reward, before advantages are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from grouprl.objectives import kl_penalty, summarise
from grouprl.policy import Policy, completion_logprobs
from grouprl.tasks import Scores
from grouprl.training.config import Config
from grouprl.training.minibatches import cut_micro_batches, deal, number_members
from grouprl.training.objective import kl_estimator
from grouprl.training.ranks import Ranks
from grouprl.types import Group


@dataclass(frozen=True)
class Penalised:
    """Scores with the penalty in their rewards, and what to record of it.

    Args:
        scores: For the estimator and the rollout file: reward − penalty. Components are as they were.
        columns: Of the rollout file.
        metrics: Of the step.
    """

    scores: Scores
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


def penalise(
    scores: Scores,
    groups: Sequence[Group],
    policy: Policy,
    reference: Policy | None,
    config: Config,
    ranks: Ranks | None = None,
) -> Penalised:
    """Subtract beta · KL from each completion's reward, where the configuration puts it there.

        R_i − beta · Σ_t k(d_t),    d = log π_sampler − log π_ref

    over the trained tokens of completion i: the KL of the whole completion, whose expectation is the KL of the two
    policies' answers to the prompt. The sampler's log-probs are those of the policy that drew the tokens; so only the
    reference is run, once, on all scored completions. With max_staleness that policy is an earlier one; then the policy
    is run, too, and log π stands for log π_sampler.

    Args:
        scores: Of the task's rewards.
        groups: The batch.
        policy: Says which rows can share a prompt; as it is before the update.
        reference: The frozen starting model.
        config: beta, estimator, temperature and micro-batch size are read.
        ranks: Over which the completions are dealt out; by default this process alone.

    Returns:
        The scores as they are where kl_in = "loss" or there is no reference. An unscored completion stays so. A group
        without spread in its task's rewards has one after the subtraction.
    """
    objective, ranks = config.objective, ranks or Ranks()
    if reference is None or objective.kl_in != "reward":
        return Penalised(scores)
    members = [m for m in number_members(groups) if scores.rewards[m[0]] is not None]

    def act() -> tuple[dict[int, float], dict[str, torch.Tensor]]:
        found: dict[int, float] = {}
        sums: dict[str, torch.Tensor] = {}
        for micro in cut_micro_batches(policy, deal(members, ranks.size)[ranks.rank], config):
            logprobs, temperature = micro.sampler_logprobs, config.rollout.temperature
            with torch.no_grad():
                ref_logprobs, _ = completion_logprobs(reference, micro.rows, temperature=temperature)
                if config.rollout.max_staleness:
                    logprobs, _ = completion_logprobs(policy, micro.rows, temperature=temperature)
            penalty, parts = kl_penalty(
                logprobs,
                ref_logprobs,
                micro.rows.completion_mask,
                beta=objective.beta,
                kl=kl_estimator(objective),
            )
            found.update(zip(micro.rows.indices, penalty.tolist()))
            for name, part in parts.items():
                sums[name] = sums[name] + part.cpu() if name in sums else part.cpu()
        return found, sums

    penalties: list[float | None] = [None] * len(scores.rewards)
    sums: dict[str, torch.Tensor] = {}
    for of_rank, parts in ranks.each(act):
        for i, value in of_rank.items():
            penalties[i] = value
        for name, part in parts.items():
            sums[name] = sums[name] + part if name in sums else part
    rewards = [None if r is None or p is None else r - p for r, p in zip(scores.rewards, penalties)]
    found = [p for p in penalties if p is not None]
    metrics: dict[str, Any] = {"kl_penalty_mean": sum(found) / len(found) if found else None}
    if sums:
        means = summarise(sums)
        metrics |= {name: means[name] for name in ("kl_ref", "ref_clamped_share")}
    return Penalised(replace(scores, rewards=rewards), {"kl_penalty": penalties}, metrics)
