"""OpenRLHF: `RemoteExperienceMaker.compute_advantages_and_returns`, on experiences that hold rewards.

Its module is loaded without the packages' `__init__` files, and two names that are imported for other
functions or for annotations alone (DeepSpeed, the launcher of Ray actors) are empty stand-ins.
"""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import torch

from adapters.interface import Function, Groups, same_size, skip_package_init, split

skip_package_init(
    "openrlhf", "openrlhf.models", "openrlhf.utils", "openrlhf.trainer", "openrlhf.trainer.ppo_utils"
)
sys.modules["deepspeed"] = types.ModuleType("deepspeed")
launcher = types.ModuleType("openrlhf.trainer.ray.launcher")
launcher.RayActorGroup = object
sys.modules |= {"openrlhf.trainer.ray": types.ModuleType("openrlhf.trainer.ray"), launcher.__name__: launcher}

from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402

DISTRIBUTION = "openrlhf"
METHOD = "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker.compute_advantages_and_returns"


def functions() -> dict[str, Function]:
    return {
        "group_norm": _function("group_norm", noise=True),
        "dr_grpo": _function("dr_grpo"),
        "rloo": _function("rloo", noise=True),
        "reinforce_baseline": _function("reinforce_baseline"),
    }


def _function(estimator: str, *, noise: bool = False) -> Function:
    def call(groups: Groups) -> list[list[float]]:
        maker = RemoteExperienceMaker(
            None, None, None, None, SimpleNamespace(value=0.0), _strategy(estimator, same_size(groups)), None
        )
        rewards = torch.tensor([reward for group in groups for reward in group], dtype=torch.float32)
        experience = Experience(
            rewards=rewards,
            index=list(range(len(rewards))),
            action_mask=torch.ones(len(rewards), 1, dtype=torch.bool),
            kl=torch.zeros(len(rewards), 1),
        )
        (experience,) = maker.compute_advantages_and_returns([experience])
        return split(experience.advantages[:, 0].tolist(), groups)

    return Function(METHOD, call, noise)


def _strategy(estimator: str, size: int) -> SimpleNamespace:
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, no_std_norm=False)
    return SimpleNamespace(
        args=SimpleNamespace(
            algo=SimpleNamespace(advantage=advantage),
            rollout=SimpleNamespace(n_samples_per_prompt=size),
            reward=SimpleNamespace(
                clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None
            ),
        )
    )
