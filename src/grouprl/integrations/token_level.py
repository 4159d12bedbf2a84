"""Estimators for trainers that hand over token-level tensors and a group's id for each row: verl and SkyRL.

A row's reward is the sum of its token-level rewards, its advantage goes to each of its trained tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from grouprl.advantages.group_ids import read_group_ids
from grouprl.errors import ConfigError, EstimatorError
from grouprl.integrations.estimating import Batch, Estimating, started


@dataclass(frozen=True)
class TokenLevel:
    """A registered estimator as such a trainer calls one.

    Args:
        name: Of the estimator in `grouprl.advantages`.
        where: Begins the messages, with the trainer's own name for it.
        option: How a missing option is given, with {name} in its place.
        lacking: Pairs: what estimators may need (`as_estimator`) and the trainer does not hand over, why.
        padding: What the ids of rows match that the trainer added to fill a batch; they are unscored.
    """

    name: str
    where: str
    option: str
    lacking: tuple[tuple[str, str], ...]
    padding: str

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "batch time"],
        response_mask: Shaped[Tensor, "batch time"],
        index: Any,
        options: Mapping[str, Any],
    ) -> Float[Tensor, "batch time"]:
        """Advantages, float32, on the rewards' device; 0 where the mask is.

        Args:
            token_level_rewards: Summed over all tokens, whatever the mask. A row with NaN or infinity is unscored.
            response_mask: 1 for the policy's own tokens, 0 for padding and for what a tool or user said.
            index: One id a row, the same for rows of a group.
            options: The estimator's keywords.

        Raises:
            ConfigError: The estimator cannot run there, or an option is unknown or missing.
            EstimatorError: Tensors that do not fit each other, no ids, or an estimator that failed.
            InputError: Ids of another number, or that are no ids.
        """
        estimating = self._start(options)
        if token_level_rewards.ndim != 2 or response_mask.shape != token_level_rewards.shape:
            raise EstimatorError(
                f"{self.where}: token_level_rewards has shape {tuple(token_level_rewards.shape)} and response_mask "
                f"{tuple(response_mask.shape)}, expected (batch, time) for both; check what fills the batch"
            )
        if index is None:
            raise EstimatorError(
                f"{self.where}: the batch has no group ids, expected one for each of {len(token_level_rewards)} rows; "
                "give its prompts a uid"
            )
        # In float64, so that rows of the same sum get the same reward in whatever order they earned it.
        rewards = token_level_rewards.detach().double().sum(-1).float()
        group_ids = read_group_ids(self.where, index, len(rewards), rewards.device)
        rewards = rewards.masked_fill(self._padding(index, rewards), torch.nan)
        batch = Batch(
            rewards,
            group_ids,
            prompt_ids=(),
            lengths=response_mask.detach().sum(-1).double(),
        )
        advantages = estimating(batch)
        mask = response_mask.detach().to(rewards.device, torch.float32)
        return advantages[:, None] * mask

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse what could not run, before a batch is there.

        Raises:
            ConfigError: As when it is called.
        """
        self._start(options)

    def _padding(self, index: Any, rewards: Tensor) -> Tensor:
        ids = index.tolist() if hasattr(index, "tolist") else list(index)
        matches = [isinstance(i, str) and re.fullmatch(self.padding, i) is not None for i in ids]
        return torch.from_numpy(np.array(matches, dtype=bool)).to(rewards.device)

    def _start(self, options: Mapping[str, Any]) -> Estimating:
        return started(self.name, options, where=self.where, option=self.option, lacking=dict(self.lacking))


@dataclass(frozen=True)
class WithOptions:
    """One with its options, as SkyRL calls it.

    SkyRL pickles it; what reads it needs no SkyRL and registers nothing.

    Args:
        estimator: For any options.
        options: The estimator's keywords.
    """

    estimator: TokenLevel
    options: Mapping[str, Any]

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "batch time"],
        response_mask: Shaped[Tensor, "batch time"],
        index: Any = None,
        grpo_norm_by_std: bool = True,
        **other: Any,
    ) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
        """Advantages and returns, which are the same without a critic. What SkyRL gives besides is not looked at.

        Raises:
            ConfigError: `grpo_norm_by_std` is False and would be ignored.
            EstimatorError: As for `TokenLevel`.
        """
        refuse_without_std(self.estimator, "grpo_norm_by_std", grpo_norm_by_std)
        found = self.estimator(token_level_rewards, response_mask, index, self.options)
        return found, found


def refuse_without_std(estimator: TokenLevel, flag: str, with_std: bool) -> None:
    """GRPO without its std is another estimator here, and the trainer's own flag would be ignored.

    Raises:
        ConfigError: The flag is off.
    """
    if estimator.name == "grpo" and not with_std:
        raise ConfigError(
            f"{estimator.where}: {flag} is False, expected True, as it is read by the trainer's own grpo alone; "
            "choose grouprl_dr_grpo"
        )
