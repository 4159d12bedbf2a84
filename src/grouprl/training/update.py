"""From scored groups to changed weights: micro-batches, loss, gradient, optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.objectives import loss_denominator, policy_loss, summarise
from grouprl.objectives.kl import k3
from grouprl.objectives.ratio import log_ratio
from grouprl.policy import Policy, Rows, completion_logprobs, plan_micro_batches
from grouprl.policy.rows import Member, longest_sequence
from grouprl.training.config import Config, OptimizerConfig
from grouprl.training.memory import MOST
from grouprl.types import Group


@dataclass
class UpdateResult:
    """What an update did.

    Args:
        trainer_logprobs_mean: For each completion of the batch the mean log-prob of its trained tokens before
            the update, None where no gradient was needed and so nothing was computed.
        metrics: loss, clip shares, KLs, entropy: means over the trained tokens of all updates. Those that were
            not measured are missing.
        grad_norm: Before clipping, of the last update.
        tokens: Tokens that went through forward and backward, padding included.
        completions: Completions that did.
        updates: Optimizer steps made; fewer than asked for where nothing was scored, or where a gradient was
            not finite.
        warnings: What went otherwise than asked.
    """

    trainer_logprobs_mean: list[float | None]
    metrics: dict[str, float] = field(default_factory=dict)
    grad_norm: float | None = None
    tokens: int = 0
    completions: int = 0
    updates: int = 0
    warnings: list[str] = field(default_factory=list)


def make_optimizer(policy: Policy, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only (not on norms and biases)."""
    parameters = policy.parameters()
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,  # one pass over the weights; the default on a CPU makes several copies of them
    )


def learning_rate(config: OptimizerConfig, *, step: int, steps: int) -> float:
    """The learning rate of a step (1-based): linear warm-up, then constant, or down to 0 after the last step.

    >>> linear = OptimizerConfig(lr=1.0, schedule="linear", warmup_steps=2)
    >>> [round(learning_rate(linear, step=s, steps=6), 2) for s in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    if config.schedule == "linear":
        return config.lr * (1.0 - done)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Group],
    advantages: Float[Tensor, " n"],
    scored: Sequence[bool],
    config: Config,
    *,
    reference: Policy | None = None,
    before_step: Callable[[], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> UpdateResult:
    """Train on one batch of groups: `updates_per_rollout` optimizer steps.

    A completion whose advantage is 0, and which no KL term reaches, has gradient 0: it takes no part in
    forward and backward, and keeps its place in the loss's denominator. Unscored completions have none.
    Where nothing at all is left the gradient is 0, and the optimizer still steps (its momentum moves on).

    Args:
        policy: Trained in place.
        optimizer: With its learning rate set.
        groups: The batch.
        advantages: (N,), groups in order, completions in order.
        scored: (N,), whether the completion has a reward.
        config: Objective, optimizer, temperature and micro-batch size are read.
        reference: The frozen model of the KL penalty; needed where beta > 0.
        before_step: Called before each optimizer step, that is before the weights change.
        progress: Called with (micro-batches done, micro-batches to do).
    """
    members: list[Member] = [
        (i, group, completion)
        for i, (group, completion) in enumerate((g, c) for g in groups for c in g.completions)
    ]
    values = advantages.tolist()
    objective = config.objective
    active = [
        m
        for m in members
        if scored[m[0]] and any(m[2].loss_mask) and (values[m[0]] != 0 or objective.beta > 0)
    ]
    denominator = _denominator(members, scored, objective.aggregation)
    result = UpdateResult(trainer_logprobs_mean=[None] * len(members), completions=len(active))
    if denominator == 0:
        result.warnings.append("nothing was scored: no update was made")
        return result

    share = policy.can_share(longest_sequence(active))
    most = config.micro_batch_tokens or MOST["cpu"]
    plan = plan_micro_batches(active, micro_batch_tokens=most, share_prefix=share)
    batches = [(batch, policy.rows(batch, share_prefix=share)) for batch in plan]
    old: dict[int, Tensor] = (
        _old_logprobs(policy, batches, config) if objective.updates_per_rollout > 1 else {}
    )
    corrected = "bfloat16" in (config.dtype, config.rollout.sampler_dtype)
    sums: dict[str, Tensor] = {}
    for number in range(objective.updates_per_rollout):
        optimizer.zero_grad(set_to_none=True)
        for k, (batch, rows) in enumerate(batches):
            logprobs, entropy = completion_logprobs(policy, rows, temperature=config.rollout.temperature)
            loss, metrics = policy_loss(
                logprobs,
                _stack(rows, old) if old else None,
                advantages[list(rows.indices)].to(logprobs.device),
                rows.completion_mask,
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                aggregation=objective.aggregation,
                ref_logprobs=_reference_logprobs(reference, rows, config) if reference is not None else None,
                beta=objective.beta,
                denominator=denominator,
                entropy=entropy,
                sampler_logprobs=_sampler_logprobs(rows, batch) if corrected else None,
            )
            loss.backward()
            metrics["loss"] = loss.detach()
            if number == 0:
                metrics["kl_sampler_trainer_sum"] = _compare_with_sampler(
                    rows, _sampler_logprobs(rows, batch), logprobs.detach(), result
                )
            for name, value in metrics.items():
                sums[name] = sums[name] + value if name in sums else value
            result.tokens += rows.tokens
            if progress is not None:
                progress(number * len(batches) + k + 1, objective.updates_per_rollout * len(batches))
        result.grad_norm = _clip_gradient(policy, config.optimizer.max_grad_norm)
        if not math.isfinite(result.grad_norm):
            result.warnings.append(
                f"the gradient's norm is {result.grad_norm}: update {number + 1} was not made"
            )
            break
        if before_step is not None:
            before_step()
        optimizer.step()
        result.updates += 1
    optimizer.zero_grad(set_to_none=True)
    result.metrics = _means(sums, passes=number + 1)
    return result


def _denominator(members: Sequence[Member], scored: Sequence[bool], aggregation: str) -> int:
    """What the loss divides by: all that is scored, whether or not it takes part in forward and backward."""
    width = max((len(c.token_ids) for _, _, c in members), default=0)
    mask = torch.zeros(len(members), width, dtype=torch.bool)
    for i, _, completion in members:
        mask[i, : len(completion.loss_mask)] = torch.tensor(completion.loss_mask)
    return int(loss_denominator(mask, aggregation, counted=torch.tensor(scored, dtype=torch.bool)))


@torch.no_grad()
def _old_logprobs(
    policy: Policy, batches: Sequence[tuple[object, Rows]], config: Config
) -> dict[int, Tensor]:
    """The trainer's own log-probs before the first of several updates, by completion."""
    old: dict[int, Tensor] = {}
    for _, rows in batches:
        logprobs, _ = completion_logprobs(policy, rows, temperature=config.rollout.temperature)
        old.update(zip(rows.indices, logprobs))
    return old


