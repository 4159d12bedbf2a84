"""Rewards and group ids → advantages.

inputs      tensors, arrays, lists → validated float64 rewards
group_ids   ids of any kind → int64
layout      rows of a matrix, or segments of a flat batch
numerics    powers of two, sums that do not depend on order
groups      what is scored, each group's extent, mean and std; whether it has spread
estimators  baselines and scales
core        `grpo_group_advantages`, `group_advantages`
stats       `group_stats`
"""

from grouprl.advantages.core import group_advantages, grpo_group_advantages
from grouprl.advantages.stats import GroupStats, group_stats

__all__ = ["GroupStats", "group_advantages", "group_stats", "grpo_group_advantages"]
