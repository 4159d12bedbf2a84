"""A few tokens through a model, to know before training that grouprl computes what the model computes."""

from __future__ import annotations

from typing import Any

import torch

from grouprl.errors import ModelError
from grouprl.policy import attention
from grouprl.policy.attention import UnsupportedAttentionError
from grouprl.policy.logprobs import completion_logprobs
from grouprl.policy.model import Policy
from grouprl.policy.rows import Member
from grouprl.types import Completion, Group, Prompt

TOLERANCE_NATS = 1e-3


@torch.no_grad()
def probe(policy: Policy) -> str | None:
    """Check the LM head against the model's own forward, and find out whether rows can share a prompt.

    The architecture says most (a state-space layer cannot share a prefix by attention alone); for the rest,
    two short completions are run both ways and compared, since a model that ignores position ids or passes
    nothing on to its attention would not fail, only be wrong. A model that passes keeps our attention in place
    of its own; without a layout that is transformers' scaled_dot_product_attention.

    Args:
        policy: In float32.

    Returns:
        Why rows cannot share a prompt, or None where they can.

    Raises:
        ModelError: The head differs from the model's own forward; such a model would be trained wrongly.
    """
    group = _probe_group(policy)
    members = [(i, group, c) for i, c in enumerate(group.completions)]
    plain, _ = completion_logprobs(policy, policy.rows([[m] for m in members], share_prefix=False))
    own = _own_logprobs(policy, group)
    if not torch.allclose(plain, own, atol=TOLERANCE_NATS, rtol=0):
        raise ModelError(
            f"{policy.name}: its log-probs differ from hidden states times LM head by "
            f"{(plain - own).abs().max():.2g} nats on a probe; its head is of a kind that grouprl does not know "
            f"({type(policy.model).__name__})"
        )
    obstacle = _layers_obstacle(policy.config) or _install_attention(policy)
    if obstacle is None:
        obstacle = _difference(policy, members, plain)
        if obstacle is not None:
            policy.model.set_attn_implementation("sdpa")
    return obstacle


def _difference(policy: Policy, members: list[Member], plain: torch.Tensor) -> str | None:
    try:
        shared, _ = completion_logprobs(policy, policy.rows([members], share_prefix=True))
    except UnsupportedAttentionError as error:
        return str(error)
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return f"a probe failed ({type(error).__name__}: {' '.join(str(error).split())})"
    difference = float((shared - plain).abs().max())
    return None if difference <= TOLERANCE_NATS else f"a probe differed by {difference:.2g} nats"


def _layers_obstacle(config: Any) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    other = sorted(kinds - {"full_attention", "sliding_attention"})
    return f"it has {', '.join(other)} layers" if other else None


def _install_attention(policy: Policy) -> str | None:
    """Our attention in place of the model's: why it cannot be, or None."""
    model = policy.model
    if model.config._attn_implementation == attention.NAME:
        return None
    if (
        model.config._attn_implementation != "sdpa"
    ):  # what eager does beside (ALiBi, sinks, a soft cap) is not known
        return f"its attention is {model.config._attn_implementation!r}, not scaled_dot_product_attention"
    try:
        model.set_attn_implementation(attention.register())
    except (ValueError, AttributeError) as error:
        return f"its attention cannot be replaced ({' '.join(str(error).split())})"
    return None


def _probe_group(policy: Policy) -> Group:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, policy.vocab_size, (9,), generator=generator).tolist()
    parts = (ids[4:7], ids[7:9])
    completions = tuple(
        Completion(tuple(p), (0.0,) * len(p), (True,) * len(p), text="", finish_reason="stop") for p in parts
    )
    return Group("probe", Prompt("probe", ""), "", tuple(ids[:4]), completions)


def _own_logprobs(policy: Policy, group: Group) -> torch.Tensor:
    prompt = group.prompt_token_ids
    width = max(len(c.token_ids) for c in group.completions)
    result = torch.zeros(len(group.completions), width, device=policy.device)
    for i, completion in enumerate(group.completions):
        ids = torch.tensor([[*prompt, *completion.token_ids]], device=policy.device)
        logprobs = policy.model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        own = logprobs[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0]
        result[i, : len(own)] = own
    return result
