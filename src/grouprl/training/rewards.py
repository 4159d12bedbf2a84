"""Rewards that a configuration can name and `grouprl.tasks` cannot make alone: servers with options, reward models."""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.policy import load_reward_model
from grouprl.tasks import Reward, RewardLike
from grouprl.tasks.http_messages import is_url
from grouprl.tasks.http_reward import http_reward
from grouprl.tasks.reward_specs import MODEL_PREFIX
from grouprl.training.config import Config


def several(rewards: RewardLike | Sequence[RewardLike]) -> list[RewardLike]:
    """One reward or several, as a list."""
    if isinstance(rewards, str | Reward) or callable(rewards):
        return [rewards]
    return list(rewards)


def resolve_rewards(config: Config, rewards: RewardLike | Sequence[RewardLike]) -> list[RewardLike]:
    """The same rewards, with those made that name a server ("http://…") or a reward model ("model:…").

    Raises:
        TaskError, ModelError, ConfigError: One of them cannot be used.
    """
    return [_resolved(config, reward) for reward in several(rewards)]


def _resolved(config: Config, reward: RewardLike) -> RewardLike:
    options = config.scoring
    if isinstance(reward, str) and is_url(reward):
        return http_reward(
            reward,
            timeout_s=options.http_timeout_s,
            retries=options.http_retries,
            batch_size=options.http_batch_size,
            concurrency=options.http_concurrency,
            token_env=options.http_token_env,
        )
    if isinstance(reward, str) and reward.startswith(MODEL_PREFIX):
        model = load_reward_model(
            reward,
            device=config.device,
            dtype=options.reward_model_dtype,
            batch_tokens=options.reward_model_batch_tokens,
        )
        return Reward(model.name, model)
    return reward
