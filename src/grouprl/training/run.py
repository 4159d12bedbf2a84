"""`grouprl.train`: set a run up, or take one up again, and train it to its last step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from grouprl.errors import ConfigError, RunError, TaskError
from grouprl.policy import Policy, load_policy
from grouprl.records import RunFolder, atomic_write
from grouprl.tasks import RewardLike, Task
from grouprl.training.advantages import Advantages
from grouprl.training.checkpoint import (
    DamagedCheckpoint,
    TrainingState,
    final_model_step,
    load_optimizer,
    read_curriculum_state,
    read_estimator_state,
    read_state,
)
from grouprl.training.config import (
    Config,
    RolloutConfig,
    check_config,
    config_from_dict,
    config_to_toml,
    read_config,
)
from grouprl.training.curriculum import Curriculum
from grouprl.training.engines import check_engine_packages, reserved_share
from grouprl.training.estimators import load_estimator
from grouprl.training.events import Listener
from grouprl.training.launch import joined, own_device
from grouprl.training.loading import load_task, reward_names
from grouprl.training.machine import describe_machine
from grouprl.training.memory import fit_micro_batch
from grouprl.training.objective import objective_notes
from grouprl.training.ranks import Ranks
from grouprl.training.sampling import check_component_names, sampling_notes
from grouprl.training.staleness import check_ranks, staleness_notes
from grouprl.training.tracking import check_trackers, tracked
from grouprl.training.trainer import Trainer, freeze_reference
from grouprl.training.weights import check_packages, load_trained


@dataclass(frozen=True)
class Run:
    """A finished run: where it is, and what it measured.

    Args:
        path: The run's folder.
        config: What it ran with.
        metrics: One record a step, as in metrics.jsonl.
        evaluations: One record a held-out evaluation.
    """

    path: Path
    config: Config
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]

    @property
    def model_dir(self) -> Path:
        """The final model with its tokenizer: `from_pretrained` loads it."""
        return RunFolder(self.path).model_dir


def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    task: Task | str | Path | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    listener: Listener | None = None,
) -> Run:
    """Train a language model with GRPO, from prompts to a model on disk.

    Args:
        config: A `Config`, nested dictionaries, or a TOML file; None is the quickstart.
        task: A `Task`, a task's name or a file of prompts, in place of the configuration's.
        reward: A function, a `Reward`, a name or "module:function", or several of them, in place of the
            configuration's. A function is called as `f(completions=[…], answer=[…], …)` and returns one
            number or None each.
        listener: Told of every step; see `grouprl.training.Listener`.

    Python's, NumPy's and torch's global generators are seeded anew at each step, for reward functions that
    draw from them.

    Returns:
        The run. Its folder holds config.toml, metrics.jsonl, evaluations.jsonl, rollouts/, checkpoints/ and model/.

    Raises:
        ConfigError, TaskError, ModelError, RunError: Something given cannot be used. Nothing was trained.
        RewardError, EstimatorError: A reward function, or the estimator, raised or returned the wrong thing; the
            last whole step was saved.
        LostRank: Of several ranks another one died. With fsdp the last checkpoint is what there is.
    """
    resolved = _resolve(config)
    if not isinstance(task, Task | str | Path | None):
        raise TaskError(
            f"train: task is a {type(task).__name__}, expected a Task, a task's name or a file; "
            "make one with grouprl.tasks.Task(name, train=[Prompt(…)], heldout=[…], rewards=make_rewards(f))"
        )
    if task is not None:
        resolved = dataclasses.replace(
            resolved, task=f"<{task.name}>" if isinstance(task, Task) else str(task)
        )
    if reward is not None:
        resolved = dataclasses.replace(resolved, reward=reward_names(reward))
    with joined(resolved) as ranks:
        given = task if isinstance(task, Task) else None
        return _train(resolved, ranks, given, reward, _heard(listener, ranks))


def _train(
    config: Config,
    ranks: Ranks,
    task: Task | None,
    reward: RewardLike | Sequence[RewardLike] | None,
    listener: Listener,
) -> Run:
    chosen, advantages = _set_up(config, ranks, task, reward)
    folder = ranks.from_first(lambda: _create_folder(config, chosen))
    config = dataclasses.replace(config, output_dir=None)  # so that config.toml repeats the run elsewhere
    with ExitStack() as stack:
        lock = ranks.own(lambda: stack.enter_context(folder.lock()) if ranks.first else None)
        listener = ranks.own(lambda: stack.enter_context(_tracked(config, folder, listener, ranks)))
        try:
            listener.loading(config.model)
            policy = _load(config, ranks)
            config, notes = _prepare(policy, config, ranks)
            trainer = ranks.own(
                lambda: Trainer(
                    config,
                    chosen,
                    policy,
                    folder,
                    advantages=advantages,
                    listener=listener,
                    reference=freeze_reference(policy, config),
                    ranks=ranks,
                )
            )
        except BaseException:
            if lock is not None:
                lock.release()
                if list(folder.path.iterdir()) == [folder.lock_path]:  # nothing of anybody's is in it
                    folder.lock_path.unlink()
                    folder.path.rmdir()
            raise

        def begin() -> None:
            folder.cut_after(0)  # what a run that failed at once may have left
            atomic_write(folder.config_path, config_to_toml(config).encode())

        ranks.from_first(begin)
        _start(trainer, notes=notes)
        return ranks.from_first(lambda: _finished(folder, config))


def resume(
    path: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    task: Task | None = None,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    listener: Listener | None = None,
) -> Run:
    """Go on with a run from its newest checkpoint, with the numbers of a run that was never interrupted.

    What the logs hold beyond the checkpoint is cut off first. On a CPU the continuation is equal to the bit
    (same machine, torch and number of threads; on the same number of ranks).

    Args:
        path: The run's folder.
        overrides: Nested dictionaries over the saved configuration, `{"steps": 32}` for a longer run.
        task: The `Task` of a run that was started with one.
        reward: The functions of a run that was started with them.
        listener: See `train`.

    Raises:
        RunError: No run there; all its steps are done; no checkpoint is intact; its prompts have changed.
        ConfigError: An override that would make it another run.
    """
    folder = RunFolder.open(path)
    saved = config_from_dict(folder.config(), where=str(folder.config_path))
    config = _override(saved, overrides or {})
    with joined(config) as ranks:
        return _resume(folder, saved, config, ranks, task, reward, _heard(listener, ranks))


def _resume(
    folder: RunFolder,
    saved: Config,
    config: Config,
    ranks: Ranks,
    task: Task | None,
    reward: RewardLike | Sequence[RewardLike] | None,
    listener: Listener,
) -> Run:
    with ExitStack() as stack:
        ranks.own(lambda: stack.enter_context(folder.lock()) if ranks.first else None)
        listener = ranks.own(lambda: stack.enter_context(_tracked(config, folder, listener, ranks)))
        chosen, advantages = _set_up(config, ranks, task, reward)
        checkpoint, state, notes = ranks.from_first(lambda: _where_it_stands(folder, config, chosen))
        curriculum = Curriculum(config.sampling)

        def load_states() -> None:
            if checkpoint and (estimator_state := read_estimator_state(checkpoint)) is not None:
                advantages.load_state(estimator_state)
            if checkpoint and (seen := read_curriculum_state(checkpoint)) is not None:
                curriculum.load_state(seen)

        ranks.own(load_states)
        listener.loading(str(checkpoint / "model") if checkpoint else config.model)
        policy = _load(config, ranks, checkpoint)
        config, prepared = _prepare(policy, config, ranks)
        notes += prepared
        trainer = ranks.own(
            lambda: Trainer(
                config,
                chosen,
                policy,
                folder,
                advantages=advantages,
                curriculum=curriculum,
                listener=listener,
                state=state,
                reference=_starting_model(policy, config) if checkpoint else freeze_reference(policy, config),
                ranks=ranks,
            )
        )

        def load_training() -> None:
            if checkpoint:
                load_optimizer(checkpoint, policy, trainer.optimizer)
                if trainer.critic is not None:
                    trainer.critic.load(checkpoint)
                trainer.load_batch(checkpoint)

        def cut() -> None:
            folder.cut_after(state.step)
            if config != saved:
                atomic_write(folder.config_path, config_to_toml(config).encode())

        ranks.own(load_training)
        ranks.from_first(cut)
        _start(trainer, notes=notes)
        return ranks.from_first(lambda: _finished(folder, config))


def _starting_model(policy: Policy, config: Config) -> Policy | None:
    """The reference of a run that goes on: loaded anew, where the policy does not hold it."""
    if not config.objective.beta or policy.adapted:
        return freeze_reference(policy, config)
    reference = load_policy(config.model, device=str(policy.device))
    reference.model.requires_grad_(False)
    return reference


def _heard(listener: Listener | None, ranks: Ranks) -> Listener:
    """Who is told: of several ranks' listeners the first one's."""
    return listener if listener is not None and ranks.first else Listener()


def _tracked(
    config: Config, folder: RunFolder, listener: Listener, ranks: Ranks
) -> AbstractContextManager[Listener]:
    return tracked(config, folder.path, listener) if ranks.first else nullcontext(listener)


def _set_up(
    config: Config, ranks: Ranks, task: Task | None, reward: RewardLike | Sequence[RewardLike] | None
) -> tuple[Task, Advantages]:
    """What a configuration names but for the model: checked, and the same on all ranks."""
    ranks.require_same("options or configurations", config_to_toml(config))

    def act() -> tuple[Task, Advantages]:
        estimator = load_estimator(config)  # before the task, whose files may be large
        check_trackers(config)
        check_packages(config)
        check_engine_packages(config, ranks.size)
        chosen = load_task(_placed(config, ranks), task, reward)
        check_component_names(config, chosen)
        check_ranks(config, ranks.size)
        return chosen, Advantages(estimator, config, chosen)

    chosen, advantages = ranks.own(act)
    ranks.require_same("the task's prompts", chosen.fingerprint())
    return chosen, advantages


def _placed(config: Config, ranks: Ranks) -> Config:
    """With the device of this rank."""
    if not ranks.several:
        return config
    return dataclasses.replace(config, device=str(own_device(config.device, ranks.local_rank)))


def _load(config: Config, ranks: Ranks, checkpoint: Path | None = None) -> Policy:
    """The policy on each rank's device, with the same weights on all."""
    policy = ranks.local_first(lambda: load_trained(_placed(config, ranks), checkpoint))
    ranks.take_from_first(policy.parameters())
    return policy


