"""tunix: grouprl's estimators under the names grouprl_<name>.

    import grouprl.integrations.tunix
    GRPOConfig(advantage_estimator="grouprl_rloo", …)

Rewards come as NumPy or JAX arrays and advantages go back as the same, on the same device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grouprl import advantages
from grouprl.advantages.dlpack import as_tensor, giver, namespace_of
from grouprl.errors import ConfigError, EstimatorError
from grouprl.integrations.estimating import MEMORY, Batch, Estimating, as_estimator
from grouprl.integrations.versions import require

VERSION = require("tunix")

from tunix.rl import function_registry  # noqa: E402

LACKING = {
    "components": "tunix hands over their sum alone",
    "lengths": "tunix hands over rewards alone",
    "greedy_rewards": "tunix samples no greedy completion",
    MEMORY: "tunix hands over no prompts",
}
HOOKS = ("tunix.rl.function_registry.register_advantage_estimator: grouprl_<name>",)
"""Where tunix is taken hold of."""


@dataclass(frozen=True)
class AdvantageEstimator:
    """What tunix's registry holds.

    Args:
        estimating: The estimator with its options.
        where: Begins the messages.
    """

    estimating: Estimating
    where: str

    def __call__(self, rewards: Any, num_generations: int) -> Any:
        """Advantages of the rewards' shape and kind, float32.

        Args:
            rewards: Shape (N,); each run of `num_generations` is a group. NaN or infinite where unscored.
            num_generations: Completions of a prompt.

        Raises:
            EstimatorError: A number of rewards that groups of that size do not add up to.
        """
        foreign = namespace_of(rewards) is not None
        tensor = as_tensor(self.where, "rewards", rewards) if foreign else torch.from_numpy(np.array(rewards))
        if tensor.ndim != 1 or num_generations < 1 or len(tensor) % num_generations:
            raise EstimatorError(
                f"{self.where}: rewards have shape {tuple(tensor.shape)}, expected one axis, of a multiple of "
                f"num_generations={num_generations}; check what fills the batch"
            )
        groups = torch.arange(len(tensor), device=tensor.device) // num_generations
        found = self.estimating(Batch(tensor.float(), groups, prompt_ids=()))
        return giver(rewards)(found) if foreign else found.numpy()


def register(*names: str, **options: Any) -> None:
    """Put estimators into tunix's registry as grouprl_<name>, in place of what is there under that name.

    Args:
        names: Of `grouprl.advantages`. None: all that can run in tunix without options, which importing this module
            does.
        options: The estimator's keywords: `register("ngrpo", max_reward=1.0)`.

    Raises:
        ConfigError: An estimator that tunix has not enough for, or options that it does not take.
    """
    for name in names or _runnable():
        found = _estimator(name, options)
        function_registry.register_advantage_estimator(f"grouprl_{found.estimating.name}")(found)


def _estimator(name: str, options: Mapping[str, Any]) -> AdvantageEstimator:
    name = advantages.get(name).name
    where = f"tunix: advantage_estimator='grouprl_{name}'"
    estimator = as_estimator(name, where=where, lacking=LACKING)
    option = f"grouprl.integrations.tunix.register({name!r}, {{name}}=…)"
    return AdvantageEstimator(Estimating(estimator, options, where=where, option=option), where)


def _runnable() -> list[str]:
    return [name for name in advantages.names() if _runs(name)]


def _runs(name: str) -> bool:
    try:
        _estimator(name, {})
    except ConfigError:
        return False
    return True


register()
