"""The loop: prompts → groups → rewards → advantages → update → records, step after step."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch

from grouprl.policy import EncodedPrompt, Policy
from grouprl.records import RunFolder, append_jsonl, rollout_rows, write_rollouts
from grouprl.rollout import Sampling, generate
from grouprl.tasks import Scores, Task, score
from grouprl.training.advantages import Advantages, Batch, Result
from grouprl.training.checkpoint import TrainingState, save_checkpoint, save_final_model
from grouprl.training.config import Config, sampling_of
from grouprl.training.evaluation import evaluate
from grouprl.training.events import Listener
from grouprl.training.interrupts import Interrupted, Interrupts
from grouprl.training.machine import peak_memory_gib, release_memory, seed_everything
from grouprl.training.measurements import UPDATE_METRICS
from grouprl.training.metrics import advantage_metrics, batch_metrics, greedy_metrics
from grouprl.training.optimizer import learning_rate, make_optimizer
from grouprl.training.prompts import draw_prompts
from grouprl.training.reward_kl import penalise
from grouprl.training.update import UpdateResult, update
from grouprl.types import Group

MISMATCH_NATS = 0.1
"""KL between sampler and trainer from which the run says so: rounding stays far below, also in bfloat16."""

NO_SPREAD = {
    "all_high": "all right), so nothing was learned; the task is solved, or too easy: take harder prompts",
    "all_low": "all wrong), so nothing was learned; the task is too hard, or the reward never fires: take easier "
    "prompts or a larger --group-size, and look at the completions in rollouts/",
    "single": "one scored completion each), so nothing was learned; see why the reward leaves the others unscored",
    "unscored": "unscored), so nothing was learned; see why the reward returns None, NaN or raises",
}
"""What most groups of a step without spread are → what to say."""

PATIENCE_STEPS = 3
"""Steps in which every advantage is 0 after which the run says so."""


class Trainer:
    """A run in progress: the policy, the optimizer, and where it stands.

    Args:
        config: Checked.
        task: Its prompts and rewards.
        policy: Trained in place.
        folder: Locked by the caller.
        advantages: The run's estimator, in the state that it goes on from.
        listener: Told what happens.
        state: Where to go on from; the optimizer's state is loaded by the caller.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        policy: Policy,
        folder: RunFolder,
        *,
        advantages: Advantages,
        listener: Listener | None = None,
        state: TrainingState | None = None,
    ) -> None:
        self.config, self.task, self.policy, self.folder = config, task, policy, folder
        self.advantages = advantages
        self.listener = listener or Listener()
        self.state = state or TrainingState(task_fingerprint=task.fingerprint())
        self.optimizer = make_optimizer(policy, config.optimizer)
        self.sampling = sampling_of(config)
        self.prompts = self._encode(task.train)
        self.heldout = self._encode(task.heldout[: config.evaluation.eval_prompts])
        self.reference: Policy | None = None
        self.sampler = _sampler(policy, config)
        self.interrupts = Interrupts()
        self.saved_step = self.state.step
        self.mid_step = False

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest completion there may be."""
        return max(len(p.token_ids) for p in self.prompts) + self.config.rollout.max_new_tokens

    def freeze_reference(self) -> None:
        """Keep a frozen copy of the policy as it is now, for the KL penalty. Call it on the starting model."""
        if self.config.objective.beta > 0:
            model = copy.deepcopy(self.policy.model).requires_grad_(False)
            self.reference = Policy(model, self.policy.tokenizer, name="reference")

    def run(self) -> None:
        """Train to the last step, then write the final model.

        An interrupt or an error between two steps leaves a checkpoint of the last one. An error while weights
        change or records are written (a full disk, say) leaves the checkpoint before it.

        Raises:
            Interrupted: On SIGINT or SIGTERM, with the last whole step saved.
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
            except BaseException as error:
                self._save_before(error)
                raise
            with suppress(Interrupted), self.interrupts.deferred():  # done: nothing is left to interrupt
                save_final_model(self.folder, self.policy, step=self.state.step)

    def _save_before(self, error: BaseException) -> None:
        """Save the last whole step, if the weights are those of one; a failure to must not hide the error."""
        try:
            if not self.mid_step:
                self._checkpoint()
        except Exception as failed:
            error.add_note(f"and no checkpoint could be written ({' '.join(str(failed).split())})")
        if not isinstance(error, KeyboardInterrupt):
            saved = f"step {self.saved_step} is saved" if self.saved_step else "no step is saved yet"
            error.add_note(f"{saved}: go on with grouprl train --resume {self.folder.path}")

    def _step(self) -> None:
        config, step = self.config, self.state.step + 1
        seed_everything(config.seed, step)
        clock = _Clock()
        drawn = draw_prompts(
            self.prompts,
            position=self.state.position,
            count=config.rollout.prompts_per_step,
            seed=config.seed,
        )
        self._refresh_sampler()
        groups = self._rollout(drawn, step)
        clock.lap("rollout")
        self.listener.stage("reward", 0, len(groups))
        scores = score(self.task.rewards, groups, on_error=config.on_reward_error)
        clock.lap("reward")
        greedy = self._greedy(drawn, step, clock) if self.advantages.needs_greedy else None
        penalised = penalise(scores, groups, self.policy, self.reference, config)
        estimated = self.advantages(Batch.of(groups, penalised.scores, greedy), step=step)
        lr = learning_rate(config.optimizer, step=step, steps=config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with ExitStack() as stack:

            def weights_change() -> None:
                """From here to the end of the step an interrupt waits, and an error leaves nothing to save."""
                if not self.mid_step:
                    stack.enter_context(self.interrupts.deferred())
                    self.mid_step = True

            result = update(
                self.policy,
                self.optimizer,
                groups,
                estimated.advantages,
                [r is not None for r in scores.rewards],
                config,
                reference=self.reference,
                before_step=weights_change,
                progress=lambda done, total: self.listener.stage("train", done, total),
            )
            weights_change()  # also where the update was skipped: the records of a step belong together
            clock.lap("train")
            metrics = self._metrics(step, lr, groups, scores, greedy, estimated, result, clock)
            estimated.columns.update(penalised.columns)
            self._record(step, metrics | penalised.metrics, groups, penalised.scores, estimated, result)

    def _refresh_sampler(self) -> None:
        """Give a sampler of its own the weights of now."""
        if self.sampler.model is not self.policy.model:
            self.sampler.take_weights(self.policy)

    def _rollout(self, drawn: Sequence[EncodedPrompt], step: int) -> list[Group]:
        return generate(
            self.sampler,
            drawn,
            group_size=self.config.rollout.group_size,
            sampling=self.sampling,
            seed=self.config.seed,
            stream=f"train/{step}",
            batch_tokens=self.config.rollout.batch_tokens,
            progress=lambda done, total: self.listener.stage("rollout", done, total),
        )

    def _greedy(self, drawn: Sequence[EncodedPrompt], step: int, clock: _Clock) -> Scores:
        """The scores of one greedy completion for each prompt."""
        sampling = self.sampling
        groups = generate(
            self.sampler,
            drawn,
            group_size=1,
            sampling=Sampling(temperature=0.0, max_new_tokens=sampling.max_new_tokens, stop=sampling.stop),
            seed=self.config.seed,
            stream=f"greedy/{step}",
            batch_tokens=self.config.rollout.batch_tokens,
            progress=lambda done, total: self.listener.stage("rollout", done, total),
        )
        scores = score(self.task.rewards, groups, on_error=self.config.on_reward_error)
        clock.lap("greedy")
        return scores

    def _metrics(
        self,
        step: int,
        lr: float,
        groups: Sequence[Group],
        scores: Scores,
        greedy: Scores | None,
        estimated: Result,
        result: UpdateResult,
        clock: _Clock,
    ) -> dict[str, Any]:
        sampled = sum(len(c.token_ids) for g in groups for c in g.completions)
        return {
            "step": step,
            **batch_metrics(groups, scores, success_reward=self.task.success_reward),
            **advantage_metrics(groups, scores, estimated.advantages),
            **(greedy_metrics(greedy) if greedy is not None else {}),
            **{name: result.metrics.get(name) for name in UPDATE_METRICS},
            "grad_norm": result.grad_norm,
            "lr": lr,
            "updates": result.updates,
            "trained_completions": result.completions,
            "rollout_tokens_per_s": sampled / clock.seconds["rollout"],
            "train_tokens_per_s": result.tokens / clock.seconds["train"],
            **{f"seconds_{name}": seconds for name, seconds in clock.seconds.items()},
            "seconds_step": clock.total(),
            "peak_memory_gib": peak_memory_gib(self.policy.device),
        }

    def _record(
        self,
        step: int,
        metrics: dict[str, Any],
        groups: Sequence[Group],
        scores: Scores,
        estimated: Result,
        result: UpdateResult,
    ) -> None:
        rows = rollout_rows(
            step,
            groups,
            rewards=scores.rewards,
            advantages=estimated.advantages.tolist(),
            components=scores.components,
            trainer_logprobs_mean=result.trainer_logprobs_mean,
            estimator=self.advantages.name,
            estimator_options=self.advantages.options,
            extra=estimated.columns,
            tokens=self.config.record_tokens,
        )
        write_rollouts(self.folder.rollouts_path(step), rows)
        append_jsonl(self.folder.metrics_path, metrics)
        learned = metrics["groups_with_advantage_share"] > 0
        self.advantages.commit()
        self.state = replace(
            self.state,
            step=step,
            position=self.state.position + len(groups),
            steps_without_spread=0 if learned else self.state.steps_without_spread + 1,
        )
        self.mid_step = False
        self.listener.stepped(metrics, rows)
        for message in [*result.warnings, *self._diagnose(metrics, scores)]:
            self.listener.warned(f"step {step}: {message}")

    def _diagnose(self, metrics: dict[str, Any], scores: Scores) -> list[str]:
        """What a user would otherwise find out after the run."""
        found = []
        if scores.errors:
            found.append(
                f"{scores.errors} of {metrics['completions']} completions are unscored because a reward raised, "
                f"such as: {scores.error_examples[0]}"
            )
        if scores.nonfinite:
            found.append(f"{scores.nonfinite} scores were NaN or infinite: those completions are unscored")
        above = self.advantages.above_max_reward(scores.rewards)
        if above is not None:
            found.append(
                f"a reward is {above:g}, above the max_reward of {self.advantages.options['max_reward']:g} that "
                f"estimator {self.advantages.name!r} measures against; set --estimator-option max_reward=…"
            )
        if metrics.get("greedy_unscored_share"):
            found.append(
                f"{metrics['greedy_unscored_share']:.0%} of the greedy completions are unscored: the advantages of "
                "their prompts are 0"
            )
        limit = self.config.rollout.max_new_tokens
        if metrics["truncated_share"] == 1:
            found.append(
                f"every completion was cut off at max_new_tokens = {limit}, none finished: rewards that need an end "
                "cannot be reached; raise --max-new-tokens"
            )
        mismatch = metrics["kl_sampler_trainer"]
        if mismatch is not None and mismatch > MISMATCH_NATS:
            found.append(
                f"sampler and trainer disagree by {mismatch:.2g} nats a token, so the gradient is not that of what "
                "was sampled; with this model use --dtype float32, and report it if it stays"
            )
        if self.state.steps_without_spread and self.state.steps_without_spread % PATIENCE_STEPS == 0:
            found.append(self._nothing_learned(metrics))
        return found

    def _nothing_learned(self, metrics: dict[str, Any]) -> str:
        steps = self.state.steps_without_spread
        if not self.advantages.skips_without_spread:
            return (
                f"every advantage was 0 for {steps} steps, so nothing was learned; see what estimator "
                f"{self.advantages.name!r} gives for the rewards in rollouts/"
            )
        kind = max(NO_SPREAD, key=lambda kind: float(metrics[f"groups_{kind}_share"]))
        return f"no group had spread for {steps} steps (mostly {NO_SPREAD[kind]}"

    def _evaluate_if_due(self) -> None:
        config, step = self.config, self.state.step
        every = config.evaluation.eval_every
        due = step in (0, config.steps) or (every and step % every == 0)
        if not self.heldout or not due or step in {e.get("step") for e in self.folder.evaluations()}:
            return
        seed_everything(config.seed, step)
        self._refresh_sampler()
        evaluation = evaluate(
            self.sampler,
            self.task,
            self.heldout,
            samples=config.evaluation.eval_samples,
            sampling=self.sampling,
            seed=config.seed,
            on_reward_error=config.on_reward_error,
            batch_tokens=config.rollout.batch_tokens,
            progress=lambda done, total: self.listener.stage("evaluation", done, total),
        )
        release_memory()  # many small pieces, between which training would not fit
        record = {"step": step, **evaluation.record}
        with self.interrupts.deferred():
            append_jsonl(self.folder.evaluations_path, record)
        self.listener.evaluated(record)

    def _checkpoint(self) -> None:
        """Save the last whole step, unless it is saved already."""
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
                keep=self.config.checkpoint.checkpoint_keep,
            )
            self.saved_step = self.state.step
            self.listener.checkpointed(self.state.step, path)

    def _encode(self, prompts: Sequence[Any]) -> list[EncodedPrompt]:
        return self.policy.encode_prompts(
            prompts, max_new_tokens=self.config.rollout.max_new_tokens, template=self.config.chat_template
        )


def _sampler(policy: Policy, config: Config) -> Policy:
    """What completions are drawn from: the policy's weights in float32, or a rounded copy."""
    dtype: torch.dtype = getattr(torch, config.rollout.sampler_dtype)
    return policy.in_dtype(dtype) if dtype == torch.float32 else policy.copy(dtype)


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = max(now - self.last, 1e-9)
        self.last = now

    def total(self) -> float:
        return time.perf_counter() - self.start