MAY_CHANGE = (
    "steps",
    "device",
    "gradient_checkpointing",
    "micro_batch_tokens",
    "record_tokens",
    "tracking",
    "on_reward_error",
    "evaluation",
    "checkpoint",
    "scoring",
    "distributed",
    "vllm",
)
"""What may be another value when a run goes on; with anything else it would be another run."""


def _override(saved: Config, overrides: Mapping[str, Any]) -> Config:
    table = dataclasses.asdict(saved)
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            table[key] = {**table[key], **value}
        else:
            table[key] = value
    config = config_from_dict(table)
    for name in (field.name for field in dataclasses.fields(Config)):
        mine, theirs = getattr(config, name), getattr(saved, name)
        if mine != theirs and name not in MAY_CHANGE:
            if dataclasses.is_dataclass(mine):
                name = next(
                    f.name
                    for f in dataclasses.fields(mine)
                    if getattr(mine, f.name) != getattr(theirs, f.name)
                )
                mine, theirs = getattr(mine, name), getattr(theirs, name)
            raise ConfigError(
                f"resume: {name} is {mine!r}, the run was started with {theirs!r}; start a new run to change it "
                f"(may change: {', '.join(MAY_CHANGE)})"
            )
    return config


def _where_it_stands(
    folder: RunFolder, config: Config, task: Task
) -> tuple[Path | None, TrainingState, list[str]]:
    """The checkpoint that a run goes on from, None where there is none yet; its state, and notes of it.

    Raises:
        RunError: No checkpoint is intact; the prompts have changed; all steps are done.
    """
    checkpoint, state, notes = _newest_checkpoint(folder)
    state = state or TrainingState(task_fingerprint=task.fingerprint())
    if state.task_fingerprint != task.fingerprint():
        raise RunError(
            f"{folder.path}: the prompts of task {task.name!r} are not those it was trained on; restore them, "
            "or start a new run from its model"
        )
    if state.step >= config.steps and final_model_step(folder) == state.step:
        raise RunError(
            f"{folder.path}: all {state.step} steps are done; give --steps with more than that to train on"
        )
    return checkpoint, state, notes


