"""What every framework's loss is given, and how its values and gradients are written.

The tensors are float64, so that a difference is one of formulas, not of rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LENGTHS = (6, 3, 1, 5)
"""Trained tokens of the four completions; the rest of the six columns is padding."""
MAX_TOKENS = 10


class Tensors(NamedTuple):
    """(4, 6) each, but advantages (4,). Only `logprobs` carries a gradient."""

    logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    completion_mask: Tensor


@dataclass(frozen=True)
class Loss:
    """One loss of a framework, or another function of log-probs.

    Args:
        path: Where it is in the framework's package.
        call: Tensors → a loss (0-d), or a value for each token.
        options: What it was set to, in the framework's own words.
    """

    path: str
    call: Callable[[Tensors], Tensor]
    options: dict[str, Any]


def inputs() -> dict[str, Any]:
    """Log-ratios on both sides of every usual bound, for both signs of the advantage."""
    generator = np.random.default_rng(357)
    new = -0.1 - 3 * generator.random((4, 6))
    around = {
        f"{name}_logprobs": new + scale * generator.standard_normal((4, 6))
        for name, scale in (("old", 0.4), ("ref", 0.5), ("sampler", 0.6))
    }
    rows = {"logprobs": new, **around}
    rounded = {name: np.round(np.minimum(values, -0.01), 4).tolist() for name, values in rows.items()}
    return rounded | {
        "advantages": [1.25, -0.75, 0.5, -1.5],
        "completion_mask": [[t < length for t in range(6)] for length in LENGTHS],
    }


def tensors() -> Tensors:
    given = inputs()
    values = {
        name: torch.tensor(rows, dtype=torch.bool if name == "completion_mask" else torch.float64)
        for name, rows in given.items()
    }
    values["logprobs"].requires_grad_()
    return Tensors(**values)


def record(losses: dict[str, Loss]) -> dict[str, Any]:
    """Inputs, and for each loss its value with the gradient with respect to log π, or its values."""
    return {"inputs": inputs(), "losses": {name: _record(loss) for name, loss in losses.items()}}


def _record(loss: Loss) -> dict[str, Any]:
    given = tensors()
    value = loss.call(given)
    entry: dict[str, Any] = {"path": loss.path, "options": loss.options}
    if value.dim():
        return entry | {"values": value.detach().tolist()}
    (gradient,) = torch.autograd.grad(value, given.logprobs)
    return entry | {"loss": value.item(), "gradient": gradient.tolist()}
