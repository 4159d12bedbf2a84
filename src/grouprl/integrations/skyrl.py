"""SkyRL: grouprl's estimators under the names grouprl_<name>.

    import grouprl.integrations.skyrl

before `skyrl.train.entrypoints.main_base.main()`, then `trainer.algorithm.advantage_estimator=grouprl_rloo`. SkyRL
checks that name before it starts Ray, and hands the estimator to its processes by itself.
"""

from __future__ import annotations

from typing import Any

from grouprl import advantages
from grouprl.errors import ConfigError
from grouprl.integrations.estimating import MEMORY
from grouprl.integrations.token_level import TokenLevel, WithOptions
from grouprl.integrations.versions import require

VERSION = require("skyrl")

from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry  # noqa: E402

LACKING = (
    ("components", "SkyRL hands over their sum alone"),
    ("greedy_rewards", "SkyRL samples no greedy completion"),
    (MEMORY, "SkyRL's checkpoints have no place for it"),
)
PADDING = r"pad\d+"
"""The uid of the rows that SkyRL adds so that a batch divides among its workers."""
HOOKS = ("skyrl.backends.skyrl_train.utils.ppo_utils.AdvantageEstimatorRegistry: grouprl_<name>",)
"""Where SkyRL is taken hold of."""


def register(*names: str, **options: Any) -> None:
    """Put estimators into SkyRL's registry as grouprl_<name>, in place of what is there under that name.

    Args:
        names: Of `grouprl.advantages`. None: all that can run in SkyRL without options, which importing this module
            does.
        options: The estimator's keywords: `register("ngrpo", max_reward=1.0)`.

    Raises:
        ConfigError: An estimator that SkyRL has not enough for, or options that it does not take.
    """
    if not names:
        names = tuple(name for name in advantages.names() if _runs(name))
    for name in names:
        found = _estimator(name)
        found.check(options)
        key = f"grouprl_{found.name}"
        if key in AdvantageEstimatorRegistry.list_available():
            AdvantageEstimatorRegistry.unregister(key)
        AdvantageEstimatorRegistry.register(key, WithOptions(found, options))


def _estimator(name: str) -> TokenLevel:
    name = advantages.get(name).name
    where = f"SkyRL: trainer.algorithm.advantage_estimator=grouprl_{name}"
    option = f"grouprl.integrations.skyrl.register({name!r}, {{name}}=…)"
    return TokenLevel(name, where, option, LACKING, PADDING)


def _runs(name: str) -> bool:
    try:
        _estimator(name).check({})
    except ConfigError:
        return False
    return True


if not any(name.startswith("grouprl_") for name in AdvantageEstimatorRegistry.list_available()):
    register()  # in another process of the run they are there, with their options
