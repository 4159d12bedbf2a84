"""The whole objective as its equations read: one sequence at a time, all its logits, in float64, by autograd.

No mask, no clamp, no shared prompt, no micro-batch, nothing left out because its gradient would be 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grouprl.policy import Policy
from grouprl.training import Config
from grouprl.types import Completion, Group

PUBLISHED = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": math.inf},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "gspo_token": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
    "reinforce": {},
}


@dataclass
class Item:
    """A completion with all that the loss knows of it."""

    group: Group
    completion: Completion
    advantage: float
    scored: bool
    in_group_with_signal: bool
    old: Tensor | None = None
    ref: Tensor | None = None


def items(groups: Sequence[Group], advantages: Sequence[float], scored: Sequence[bool]) -> list[Item]:
    made, i = [], 0
    for group in groups:
        here = range(i, i + len(group.completions))
        signal = any(scored[k] and advantages[k] != 0 for k in here)
        for k, completion in zip(here, group.completions):
            made.append(Item(group, completion, float(advantages[k]), scored[k], signal))
        i += len(group.completions)
    return made


def in_float64(policy: Policy) -> Any:
    """The same weights in a fresh model of transformers, without any of our layers."""
    model = type(policy.model)(policy.model.config).double().eval()
    model.load_state_dict({k: v.double() for k, v in policy.model.state_dict().items()}, strict=False)
    model.tie_weights()
    return model


def logprobs_and_entropies(model: Any, item: Item, temperature: float) -> tuple[Tensor, Tensor]:
    prompt, answer = item.group.prompt_token_ids, item.completion.token_ids
    logits = model(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0]
    distribution = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    entropies = -(distribution.exp() * distribution).sum(-1)
    return distribution[range(len(answer)), list(answer)], entropies


def remember(model: Any, batch: Sequence[Item], temperature: float, *, reference: Any = None) -> None:
    """Old and reference log-probs, before the first step."""
    with torch.no_grad():
        for item in batch:
            item.old = logprobs_and_entropies(model, item, temperature)[0]
            if reference is not None:
                item.ref = logprobs_and_entropies(reference, item, temperature)[0]


def token_losses(name: str, o: dict[str, float], new: Tensor, old: Tensor, a: float) -> Tensor:
    """The surrogate of one completion's tokens."""
    r = (new - old).exp()
    if name == "reinforce":
        return -a * new
    if name == "sapo":
        tau = o["tau_positive"] if a > 0 else o["tau_negative"]
        return -a * (4 / tau) / (1 + (-tau * (r - 1)).exp())
    if name == "gmpo":
        c = (new - old).clamp(max=o["clip_high"]) if a > 0 else (new - old).clamp(min=-o["clip_low"])
        return (-a * c.mean().exp()).expand(len(new))
    low, high = 1 - o["clip_low"], 1 + o["clip_high"]
    if name == "cispo":
        return -r.clamp(low, high).detach() * a * new
    if name == "gspo":
        r = (new - old).mean().exp().expand(len(new))
    if name == "gspo_token":
        r = (new - old).mean().exp().detach() * new.exp() / new.exp().detach()
    loss = torch.maximum(-r * a, -r.clamp(low, high) * a)
    dual = o.get("dual_clip", math.inf)
    return loss.clamp(max=-dual * a) if a < 0 and dual < math.inf else loss


def objective(model: Any, batch: Sequence[Item], config: Config) -> Tensor:
    """The loss of one mini-batch."""
    o, temperature = config.objective, config.rollout.temperature
    options = {k: getattr(o, k) or v for k, v in PUBLISHED[o.surrogate].items()}
    several = o.updates_per_rollout * o.mini_batches > 1
    correction = o.correction
    if correction == "auto":
        correction = "truncated" if o.surrogate == "reinforce" and several else "off"
    counted = [m for m in batch if m.scored and (o.denominator == "all" or m.in_group_with_signal)]
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for m in counted:
        if o.overlong_filter and m.completion.finish_reason == "length":
            continue
        new, entropies = logprobs_and_entropies(model, m, temperature)
        old = new.detach() if o.surrogate == "reinforce" else m.old
        loss = token_losses(o.surrogate, options, new, old, m.advantage)
        if correction != "off":
            w = (old - torch.tensor(m.completion.logprobs, dtype=torch.float64)).exp()
            w = w.prod().expand(len(w)) if o.correction_level == "sequence" else w
            if correction == "truncated":
                w = w.clamp(max=o.correction_high)
            else:
                w = torch.where((w >= o.correction_low) & (w <= o.correction_high), w, 0.0)
            loss = w * loss
        if o.beta and o.kl_in == "loss":
            d = new - m.ref
            kl = {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[o.kl or "k3"]
            loss = loss + o.beta * (kl * (new - old).exp() if o.kl_weighted else kl)
        loss = loss - o.entropy_weight * entropies
        total = total + (loss.mean() if o.aggregation == "sequence_mean" else loss.sum())
        tokens += len(new)
    divisor = {
        "sequence_mean": len(counted),
        "sequence_sum_mean": len(counted),
        "token_mean": tokens,
        "constant": len(counted) * config.rollout.max_new_tokens,
    }[o.aggregation]
    return total / max(divisor, 1)


def train_plainly(
    policy: Policy,
    groups: Sequence[Group],
    advantages: Sequence[float],
    scored: Sequence[bool],
    config: Config,
    *,
    size: float,
    cuts: Sequence[Sequence[int]] | None = None,
    reference: Policy | None = None,
) -> tuple[float, list[list[Tensor]], list[Tensor], list[float]]:
    """Gradient descent, the first step `size` long.

    Args:
        cuts: The groups of each mini-batch; all of them in one where not given.

    Returns:
        Its learning rate, the gradient of each step, the weights at the end, the loss of each step.
    """
    model = in_float64(policy)
    batch = items(groups, advantages, scored)
    remember(model, batch, config.rollout.temperature, reference=reference and in_float64(reference))
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients, losses, lr = [], [], 0.0
    for _ in range(config.objective.updates_per_rollout):
        for cut in cuts or [range(len(groups))]:
            chosen = [groups[k] for k in cut]
            loss = objective(model, [m for m in batch if any(m.group is g for g in chosen)], config)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            grads = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]
            lr = lr or size / math.sqrt(sum(float(g.pow(2).sum()) for g in grads))
            with torch.no_grad():
                for p, g in zip(parameters, grads):
                    p -= lr * g
            gradients.append(grads)
            losses.append(loss.item())
    return lr, gradients, [p.detach() for p in parameters], losses
