"""TRL's GRPOTrainer with grouprl's advantages: `from grouprl.integrations.trl import GRPOTrainer`.

TRL computes the advantage inside the method that generates and scores, and offers no hook. Nothing of that method is
copied here. Three methods are overridden, and each calls TRL's own:

    _calculate_rewards               what it returns is kept: every reward of every rank
    _generate_and_score_completions  its "advantages" are replaced by this rank's part of the estimator's
    _compute_loss                    is given the completions that have an advantage

and `_save_checkpoint` and `_load_optimizer_and_scheduler` carry what a resumed run needs besides.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grouprl.advantages import Estimator
from grouprl.advantages.conventions import CONVENTIONS
from grouprl.advantages.registry import get
from grouprl.errors import ConfigError, MissingDependency, RunError
from grouprl.integrations import versions
from grouprl.integrations.estimating import Batch, Estimating, as_estimator, with_weights
from grouprl.integrations.leaving_out import keep, obstacle, signalling
from grouprl.integrations.refilling import PromptStream, Row, Sampled, put_in_place, round_size
from grouprl.records import atomic_write
from grouprl.sampling import informative

VERSION = versions.require("trl")

import trl  # noqa: E402
from accelerate.utils import gather_object  # noqa: E402

from grouprl.integrations.batch_metrics import batch_metrics, group_shares  # noqa: E402
from grouprl.integrations.recording import Recorder  # noqa: E402
from grouprl.integrations.trl_groups import groups_of, rows_to_record  # noqa: E402

HOOKS: Mapping[str, tuple[str, ...]] = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("inputs",),
    "_compute_loss": ("model", "inputs"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
}
"""TRL's methods that are overridden → the parameters they are expected to have."""
LACKING = {
    "greedy_rewards": "TRL samples no greedy completion to compare with",
    "values": "TRL's GRPO has no critic",
}
"""What estimators may need and TRL's batches do not hold → why."""
STATE_FILE = "grouprl_state.json"
WHERE = "GRPOTrainer"
logger = logging.getLogger(__name__)


def broken_hooks() -> list[str]:
    """What of TRL's GRPOTrainer is not as it is expected to be; nothing in the versions that were tested."""
    found = []
    for name, expected in HOOKS.items():
        method = getattr(trl.GRPOTrainer, name, None)
        if method is None:
            found.append(f"{name} is gone")
        elif (have := tuple(inspect.signature(method).parameters)[1:]) != expected:
            found.append(f"{name} takes ({', '.join(have)}), not ({', '.join(expected)})")
    return found


if broken := broken_hooks():
    raise MissingDependency(
        f"grouprl.integrations.trl: trl {VERSION}: {'; '.join(broken)}; expected the GRPOTrainer of trl "
        f"{versions.FRAMEWORKS['trl'].supported}; pip install 'grouprl[trl]'"
    )


