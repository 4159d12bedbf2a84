"""The task that a configuration names, with its rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grouprl.errors import ConfigError, RunError, TaskError
from grouprl.tasks import RewardLike, Task, check_rewards, load, make_rewards
from grouprl.training.config import Config
from grouprl.training.rewards import resolve_rewards, several


def load_task(
    config: Config, task: Task | None = None, reward: RewardLike | Sequence[RewardLike] | None = None
) -> Task:
    """The task that a configuration names, or `task`, with the rewards that were asked for; all checked.

    Raises:
        RunError: The configuration is of a run that was given its task or rewards from Python, and they are missing.
        TaskError: As for `tasks.load`.
    """
    if task is None and config.task.startswith("<"):
        raise RunError(
            f"task {config.task} was given from Python; give it again: task=… in Python, or --task with a file"
        )
    if reward is None and any(name.startswith("<") for name in config.reward):
        raise RunError(
            f"reward {', '.join(config.reward)} was given from Python; give it again: reward=… in Python, or "
            "--reward file.py:function"
        )
    rewards = resolve_rewards(config, config.reward if reward is None else reward)
    if task is None:
        _check_task_options(config)
        task = load(
            config.task,
            rewards=rewards,
            reward_weights=config.reward_weights or None,
            success_reward=config.success_reward,
            heldout_path=config.heldout_path,
            heldout_fraction=config.heldout_fraction,
            **config.task_options,
        )
        return task.with_system_prompt(config.system_prompt) if config.system_prompt else task
    if config.task_options:
        raise TaskError(
            f"task {task.name!r}: given from Python with task_options {', '.join(config.task_options)}; leave them out"
        )
    if reward is not None or config.reward or config.reward_weights:
        chosen = make_rewards(rewards or task.rewards, config.reward_weights or None, own=task.rewards)
        task = dataclasses.replace(task, rewards=chosen)
    if config.success_reward is not None:
        task = dataclasses.replace(task, success_reward=config.success_reward)
    check_rewards(task)
    return task.with_system_prompt(config.system_prompt) if config.system_prompt else task


def reward_names(reward: RewardLike | Sequence[RewardLike]) -> tuple[str, ...]:
    """What config.toml says of rewards given from Python."""
    return tuple(
        item if isinstance(item, str) else f"<{make_rewards(item)[0].name}>" for item in several(reward)
    )


def _check_task_options(config: Config) -> None:
    """Refuse an option under whose name `tasks.load` takes something else."""
    for name in ("rewards", "reward_weights", "success_reward", "heldout_path", "heldout_fraction"):
        if name in config.task_options:
            raise ConfigError(
                f"config: {name!r} in task_options, expected the task's own options; it belongs at the top "
                f"({'reward' if name == 'rewards' else name} = …)"
            )
