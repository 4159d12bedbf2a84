"""One update caught before the optimizer takes it, and the gradient that it should have."""

import math

import tiny
import torch

from grouprl.training import config_from_dict
from grouprl.training.optimizer import make_optimizer
from grouprl.training.update import update

GROUPS = [
    tiny.group([5, 6, 7, 8], [[9, 10, 11], [12], [13, 14, 15, 16, 1]], group_id="a"),
    tiny.group([20], [[21, 22], [1], [23, 24]], group_id="b"),
    tiny.group([30, 31], [[32, 33, 34], [35], [36]], group_id="c"),
]
ADVANTAGES = torch.tensor([1.2, -0.7, -0.5, 0.0, 0.0, 0.0, -1.0, 0.4, 0.6])
SCORED = [True] * 9


def config(**sections):
    base = {"optimizer": {"lr": 1e-2, "max_grad_norm": 0}, "micro_batch_tokens": 1000}
    for key, value in sections.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return config_from_dict(base)


def gradient(
    policy,
    monkeypatch=None,
    *,
    advantages=ADVANTAGES,
    scored=SCORED,
    groups=GROUPS,
    reference=None,
    **sections,
):
    """The gradient of one update, caught before the optimizer takes it."""
    caught = []
    settings = config(**sections)
    optimizer = make_optimizer(policy, settings.optimizer)

    def catch():
        caught.append([p.grad.clone() for p in policy.parameters()])

    before = [p.detach().clone() for p in policy.parameters()]
    result = update(
        policy, optimizer, groups, advantages, scored, settings, reference=reference, before_step=catch
    )
    with torch.no_grad():
        for p, b in zip(policy.parameters(), before):
            p.copy_(b)
    return caught[0], result


def reference_gradient(
    policy, *, advantages=ADVANTAGES, scored=SCORED, aggregation="sequence_mean", temperature=1.0
):
    """Plain autograd on a full forward of each sequence: −A · log π, the on-policy surrogate's gradient."""
    policy.model.zero_grad()
    members = [(g, c) for g in GROUPS for c in g.completions]
    kept = [(m, a) for m, a, s in zip(members, advantages.tolist(), scored) if s]
    total = torch.zeros(())
    for (g, c), a in kept:
        ids = torch.tensor([[*g.prompt_token_ids, *c.token_ids]])
        logprobs = (policy.model(input_ids=ids, use_cache=False).logits[0].float() / temperature).log_softmax(
            -1
        )
        chosen = logprobs[len(g.prompt_token_ids) - 1 : -1].gather(
            -1, ids[0, len(g.prompt_token_ids) :, None]
        )
        total = total - a * (chosen.mean() if aggregation == "sequence_mean" else chosen.sum())
    tokens = sum(len(c.token_ids) for (_, c), _ in kept)
    (total / (len(kept) if aggregation == "sequence_mean" else tokens)).backward()
    grads = [p.grad.clone() for p in policy.parameters()]
    policy.model.zero_grad()
    return grads


def relative_error(found, expected):
    difference = math.sqrt(sum(float((a - b).pow(2).sum()) for a, b in zip(found, expected)))
    return difference / math.sqrt(sum(float(b.pow(2).sum()) for b in expected))