class GRPOTrainer(trl.GRPOTrainer):
    """TRL's GRPOTrainer, with any estimator of grouprl's, dynamic sampling, and a record of the rollouts.

    Args:
        *args: As for `trl.GRPOTrainer`.
        advantage_estimator: A registered name ("rloo"), "file.py:function" of a registered one, or a function
            `(rewards, group_ids, **keywords) → advantages` of all ranks' completions, (N,). None does what the
            configuration's `scale_rewards` and `multi_objective_aggregation` say, at TRL's eps and ddof, under
            grouprl's contract: a group without spread gets exactly 0.
        advantage_options: The estimator's keywords, {"convention": "trl"}; `max_reward` for those that need it.
        leave_out: Keep completions whose advantage is 0 out of forward and backward where the gradient is the same
            without them (no KL, entropy or router term, all text). The loss keeps its denominator.
        max_sampling_rounds: Dynamic sampling: groups without spread in reward are replaced by groups of further
            prompts, in at most this many rounds a batch, the first included; 0 or 1 keeps what was drawn.
        success_reward: From this reward on a group without spread counts as all right, below it as all wrong: in the
            logs, and nowhere else.
        record: The folder that rollouts and metrics are written to in grouprl's schema, for `grouprl report` and
            `grouprl advantages`; True for "grouprl" in the output directory.
        **keywords: As for `trl.GRPOTrainer`.

    Raises:
        ConfigError: An estimator that needs what TRL does not have, unknown or missing options, an estimator beside
            other advantage options of TRL's, dynamic sampling with images or a streamed data set.
        EstimatorError: While training, an estimator that fails.
        RunError: While training starts, a record folder that holds a run already, or a checkpoint of another
            estimator where the given one has a memory.

    A completion for which every reward function gave None, or whose reward is infinite, is unscored: its advantage is 0
    and its group is computed without it. Logged besides TRL's: `groups/informative_share`, `groups/all_high_share`,
    `groups/all_low_share`, `groups/single_share`, `groups/unscored_share` of the batch that is trained on,
    `groups/sampling_rounds`, `groups/sampled`, and `completions/left_out_share`. TRL's own `reward` and
    `completions/…` are of the first round, what the policy does on the data; its `entropy` is of the completions that
    went through the model.

    Example:
        trainer = GRPOTrainer(
            model="Qwen/Qwen3-0.6B", reward_funcs=accuracy_reward, args=GRPOConfig("out"), train_dataset=dataset,
            advantage_estimator="rloo", max_sampling_rounds=4, record=True,
        )

    Source: ours; dynamic sampling is DAPO's, https://arxiv.org/abs/2503.14476, section 3.2.
    """

    def __init__(
        self,
        *args: Any,
        advantage_estimator: str | Estimator | Callable[..., Any] | None = None,
        advantage_options: Mapping[str, Any] | None = None,
        leave_out: bool = True,
        max_sampling_rounds: int = 0,
        success_reward: float = 1.0,
        record: bool | str | Path = False,
        **keywords: Any,
    ) -> None:
        _check_options(advantage_estimator, advantage_options, max_sampling_rounds, success_reward)
        estimator = None
        if advantage_estimator is not None:
            estimator = as_estimator(advantage_estimator, where=WHERE, lacking=LACKING)
        super().__init__(*args, **keywords)
        if estimator is None:
            estimator, options = _of_configuration(self.args)
        else:
            _refuse_two_ways(self.args, estimator)
            options = dict(advantage_options or {})
        weights = dict(zip(self._component_names(), self.reward_weights.tolist(), strict=True))
        self._estimating = Estimating(estimator, with_weights(estimator, options, weights), where=WHERE)
        self._success_reward = float(success_reward)
        self._leaving_out = leave_out and self._may_leave_out()
        self._max_rounds = max_sampling_rounds
        self._stream = self._prompt_stream() if max_sampling_rounds > 1 else None
        self._recorder = self._make_recorder(record) if record else None
        self._scored: tuple[Tensor, list[Row]] | None = None

    # ---- rewards to advantages ----

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        given = [example.get("prompt") for example in inputs]
        rows = [Row(p, _prompt_id(p), tuple(ids)) for p, ids in zip(given, completion_ids_list, strict=True)]
        self._scored = rewards, rows
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        batch = self._sample(inputs)
        numbers: dict[str, float] = {}
        if training and self._stream is not None:
            batch, numbers = self._fill_up(batch, size)
        batch_of = self._batch_of(batch, size)
        advantages = self._estimating(batch_of, learn=training)
        start = self.accelerator.process_index * len(batch.rows)
        output = {**batch.tensors, "advantages": advantages[start : start + len(batch.rows)]}
        self._log_batch(batch, batch_of, advantages, numbers)
        if training and self._recorder is not None:
            self._record(batch, batch_of, output, advantages, size)
        return output

    def _sample(self, inputs: Any) -> Sampled:
        """Generate and score with TRL's own method, and keep what it does not return."""
        tensors = super()._generate_and_score_completions(inputs)
        if self._scored is None:
            raise MissingDependency(
                f"grouprl.integrations.trl: trl {VERSION} did not call _calculate_rewards while scoring, expected it "
                "to; pip install 'grouprl[trl]'"
            )
        (rewards, rows), self._scored = self._scored, None
        count = len(rewards)
        logs = {name: list(column)[-count:] for name, column in self._log_columns().items()}
        return Sampled(tensors, rows, rewards, logs)

    def _batch_of(self, batch: Sampled, size: int) -> Batch:
        lengths, prompt_ids = None, []
        if self._estimating.needs("lengths"):
            lengths = self.accelerator.gather(_loss_mask(batch.tensors).sum(dim=1))
        if self._estimating.stateful:
            prompt_ids = gather_object([row.prompt_id for row in batch.rows])
        scores = batch.rewards_per_func
        ids = torch.arange(len(scores), device=scores.device) // size
        components = dict(zip(self._component_names(), scores.unbind(dim=1), strict=True))
        return Batch(self._total(scores), ids, prompt_ids, lengths, components)

    def _total(self, rewards_per_func: Tensor) -> Tensor:
        """The weighted sum of the rewards that there are, as TRL adds them up; NaN where there is none."""
        weights = self.reward_weights.to(rewards_per_func.device)
        total = (rewards_per_func * weights).nansum(dim=1)
        return total.masked_fill(rewards_per_func.isnan().all(dim=1), torch.nan)

    def _component_names(self) -> list[str]:
        names: list[str] = []
        for name in self.reward_func_names:
            twins = sum(1 for other in names if other == name or other.startswith(f"{name}_"))
            names.append(f"{name}_{twins + 1}" if name in names else name)
        return names

    # ---- dynamic sampling ----

    def _prompt_stream(self) -> PromptStream:
        if self._is_vlm:
            raise ConfigError(
                f"{WHERE}: max_sampling_rounds with a model for images, expected one for text; images cannot be put "
                "into another batch, so set max_sampling_rounds=0"
            )
        dataset = self.train_dataset
        if self.args.remove_unused_columns:
            dataset = self._remove_unused_columns(dataset, description="training")
        return PromptStream(dataset, seed=self.args.seed, shuffle=self.shuffle_dataset)

    def _fill_up(self, batch: Sampled, size: int) -> tuple[Sampled, dict[str, float]]:
        """Replace groups without spread by groups of further prompts, as long as there are rounds; and count."""
        assert self._stream is not None  # noqa: S101  (asked by the caller)
        metrics = self._metrics["train"]
        before = {name: len(values) for name, values in metrics.items()}
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        dead = self._groups(batch, size, with_spread=False)
        rounds, sampled = 1, len(batch.rewards_per_func) // size
        while dead and rounds < self._max_rounds:
            drawn = self._stream.draw(round_size(len(dead), size, ranks))
            count = len(drawn) * size // ranks
            every = [prompt for _, prompt in drawn for _ in range(size)]
            fresh = self._sample(copy.deepcopy(every[rank * count : (rank + 1) * count]))
            good = self._groups(fresh, size, with_spread=True)
            self._stream.give_back([drawn[group] for group in good[len(dead) :]])
            swaps = dict(zip(dead, good))
            if swaps:
                batch = put_in_place(
                    batch, fresh, swaps, group_size=size, rank=rank, pad_id=self._tokenizer.pad_token_id
                )
            dead = dead[len(swaps) :]
            rounds, sampled = rounds + 1, sampled + len(drawn)
        for name, values in metrics.items():  # TRL's numbers stay those of the first round
            if name != "num_tokens":
                del values[before.get(name, 0) :]
        tokens = self.accelerator.gather(_loss_mask(batch.tensors).sum()).sum()
        batch.tensors["num_items_in_batch"] = tokens
        for name, column in self._log_columns().items():
            if name in batch.logs:
                column.clear()
                column.extend(batch.logs[name])
        return batch, {"groups/sampling_rounds": rounds, "groups/sampled": sampled}

    def _groups(self, batch: Sampled, size: int, *, with_spread: bool) -> list[int]:
        rewards = self._total(batch.rewards_per_func).view(-1, size)
        alive = informative(rewards).keep.any(dim=1)
        return (alive if with_spread else ~alive).nonzero().flatten().tolist()

    def _log_columns(self) -> dict[tuple[str, ...], Any]:
        """The columns of TRL's table of completions, by place."""
        columns: dict[tuple[str, ...], Any] = {(name,): self._logs[name] for name in ("prompt", "completion")}
        for kind in ("rewards", "extra"):
            columns |= {(kind, name): column for name, column in self._logs[kind].items()}
        return columns

    # ---- the loss ----

    def _may_leave_out(self) -> bool:
        why = obstacle(self)
        if why:
            logger.info("every completion goes through the model: %s", why)
        return why is None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        signal = signalling(inputs) if self._leaving_out and self.model.training else None
        if signal is None:
            return super()._compute_loss(model, inputs)
        most = int(self.accelerator.gather(signal.sum().reshape(1)).max())
        kept = keep(inputs, signal, max(most, 1), self.loss_type)
        metrics = self._metrics["train"]
        metrics["completions/left_out_share"].append(1.0 - kept.rows[0] / kept.rows[1])
        loss = super()._compute_loss(model, kept.inputs) * kept.scale
        self._correct_clip_ratios(kept.tokens, kept.rows)
        return loss

    def _correct_clip_ratios(self, tokens: tuple[Tensor, Tensor], rows: tuple[int, int]) -> None:
        """To what they are over the whole micro-batch: a completion without advantage is never clipped."""
        if rows[0] == rows[1]:
            return
        share = rows[0] / rows[1]
        if self.importance_sampling_level == "token":
            kept, every = self.accelerator.reduce(torch.stack(tokens).float(), reduction="sum").tolist()
            share = kept / max(every, 1.0)
        metrics = self._metrics["train"]
        for name in (
            "clip_ratio/low_mean",
            "clip_ratio/high_mean",
            "clip_ratio/region_mean",
            "cispo_clip_ratio",
        ):
            if metrics.get(name):
                metrics[name][-1] *= share
        if metrics.get("clip_ratio/low_min") and share < 1.0:
            metrics["clip_ratio/low_min"][-1] = 0.0

    # ---- logs, record, checkpoints ----

    def _log_batch(
        self, batch: Sampled, batch_of: Batch, advantages: Tensor, numbers: Mapping[str, float]
    ) -> None:
        column = self._logs["advantages"]
        for _ in range(min(len(advantages), len(column))):
            column.pop()
        column.extend(advantages.tolist())
        shares = group_shares(batch_of.rewards, batch_of.group_ids, success_reward=self._success_reward)
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in {**{f"groups/{k}_share": v for k, v in shares.items()}, **numbers}.items():
            metrics[name].append(value)

    def _make_recorder(self, record: bool | str | Path) -> Recorder:
        folder = Path(self.args.output_dir) / "grouprl" if record is True else Path(str(record))
        config = {
            "framework": f"trl {VERSION}",
            "model": getattr(self.model.config, "_name_or_path", "") or type(self.model).__name__,
            "prompts_per_step": self.args.generation_batch_size // self.num_generations,
            "group_size": self.num_generations,
            "estimator": self._estimating.name,
            "lr": self.args.learning_rate,
            "seed": self.args.seed,
            "success_reward": self._success_reward,
        }
        recorder = Recorder(folder, config, writes=self.accelerator.is_main_process)
        self.add_callback(recorder)
        return recorder

    def _record(
        self,
        batch: Sampled,
        batch_of: Batch,
        output: Mapping[str, Any],
        advantages: Tensor,
        size: int,
    ) -> None:
        assert self._recorder is not None  # noqa: S101  (asked by the caller)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        rows = gather_object(rows_to_record(output, batch.rows, self.processing_class, ends))
        if not self.accelerator.is_main_process:
            return
        step = self.state.global_step + 1
        groups = groups_of(rows, size, prefix=f"train/{step}", first=self._recorder.groups_in(step))
        components = dict(batch_of.components or {})
        lengths = [len(row.token_ids) for row in rows]
        metrics = batch_metrics(
            batch_of.rewards,
            batch_of.group_ids,
            advantages,
            components=components,
            lengths=lengths,
            finished=[row.finish_reason == "stop" for row in rows],
            success_reward=self._success_reward,
        )
        trained = {"trained_tokens": [sum(row.loss_mask) for row in rows]}
        self._recorder.sampled(
            step,
            groups,
            metrics,
            rewards=batch_of.rewards,
            advantages=advantages,
            components={name: _or_none(values) for name, values in components.items()},
            trainer_logprobs_mean=[row.trainer_logprob for row in rows],
            estimator=self._estimating.name,
            estimator_options=self._estimating.options,
            extra=trained if self._estimating.needs("lengths") else None,
        )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if not self.args.should_save:
            return
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        state = {
            "estimator": self._estimating.name,
            "estimator_state": self._estimating.state(),
            "prompts": self._stream.state() if self._stream is not None else None,
        }
        atomic_write(folder / STATE_FILE, json.dumps(state).encode())

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint) / STATE_FILE if checkpoint is not None else None
        if path is None:
            return
        if not path.is_file():
            logger.warning("%s is missing: the estimator and the further prompts start afresh", path)
            return
        state = json.loads(path.read_text(encoding="utf-8"))
        if self._estimating.stateful and state["estimator"] != self._estimating.name:
            raise RunError(
                f"{WHERE}: {path} was written with the estimator {state['estimator']!r}, expected "
                f"{self._estimating.name!r}, which goes on from its own memory; resume with the one it was written "
                "with, or start a new run from the checkpoint's model"
            )
        if self._estimating.stateful:
            self._estimating.load_state(state["estimator_state"])
        if self._stream is not None and state["prompts"] is not None:
            self._stream.load_state(state["prompts"])


