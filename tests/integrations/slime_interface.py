"""A recording of what slime 0.4.0 gives a reward post-process, and what it does without one.

Read in its repository (THUDM/slime: slime/utils/types.py, slime/utils/misc.py and slime/ray/rollout.py), and written
anew here with what the hook can see: pip does not have slime, and its import needs SGLang and Megatron.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Sample:
    """The fields of a sample that have to do with its reward and its group."""

    group_index: int | None = None
    index: int | None = None
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Namespace) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward


def arguments(**given: Any) -> Namespace:
    """slime's defaults; what is in the file of --custom-config-path becomes attributes too."""
    defaults = {
        "advantage_estimator": "grpo",
        "custom_reward_post_process_path": None,
        "grpo_std_normalization": True,
        "n_samples_per_prompt": 2,
        "reward_key": None,
        "rewards_normalization": True,
        "rollout_batch_size": 1,
    }
    return Namespace(**{**defaults, **given})


def load_function(path: str) -> Any:
    """What follows the last dot, of the module before it."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def post_processed(args: Namespace, samples: list[Sample]) -> tuple[list[Any], list[float]]:
    """The hook where one is given; else group normalisation by position, or over all where the number does not fit."""
    if args.custom_reward_post_process_path is not None:
        return load_function(args.custom_reward_post_process_path)(args, samples)
    raw = [sample.get_reward_value(args) for sample in samples]
    size = args.n_samples_per_prompt
    whole = len(raw) == size * args.rollout_batch_size
    groups = torch.tensor(raw).reshape(-1, size if whole else len(raw))
    centred = groups - groups.mean(-1, keepdim=True)
    if args.grpo_std_normalization:
        centred = centred / (centred.std(-1, keepdim=True) + 1e-6)
    return raw, centred.flatten().tolist()
