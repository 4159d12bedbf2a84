"""The four lines of a tutorial: mean, std, subtract, divide. No framework's, but what many write for themselves."""

from __future__ import annotations

import torch

from adapters.interface import Function, Groups, same_size, split

DISTRIBUTION = "torch"


def functions() -> dict[str, Function]:
    return {"four lines": Function("torch.mean, std, sub, div", _four_lines, noise=True)}


def _four_lines(groups: Groups) -> list[list[float]]:
    same_size(groups)
    rewards = torch.tensor(groups, dtype=torch.float32)
    mean = rewards.mean(-1, keepdim=True)
    std = rewards.std(-1, unbiased=False, keepdim=True)
    return split(((rewards - mean) / (std + 1e-6)).flatten().tolist(), groups)