def _of_configuration(args: Any) -> tuple[Estimator, dict[str, Any]]:
    """What TRL's own options say, at TRL's eps and ddof."""
    like = CONVENTIONS["trl"]
    numbers = {"eps": like.eps, "ddof": like.ddof}
    if args.multi_objective_aggregation == "normalize_then_sum":
        return get("gdpo"), numbers
    if args.scale_rewards == "batch":
        return get("batch_std"), numbers
    if args.scale_rewards == "none":
        return get("dr_grpo"), {}
    return get("grpo"), {"convention": "trl"}


def _check_options(estimator: Any, options: Any, max_sampling_rounds: Any, success_reward: Any) -> None:
    """Refuse values of another kind, before the model is loaded."""
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            f"{WHERE}: advantage_options is {options!r}, expected the estimator's keywords by name; give "
            "{'eps': 1e-6}, say"
        )
    if estimator is None and options:
        raise ConfigError(
            f"{WHERE}: advantage_options without an advantage_estimator, expected both; give "
            "advantage_estimator='grpo', say"
        )
    whole = isinstance(max_sampling_rounds, int) and not isinstance(max_sampling_rounds, bool)
    if not whole or max_sampling_rounds < 0:
        raise ConfigError(
            f"{WHERE}: max_sampling_rounds is {max_sampling_rounds!r}, expected a whole number from 0 on; 0 is off"
        )
    number = isinstance(success_reward, (int, float)) and not isinstance(success_reward, bool)
    if not number or not math.isfinite(success_reward):
        raise ConfigError(
            f"{WHERE}: success_reward is {success_reward!r}, expected a number; 1.0 is the default"
        )


def _refuse_two_ways(args: Any, estimator: Estimator) -> None:
    """TRL's own options of the advantage beside an estimator would be ignored."""
    for name, default in {
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
    }.items():
        if getattr(args, name) != default:
            raise ConfigError(
                f"{WHERE}: {name}={getattr(args, name)!r} beside advantage_estimator={estimator.name!r}, expected one "
                f"of the two; leave {name} out, or leave advantage_estimator out"
            )


def _loss_mask(tensors: Mapping[str, Any]) -> Tensor:
    mask: Tensor = tensors["completion_mask"]
    return mask * tensors["tool_mask"] if "tool_mask" in tensors else mask


def _prompt_id(prompt: Any) -> str:
    """The same for the same prompt, whatever process or run."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _or_none(values: Tensor) -> Sequence[float | None]:
    return [value if value == value else None for value in values.tolist()]
