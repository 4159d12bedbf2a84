"""Per-token log-probs of completions, the LM head applied in chunks and only where it is needed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grouprl.policy.model import Policy
from grouprl.policy.rows import Rows

CHUNK_ELEMENTS = 2**24
"""Most logits that exist at once (64 MiB in float32)."""


def completion_logprobs(
    policy: Policy, rows: Rows, *, temperature: float = 1.0
) -> tuple[Float[Tensor, "completions tokens"], Float[Tensor, "completions tokens"]]:
    """Log-probs and entropies of the completions in `rows`.

        log π(o_t | q, o_<t) = z_{o_t} − log Σ_v exp z_v,    z = logits / T
        H_t = log Σ_v exp z_v − Σ_v π_v z_v

    over the full vocabulary, before top-p and top-k, as the sampler records them.

    Args:
        policy: The model.
        rows: A micro-batch, as `build_rows` makes it.
        temperature: T > 0; 0 (greedy) counts as 1.

    Returns:
        Log-probs (nats; differentiable) and entropies (nats; detached), float32, 0 where
        `rows.completion_mask` is false. The logits of all tokens never exist together: the head runs on
        chunks, and runs again in backward.
    """
    hidden = policy.hidden_states(
        rows.input_ids,
        position_ids=rows.position_ids,
        attention_mask=rows.attention_mask,
        layout=rows.packing,
    )
    picked = hidden.flatten(0, 1).index_select(0, rows.source)
    chunk = max(1, CHUNK_ELEMENTS // policy.vocab_size)
    parts = [
        checkpoint(
            _head_chunk,
            policy,
            picked[i : i + chunk],
            rows.target[i : i + chunk],
            temperature or 1.0,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for i in range(0, len(picked), chunk)
    ]
    shape = rows.completion_mask.shape
    if not parts:
        empty = picked.new_zeros(shape, dtype=torch.float32)
        return empty + 0 * hidden.sum(), empty
    flat = picked.new_zeros(shape.numel(), dtype=torch.float32)
    logprobs = flat.scatter(0, rows.slot, torch.cat([lp for lp, _ in parts]))
    entropies = flat.scatter(0, rows.slot, torch.cat([h for _, h in parts]))
    return logprobs.view(shape), entropies.view(shape)


def _head_chunk(
    policy: Policy, hidden: Float[Tensor, "n hidden"], target: Int[Tensor, " n"], temperature: float
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    logits = policy.logits(hidden)
    if temperature != 1.0:
        logits = logits / temperature
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(-1, target[:, None])[:, 0] - normaliser
    with torch.no_grad():
        entropy = normaliser - ((logits - normaliser[:, None]).exp() * logits).sum(-1)
    return logprobs, entropy
