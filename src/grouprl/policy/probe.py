"""A few tokens through a model, to know before training that grouprl computes what the model computes."""

from __future__ import annotations

import torch

from grouprl.errors import ModelError
from grouprl.policy.logprobs import completion_logprobs
from grouprl.policy.model import Policy
from grouprl.policy.rows import build_rows
from grouprl.types import Completion, Group, Prompt

TOLERANCE_NATS = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}


@torch.no_grad()
def probe(policy: Policy) -> None:
    """Check the LM head against the model's own forward, and decide whether rows can share a prompt.

    Sets `policy.prefix_obstacle`. The architecture says most (a state-space layer cannot share a prefix by
    attention mask); for the rest, two short completions are run both ways and compared, since a model
    that ignores position ids or the mask would not fail, only be wrong.

    Raises:
        ModelError: The head differs from the model's own forward; such a model would be trained wrongly.
    """
    group = _probe_group(policy)
    tolerance = TOLERANCE_NATS.get(policy.model.dtype, 1e-3)
    plain = completion_logprobs(policy, _rows(policy, group, share_prefix=False))[0]
    own = _own_logprobs(policy, group)
    if not torch.allclose(plain, own, atol=tolerance, rtol=0):
        raise ModelError(
            f"{policy.name}: its log-probs differ from hidden states times LM head by "
            f"{(plain - own).abs().max():.2g} nats on a probe; its head is of a kind that grouprl does not know "
            f"({type(policy.model).__name__})"
        )
    policy.prefix_obstacle = _layers_obstacle(policy)
    if policy.prefix_obstacle is None:
        try:
            shared = completion_logprobs(policy, _rows(policy, group, share_prefix=True))[0]
        except (ValueError, RuntimeError, TypeError, IndexError) as error:  # its forward takes no 4-D mask
            policy.prefix_obstacle = (
                f"a probe failed ({type(error).__name__}: {' '.join(str(error).split())})"
            )
            return
        difference = (shared - plain).abs().max()
        if not difference <= tolerance:
            policy.prefix_obstacle = f"a probe differed by {difference:.2g} nats"


def _layers_obstacle(policy: Policy) -> str | None:
    config = policy.config
    if getattr(config, "_attn_implementation", None) not in ("sdpa", "eager"):
        return f"attention implementation {getattr(config, '_attn_implementation', None)!r} takes no 4-D mask"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if getattr(config, "sliding_window", None) and kinds == {"full_attention"}:
        kinds = {"sliding_attention"} if not hasattr(config, "layer_types") else kinds
    other = kinds - {"full_attention"}
    return f"it has {', '.join(sorted(other))} layers" if other else None


def _probe_group(policy: Policy) -> Group:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, policy.vocab_size, (9,), generator=generator).tolist()
    parts = (ids[4:7], ids[7:9])
    completions = tuple(
        Completion(tuple(p), (0.0,) * len(p), (True,) * len(p), text="", finish_reason="stop") for p in parts
    )
    return Group("probe", Prompt("probe", ""), "", tuple(ids[:4]), completions)


def _rows(policy: Policy, group: Group, *, share_prefix: bool):  # type: ignore[no-untyped-def]
    members = [(i, group, c) for i, c in enumerate(group.completions)]
    rows = [members] if share_prefix else [[m] for m in members]
    return build_rows(rows, pad_id=policy.pad_id, share_prefix=share_prefix, device=policy.device)


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
