"""What a step trains on: its batch with rewards and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grouprl.training.advantages import Result
from grouprl.training.collected import Collected
from grouprl.training.critic import Targets
from grouprl.training.reward_kl import Penalised
from grouprl.training.sampled import Sampled

NOTHING = Result(torch.zeros(0))
"""The advantages of a step in which dynamic sampling left no group."""


@dataclass(frozen=True)
class EstimatedBatch:
    """What a step trains on.

    Args:
        sampled: Its groups and scores.
        penalised: The scores of those that are used, with a KL penalty where it is in the reward.
        estimated: Their advantages.
        targets: What a critic gave, by token.
    """

    sampled: Sampled
    penalised: Penalised
    estimated: Result
    targets: Targets | None = None

    @property
    def collected(self) -> Collected:
        """The groups and scores."""
        return self.sampled.collected

    @property
    def recorded(self) -> Collected:
        """With the rewards that the advantages are of."""
        return self.collected.with_used_rewards(self.penalised.scores.rewards)

    @property
    def columns(self) -> dict[str, Sequence[Any]]:
        """Further columns of the rollout record, over the completions that are used."""
        return {**self.estimated.columns, **self.penalised.columns}
