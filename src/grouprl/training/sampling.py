"""What the keys of [sampling] mean together, and for a task: what is refused, and what a run says of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from grouprl.errors import ConfigError
from grouprl.tasks import Task

if TYPE_CHECKING:
    from grouprl.training.config import Config

OVERLONG = "overlong"
"""Name of the reward component that soft overlong punishment adds."""


def check_sampling(config: Config, where: str) -> None:
    """Refuse what one key allows and another does not."""
    sampling, rollout = config.sampling, config.rollout
    if sampling.max_sampling_rounds > 1 and rollout.group_size == 1:
        raise ConfigError(
            f"{where}: sampling.max_sampling_rounds is {sampling.max_sampling_rounds} with rollout.group_size 1, "
            "expected a larger group; a group of one has no spread and would be dropped: set max_sampling_rounds = 0"
        )
    size = sampling.train_group_size
    if size and not 2 <= size <= rollout.group_size:
        raise ConfigError(
            f"{where}: sampling.train_group_size is {size}, expected 2 to rollout.group_size = {rollout.group_size}; "
            "0 trains on all completions of a group"
        )
    buffer = sampling.overlong_buffer_tokens
    if buffer >= 1 and buffer != int(buffer):
        raise ConfigError(
            f"{where}: sampling.overlong_buffer_tokens is {buffer:g}, expected whole tokens, or a number below 1: a "
            "share of max_new_tokens"
        )
    if buffer > rollout.max_new_tokens:
        raise ConfigError(
            f"{where}: sampling.overlong_buffer_tokens is {buffer:g}, expected at most "
            f"rollout.max_new_tokens = {rollout.max_new_tokens}; it is the part of it over which the reward falls"
        )


def overlong_buffer(config: Config) -> int:
    """Tokens before max_new_tokens over which the reward falls; 0 where it does not. A number below 1 is a share of
    max_new_tokens, rounded up."""
    given = config.sampling.overlong_buffer_tokens
    return math.ceil(given * config.rollout.max_new_tokens - 1e-9) if given < 1 else int(given)


def check_component_names(config: Config, task: Task) -> None:
    """Refuse a reward with the name that the overlong punishment is recorded under."""
    if config.sampling.overlong_buffer_tokens and OVERLONG in {reward.name for reward in task.rewards}:
        raise ConfigError(
            f"sampling.overlong_buffer_tokens is {config.sampling.overlong_buffer_tokens:g} with a reward named "
            f"{OVERLONG!r}, the name of what it adds to the reward, expected one of the two; rename the reward"
        )


def sampling_notes(config: Config) -> list[str]:
    """What [sampling] does beyond training on all that is drawn."""
    sampling, rollout, notes = config.sampling, config.rollout, []
    if sampling.max_sampling_rounds > 1:
        notes.append(
            "dynamic sampling: groups without spread in correctness are dropped, and up to "
            f"{sampling.max_sampling_rounds} rounds of prompts drawn for {rollout.prompts_per_step} with spread"
        )
    if sampling.train_group_size:
        notes.append(
            f"training on {sampling.train_group_size} of each {rollout.group_size} completions, those of largest "
            "reward variance"
        )
    if sampling.overlong_buffer_tokens:
        notes.append(
            f"the reward falls by up to {sampling.overlong_penalty:g} over the last {overlong_buffer(config)} "
            "tokens before max_new_tokens"
        )
    if sampling.skip_epochs:
        kinds = "solved or never solved" if sampling.skip_unsolved else "solved"
        notes.append(f"prompts that were {kinds} are passed over for {sampling.skip_epochs} epochs")
    return notes
