"""ms-swift: `compute_advantages`, and its form for groups of several sizes."""

from __future__ import annotations

import torch
from swift.rl_core import advantage

from adapters.interface import Function, Groups, same_size, split

DISTRIBUTION = "ms-swift"
MODULE = "swift.rl_core.advantage"


def functions() -> dict[str, Function]:
    return {
        "grpo": _matrix("grpo", noise=True),
        "grpo, dynamic": Function(f"{MODULE}.compute_advantages_dynamic", _dynamic),
        "dr_grpo": _matrix("grpo", scale_rewards="none"),
        "rloo": _matrix("rloo", scale_rewards="none", noise=True),
    }


def _matrix(estimator: str, *, noise: bool = False, **options: str) -> Function:
    def call(groups: Groups) -> list[list[float]]:
        advantages, _ = advantage.compute_advantages(
            _rewards(groups), torch.ones(1), same_size(groups), advantage_estimator=estimator, **options
        )
        return split(advantages.tolist(), groups)

    return Function(f"{MODULE}.compute_advantages", call, noise)


def _dynamic(groups: Groups) -> list[list[float]]:
    prompts = [f"prompt-{i}" for i, group in enumerate(groups) for _ in group]
    requests = [f"request-{i}" for i in range(len(prompts))]
    advantages, _ = advantage.compute_advantages_dynamic(_rewards(groups), torch.ones(1), prompts, requests)
    return split(advantages.tolist(), groups)


def _rewards(groups: Groups) -> torch.Tensor:
    return torch.tensor([[reward] for group in groups for reward in group], dtype=torch.float32)
