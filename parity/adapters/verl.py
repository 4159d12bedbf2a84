"""verl: the registered estimators of `core_algos`, which take token-level rewards and a uid for each response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos

from adapters.interface import Function, Groups, split

DISTRIBUTION = "verl"
MODULE = "verl.trainer.ppo.core_algos"


def functions() -> dict[str, Function]:
    return {
        "grpo": _function("compute_grpo_outcome_advantage", noise=True),
        "grpo_vectorized": _function("compute_grpo_vectorized_outcome_advantage", _integers, noise=True),
        "dr_grpo": _function("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
        "rloo": _function("compute_rloo_outcome_advantage", noise=True),
        "rloo_vectorized": _function("compute_rloo_vectorized_outcome_advantage"),
        "opo": _function("compute_opo_outcome_advantage"),
        "opo, 1 to 4 tokens": _function("compute_opo_outcome_advantage", longest=4),
        "gpg": _function("compute_gpg_outcome_advantage"),
        "grpo_passk": _function("compute_grpo_passk_outcome_advantage", config=AlgoConfig()),
        "reinforce_plus_plus": _function(
            "compute_reinforce_plus_plus_outcome_advantage", config=AlgoConfig()
        ),
        "reinforce_plus_plus, 1 to 4 tokens": _function(
            "compute_reinforce_plus_plus_outcome_advantage", longest=4, config=AlgoConfig()
        ),
        "reinforce_plus_plus_baseline": _function("compute_reinforce_plus_plus_baseline_outcome_advantage"),
        "remax, greedy reward 0.5": _function("compute_remax_outcome_advantage", _greedy),
    }


def _uids(groups: Groups) -> dict[str, Any]:
    return {"index": np.array([f"prompt-{i}" for i, group in enumerate(groups) for _ in group], dtype=object)}


def _integers(groups: Groups) -> dict[str, Any]:
    return {"index": np.array([i for i, group in enumerate(groups) for _ in group])}


def _greedy(groups: Groups) -> dict[str, Any]:
    return {"reward_baselines": torch.full((sum(map(len, groups)),), 0.5)}


def _function(
    name: str,
    keywords: Callable[[Groups], dict[str, Any]] = _uids,
    *,
    noise: bool = False,
    longest: int = 1,
    **options: Any,
) -> Function:
    """Completion i of a batch has 1 + i mod `longest` tokens, and its reward on the last one."""
    estimator = getattr(core_algos, name)

    def call(groups: Groups) -> list[list[float]]:
        rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float32)
        lengths = 1 + torch.arange(len(rewards)) % longest
        token = torch.arange(longest)
        mask = (token < lengths[:, None]).to(torch.float32)
        at_the_end = torch.where(token == lengths[:, None] - 1, rewards[:, None], 0.0)
        advantages, _ = estimator(
            token_level_rewards=at_the_end, response_mask=mask, **keywords(groups), **options
        )
        return split(advantages[:, 0].tolist(), groups)

    return Function(f"{MODULE}.{name}", call, noise)
