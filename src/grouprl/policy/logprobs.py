"""Per-token log-probs of completions, the LM head applied in chunks and only where it is needed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.policy.head import token_logprobs
from grouprl.policy.model import Policy
from grouprl.policy.rows import Rows


def completion_logprobs(
    policy: Policy, rows: Rows, *, temperature: float = 1.0, entropy_gradient: bool = False
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

    Returns:
        Log-probs (nats; differentiable) and entropies (nats; detached, unless asked for), float32, 0 where
        `rows.completion_mask` is false. The logits of all tokens never exist together: the head runs on
        chunks, and runs again in backward.
    """
    hidden = policy.hidden_states(
        rows.input_ids,
        position_ids=rows.position_ids,
        attention_mask=rows.attention_mask,
        layout=rows.packing,
    )
    picked = hidden.flatten(0, 1).index_select(0, rows.source).to(policy.head.weight.dtype)
    with torch.autocast(picked.device.type, enabled=False):
        logprobs, entropies = token_logprobs(
            policy.head, picked, rows.target, temperature or 1.0, entropy_gradient=entropy_gradient
        )
    shape = rows.completion_mask.shape
    flat = logprobs.new_zeros(shape.numel())
    return flat.scatter(0, rows.slot, logprobs).view(shape), flat.scatter(0, rows.slot, entropies).view(shape)
