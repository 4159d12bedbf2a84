"""Rewards and group ids → advantages.

inputs           tensors, arrays, lists → validated float64 rewards
extras           lengths and other numbers per completion
group_ids        ids of any kind → int64
layout           rows of a matrix, or segments of a flat batch
numerics         powers of two, sums that do not depend on order
groups           what is scored, each group's extent, mean and std; whether it has spread
algebra          baselines and scales
whitening        one unit, mean and std for the whole batch
host_rows        the shorter way for float32 rows on a CPU
core             `grpo_group_advantages`, `group_advantages`
stats            `group_stats`
ranks            the keyword `process_group`
registry         estimators by name: `register`, `names`, `get`, `describe`
specs            estimators and their options as text names them
laws             `check_laws`
law_batches      the batches it draws
conventions      other frameworks' ddof and eps

presets          grpo, dr_grpo, rloo, batch_std, opo
robust           maxrl, mean_abs, median, quantile
pass_k           pass_at_k
outside          ngrpo, remax
batch_wide       reinforce_plus_plus, reinforce_plus_plus_baseline, gpg
several_rewards  gdpo
james_stein      jspo
single_stream    spo
steps            gigpo, gae
"""

# `names()` gives estimators in the order of these imports.
# isort: off
from grouprl.advantages.core import group_advantages, grpo_group_advantages
from grouprl.advantages.presets import batch_std, dr_grpo, grpo, opo, rloo
from grouprl.advantages.robust import maxrl, mean_abs, median, quantile
from grouprl.advantages.pass_k import pass_at_k
from grouprl.advantages.outside import ngrpo, remax
from grouprl.advantages.batch_wide import gpg, reinforce_plus_plus, reinforce_plus_plus_baseline
from grouprl.advantages.several_rewards import gdpo
from grouprl.advantages.james_stein import jspo
from grouprl.advantages.single_stream import SPO, spo
from grouprl.advantages.steps import gae, gigpo
from grouprl.advantages.conventions import CONVENTIONS, Convention
from grouprl.advantages.laws import check_laws
from grouprl.advantages.registry import Estimator, describe, get, names, register, unregister
from grouprl.advantages.stats import GroupStats, group_stats
# isort: on

__all__ = [
    "CONVENTIONS",
    "SPO",
    "Convention",
    "Estimator",
    "GroupStats",
    "batch_std",
    "check_laws",
    "describe",
    "dr_grpo",
    "gae",
    "gdpo",
    "get",
    "gigpo",
    "gpg",
    "group_advantages",
    "group_stats",
    "grpo",
    "grpo_group_advantages",
    "jspo",
    "maxrl",
    "mean_abs",
    "median",
    "names",
    "ngrpo",
    "opo",
    "pass_at_k",
    "quantile",
    "register",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "spo",
    "unregister",
]
