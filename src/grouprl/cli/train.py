"""`grouprl train`: from a configuration and options to a run, its summary and its report."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from grouprl.cli.display import Display
from grouprl.cli.options import named_value, parse
from grouprl.cli.summary import print_findings, print_summary
from grouprl.errors import ConfigError, GrouprlError, RewardError
from grouprl.records import RunFolder
from grouprl.report import safe_text, write_report
from grouprl.training import Config, config_from_dict, read_config, resume, train
from grouprl.training.launch import launched_rank

DESCRIPTION = """Train a language model with GRPO: for each prompt the policy samples a group of completions, a reward
scores each, and the policy moves towards those that scored above their own group.

With no options: the quickstart, sums of two numbers on the bundled SmolLM2-135M-Instruct, a few minutes on
two cores. With your own prompts and reward:

  grouprl train --task prompts.jsonl --reward my_rewards.py:score --max-new-tokens 64
  grouprl train --task math:gsm8k.jsonl --reward math tags --reward-weights 1 0.1 --max-new-tokens 512

A run goes on after Ctrl-C, a kill or a crash with: grouprl train --resume runs/<name>"""


@dataclass(frozen=True)
class TrainArguments:
    config_file: Annotated[
        Path | None, tyro.conf.Positional, tyro.conf.arg(name="config-toml", metavar="CONFIG.toml")
    ] = None
    """A configuration; the options below override it."""
    recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Start from a named recipe: its settings under those of the configuration and the options. `grouprl recipes`
    shows them."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Go on with this run. Only options such as --steps may differ from it."""
    estimator_option: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """One of the estimator's options, such as eps=1e-4; may be given several times."""
    task_option: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """One of the task's options, such as size=200; may be given several times."""
    config: Config = dataclasses.field(default_factory=Config)


def train_command(arguments: Sequence[str]) -> int:
    """Run it. Returns the exit code."""
    given = _parse(arguments, Config())
    if given.resume is not None and given.config_file is not None:
        raise ConfigError(
            "grouprl train: a configuration and --resume, expected one; a run has its own configuration"
        )
    if given.resume is not None and given.recipe is not None:
        raise ConfigError(
            "grouprl train: --recipe and --resume, expected one; a run has its own configuration"
        )
    display = Display(shown=launched_rank() == 0)
    if given.resume is not None:
        folder = RunFolder.open(given.resume)
        saved = config_from_dict(folder.config(), where=str(folder.config_path))
        config = _parse(arguments, saved).config
        if config.output_dir is not None:
            raise ConfigError("grouprl train: --output-dir with --resume; a run goes on in its own folder")
        with display:
            try:
                run = resume(given.resume, overrides=dataclasses.asdict(config), listener=display)
            except KeyboardInterrupt as stop:
                return _interrupted(display, stop)
            except SystemExit as stop:
                raise _exited(stop) from stop
    else:
        base = _base(given)
        config = given.config if base is None else _parse(arguments, base).config
        with display:
            try:
                run = train(config, listener=display)
            except KeyboardInterrupt as stop:
                return _interrupted(display, stop)
            except SystemExit as stop:
                raise _exited(stop) from stop
    if display.shown:
        _conclude(run.path, display)
    return 0


def _base(given: TrainArguments) -> Config | None:
    """What the options are over: the configuration, the recipe, or the one over the other; None for the defaults."""
    if given.config_file is not None:
        return read_config(given.config_file, recipe=given.recipe)
    return config_from_dict({"recipe": given.recipe}) if given.recipe is not None else None


def _parse(arguments: Sequence[str], default: Config) -> TrainArguments:
    # Their names are the estimator's own: tyro would make options of them that may clash with others.
    options = default.advantage.options
    of_task = default.task_options
    bare = dataclasses.replace(
        default, advantage=dataclasses.replace(default.advantage, options={}), task_options={}
    )
    given = parse(
        TrainArguments,
        arguments,
        prog="grouprl train",
        description=DESCRIPTION,
        default=TrainArguments(config=bare),
    )
    advantage = given.config.advantage
    if advantage.estimator != default.advantage.estimator:
        options = {}  # those of another estimator
    named = dict(named_value("grouprl train: --estimator-option", text) for text in given.estimator_option)
    advantage = dataclasses.replace(advantage, options={**options, **named})
    if given.config.task != default.task:
        of_task = {}  # those of another task
    named = dict(named_value("grouprl train: --task-option", text) for text in given.task_option)
    config = dataclasses.replace(given.config, advantage=advantage, task_options={**of_task, **named})
    if config.reward != default.reward and not _names(arguments, "--reward-weights"):
        config = dataclasses.replace(config, reward_weights=())  # those of other rewards
    return dataclasses.replace(given, config=config)


def _names(arguments: Sequence[str], option: str) -> bool:
    return any(argument.partition("=")[0].replace("_", "-") == option for argument in arguments)


def _conclude(path: Path, display: Display) -> None:
    """Summary, findings and page. The model is saved by now, so what keeps them from being made is only a warning."""
    from grouprl.report import findings
    from grouprl.report.sources import source_of

    try:
        print_summary(path, display.console)
        run = findings.read_run(path)
        found = findings.report(run).findings
        print_findings(found, path, display.console)
        display.line(f"report  {safe_text(str(write_report(source_of(run), findings=found)))}")
    except (GrouprlError, OSError) as error:
        display.line(
            f"warning: the run is done and its model saved, but not all can be shown: {safe_text(str(error))}"
        )


def _exited(stop: SystemExit) -> RewardError:
    error = RewardError(
        f"sys.exit({stop.code!r}) was called during the run, most likely by a reward function; raise instead"
    )
    for note in getattr(stop, "__notes__", []):
        error.add_note(note)
    return error


def _interrupted(display: Display, stop: KeyboardInterrupt) -> int:
    if not display.shown:
        return 130
    if display.path is None:
        said = "stopped before the run began"
    else:
        again = f"grouprl train --resume {shlex.quote(str(display.path))}"
        done = (
            f"after step {display.saved_step}, which is saved"
            if display.saved_step
            else "before a step was saved"
        )
        said = f"stopped {done}; go on with\n  {again}"
    with suppress(OSError):  # a terminal that has gone
        lines = "; ".join([f"grouprl: {said}", *getattr(stop, "__notes__", [])]).split("\n")
        print("\n".join(map(safe_text, lines)), file=sys.stderr)
    return 130
