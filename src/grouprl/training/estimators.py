"""Which estimator a configuration names, and whether a run can use it: everything that can be refused before it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from grouprl import advantages
from grouprl.advantages import Estimator
from grouprl.advantages.registry import NEEDS
from grouprl.advantages.specs import check_options, estimator_from_spec, option_parameters, parameters
from grouprl.errors import ConfigError, InputError
from grouprl.training.config import Config
from grouprl.training.objective import check_reward_kl

ONE_IS_ENOUGH = ("spo", "remax", "reinforce_plus_plus", "ngrpo", "gae")
"""Estimators that learn from groups of one, as they compare a completion with more than its group."""


def load_estimator(config: Config) -> Estimator:
    """The estimator that a configuration names, its options checked against its signature.

    Raises:
        ConfigError: No such estimator, one that a run cannot use, an unknown or missing option, groups of one
            for an estimator that compares within the group, one that cannot take a KL in the reward.
    """
    estimator = _find(config.advantage.estimator)
    _check_usable(estimator)
    _check_options(estimator, config.advantage.options)
    if config.rollout.group_size == 1 and "single_is_zero" in estimator.laws:
        raise ConfigError(
            f"rollout.group_size is 1, expected at least 2 with estimator {estimator.name!r}; a group of one has "
            f"nothing to be compared with, so every advantage would be 0 (one completion is enough for "
            f"{', '.join(ONE_IS_ENOUGH)})"
        )
    check_reward_kl(estimator, config)
    return estimator


def needs_critic(estimator: Estimator) -> bool:
    """Whether its advantages are of tokens, from the values of a critic: PPO's."""
    return estimator is advantages.get("gae")


def _find(spec: str) -> Estimator:
    try:
        return estimator_from_spec(spec)
    except InputError as error:
        near = difflib.get_close_matches(spec, _usable(), n=1)
        raise ConfigError(
            f"advantage.estimator is {spec!r}, expected one of {', '.join(_usable())}, or your own as "
            f"'file.py:function' or 'module:function'{f'; did you mean {near[0]!r}?' if near else ''}"
        ) from error


def _usable() -> list[str]:
    """Names of the estimators that a run can use."""
    return [name for name in advantages.names() if _obstacle(advantages.get(name)) is None]


def _obstacle(estimator: Estimator) -> str | None:
    if needs_critic(estimator):
        return None
    if "values" in estimator.needs:
        return "it needs a critic's values, and a run has a critic for 'gae' alone"
    if estimator.scope == "token":
        return "it looks at steps or tokens inside a completion, and a run has one reward for each completion"
    return None


def _check_usable(estimator: Estimator) -> None:
    why = _obstacle(estimator)
    if why:
        raise ConfigError(
            f"estimator {estimator.name!r}: {why}, expected one of {', '.join(_usable())}, or your own"
        )
    if estimator.scope == "stateful" and any(p.name == "rewards" for p in parameters(estimator)):
        raise ConfigError(
            f"estimator {estimator.name!r}: it is stateful and takes rewards at once, expected a class, or a "
            "function of its options alone, that makes what is called with rewards"
        )


def _check_options(estimator: Estimator, options: Mapping[str, Any]) -> None:
    check_options(estimator, options)
    where = f"estimator {estimator.name!r}"
    for parameter in option_parameters(estimator):
        if parameter.default is parameter.empty and parameter.name not in {*options, "max_reward"}:
            raise ConfigError(
                f"{where}: option {parameter.name!r} is missing, expected a value as it has no default; give it in "
                "[advantage.options]"
            )
    for parameter in parameters(estimator):
        name = parameter.name
        if name in NEEDS and parameter.default is parameter.empty and name not in estimator.needs:
            raise ConfigError(
                f"{where}: takes {name!r} without declaring it, so a run does not give it; register it with "
                f"needs={{{name!r}}}"
            )
