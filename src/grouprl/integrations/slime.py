"""slime: grouprl's estimators as its reward post-processing.

    --advantage-estimator grpo --custom-reward-post-process-path grouprl.integrations.slime.rloo

The last part of the path is any registered name. slime's `grpo`, `gspo` and `cispo` take the rewards that the function
returns for advantages. Options of an estimator go to `grouprl` in the file of `--custom-config-path`.

slime is called by nothing here: the module needs none of it to be imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grouprl import advantages
from grouprl.advantages.group_ids import read_group_ids
from grouprl.errors import ConfigError, EstimatorError
from grouprl.integrations.estimating import MEMORY, Batch, started

LACKING = {
    "greedy_rewards": "slime samples no greedy completion",
    MEMORY: "slime's checkpoints have no place for it",
}
TAKEN_AS_ADVANTAGES = ("grpo", "gspo", "cispo")
"""slime's own estimators that copy a reward to its tokens and do no more."""
OPTION = "grouprl: {{{name}: …}} in the file of --custom-config-path"
HOOKS = ("--custom-reward-post-process-path grouprl.integrations.slime.<name>",)
"""Where slime is taken hold of."""


@dataclass(frozen=True)
class RewardPostProcess:
    """What slime calls once a rollout, with all its samples.

    Args:
        name: Of the estimator in `grouprl.advantages`.
    """

    name: str

    def __call__(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Each sample's own reward, which slime logs, and its advantage, which it trains with.

        Args:
            args: slime's arguments: `advantage_estimator`, `reward_key` and, where options were given, `grouprl`.
            samples: Each with `group_index`, `reward`, `loss_mask` or `response_length`. A reward that is None or
                not finite is unscored. Where every reward is a dict of numbers, `gdpo` takes them apart.

        Raises:
            ConfigError: An estimator that slime has not enough for, options that it does not take, or another
                estimator of slime's, which would transform the advantages again.
            EstimatorError: A sample without a group, or a reward that is no number.
        """
        where = f"slime: {self.name}"
        theirs = getattr(args, "advantage_estimator", None)
        if theirs not in TAKEN_AS_ADVANTAGES:
            raise ConfigError(
                f"{where}: --advantage-estimator is {theirs}, expected one of {', '.join(TAKEN_AS_ADVANTAGES)}, which "
                "take rewards as advantages; choose grpo"
            )
        given = getattr(args, "grouprl", None) or {}
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"{where}: grouprl is {given!r} in the file of --custom-config-path, expected the estimator's options, "
                "such as max_reward: 1.0; correct it"
            )
        estimating = started(self.name, given, where=where, option=OPTION, lacking=LACKING)
        raw = [_number(where, sample, sample.get_reward_value(args)) for sample in samples]
        groups = [sample.group_index for sample in samples]
        if None in groups:
            raise EstimatorError(
                f"{where}: sample {groups.index(None)} has no group_index, expected the number of its prompt; let the "
                "rollout function keep that of the data source"
            )
        device = torch.device("cpu")
        batch = Batch(
            torch.tensor(raw, dtype=torch.float64).float(),
            read_group_ids(where, groups, len(groups), device),
            prompt_ids=(),
            lengths=torch.tensor([_tokens(sample) for sample in samples], dtype=torch.float64),
            components=_components(where, samples) if estimating.needs("components") else None,
        )
        return raw, estimating(batch).tolist()


def _tokens(sample: Any) -> int:
    return int(sample.response_length) if sample.loss_mask is None else int(sum(sample.loss_mask))


def _number(where: str, sample: Any, reward: Any) -> float:
    if reward is None:
        return math.nan
    try:
        return float(reward)
    except (TypeError, ValueError) as error:
        raise EstimatorError(
            f"{where}: the reward of sample {sample.index} is {reward!r}, expected a number; where it is a dict, "
            "choose the one that counts with --reward-key"
        ) from error


def _components(where: str, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
    every = [sample.reward for sample in samples]
    if not all(isinstance(reward, Mapping) for reward in every):
        raise EstimatorError(
            f"{where}: a sample's reward is no dict, expected one of single rewards by name; return one from the "
            "reward function, with --reward-key for the one that is logged"
        )
    names = dict.fromkeys(name for reward in every for name in reward)
    return {
        name: torch.tensor([_number(where, s, s.reward.get(name)) for s in samples], dtype=torch.float32)
        for name in names
    }


def __getattr__(name: str) -> Callable[[Any, Sequence[Any]], tuple[list[float], list[float]]]:
    if name.startswith("_") or name not in advantages.names():
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}, expected one of {', '.join(advantages.names())}"
        )
    return RewardPostProcess(name)
