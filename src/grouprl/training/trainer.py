"""The loop: prompts → groups → rewards → advantages → update → records, step after step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import LostRank
from grouprl.policy import EncodedPrompt, Policy
from grouprl.records import RunFolder, append_jsonl, rollout_rows, write_rollouts
from grouprl.tasks import Task
from grouprl.training.advantages import Advantages, Batch, Result
from grouprl.training.checkpoint import TrainingState, save_checkpoint, save_final_model
from grouprl.training.clock import Clock
from grouprl.training.collect import Collector
from grouprl.training.collected import sampling_metrics
from grouprl.training.config import Config, sampling_of
from grouprl.training.critic import Critic
from grouprl.training.curriculum import Curriculum
from grouprl.training.diagnosis import diagnose
from grouprl.training.engines import make_engine
from grouprl.training.estimated import NOTHING, EstimatedBatch
from grouprl.training.evaluation import evaluate
from grouprl.training.events import Listener
from grouprl.training.interrupts import Interrupted, Interrupts
from grouprl.training.machine import peak_memory_gib, release_memory, seed_everything
from grouprl.training.measurements import CRITIC_METRICS, UPDATE_METRICS
from grouprl.training.metrics import advantage_metrics, batch_metrics, greedy_metrics
from grouprl.training.optimizer import make_optimizer, set_learning_rate
from grouprl.training.overlap import Ahead, Endable, cpu_threads, share_of_threads
from grouprl.training.ranks import Ranks
from grouprl.training.reward_kl import Penalised, penalise
from grouprl.training.sampled import Sampled
from grouprl.training.update import UpdateResult, update

ESTIMATING = 1
"""Names the numbers that an estimator may draw, beside those that rewards draw."""


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
        self.engine = make_engine(
            config,
            policy,
            folder.path,
            prompts=[*self.prompts, *self.heldout],
            own_weights=shared_out or config.rollout.max_staleness > 0,
            progress=self.listener.stage,
            ranks=self.ranks,
        )
        self.reference = reference
        if shared_out:
            policy.shard()
            if reference is not None and not reference.sharded and config.objective.kl_in == "loss":
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
            listener=Endable(self.listener),
            ranks=self.ranks.beside,
        )
        self.ahead: Ahead | None = None
        self.threads: tuple[int, int] | tuple[None, None] = (None, None)
        if config.rollout.max_staleness:
            self.ahead = Ahead(
                arrived=self.curriculum.commit, interrupts=self.interrupts, device=policy.device
            )
            self.threads = share_of_threads(policy.device, config.rollout.sampler_threads)
        self.saved_step = self.state.step
        self.mid_step = False

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest completion there may be."""
        return max(len(p.token_ids) for p in self.prompts) + self.config.rollout.max_new_tokens

    def load_batch(self, checkpoint: Path) -> None:
        """Take over the batch that a checkpoint holds for the step after it, drawn by weights that are no more."""
        if self.ahead is not None:
            self.ahead.held = Sampled.load(checkpoint, self.prompts)

    def run(self) -> None:
        """Train to the last step, then write the final model.

        An interrupt or an error between two steps leaves a checkpoint of the last one. An error while weights
        change or records are written (a full disk, say) leaves the checkpoint before it.

        Raises:
            Interrupted: On SIGINT, SIGTERM or SIGHUP, with the last whole step saved.
            RewardError: A reward function raised; likewise.
            EstimatorError: The estimator did; likewise.
            RolloutError: The engine stopped answering; likewise.
        """
        with self.interrupts, closing(self.engine):
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
            finally:
                if self.ahead is not None:
                    self.ahead.close(self.listener.warned)
            with suppress(Interrupted), self.interrupts.deferred():  # done: nothing is left to interrupt
                self._save_final_model()

    def _save_final_model(self) -> None:
        """Write the final model; where a rank dies in the midst of it, the run goes on from its last checkpoint."""
        try:
            weights = self.policy.whole_state(keep=self.ranks.first)
            merge = self.config.lora.lora_merge
            merged = self.policy.merged_state(keep=self.ranks.first) if merge else None
            self.ranks.from_first(
                lambda: save_final_model(
                    self.folder, self.policy, step=self.state.step, weights=weights, merged=merged
                )
            )
        except RuntimeError as raised:
            error = self.ranks.explained(raised)
            if isinstance(error, LostRank):
                error.add_note(self._how_to_go_on())
            if error is raised:
                raise
            raise error from raised

    def _save_before(self, error: BaseException) -> None:
        """Save the last whole step, if the weights are those of one; a failure to must not hide the error."""
        together = self.ranks.all_raised(error)
        try:
            alone = self.ranks.first and not self.policy.sharded
            if not self.mid_step and (together or alone):
                self._finish_batch(error)
                self._checkpoint(Ranks() if not together else None)
        except Exception as failed:
            error.add_note(f"and no checkpoint could be written ({' '.join(str(failed).split())})")
        if not isinstance(error, KeyboardInterrupt):
            error.add_note(self._how_to_go_on())

    def _how_to_go_on(self) -> str:
        saved = f"step {self.saved_step} is saved" if self.saved_step else "no step is saved yet"
        return f"{saved}: go on with grouprl train --resume {self.folder.path}"

    def _finish_batch(self, error: BaseException) -> None:
        """Wait for the batch in flight that the next step trains on: the weights that draw it are no more, so only a
        checkpoint with it goes on as this run would have. One that fails, or that a second interrupt does not wait
        for, is left out, and drawn anew by whoever goes on."""
        step = self.state.step + 1
        if self.ahead is None or self.state.step == self.saved_step:
            return
        try:
            if self.ahead.is_drawing(step):
                self.listener.warned(
                    f"finishing the completions of step {step}, to save them; interrupt again to leave them out"
                )
            self.ahead.batch(step)
        except Interrupted:
            self.ahead.give_up()
        except BaseException as failed:
            error.add_note(f"and the completions of step {step} are lost ({' '.join(str(failed).split())})")

    def _step(self) -> None:
        step, clock = self.state.step + 1, Clock()
        sampled = self._sampled(step, clock)
        batch = self._estimate(step, sampled, clock)
        if self.ahead is not None and step < self.config.steps:
            self._draw_ahead(self.ahead, step + 1, sampled.collected.position, threads=self.threads[0])
        with cpu_threads(self.threads[1]):
            self._learn(step, batch, clock)

    def _sampled(self, step: int, clock: Clock) -> Sampled:
        """The step's batch: drawn now, or already."""
        if self.ahead is None:
            self.engine.take_weights(self.policy)
            return self._draw(step, self.state.position, clock, weights_step=step - 1)
        sampled = self.ahead.batch(step)
        if sampled is None:  # the first one, or one that was lost
            self._draw_ahead(self.ahead, step, self.state.position, threads=torch.get_num_threads())
            sampled = self.ahead.batch(step)
        assert sampled is not None  # noqa: S101  (drawn, or an error was raised)
        clock.lap("wait")
        return sampled

    def _draw_ahead(self, ahead: Ahead, step: int, position: int, *, threads: int | None) -> None:
        """Begin to draw a step's batch beside what follows, with the weights of now."""
        self.engine.take_weights(self.policy)
        weights_step = self.state.step
        ahead.start(lambda: self._draw(step, position, Clock(), weights_step=weights_step), threads=threads)

    def _draw(self, step: int, position: int, clock: Clock, *, weights_step: int) -> Sampled:
        """Sample and score, with the weights that the engine has. In the main thread, or beside it."""
        seed_everything(self.config.seed, step, rank=self.ranks.rank)
        collected, greedy = self.collector.collect(step=step, position=position, clock=clock), None
        if self.advantages.needs_greedy and (groups := collected.used_groups):
            greedy = self.collector.greedy(groups, step=step, clock=clock)
        return Sampled(step, weights_step, collected, greedy, dict(clock.seconds))

    def _estimate(self, step: int, sampled: Sampled, clock: Clock) -> EstimatedBatch:
        """The advantages of what was sampled."""
        groups, scores = sampled.collected.used_groups, sampled.collected.used_scores
        if not groups:
            return EstimatedBatch(sampled, Penalised(scores), NOTHING)
        if self.ahead is not None:
            # For an estimator that draws numbers: what was drawn since the rewards depends on the clock.
            seed_everything(self.config.seed, step, ESTIMATING)
        penalised = penalise(scores, groups, self.policy, self.reference, self.config, self.ranks)
        if self.critic is None:
            data = Batch.of(groups, penalised.scores, sampled.greedy)
            estimated = self.ranks.from_first(lambda: self.advantages(data, step=step))
            return EstimatedBatch(sampled, penalised, estimated)
        targets = self.critic.targets(groups, penalised.scores, self.ranks)
        clock.lap("critic")
        estimated = Result(targets.means, {"value": targets.first_values})
        return EstimatedBatch(sampled, penalised, estimated, targets)

    def _learn(self, step: int, batch: EstimatedBatch, clock: Clock) -> None:
        """Change the weights, and record the step."""
        lr = set_learning_rate(self.optimizer, self.config.optimizer, step=step, steps=self.config.steps)
        with ExitStack() as stack:

            def weights_change() -> None:
                """From here to the end of the step an interrupt waits, and an error leaves nothing to save."""
                if not self.mid_step:
                    stack.enter_context(self.interrupts.deferred())
                    self.mid_step = True

            result = self._update(batch, before_step=weights_change)
            weights_change()  # also where the update was skipped: the records of a step belong together
            clock.lap("train")
            metrics = self._metrics(step, lr, batch, result, clock)
            rows: dict[str, Sequence[Any]] = {}  # of rank 0

            def record() -> TrainingState:
                state, made = self._record(step, metrics, batch, result)
                rows.update(made)
                return state

            self.state = self.ranks.from_first(record)
            if self.ahead is None:
                self.curriculum.commit()
            self.mid_step = False
            self.ranks.from_first(lambda: self._tell(step, metrics, rows, batch, result))

    def _update(self, batch: EstimatedBatch, *, before_step: Callable[[], None]) -> UpdateResult:
        """The optimizer's steps; none where dynamic sampling left no group."""
        groups = batch.collected.used_groups
        if not groups:
            return UpdateResult([])
        return update(
            self.policy,
            self.optimizer,
            groups,
            batch.estimated.advantages,
            [r is not None for r in batch.collected.used_scores.rewards],
            self.config,
            reference=self.reference,
            critic=self.critic,
            targets=batch.targets,
            before_step=before_step,
            progress=lambda done, total: self.listener.stage("train", done, total),
            ranks=self.ranks,
        )

    def _metrics(
        self,
        step: int,
        lr: float,
        batch: EstimatedBatch,
        result: UpdateResult,
        clock: Clock,
    ) -> dict[str, Any]:
        collected, greedy = batch.collected, batch.sampled.greedy
        tokens = sum(len(c.token_ids) for g in collected.groups for c in g.completions)
        seconds = {**batch.sampled.seconds, **clock.seconds}
        return {
            "step": step,
            "staleness": batch.sampled.staleness,
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
            **(greedy_metrics(greedy) if greedy is not None else {}),
            **{
                name: result.metrics.get(name)
                for name in (*UPDATE_METRICS, *(CRITIC_METRICS if self.critic else ()))
            },
            "grad_norm": result.grad_norm,
            "lr": lr,
            "updates": result.updates,
            "trained_completions": result.completions,
            "rollout_tokens_per_s": tokens / seconds["rollout"],
            "train_tokens_per_s": result.tokens / seconds["train"],
            **{f"seconds_{name}": value for name, value in seconds.items()},
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
        if self.ahead is not None:
            self.ahead.batch(step + 1)  # has the sampler until it is whole
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
        ranks = ranks or self.ranks
        batch = self.ahead.batch(self.state.step + 1) if self.ahead is not None else None
        ranks.from_first(lambda: self.listener.stage("checkpoint", 0, 1))
        with self.interrupts.deferred():
            path = save_checkpoint(
                self.folder,
                self.policy,
                self.optimizer,
                self.state,
                estimator_state=self.advantages.state,
                curriculum_state=self.curriculum.state,
                critic=self.critic,
                batch=batch,
                keep=self.config.checkpoint.checkpoint_keep,
                ranks=ranks,
            )
            self.saved_step = self.state.step
            ranks.from_first(lambda: self.listener.checkpointed(self.state.step, path))

    def _encode(self, prompts: Sequence[Any]) -> list[EncodedPrompt]:
        return self.policy.encode_prompts(
            prompts, max_new_tokens=self.config.rollout.max_new_tokens, template=self.config.chat_template
        )
