"""The loop: prompts → groups → rewards → advantages → update → records, step after step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from grouprl.policy import EncodedPrompt, Policy
from grouprl.records import RunFolder, append_jsonl, rollout_rows, write_rollouts
from grouprl.rollout import Engine, LocalEngine
from grouprl.tasks import Scores, Task
from grouprl.training.advantages import Advantages, Batch, Result
from grouprl.training.checkpoint import TrainingState, save_checkpoint, save_final_model
from grouprl.training.clock import Clock
from grouprl.training.collect import Collector
from grouprl.training.collected import Collected, sampling_metrics
from grouprl.training.config import Config, sampling_of
from grouprl.training.critic import Critic, Targets
from grouprl.training.curriculum import Curriculum
from grouprl.training.diagnosis import diagnose
from grouprl.training.evaluation import evaluate
from grouprl.training.events import Listener
from grouprl.training.interrupts import Interrupted, Interrupts
from grouprl.training.machine import peak_memory_gib, release_memory, seed_everything
from grouprl.training.measurements import CRITIC_METRICS, UPDATE_METRICS
from grouprl.training.metrics import advantage_metrics, batch_metrics, greedy_metrics
from grouprl.training.optimizer import make_optimizer, set_learning_rate
from grouprl.training.ranks import Ranks
from grouprl.training.reward_kl import Penalised, penalise
from grouprl.training.update import UpdateResult, update

NOTHING = Result(torch.zeros(0))
"""The advantages of a step in which dynamic sampling left no group."""


@dataclass(frozen=True)
class EstimatedBatch:
    """What a step trains on.

    Args:
        collected: Its groups and scores.
        penalised: The scores of those that are used, with a KL penalty where it is in the reward.
        estimated: Their advantages.
        greedy: The scores of a greedy completion for each prompt, for an estimator that needs them.
        targets: What a critic gave, by token.
    """

    collected: Collected
    penalised: Penalised
    estimated: Result
    greedy: Scores | None = None
    targets: Targets | None = None

    @property
    def recorded(self) -> Collected:
        """With the rewards that the advantages are of."""
        return self.collected.with_used_rewards(self.penalised.scores.rewards)

    @property
    def columns(self) -> dict[str, Sequence[Any]]:
        """Further columns of the rollout record, over the completions that are used."""
        return {**self.estimated.columns, **self.penalised.columns}


def freeze_reference(policy: Policy, config: Config) -> Policy | None:
    """A frozen copy of the policy as it is now, for the KL penalty; None without one. Of the starting model: with an
    adapter that is the policy without it, at any time, and nothing is copied."""
    if not config.objective.beta:
        return None
    if policy.adapted:
        return policy.without_adapter().in_dtype(torch.float32)
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return Policy(model, policy.tokenizer, name="reference")


class Trainer:
    """A run in progress: the policy, the optimizer, and where it stands.

    Args:
        config: Checked.
        task: Its prompts and rewards.
        policy: Trained in place.
        folder: Locked by the caller.
        advantages: The run's estimator, in the state that it goes on from.
        curriculum: What is known of the prompts, likewise.
        listener: Told what happens.
        state: Where to go on from; the optimizer's state is loaded by the caller.
        reference: The frozen starting model, where the objective has a KL penalty (`freeze_reference`).
        ranks: The processes of the run, each with a trainer; by default this one alone. Rank 0 writes.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        policy: Policy,
        folder: RunFolder,
        *,
        advantages: Advantages,
        curriculum: Curriculum | None = None,
        listener: Listener | None = None,
        state: TrainingState | None = None,
        reference: Policy | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.interrupts = Interrupts(in_windows=self.ranks.several)
        self.ranks.window = self.interrupts.window
        self.config, self.task, self.policy, self.folder = config, task, policy, folder
        self.advantages = advantages
        self.curriculum = curriculum or Curriculum(config.sampling)
        self.listener = listener or Listener()
        self.state = state or TrainingState(task_fingerprint=task.fingerprint())
        self.sampling = sampling_of(config)
        self.prompts = self._encode(task.train)
        self.heldout = self._encode(task.heldout[: config.evaluation.eval_prompts])
        shared_out = self.ranks.several and config.distributed.strategy == "fsdp"
        self.engine: Engine = LocalEngine(
            policy,
            dtype=getattr(torch, config.rollout.sampler_dtype),
            batch_tokens=config.rollout.batch_tokens,
            own_weights=shared_out,
        )
        self.reference = reference
        if shared_out:
            policy.shard()
            if reference is not None and config.objective.kl_in == "loss":
                reference.shard()
        self.critic = Critic(policy, config) if advantages.needs_critic else None
        self.optimizer = make_optimizer(
            policy,
            config.optimizer,
            critic=self.critic.parameters() if self.critic else (),
            critic_lr=config.critic.critic_lr,
        )
        self.collector = Collector(
            config,
            task,
            self.engine,
            self.prompts,
            curriculum=self.curriculum,
            listener=self.listener,
            ranks=self.ranks.beside,
        )
        self.saved_step = self.state.step
        self.mid_step = False

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest completion there may be."""
        return max(len(p.token_ids) for p in self.prompts) + self.config.rollout.max_new_tokens

    def run(self) -> None:
        """Train to the last step, then write the final model.

        An interrupt or an error between two steps leaves a checkpoint of the last one. An error while weights
        change or records are written (a full disk, say) leaves the checkpoint before it.

        Raises:
            Interrupted: On SIGINT, SIGTERM or SIGHUP, with the last whole step saved.
            RewardError: A reward function raised; likewise.
            EstimatorError: The estimator did; likewise.
        """
        with self.interrupts:
            try:
                self._evaluate_if_due()
                while self.state.step < self.config.steps:
                    self._step()
                    self._evaluate_if_due()
                    every = self.config.checkpoint.checkpoint_every
                    if self.state.step == self.config.steps or (every and self.state.step % every == 0):
                        self._checkpoint()
            except BaseException as raised:
                error = self.ranks.explained(raised)
                self._save_before(error)
                if error is raised:
                    raise
                raise error from raised
            with suppress(Interrupted), self.interrupts.deferred():  # done: nothing is left to interrupt
                weights = self.policy.whole_state(keep=self.ranks.first)
                self.ranks.from_first(
                    lambda: save_final_model(
                        self.folder,
                        self.policy,
                        step=self.state.step,
                        merge=self.config.lora.lora_merge,
                        weights=weights,
                    )
                )

    def _save_before(self, error: BaseException) -> None:
        """Save the last whole step, if the weights are those of one; a failure to must not hide the error."""
        together = self.ranks.all_raised(error)
        try:
            alone = self.ranks.first and not self.policy.sharded
            if not self.mid_step and (together or alone):
                self._checkpoint(Ranks() if not together else None)
        except Exception as failed:
            error.add_note(f"and no checkpoint could be written ({' '.join(str(failed).split())})")
        if not isinstance(error, KeyboardInterrupt):
            saved = f"step {self.saved_step} is saved" if self.saved_step else "no step is saved yet"
            error.add_note(f"{saved}: go on with grouprl train --resume {self.folder.path}")

    def _step(self) -> None:
        step, clock = self.state.step + 1, Clock()
        collected = self._collect(step, clock)
        batch = self._estimate(step, collected, clock)
        self._learn(step, batch, clock)

    def _collect(self, step: int, clock: Clock) -> Collected:
        """Sample and score, with the weights of now."""
        seed_everything(self.config.seed, step, rank=self.ranks.rank)
        self.engine.take_weights(self.policy)
        return self.collector.collect(step=step, position=self.state.position, clock=clock)

    def _estimate(self, step: int, collected: Collected, clock: Clock) -> EstimatedBatch:
        """The advantages of what was collected."""
        groups, scores = collected.used_groups, collected.used_scores
        if not groups:
            return EstimatedBatch(collected, Penalised(scores), NOTHING)
        greedy = None
        if self.advantages.needs_greedy:
            greedy = self.collector.greedy(groups, step=step, clock=clock)
        penalised = penalise(scores, groups, self.policy, self.reference, self.config, self.ranks)
        if self.critic is None:
            data = Batch.of(groups, penalised.scores, greedy)
            estimated = self.ranks.from_first(lambda: self.advantages(data, step=step))
            return EstimatedBatch(collected, penalised, estimated, greedy)
        targets = self.critic.targets(groups, penalised.scores, self.ranks)
        clock.lap("critic")
        estimated = Result(targets.means, {"value": targets.first_values})
        return EstimatedBatch(collected, penalised, estimated, greedy, targets)

    def _learn(self, step: int, batch: EstimatedBatch, clock: Clock) -> None:
        """Change the weights, and record the step."""
        config, groups = self.config, batch.collected.used_groups
        lr = set_learning_rate(self.optimizer, config.optimizer, step=step, steps=config.steps)
        with ExitStack() as stack:

            def weights_change() -> None:
                """From here to the end of the step an interrupt waits, and an error leaves nothing to save."""
                if not self.mid_step:
                    stack.enter_context(self.interrupts.deferred())
                    self.mid_step = True

            result = (
                update(
                    self.policy,
                    self.optimizer,
                    groups,
                    batch.estimated.advantages,
                    [r is not None for r in batch.collected.used_scores.rewards],
                    config,
                    reference=self.reference,
                    critic=self.critic,
                    targets=batch.targets,
                    before_step=weights_change,
                    progress=lambda done, total: self.listener.stage("train", done, total),
                    ranks=self.ranks,
                )
                if groups
                else UpdateResult([])
            )
            weights_change()  # also where the update was skipped: the records of a step belong together
            clock.lap("train")
            metrics = self._metrics(step, lr, batch, result, clock)
            rows: dict[str, Sequence[Any]] = {}  # of rank 0

            def record() -> TrainingState:
                state, made = self._record(step, metrics, batch, result)
                rows.update(made)
                return state

            self.state = self.ranks.from_first(record)
            self.curriculum.commit()
            self.mid_step = False
            self.ranks.from_first(lambda: self._tell(step, metrics, rows, batch, result))

    def _metrics(
        self,
        step: int,
        lr: float,
        batch: EstimatedBatch,
        result: UpdateResult,
        clock: Clock,
    ) -> dict[str, Any]:
        collected = batch.collected
        sampled = sum(len(c.token_ids) for g in collected.groups for c in g.completions)
        return {
            "step": step,
            **batch_metrics(
                collected.groups,
                collected.scores,
                correctness=collected.correctness,
                success_reward=self.task.success_reward,
            ),
            **sampling_metrics(collected, prompts=len(self.prompts)),
            **advantage_metrics(
                collected.used_groups,
                collected.used_scores,
                batch.estimated.advantages,
                sampled=len(collected.groups),
            ),
            **(greedy_metrics(batch.greedy) if batch.greedy is not None else {}),
            **{
                name: result.metrics.get(name)
                for name in (*UPDATE_METRICS, *(CRITIC_METRICS if self.critic else ()))
            },
            "grad_norm": result.grad_norm,
            "lr": lr,
            "updates": result.updates,
            "trained_completions": result.completions,
            "rollout_tokens_per_s": sampled / clock.seconds["rollout"],
            "train_tokens_per_s": result.tokens / clock.seconds["train"],
            **{f"seconds_{name}": seconds for name, seconds in clock.seconds.items()},
            "seconds_step": clock.total(),
            "peak_memory_gib": max(self.ranks.each(lambda: peak_memory_gib(self.policy.device))),
            **batch.penalised.metrics,
        }

    def _record(
        self,
        step: int,
        metrics: dict[str, Any],
        batch: EstimatedBatch,
        result: UpdateResult,
    ) -> tuple[TrainingState, Mapping[str, Sequence[Any]]]:
        """Write down a step that is done; gives where the run stands then."""
        collected = batch.recorded
        rows = rollout_rows(
            step,
            collected.groups,
            rewards=collected.scores.rewards,
            advantages=collected.over_all(batch.estimated.advantages.tolist()),
            components=collected.scores.components,
            correctness=collected.correctness,
            dropped_reasons=collected.dropped,
            trainer_logprobs_mean=collected.over_all(result.trainer_logprobs_mean),
            estimator=self.advantages.name,
            estimator_options=self.advantages.options,
            extra={
                **{f"outcome_{name}": values for name, values in collected.scores.outcomes.items()},
                **{name: collected.over_all(values) for name, values in batch.columns.items()},
            },
            tokens=self.config.record_tokens,
        )
        write_rollouts(self.folder.rollouts_path(step), rows)
        append_jsonl(self.folder.metrics_path, metrics)
        learned = metrics["groups_with_advantage_share"] > 0
        self.advantages.commit()
        state = replace(
            self.state,
            step=step,
            position=collected.position,
            steps_without_spread=0 if learned else self.state.steps_without_spread + 1,
        )
        return state, rows

    def _tell(
        self,
        step: int,
        metrics: dict[str, Any],
        rows: Mapping[str, Sequence[Any]],
        batch: EstimatedBatch,
        result: UpdateResult,
    ) -> None:
        """Let the listener hear of a step that is recorded."""
        self.listener.stepped(metrics, rows)
        diagnosis = diagnose(
            metrics,
            batch.recorded,
            self.advantages,
            self.config,
            steps_without_spread=self.state.steps_without_spread,
        )
        for message in [*result.warnings, *diagnosis]:
            self.listener.warned(f"step {step}: {message}")

    def _evaluate_if_due(self) -> None:
        config, step = self.config, self.state.step
        every = config.evaluation.eval_every
        due = step in (0, config.steps) or (every and step % every == 0)
        if not self.heldout or not due or self.ranks.from_first(lambda: self._evaluated(step)):
            return
        seed_everything(config.seed, step, rank=self.ranks.rank)
        self.engine.take_weights(self.policy)
        evaluation = evaluate(
            self.engine,
            self.task,
            self.heldout,
            samples=config.evaluation.eval_samples,
            sampling=self.sampling,
            seed=config.seed,
            on_reward_error=config.on_reward_error,
            progress=lambda done, total: self.listener.stage("evaluation", done, total),
            ranks=self.ranks,
        )
        release_memory()  # many small pieces, between which training would not fit
        record = {"step": step, **evaluation.record}
        with self.interrupts.deferred():
            self.ranks.from_first(lambda: append_jsonl(self.folder.evaluations_path, record))
        self.ranks.from_first(lambda: self.listener.evaluated(record))

    def _evaluated(self, step: int) -> bool:
        return step in {e.get("step") for e in self.folder.evaluations()}

    def _checkpoint(self, ranks: Ranks | None = None) -> None:
        """Save the last whole step, unless it is saved already; with all ranks, or those that are given."""
        if self.state.step == self.saved_step:
            return
        self.listener.stage("checkpoint", 0, 1)
        with self.interrupts.deferred():
            path = save_checkpoint(
                self.folder,
                self.policy,
                self.optimizer,
                self.state,
                estimator_state=self.advantages.state,
                curriculum_state=self.curriculum.state,
                critic=self.critic,
                keep=self.config.checkpoint.checkpoint_keep,
                ranks=ranks or self.ranks,
            )
            self.saved_step = self.state.step
            self.listener.checkpointed(self.state.step, path)

    def _encode(self, prompts: Sequence[Any]) -> list[EncodedPrompt]:
        return self.policy.encode_prompts(
            prompts, max_new_tokens=self.config.rollout.max_new_tokens, template=self.config.chat_template
        )
