"""SkyRL: the estimators of its `ppo_utils`, which take token-level rewards and a uid for each response."""

from __future__ import annotations

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils

from adapters.interface import Function, Groups, split

DISTRIBUTION = "skyrl"
MODULE = "skyrl.backends.skyrl_train.utils.ppo_utils"


def functions() -> dict[str, Function]:
    return {
        "grpo": _function("compute_grpo_outcome_advantage", noise=True),
        "dr_grpo": _function("compute_grpo_outcome_advantage", grpo_norm_by_std=False),
        "rloo": _function("compute_rloo_outcome_advantage", noise=True),
        "maxrl": _function("compute_maxrl_advantage"),
    }


def _function(name: str, *, noise: bool = False, **options: bool) -> Function:
    estimator = getattr(ppo_utils, name)

    def call(groups: Groups) -> list[list[float]]:
        rewards = torch.tensor([[reward] for group in groups for reward in group], dtype=torch.float32)
        uids = np.array([f"prompt-{i}" for i, group in enumerate(groups) for _ in group], dtype=object)
        advantages, _ = estimator(
            token_level_rewards=rewards, response_mask=torch.ones_like(rewards), index=uids, **options
        )
        return split(advantages[:, 0].tolist(), groups)

    return Function(f"{MODULE}.{name}", call, noise)
