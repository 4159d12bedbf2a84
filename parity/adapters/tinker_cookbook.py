"""tinker-cookbook: `compute_advantages`, which centres the rewards of each group of trajectories.

Its module is loaded without the `__init__` files of its packages.
"""

from __future__ import annotations

import tinker

from adapters.interface import Function, Groups, skip_package_init

skip_package_init("tinker_cookbook", "tinker_cookbook.rl", "tinker_cookbook.supervised")

from tinker_cookbook.rl.data_processing import compute_advantages  # noqa: E402
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup  # noqa: E402

DISTRIBUTION = "tinker-cookbook"


def functions() -> dict[str, Function]:
    return {"dr_grpo": Function("tinker_cookbook.rl.data_processing.compute_advantages", _call, noise=True)}


def _call(groups: Groups) -> list[list[float]]:
    return [advantages.tolist() for advantages in compute_advantages([_group(group) for group in groups])]


def _group(rewards) -> TrajectoryGroup:
    """Trajectories without steps, scored as a group."""
    trajectories = [Trajectory(transitions=[], final_ob=tinker.ModelInput.empty()) for _ in rewards]
    return TrajectoryGroup(trajectories, [float(reward) for reward in rewards], [{} for _ in rewards])