def _newest_checkpoint(folder: RunFolder) -> tuple[Path | None, TrainingState | None, list[str]]:
    """The newest intact checkpoint; damaged ones are passed over, and said."""
    notes: list[str] = []
    steps = folder.checkpoints()
    for step in reversed(steps):
        path = folder.checkpoint_path(step)
        try:
            return path, read_state(path), [*notes, f"going on after step {step}"]
        except DamagedCheckpoint as error:
            notes.append(f"{error}; taking the one before it")
    if steps:
        raise RunError(f"{folder.path}: no checkpoint is intact ({notes[0]}); start a new run")
    return None, None, ["there is no checkpoint yet: starting from the first step"]


def _resolve(config: Config | Mapping[str, Any] | str | Path | None) -> Config:
    if config is None:
        return Config()
    if isinstance(config, Config):
        return check_config(config)
    if isinstance(config, Mapping):
        return config_from_dict(config)
    return read_config(config)


def _create_folder(config: Config, task: Task) -> RunFolder:
    if config.output_dir is not None:
        return RunFolder.create(config.output_dir)
    name = task.name.replace("/", "-").replace("\\", "-")  # a task of one's own may have any name
    for number in count(1):
        path = Path("runs") / f"{name}-{number}"
        try:
            path.mkdir(parents=True)  # taken at once, so that two starts never take the same one
        except FileExistsError:
            continue
        return RunFolder.create(path)
    raise AssertionError("unreachable")


