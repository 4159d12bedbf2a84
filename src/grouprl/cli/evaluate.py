"""`grouprl eval`: accuracy and pass@k of a model, or of a run, on a task."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from grouprl.cli.options import named_value, parse
from grouprl.errors import ConfigError
from grouprl.policy import load_policy
from grouprl.records import RunFolder, plain
from grouprl.report.text import safe_text
from grouprl.rollout import LocalEngine
from grouprl.training import (
    Config,
    Evaluation,
    config_from_dict,
    evaluate,
    final_model_step,
    load_task,
    sampling_of,
)

DESCRIPTION = """Sample completions for a task's held-out prompts and count the right ones: accuracy with a 95 %
interval, the greedy answer's accuracy, and pass@k, the chance that one of k samples is right, without bias.

  grouprl eval                                    the bundled model on the arithmetic task
  grouprl eval runs/arithmetic-1                  a run's final model, on the run's own task
  grouprl eval Qwen/Qwen3-0.6B --samples 8 --k 1 4 8
  grouprl eval runs/x/checkpoints/step_00010/model --task prompts.jsonl --reward last_number"""


@dataclass(frozen=True)
class EvalArguments:
    model: Annotated[str, tyro.conf.Positional] = "bundled"
    """A run's folder, a model's folder, a hub id, or 'bundled'."""
    task: str | None = None
    """A task's name or a file of prompts. The run's own for a run, else arithmetic."""
    task_option: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """One of the task's options, over the run's own; may be given several times."""
    reward: tuple[str, ...] = ()
    """Rewards, as in grouprl train. The run's own for a run on its own task."""
    system_prompt: str | None = None
    """Put before each conversation. The run's own for a run, else none."""
    split: Literal["heldout", "train", "all"] = "heldout"
    """Which of the task's prompts."""
    prompts: int = 100
    """Most prompts to use."""
    samples: int = 4
    """Completions for each."""
    k: tuple[int, ...] = (1,)
    """Which pass@k to estimate; each at most --samples."""
    temperature: float | None = None
    """The run's own for a run, else 1."""
    top_p: float | None = None
    """The run's own for a run, else 1: all tokens."""
    top_k: int | None = None
    """The run's own for a run, else 0: all tokens."""
    max_new_tokens: int | None = None
    """The run's own for a run, else 16."""
    success_reward: float | None = None
    """A completion with at least this reward is right."""
    seed: int = 0
    """Of the samples: the same seed draws the same random numbers for every model."""
    device: str = "auto"
    """'auto', 'cpu', 'cuda', …"""
    show: int = 3
    """Prompts whose completions are printed."""
    json: bool = False
    """Print one JSON object and nothing else."""


def eval_command(arguments: Sequence[str]) -> int:
    """Evaluate and print."""
    given = parse(EvalArguments, arguments, prog="grouprl eval", description=DESCRIPTION)
    if given.samples < 1 or given.prompts < 1:
        raise ConfigError(
            f"eval: {given.prompts} prompts × {given.samples} samples, expected at least one of each"
        )
    for k in given.k:
        if not 1 <= k <= given.samples:
            raise ConfigError(
                f"eval: pass@{k} of {given.samples} samples, expected k from 1 to {given.samples}; raise --samples"
            )
    config = _config(given)
    task = load_task(config)
    prompts = {"heldout": task.heldout, "train": task.train, "all": [*task.train, *task.heldout]}[given.split]
    if not prompts:
        raise ConfigError(
            f"eval: task {task.name!r} has no prompts in split {given.split!r}; choose another --split"
        )
    policy = load_policy(config.model, device=config.device)
    encoded = policy.encode_prompts(
        prompts[: given.prompts],
        max_new_tokens=config.rollout.max_new_tokens,
        template=config.chat_template,
    )
    console = Console(stderr=True, markup=False, highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("sampling", total=None)
        evaluation = evaluate(
            LocalEngine(policy, batch_tokens=config.rollout.batch_tokens),
            task,
            encoded,
            samples=given.samples,
            sampling=sampling_of(config),
            seed=config.seed,
            on_reward_error=config.on_reward_error,
            ks=given.k,
            progress=lambda done, total: bar.update(shown, completed=done, total=total),
        )
    record = {"model": given.model, "task": task.name, "split": given.split, **evaluation.record}
    if given.json:
        print(json.dumps(plain(record), allow_nan=False))
    else:
        _print(record, evaluation, given)
    return 0


def _config(given: EvalArguments) -> Config:
    """The run's own configuration where a run is given, else the default one, under the options that were given."""
    table = dataclasses.asdict(Config())
    model = given.model
    if Path(given.model, "config.toml").is_file():
        run = RunFolder.open(given.model)
        table = dataclasses.asdict(config_from_dict(run.config(), where=str(run.config_path)))
        model = str(_model_of(run))
    if given.task is not None:
        table |= {"task": given.task, "reward": (), "reward_weights": (), "success_reward": None}
        table |= {"heldout_path": None, "heldout_fraction": None, "task_options": {}}
    table["task_options"] |= dict(named_value("eval: --task-option", text) for text in given.task_option)
    if given.reward:
        table |= {"reward": given.reward, "reward_weights": ()}
    if given.system_prompt is not None:
        table["system_prompt"] = given.system_prompt
    if given.success_reward is not None:
        table["success_reward"] = given.success_reward
    table |= {"model": model, "seed": given.seed, "device": given.device}
    for name in ("temperature", "top_p", "top_k", "max_new_tokens"):
        if (value := getattr(given, name)) is not None:
            table["rollout"][name] = value
    return config_from_dict(table, where="grouprl eval")


def _model_of(run: RunFolder) -> Path:
    """The run's final model, or that of its newest checkpoint while it goes on."""
    final, steps = final_model_step(run), run.checkpoints()
    if final is not None and final >= max(steps, default=0):
        return run.model_dir
    if not steps:
        raise ConfigError(f"{run.path}: has neither a final model nor a checkpoint yet; name a model")
    path = run.checkpoint_path(steps[-1]) / "model"
    print(f"grouprl: the run is not finished; taking {path}", file=sys.stderr)
    return path


def _print(record: dict[str, Any], evaluation: Evaluation, given: EvalArguments) -> None:
    def percent(key: str) -> str:
        value = record.get(key)
        return "–" if value is None else f"{100 * value:.1f} %"

    print(
        f"{safe_text(given.model)} on {record['task']}: {record['prompts']} prompts × {record['samples']} samples"
    )
    interval = f"[{percent('accuracy_low')}, {percent('accuracy_high')}]"
    print(f"  accuracy, sampled   {percent('accuracy')}  {interval} (95 %)")
    print(f"  accuracy, greedy    {percent('accuracy_greedy')}")
    for k in given.k:
        print(f"  {f'pass@{k}':<18}  {percent(f'pass_at_{k}')}")
    mean = record["reward_mean"]
    print(f"  mean reward         {'–' if mean is None else format(mean, '.3f')}")
    print(f"  cut off             {percent('truncated_share')}")
    print(f"  only a number       {percent('only_number_share')}")
    if record["unscored_share"]:
        print(f"  unscored            {percent('unscored_share')} ({record['reward_errors']} reward errors)")
    rewards = iter(evaluation.scores.rewards)
    for number, group in enumerate(evaluation.groups):
        scored = [(completion, next(rewards)) for completion in group.completions]
        if number < given.show:
            print(f"\n{safe_text(group.prompt_text.strip(), limit=300)}")
            for completion, reward in scored:
                shown = "unscored" if reward is None else f"{reward:.3g}"
                print(f"  {shown:>8}  {safe_text(completion.text, limit=88)}")
