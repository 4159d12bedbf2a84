"""From scored groups to changed weights: mini-batches, loss, gradient, optimizer steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from grouprl.objectives import policy_loss
from grouprl.policy import Policy, Rows, completion_logprobs
from grouprl.policy.logprobs import predicting_states
from grouprl.training.config import Config
from grouprl.training.critic import Critic, Targets
from grouprl.training.measurements import Measurements
from grouprl.training.minibatches import MicroBatch, MiniBatch, plan_mini_batches
from grouprl.training.objective import correction_of, loss_options
from grouprl.training.optimizer import clip_gradient, whole_gradient
from grouprl.training.ranks import Ranks
from grouprl.types import Group


@dataclass
class UpdateResult:
    """What the updates on one batch did.

    Args:
        trainer_logprobs_mean: For each completion of the batch the mean log-prob of its trained tokens before
            the first update, None where no gradient was needed and so nothing was computed.
        metrics: `measurements.UPDATE_METRICS`, means over the trained tokens of all updates. Those that were not
            measured are missing.
        grad_norm: Before clipping, of the last update.
        tokens: Tokens that went through forward and backward, padding included.
        completions: Completions that did, in one pass over the batch.
        updates: Optimizer steps made; fewer than asked for where a mini-batch had nothing to train, or where a
            gradient was not finite.
        warnings: What went otherwise than asked.
    """

    trainer_logprobs_mean: list[float | None]
    metrics: dict[str, float | None] = field(default_factory=dict)
    grad_norm: float | None = None
    tokens: int = 0
    completions: int = 0
    updates: int = 0
    warnings: list[str] = field(default_factory=list)


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Group],
    advantages: Float[Tensor, " n"],
    scored: Sequence[bool],
    config: Config,
    *,
    reference: Policy | None = None,
    critic: Critic | None = None,
    targets: Targets | None = None,
    before_step: Callable[[], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    ranks: Ranks | None = None,
) -> UpdateResult:
    """Train on one batch of groups: `updates_per_rollout` passes of `mini_batches` optimizer steps.

    A completion whose advantage is 0, and which no KL or entropy term reaches, has gradient 0: it takes no part in
    forward and backward, and keeps its place in the loss's denominator. Unscored completions have none. Where
    nothing at all is left the gradient is 0, and the optimizer still steps (its momentum moves on); where no scored
    completion has a trained token there is no step, and a warning.

    The ratio is to the log-probs from before the first step. The first step's are its own, so that one update a
    rollout costs one forward; several cost one more of all mini-batches but the first.

    Args:
        policy: Trained in place.
        optimizer: With its learning rate set.
        groups: The batch.
        advantages: (N,), groups in order, completions in order.
        scored: (N,), whether the completion has a reward.
        config: Objective, optimizer, most new tokens, temperature and micro-batch size are read.
        reference: The frozen model of the KL penalty in the loss; needed where beta > 0.
        critic: For PPO; its loss is added, and every scored completion takes part.
        targets: What `critic.targets` gave for the batch: advantages by token, in place of `advantages`.
        before_step: Called before each optimizer step, that is before the weights change.
        progress: Called with (micro-batches done, micro-batches to do).
        ranks: Over which each mini-batch is dealt out; gradient, metrics and log-probs are those of the whole, on every
            rank. All are given the same batch. By default this process alone.
    """
    objective, ranks = config.objective, ranks or Ranks()
    signal = advantages if critic is None else torch.ones(len(scored))
    planned = plan_mini_batches(policy, groups, signal, scored, config, ranks)
    mini_batches = [mini for mini in planned if mini.trainable]
    result = UpdateResult(
        trainer_logprobs_mean=[None] * len(scored),
        completions=sum(mini.completions for mini in mini_batches),
        warnings=_nothing_to_train(planned),
    )
    if not mini_batches:
        return result

    reference = reference if objective.kl_in == "loss" else None
    run = _Run(policy, config, advantages, reference=reference, critic=critic, targets=targets)
    forwards_apart = ranks if not policy.sharded else Ranks()  # in a collective forward nobody stands alone
    forwards_apart.own(lambda: run.remember_logprobs(mini_batches[1:]))
    trained = [*policy.parameters(), *(critic.parameters() if critic is not None else ())]
    to_do = objective.updates_per_rollout * sum(len(mini.micro_batches) for mini in mini_batches)
    steps = [(n, mini) for n in range(objective.updates_per_rollout) for mini in mini_batches]
    done = tokens = 0
    for number, (pass_number, mini) in enumerate(steps, start=1):
        optimizer.zero_grad(set_to_none=True)

        def accumulate(mini: MiniBatch = mini, pass_number: int = pass_number) -> None:
            nonlocal done, tokens
            for micro in mini.micro_batches:
                run.accumulate(micro, mini.denominator, first_pass=pass_number == 0)
                tokens += micro.rows.tokens
                done += 1
                if progress is not None:
                    progress(done, to_do)
            for micro in mini.idle:
                run.take_part(micro)

        forwards_apart.own(accumulate)
        gradient = whole_gradient(trained)
        if not policy.sharded:  # there backward has added it up
            ranks.sum_(gradient)
        result.grad_norm = clip_gradient(policy.parameters(), config.optimizer.max_grad_norm)
        if critic is not None:
            clip_gradient(critic.parameters(), config.optimizer.max_grad_norm)
        if not math.isfinite(result.grad_norm):
            rest = ", nor those after it" if number < len(steps) else ""
            result.warnings.append(
                f"the gradient's norm is {result.grad_norm}: update {number} was not made{rest}"
            )
            break
        if before_step is not None:
            before_step()
        optimizer.step()
        result.updates += 1
    optimizer.zero_grad(set_to_none=True)
    result.tokens = sum(ranks.each(lambda: tokens))
    measured = Measurements.together(ranks.each(run.measured.on_host)) if ranks.several else run.measured
    result.trainer_logprobs_mean = measured.logprob_means(len(scored))
    result.metrics = {**measured.summary(updates=number), **_counts(planned, config)}
    return result


class _Run:
    """The passes over one batch: its log-probs from before the first step, and what is measured.

    Args:
        policy: Trained in place.
        config: The objective.
        advantages: (N,).
        reference: Where the loss has a KL term.
        critic: Where there is one, with the batch's targets.
        targets: By token, in place of advantages.
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        advantages: Float[Tensor, " n"],
        *,
        reference: Policy | None,
        critic: Critic | None,
        targets: Targets | None,
    ) -> None:
        self.policy, self.config, self.advantages, self.reference = policy, config, advantages, reference
        self.critic, self.targets = critic, targets
        self.options = loss_options(config)
        self.corrected = correction_of(config) != "off"
        self.old_logprobs: dict[int, Tensor] = {}
        self.measured = Measurements()

    @torch.no_grad()
    def remember_logprobs(self, mini_batches: Iterable[MiniBatch]) -> None:
        """The policy's own log-probs of completions that later weights will train on."""
        for mini in mini_batches:
            for micro in mini.micro_batches:
                self._remember(micro.rows, self._logprobs(self.policy, micro.rows))
            for micro in mini.idle:
                self._logprobs(self.policy, micro.rows)

    def take_part(self, micro: MicroBatch) -> None:
        """Run forward and backward with a gradient of 0, for the sake of the ranks that have more to do."""
        self._reference_logprobs(micro.rows)
        logprobs = self._logprobs(self.policy, micro.rows)
        logprobs.sum().backward(torch.zeros((), device=logprobs.device))

    def _logprobs(self, policy: Policy, rows: Rows) -> Tensor:
        return policy.forward(
            lambda: completion_logprobs(policy, rows, temperature=self.config.rollout.temperature)[0]
        )

    def accumulate(self, micro: MicroBatch, denominator: int, *, first_pass: bool) -> None:
        """Add a micro-batch's share of the loss to the gradient, and what there is to know of it."""
        rows = micro.rows
        # First the reference, as in `take_part`: forwards may be collective.
        ref_logprobs = self._reference_logprobs(rows)
        states, logprobs, entropy = self.policy.forward(lambda: self._forward(rows))
        old = self._remembered(rows)
        if old is None and self.config.objective.updates_per_rollout > 1:
            self._remember(rows, logprobs.detach())
        if first_pass:
            before = logprobs.detach() if old is None else old
            self.measured.compare_with_sampler(
                rows.indices, micro.sampler_logprobs, before, rows.completion_mask
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "policy_loss: ")  # said once, where the run starts
            loss, sums = policy_loss(
                logprobs,
                # Without a ratio, samples of earlier weights are weighted against those of now.
                None if self.config.objective.surrogate == "reinforce" else old,
                self._advantages(rows),
                rows.completion_mask,
                denominator=denominator,
                ref_logprobs=ref_logprobs,
                entropy=entropy,
                sampler_logprobs=micro.sampler_logprobs if self.corrected else None,
                **self.options,
            )
        if self.critic is not None and self.targets is not None:
            value, value_sums = self.critic.loss(rows, states, self.targets, denominator)
            (loss + value).backward()
            sums |= value_sums
        else:
            loss.backward()
        self.measured.add({**sums, "loss": loss.detach()}, logprobs.detach(), old, rows.completion_mask)

    def _forward(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states, log-probs and entropies of a micro-batch, differentiable."""
        states = predicting_states(self.policy, rows)
        logprobs, entropy = completion_logprobs(
            self.policy,
            rows,
            temperature=self.config.rollout.temperature,
            entropy_gradient=self.config.objective.entropy_weight > 0,
            states=states,
        )
        return states, logprobs, entropy

    @torch.no_grad()
    def _reference_logprobs(self, rows: Rows) -> Tensor | None:
        if self.reference is None:
            return None
        return self._logprobs(self.reference, rows)

    def _advantages(self, rows: Rows) -> Tensor:
        """One a completion; one a token where a critic made them."""
        if self.targets is not None:
            return self.targets.of(rows)[0]
        return self.advantages[list(rows.indices)].to(rows.completion_mask.device)

    def _remember(self, rows: Rows, logprobs: Tensor) -> None:
        self.old_logprobs.update(zip(rows.indices, logprobs))

    def _remembered(self, rows: Rows) -> Tensor | None:
        """The old log-probs of a micro-batch; None in the first step, whose own they are."""
        if rows.indices[0] not in self.old_logprobs:
            return None
        width = rows.completion_mask.shape[1]
        return torch.stack([self.old_logprobs[i][:width] for i in rows.indices])


def _nothing_to_train(mini_batches: Sequence[MiniBatch]) -> list[str]:
    """Why an update that was asked for is not made, a line for each mini-batch; one where it holds for all."""
    found = []
    for k, mini in enumerate(mini_batches, start=1):
        if mini.trainable:
            continue
        if not mini.scored:
            why = "nothing was scored"
        elif mini.filtered:
            why = (
                "every scored completion was cut off at max_new_tokens, and overlong_filter leaves those out (raise "
                "--max-new-tokens)"
            )
        else:
            why = "no scored completion has a token to train"
        found.append((k, why))
    if len({why for _, why in found}) == 1 and len(found) == len(mini_batches):
        return [f"{found[0][1]}: no update was made"]
    return [f"mini-batch {k} of {len(mini_batches)}: {why}: no update was made of it" for k, why in found]


def _counts(mini_batches: Sequence[MiniBatch], config: Config) -> dict[str, float]:
    """What the losses of one pass were divided by, in all; and the scored completions that were filtered out."""
    counts = {"loss_denominator": float(sum(mini.denominator for mini in mini_batches if mini.trainable))}
    if config.objective.overlong_filter:
        scored = sum(mini.scored for mini in mini_batches)
        counts["overlong_filtered_share"] = sum(mini.filtered for mini in mini_batches) / max(scored, 1)
    return counts
