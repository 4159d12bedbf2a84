"""One step's metrics: what the rewards, groups and lengths of a batch say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.advantages import group_stats
from grouprl.sampling import informative
from grouprl.tasks import Scores
from grouprl.training.statistics import mean, standard_deviation
from grouprl.types import Group


def rewards_tensor(rewards: Sequence[float | None]) -> Tensor:
    """Rewards in float64, NaN where a completion is unscored."""
    return torch.tensor([float("nan") if r is None else r for r in rewards], dtype=torch.float64)


def group_numbers(groups: Sequence[Group]) -> Tensor:
    """The number of its group for each completion."""
    return torch.tensor([i for i, group in enumerate(groups) for _ in group.completions], dtype=torch.long)


def batch_metrics(
    groups: Sequence[Group],
    scores: Scores,
    *,
    correctness: Sequence[float | None],
    success_reward: float = 1.0,
) -> dict[str, Any]:
    """Rewards, groups and lengths of all that was sampled, under the names of metrics.jsonl; None where nothing says.

    reward_std is over the scored completions of the batch, reward_group_std the mean over groups with a
    scored completion of the standard deviation within the group: the one that advantages are made of. What kind a
    group is, and what is right, is said of `correctness`, the rewards before shaping: a group without spread is
    all_high where it is at least `success_reward`, else all_low.
    """
    rewards, ids = rewards_tensor(scores.rewards), group_numbers(groups)
    scored = [r for r in scores.rewards if r is not None]
    completions = [c for group in groups for c in group.completions]
    lengths = [len(c.token_ids) for c in completions]
    finished = [len(c.token_ids) for c in completions if c.finish_reason == "stop"]
    stats = group_stats(rewards, ids)
    first = [k for k in range(len(ids)) if k == 0 or ids[k] != ids[k - 1]]
    group_stds = [float(stats.std[k]) for k in first if stats.count[k] > 0]
    counts = informative(rewards_tensor(correctness), ids, high=success_reward)
    metrics: dict[str, Any] = {
        "reward_mean": mean(scored),
        "reward_std": standard_deviation(scored),
        "reward_group_std": mean(group_stds),
        "correct_share": mean([c >= success_reward for c in correctness if c is not None]),
        "groups": len(groups),
        "completions": len(completions),
    }
    for name in ("informative", "all_high", "all_low", "single", "unscored"):
        metrics[f"groups_{name}_share"] = int(getattr(counts, name)) / max(len(groups), 1)
    metrics |= {
        "unscored_share": 1.0 - len(scored) / max(len(completions), 1),
        "reward_errors": scores.errors,
        "reward_nonfinite": scores.nonfinite,
        "truncated_share": mean([c.finish_reason == "length" for c in completions]),
        "completion_tokens_mean": mean(lengths),
        "completion_tokens_max": max(lengths, default=None),
        "finished_tokens_mean": mean(finished),
    }
    for name, values in scores.components.items():
        present = [v for v in values if v is not None]
        metrics[f"reward_{name}_mean"] = mean(present)
        metrics[f"reward_{name}_count"] = len(present)
    return metrics | scores.outcome_shares()


def advantage_metrics(
    groups: Sequence[Group], scores: Scores, advantages: Float[Tensor, " n"], *, sampled: int
) -> dict[str, Any]:
    """Sizes of the advantages of what is trained on and scored, None where nothing is; and how many of the `sampled`
    groups have any."""
    numbers, values = group_numbers(groups).tolist(), advantages.tolist()
    scored = [(i, abs(a)) for i, a, r in zip(numbers, values, scores.rewards) if r is not None]
    sizes = [size for _, size in scored]
    return {
        "advantage_mean_abs": mean(sizes),
        "advantage_max_abs": max(sizes, default=None),
        "groups_with_advantage_share": len({i for i, size in scored if size}) / max(sampled, 1),
    }


def greedy_metrics(greedy: Scores) -> dict[str, Any]:
    """Rewards of the greedy completions that an estimator asked for."""
    scored = [r for r in greedy.rewards if r is not None]
    return {
        "greedy_reward_mean": mean(scored),
        "greedy_unscored_share": 1.0 - len(scored) / max(len(greedy.rewards), 1),
    }