@torch.no_grad()
def _reference_logprobs(reference: Policy, rows: Rows, config: Config) -> Tensor:
    return completion_logprobs(reference, rows, temperature=config.rollout.temperature)[0]


def _stack(rows: Rows, by_completion: Mapping[int, Tensor]) -> Tensor:
    width = rows.completion_mask.shape[1]
    return torch.stack([by_completion[i][:width] for i in rows.indices])


def _sampler_logprobs(rows: Rows, batch: Sequence[Sequence[Member]]) -> Tensor:
    """What the sampler said of each token; 0 behind a completion's end."""
    sampler = torch.zeros(rows.completion_mask.shape)
    for k, (_, _, completion) in enumerate(m for row in batch for m in row):
        sampler[k, : len(completion.logprobs)] = torch.tensor(completion.logprobs)
    return sampler.to(rows.completion_mask.device)


def _compare_with_sampler(rows: Rows, sampler: Tensor, logprobs: Tensor, result: UpdateResult) -> Tensor:
    """KL(sampler ‖ trainer) summed over trained tokens (k3), and each completion's mean log-prob noted."""
    mask = rows.completion_mask
    difference, _ = log_ratio(sampler, logprobs, mask)
    means = torch.where(mask, logprobs, 0).sum(-1) / mask.sum(-1).clamp(min=1)
    for i, mean in zip(rows.indices, means.tolist()):
        result.trainer_logprobs_mean[i] = mean
    return torch.where(mask, k3(difference), 0).sum()


def _clip_gradient(policy: Policy, max_norm: float) -> float:
    """The gradient's norm before clipping. A weight that no completion reached has gradient 0, not None:
    AdamW would pass over None, where a gradient of 0 still moves by momentum."""
    parameters = policy.parameters()
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm or math.inf)
    return float(norm)


def _means(sums: Mapping[str, Tensor], *, passes: int) -> dict[str, float]:
    """Means over trained tokens, of all passes over them; of the first one for the comparison with the sampler."""
    if not sums:
        return {"loss": 0.0}
    means = summarise(sums)
    first = max(means.pop("tokens") / passes, 1.0)
    means.pop("completions")
    return {
        "loss": float(sums["loss"]) / passes,
        "kl_sampler_trainer": float(sums["kl_sampler_trainer_sum"]) / first,
        **means,
    }
