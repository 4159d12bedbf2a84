"""AdamW, its learning rate over the steps, and the gradient that it is given."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from grouprl.policy import Policy
from grouprl.policy.sharding import whole
from grouprl.training.config import OptimizerConfig


def make_optimizer(
    policy: Policy, config: OptimizerConfig, *, critic: Sequence[nn.Parameter] = (), critic_lr: float = 0.0
) -> torch.optim.Optimizer:
    """AdamW, its moments in float32 or in 8 bits, with weight decay on matrices only (not on norms and biases).

    Args:
        policy: Its parameters.
        config: Betas, eps, weight decay and the peak learning rate.
        critic: Further parameters, a critic's, without weight decay.
        critic_lr: Their peak learning rate.
    """
    parameters = policy.parameters()
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        {"params": list(critic), "weight_decay": 0.0, "peak_lr": critic_lr},
    ]
    groups = [g for g in groups if g["params"]]
    if config.optimizer_kind == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit

        eight: torch.optim.Optimizer = AdamW8bit(
            groups, lr=config.lr, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps
        )
        return eight
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,  # one pass over the weights; the default on a CPU makes several copies of them
    )


def learning_rate(config: OptimizerConfig, *, step: int, steps: int) -> float:
    """The learning rate of a step (1-based): linear warm-up, then constant, or down to 0 after the last step.

    >>> linear = OptimizerConfig(lr=1.0, schedule="linear", warmup_steps=2)
    >>> [round(learning_rate(linear, step=s, steps=6), 2) for s in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.schedule == "linear":
        return config.lr * (1.0 - done)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr


def set_learning_rate(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, *, step: int, steps: int
) -> float:
    """Give every group its learning rate of this step; returns the policy's."""
    for group in optimizer.param_groups:
        peak = dataclasses.replace(config, lr=group.get("peak_lr", config.lr))
        group["lr"] = learning_rate(peak, step=step, steps=steps)
    return learning_rate(config, step=step, steps=steps)


def whole_gradient(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradient, weight by weight.

    A weight that no completion reached has gradient 0, not None: AdamW would pass over None, where a gradient of
    0 still moves by momentum.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def clip_gradient(parameters: Sequence[nn.Parameter], max_norm: float) -> float:
    """Scale the gradient down to a norm (0: leave it); gives the norm before."""
    norm = whole(torch.nn.utils.get_total_norm(whole_gradient(parameters)))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm or math.inf, norm)
    return float(norm)
