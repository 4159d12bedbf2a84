"""Which completions of a micro-batch go through the model, and what that does to the loss's denominator.

A completion whose advantage is exactly 0 adds exactly 0 to a policy-gradient loss, and its gradient is exactly 0, so
it need not go through the model. Nor need one of which no token is trained (TRL's mask_truncated_completions, or tools
that wrote all of it). What has to stay is the denominator, and that every rank does the same work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grouprl.integrations.refilling import SIDES

BY_ROW = frozenset(SIDES) | {"advantages"}
ROWS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""TRL's losses that are divided by the number of completions in the micro-batch."""
TOKENS = frozenset({"bnpo"})
"""By the number of its tokens."""
WINDOW = frozenset({"dapo", "cispo", "vespo"})
"""By a number that is the whole generation batch's."""


def obstacle(trainer: Any) -> str | None:
    """Why a completion without advantage may have a gradient under a trainer's options; None where it has none."""
    if trainer.beta != 0.0:
        return f"beta is {trainer.beta:g}, and the KL term reaches every completion"
    if trainer._entropy_bonus_enabled:
        return "the entropy bonus reaches every completion"
    if trainer.aux_loss_enabled:
        return "the router's loss reaches every completion"
    if trainer.top_entropy_quantile < 1.0:
        return "top_entropy_quantile compares the tokens of all completions"
    if trainer._is_vlm:
        return "images are not held a row a completion"
    if trainer.loss_type not in ROWS | TOKENS | WINDOW:
        return f"loss_type {trainer.loss_type!r} is not known here"
    return None


@dataclass(frozen=True)
class Kept:
    """The part of a micro-batch that goes through the model.

    Args:
        inputs: TRL's, with the rows that are kept.
        scale: What its loss is multiplied by, to have the denominator of the whole.
        tokens: Trained tokens kept, and of the whole.
        rows: Completions kept, and of the whole.
    """

    inputs: dict[str, Any]
    scale: Tensor | float
    tokens: tuple[Tensor, Tensor]
    rows: tuple[int, int]


def signalling(inputs: Mapping[str, Any]) -> Tensor | None:
    """Which completions have an advantage other than 0 and a trained token; None where a batch holds more than a row
    a completion.
    """
    if any(key not in BY_ROW and _is_rows(value) for key, value in inputs.items()):
        return None
    advantages = inputs["advantages"]
    trained = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).any(dim=1)
    return (advantages != 0).reshape(len(advantages), -1).any(dim=1) & trained


def keep(inputs: Mapping[str, Any], signal: Tensor, count: int, loss_type: str) -> Kept:
    """`count` rows: all that signal, and the shortest of the others where that is more.

    Args:
        inputs: Of one micro-batch.
        signal: From `signalling`.
        count: At least 1 and at least the rows that signal; the same on every rank, as TRL gathers a number a row.
        loss_type: TRL's.
    """
    mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    lengths = inputs["completion_mask"].sum(dim=1)
    rows = torch.where(signal, -1, lengths).argsort(stable=True)[:count].sort().values
    kept = {key: value[rows] if key in BY_ROW else value for key, value in inputs.items()}
    tokens, all_tokens = mask[rows].sum(), mask.sum()
    scale: Tensor | float = 1.0
    if loss_type in ROWS:
        scale = count / len(signal)
    elif loss_type in TOKENS:
        scale = tokens.clamp(min=1) / all_tokens.clamp(min=1)
    return Kept(kept, scale, (tokens, all_tokens), (count, len(signal)))


def _is_rows(value: Any) -> bool:
    return value is not None and not (isinstance(value, Tensor) and value.ndim == 0)
