"""verl: every estimator of grouprl's under the name grouprl_<name>.

    python -m verl.trainer.main_ppo algorithm.adv_estimator=grouprl_grpo …

Nothing has to be imported: verl looks for installed plugins as it is imported itself, in each of its processes, and
loads this module. Options of an estimator go to `+algorithm.grouprl.<option>=<value>`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from grouprl import advantages
from grouprl.errors import ConfigError, MissingDependency
from grouprl.integrations.estimating import MEMORY
from grouprl.integrations.token_level import TokenLevel, refuse_without_std
from grouprl.integrations.versions import installed, require

try:
    VERSION = require("verl")
except MissingDependency as error:
    if installed("verl") is not None:  # verl hides what a plugin raises
        warnings.warn(str(error), RuntimeWarning, stacklevel=1)
    raise

from verl.trainer.ppo import core_algos

GROUP, PLUGIN = "verl.plugins", "grouprl"
LACKING = (
    ("components", "verl hands single rewards to its own gdpo alone"),
    ("greedy_rewards", "verl samples greedy completions for its own remax alone"),
    (MEMORY, "verl's uid names a prompt in one batch alone"),
)
PADDING = "pad[0-9a-f]{32}"
"""The uid of the rows that verl adds so that a batch divides among its workers."""


@dataclass(frozen=True)
class AdvantageEstimator:
    """What verl's registry holds: token-level advantages of one estimator, twice, as verl asks for.

    Args:
        name: In `grouprl.advantages`.
    """

    name: str

    def __call__(
        self,
        token_level_rewards: Float[Tensor, "batch time"],
        response_mask: Shaped[Tensor, "batch time"],
        config: Any = None,
        index: Any = None,
        **other: Any,
    ) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
        """Advantages and returns, which are the same without a critic.

        Args:
            token_level_rewards: A row's reward is their sum, as in verl's own estimators.
            response_mask: 1 for the policy's own tokens.
            config: verl's `algorithm` section; the estimator's options are in its `grouprl`.
            index: The uid of each row's prompt.
            other: What verl gives besides, which is not looked at.

        Raises:
            ConfigError: An estimator that verl has not enough for, or options that it does not take.
            EstimatorError: Tensors that do not fit each other, or no uid.
        """
        where = f"verl: algorithm.adv_estimator=grouprl_{self.name}"
        estimator = TokenLevel(self.name, where, "+algorithm.grouprl.{name}=…", LACKING, PADDING)
        refuse_without_std(
            estimator, "norm_adv_by_std_in_grpo", _entry(config, "norm_adv_by_std_in_grpo", True)
        )
        found = estimator(token_level_rewards, response_mask, index, _options(config, where))
        return found, found


def register(*names: str) -> None:
    """Put estimators into verl's registry as grouprl_<name>; again does no harm.

    Args:
        names: Of `grouprl.advantages`. None: all that are registered there now; call it again after registering
            one of your own.
    """
    for name in names or advantages.names():
        core_algos.register_adv_est(f"grouprl_{advantages.get(name).name}")(AdvantageEstimator(name))


def _options(config: Any, where: str) -> dict[str, Any]:
    given = _entry(config, "grouprl", None)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where}: algorithm.grouprl is {given!r}, expected the estimator's options; give "
            "+algorithm.grouprl.<option>=<value>"
        )
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else dict(given)
    return {str(name): value for name, value in plain.items()}


def _entry(config: Any, name: str, default: Any) -> Any:
    return default if config is None else config.get(name, default)


register()

_found = any(found.name == PLUGIN for found in metadata.entry_points(group=GROUP))
HOOKS = (
    f"verl.trainer.ppo.core_algos.register_adv_est: grouprl_<name>, {len(advantages.names())} of them",
    f"the entry point {PLUGIN} in {GROUP}"
    if _found
    else f"no entry point in {GROUP}: set VERL_USE_EXTERNAL_MODULES={__name__}",
)
"""Where verl is taken hold of."""