def _prepare(policy: Policy, config: Config, ranks: Ranks | None = None) -> tuple[Config, list[str]]:
    """Set up how the policy computes; the configuration with what was left to the machine, and notes of it."""
    policy.dtype = getattr(torch, config.dtype)
    if config.gradient_checkpointing:
        policy.checkpoint_layers()
    if config.micro_batch_tokens:
        return config, []
    ranks = ranks or Ranks()
    found = ranks.each(
        lambda: fit_micro_batch(
            policy,
            sampler_bytes=_sampler_bytes(config.rollout),
            moments_bytes=2 if config.optimizer.optimizer_kind == "adamw_8bit" else 8,
            own_critic=config.advantage.estimator == "gae" and config.critic.critic_backbone == "own",
            sharers=ranks.local_size if policy.device.type == "cpu" else 1,
            slices=ranks.size if config.distributed.strategy == "fsdp" else 1,
            reserved_share=reserved_share(config),
        )
    )
    fitted = min(found, key=lambda fit: fit.tokens)
    return dataclasses.replace(config, micro_batch_tokens=fitted.tokens), [str(fitted)]


def _sampler_bytes(rollout: RolloutConfig) -> int:
    """Of each weight in the sampler's copy, 0 where it uses those that are trained. vLLM's own weights are in the share
    that is reserved for it."""
    if rollout.engine == "vllm" or (rollout.engine == "vllm_server" and not rollout.max_staleness):
        return 0
    if rollout.sampler_dtype == "bfloat16":
        return 2
    return 4 if rollout.max_staleness else 0


def _start(trainer: Trainer, *, notes: Sequence[str]) -> None:
    notes = list(notes)
    if trainer.policy.prefix_obstacle:
        notes.append(f"prompts are run once a completion, not once a group: {trainer.policy.prefix_obstacle}")
    elif not trainer.policy.can_share(longest := trainer.longest_sequence):
        notes.append(
            f"steps with a sequence beyond the model's sliding window of {trainer.policy.window} tokens run a prompt "
            f"once a completion, not once a group (the longest may have {longest})"
        )
    notes += trainer.advantages.notes
    notes += objective_notes(trainer.config)
    if not trainer.advantages.skips_without_spread:
        notes.append(f"{trainer.advantages.name}: a group without spread can have a gradient too")
    train, heldout, used = len(trainer.prompts), len(trainer.task.heldout), len(trainer.heldout)
    notes.append(
        f"prompts: {train} to train on, in an order shuffled anew each time round; {heldout} held out, {used} used"
    )
    notes += sampling_notes(trainer.config)
    if trainer.ranks.several:
        notes.append(f"{trainer.ranks.size} ranks, {trainer.config.distributed.strategy}")
    notes += staleness_notes(trainer.config, threads=trainer.threads)
    if train < trainer.config.rollout.prompts_per_step:
        notes.append(
            f"a step draws {trainer.config.rollout.prompts_per_step} prompts, so each comes more than once"
        )
    trainer.ranks.from_first(
        lambda: trainer.listener.started(
            trainer.config,
            trainer.folder.path,
            machine=describe_machine(trainer.policy.device),
            step=trainer.state.step,
            notes=notes,
        )
    )
    trainer.run()


def _finished(folder: RunFolder, config: Config) -> Run:
    return Run(folder.path, config, folder.metrics(), folder.evaluations())
