"""What a batch's rewards, groups and lengths say, under the names of metrics.jsonl (docs/records.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from grouprl.advantages import group_stats
from grouprl.sampling import informative

KINDS = ("informative", "all_high", "all_low", "single", "unscored")


def group_shares(
    rewards: Float[Tensor, " n"], group_ids: Tensor, *, success_reward: float
) -> dict[str, float]:
    """The share of groups of each kind: `informative`, `all_high`, `all_low`, `single`, `unscored`."""
    counts = informative(rewards, group_ids, high=success_reward)
    total = max(int(counts.total), 1)
    return {kind: int(getattr(counts, kind)) / total for kind in KINDS}


def batch_metrics(
    rewards: Float[Tensor, " n"],
    group_ids: Tensor,
    advantages: Float[Tensor, " n"],
    *,
    components: Mapping[str, Float[Tensor, " n"]],
    lengths: Sequence[int],
    finished: Sequence[bool],
    success_reward: float,
) -> dict[str, Any]:
    """One batch's numbers; None where nothing says.

    Args:
        rewards: NaN or infinite where unscored.
        group_ids: 0, 1, … in order.
        advantages: What the loss is computed from.
        components: Each reward's own score.
        lengths: Tokens of each completion.
        finished: Whether it ended by itself.
        success_reward: A group without spread is all_high from here on, else all_low.
    """
    stats = group_stats(rewards, group_ids)
    scored = rewards.isfinite()
    values = rewards[scored].double()
    sizes = advantages[scored].abs().double()
    first = group_ids.diff(prepend=group_ids.new_full((1,), -1)) != 0
    stds = stats.std[first & (stats.count > 0)].double()
    found: dict[str, Any] = {
        "reward_mean": _mean(values),
        "reward_std": float(values.std(correction=0)) if len(values) else None,
        "reward_group_std": _mean(stds),
        "groups": int(first.sum()),
        "completions": len(rewards),
    }
    shares = group_shares(rewards, group_ids, success_reward=success_reward)
    found |= {f"groups_{kind}_share": share for kind, share in shares.items()}
    found |= {
        "unscored_share": 1.0 - len(values) / max(len(rewards), 1),
        "truncated_share": 1.0 - sum(finished) / max(len(finished), 1),
        "completion_tokens_mean": sum(lengths) / max(len(lengths), 1),
        "completion_tokens_max": max(lengths, default=None),
        "finished_tokens_mean": _mean_of([n for n, done in zip(lengths, finished, strict=True) if done]),
        "advantage_mean_abs": _mean(sizes),
        "advantage_max_abs": float(sizes.max()) if len(sizes) else None,
        "groups_with_advantage_share": len(group_ids[advantages != 0].unique()) / max(int(first.sum()), 1),
    }
    for name, scores in components.items():
        there = scores[scores.isfinite()].double()
        found[f"reward_{name}_mean"] = _mean(there)
        found[f"reward_{name}_count"] = len(there)
    return found


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _mean_of(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
