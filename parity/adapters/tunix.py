"""tunix: the registered estimators of `algo_core`, which take flat rewards and the group size.

The package's own `__init__`, which imports every trainer, is left out.
"""

from __future__ import annotations

import numpy as np

from adapters.interface import Function, Groups, same_size, skip_package_init, split

skip_package_init("tunix")

from tunix.rl import algo_core  # noqa: E402

DISTRIBUTION = "google-tunix"
MODULE = "tunix.rl.algo_core"


def functions() -> dict[str, Function]:
    return {
        "grpo": _function("compute_advantages", noise=True),
        "drgrpo": _function("compute_drgrpo_advantages"),
        "rloo": _function("compute_rloo_advantages", noise=True),
    }


def _function(name: str, *, noise: bool = False) -> Function:
    estimator = getattr(algo_core, name)

    def call(groups: Groups) -> list[list[float]]:
        size = same_size(groups)
        rewards = np.array([reward for group in groups for reward in group], dtype=np.float32)
        return split(np.asarray(estimator(rewards, size)).tolist(), groups)

    return Function(f"{MODULE}.{name}", call, noise)
