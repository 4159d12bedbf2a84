"""A value head: what reward a critic expects, from the hidden state before each token. For PPO alone."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from grouprl.policy.logprobs import in_completions
from grouprl.policy.rows import Rows


class ValueHead(nn.Module):
    """V(s_t) = w · h_t + b, in float32, where h_t is the hidden state that predicts token t.

    Weights start at 0, so that the first values are 0 and no state is preferred by chance.

    Args:
        width: Of the hidden states.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n"]:
        """In the reward's unit."""
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = self.linear(states.float())[..., 0]
        return values


def completion_values(
    head: ValueHead, states: Float[Tensor, "trained hidden"], rows: Rows
) -> Float[Tensor, "completions tokens"]:
    """The value before each trained token of `rows`, 0 elsewhere. Differentiable.

    Args:
        head: The critic's.
        states: `logprobs.predicting_states` of the same rows.
        rows: A micro-batch.
    """
    return in_completions(head(states), rows)
