"""Per-token log-probs of completions, the LM head applied in chunks and only where it is needed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.policy.head import token_logprobs
from grouprl.policy.model import Policy
from grouprl.policy.rows import Rows


def predicting_states(policy: Policy, rows: Rows) -> Float[Tensor, "trained hidden"]:
    """The last hidden states from which the trained tokens of `rows` are predicted, one a token, in `rows.source`'s
    order. Differentiable."""
    hidden = policy.hidden_states(
        rows.input_ids,
        position_ids=rows.position_ids,
        attention_mask=rows.attention_mask,
        layout=rows.packing,
    )
    return hidden.flatten(0, 1).index_select(0, rows.source).to(policy.head.weight.dtype)


def completion_logprobs(
    policy: Policy,
    rows: Rows,
    *,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    states: Float[Tensor, "trained hidden"] | None = None,
) -> tuple[Float[Tensor, "completions tokens"], Float[Tensor, "completions tokens"]]:
    """Log-probs and entropies of the completions in `rows`.

        log π(o_t | q, o_<t) = z_{o_t} − log Σ_v exp z_v,    z = logits / T
        H_t = log Σ_v exp z_v − Σ_v π_v z_v

    over the full vocabulary, before top-p and top-k, as the sampler records them.

    Args:
        policy: The model.
        rows: A micro-batch, as `build_rows` makes it.
        temperature: T > 0; 0 (greedy) counts as 1.
        entropy_gradient: Whether the entropies are differentiable, for an entropy bonus.
        states: `predicting_states` of the same, where they have been worked out already.

    Returns:
        Log-probs (nats; differentiable) and entropies (nats; detached, unless asked for), float32, 0 where
        `rows.completion_mask` is false. The logits of all tokens never exist together: the head runs on
        chunks, and runs again in backward.
    """
    states = predicting_states(policy, rows) if states is None else states
    with torch.autocast(states.device.type, enabled=False):
        logprobs, entropies = token_logprobs(
            policy.head, states, rows.target, temperature or 1.0, entropy_gradient=entropy_gradient
        )
    return in_completions(logprobs, rows), in_completions(entropies, rows)


def in_completions(values: Float[Tensor, " trained"], rows: Rows) -> Float[Tensor, "completions tokens"]:
    """One value a trained token, put into its completion's row; 0 elsewhere."""
    shape = rows.completion_mask.shape
    return values.new_zeros(shape.numel()).scatter(0, rows.slot, values).view(shape)
