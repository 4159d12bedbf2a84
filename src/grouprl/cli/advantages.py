"""`grouprl advantages`: rows with a reward and a group → the same rows with advantages, and a summary."""

from __future__ import annotations

import json
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from grouprl import advantages
from grouprl.advantages import Estimator
from grouprl.advantages.registry import NEEDS
from grouprl.cli.advantages_summary import summarise, summary_text
from grouprl.cli.options import parse
from grouprl.errors import ConfigError, GrouprlError
from grouprl.records import plain
from grouprl.records.tables import Columns, Plan, Table, check_output, open_table, write_table
from grouprl.sampling import informative
from grouprl.tasks.user_code import is_spec, load_attribute

DESCRIPTION = """Add advantages to the rows of a file: JSON Lines, CSV or Parquet, each row with a reward and a group.

  grouprl advantages rollouts.jsonl -o with_advantages.jsonl
  grouprl advantages scores.csv -o out.csv --reward-column acc --group-column uid
  grouprl advantages in.parquet -o out.parquet --group-column step prompt_id   a group: both alike
  grouprl advantages in.jsonl -o in.jsonl --estimator rloo --overwrite         in place
  grouprl advantages in.jsonl -o out.jsonl --estimator pass_at_k --estimator-option k=4
  grouprl advantages runs/arithmetic-1 -o all.parquet --advantage-column rloo --estimator rloo

A group's rows may stand anywhere. Everything else in a row stays as it is. An empty, null or NaN reward is unscored:
its advantage is 0, and its group does not notice. The file may be larger than memory; rewards and groups are held,
rows are not. OUT is written whole or not at all, and may be IN."""

REWARDS = (("reward",), ("rewards", "score", "scores", "reward_score", "total_reward"))
GROUPS = (
    ("group_id", "group"),
    ("uid", "prompt_id", "problem_id", "question_id", "prompt_uid", "group_index"),
)
PROMPTS = ("prompt_id", "problem_id", "question_id", "prompt_uid")
"""Names of a prompt, which comes back in later steps as another group."""
LENGTHS = (("completion_tokens",), ("completion_length", "response_length", "num_tokens", "length"))
"""Names that are looked for; those further behind only where none before is there."""

FROM_THE_FILE = NEEDS - {"max_reward"} | {"valid", "process_group"}
"""Keywords of estimators that hold a value a row, and so are no options."""


@dataclass(frozen=True)
class AdvantagesArguments:
    input: Annotated[Path, tyro.conf.Positional]
    """A .jsonl, .csv, .tsv or .parquet file (.jsonl.gz, .csv.gz), or a run's folder."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The file to write, of the same kind; Parquet also goes to .jsonl and .csv."""
    reward_column: str | None = None
    """Looked for among reward, rewards, score, … if not given."""
    group_column: tuple[str, ...] = ()
    """One or more, which name a row's group together. Looked for among group_id, uid, prompt_id, … if not given."""
    advantage_column: str = "advantage"
    """The new column."""
    overwrite: bool = False
    """Replace the advantage column where there is one."""
    estimator: str = "grpo"
    """Which estimator: those of docs/estimators.md, or your own as file.py:function or module:function."""
    eps: float | None = None
    """The estimator's eps; its own default if not given."""
    ddof: int | None = None
    """0 for the population std, 1 for the sample std."""
    convention: str | None = None
    """Another trainer's eps and ddof: trl, verl, …"""
    estimator_option: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """One of the estimator's options, such as k=4; may be given several times."""
    length_column: str | None = None
    """Completion lengths in tokens, for estimators that weigh by them."""
    greedy_column: str | None = None
    """The greedy completion's reward of the row's prompt, for remax."""
    component_columns: tuple[str, ...] = ()
    """The rewards that gdpo standardises one by one."""
    success_reward: float = 1.0
    """In the summary a group of equal rewards is all high from here on, else all low."""
    json: bool = False
    """Print the summary as one JSON object and nothing else."""


def advantages_command(arguments: Sequence[str]) -> int:
    """Read, compute, write, and print what there was."""
    given = parse(AdvantagesArguments, arguments, prog="grouprl advantages", description=DESCRIPTION)
    estimator = _find(given.estimator)
    options = _options(given, estimator)
    table = open_table(given.input)
    check_output(table, given.output)
    reward, extras, plan = _plan(given, estimator, table)
    _rehearse(given, estimator, options, extras)
    with _stoppable(), _bar() as bar:
        read = table.read(plan, bar("reading"))
        options |= {name: _extra(columns, read) for name, columns in extras.items()}
        rewards = read.numbers[reward]
        values = _advantages(estimator, rewards, read.group, options)
        summary = summarise(rewards, read.group, values, success_reward=given.success_reward)
        write_table(table, given.output, plan, values, bar("writing"))
    record = {
        "input": str(given.input),
        "output": str(given.output),
        "estimator": estimator.name,
        "scope": estimator.scope,
        "reward_column": reward,
        "group_column": list(plan.group),
        "advantage_column": plan.added,
        **summary,
    }
    print(json.dumps(plain(record), allow_nan=False) if given.json else summary_text(record))
    return 0


def _plan(
    given: AdvantagesArguments, estimator: Estimator, table: Table
) -> tuple[str, dict[str, str | dict[str, str]], Plan]:
    """The reward's column, the columns of what else the estimator takes by keyword, and what to read and add."""
    columns = table.columns()
    reward = given.reward_column or _guess(table, columns, "reward", REWARDS)
    group = given.group_column or _guess_group(table, columns)
    extras = _extras(given, estimator, table, columns)
    flat = [name for one in extras.values() for name in (one.values() if isinstance(one, dict) else [one])]
    plan = Plan(
        numbers=tuple(dict.fromkeys([reward, *flat])),
        group=tuple(dict.fromkeys(group)),
        added=given.advantage_column,
        replace=given.overwrite,
    )
    if plan.added in (*plan.numbers, *plan.group) or not plan.added:
        raise ConfigError(
            f"advantages: --advantage-column {plan.added!r} is read too or empty, expected a name of its own; "
            "choose another one"
        )
    return reward, extras, plan


def _guess_group(table: Table, columns: Sequence[str]) -> tuple[str]:
    name = _guess(table, columns, "group", GROUPS)
    if name in PROMPTS and "step" in columns:
        raise ConfigError(
            f"{table.path}: {name} may come back in each step; say --group-column step {name}, or {name} alone"
        )
    return (name,)


def _guess(table: Table, columns: Sequence[str], what: str, names: Sequence[Sequence[str]]) -> str:
    for tier in names:
        found = [name for name in tier if name in columns]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(
                f"{table.path}: {' and '.join(found)} may each be the {what}; choose with --{what}-column"
            )
    raise ConfigError(
        f"{table.path}: no column looks like the {what} ({', '.join(n for tier in names for n in tier)}) among "
        f"{', '.join(map(repr, columns))}; name it with --{what}-column"
    )


def _options(given: AdvantagesArguments, estimator: Estimator) -> dict[str, Any]:
    """What is not in the file: numbers and names. Refuses an estimator that a file cannot serve."""
    if estimator.scope in ("stateful", "token"):
        missing = "steps and tokens inside a completion" if estimator.scope == "token" else "earlier calls"
        raise ConfigError(
            f"advantages: {estimator.name} needs {missing}, which a row does not hold; "
            "call it from Python, or choose another --estimator"
        )
    options: dict[str, Any] = {
        name: value for name in ("eps", "ddof", "convention") if (value := getattr(given, name)) is not None
    }
    options |= dict(map(_named_value, given.estimator_option))
    for name in options:
        if name in FROM_THE_FILE or not estimator.accepts(name):
            raise ConfigError(
                f"advantages: {estimator.name} takes no option {name!r}; leave it out, or see docs/estimators.md"
            )
    if "max_reward" in estimator.needs and "max_reward" not in options:
        raise ConfigError(
            f"advantages: {estimator.name} needs the task's highest reward; add --estimator-option max_reward=1, say"
        )
    return options


def _named_value(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as TOML writes it; anything else is text."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip().isidentifier()):
        raise ConfigError(f"advantages: --estimator-option is {text!r}, expected NAME=VALUE, such as k=4")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def _find(name: str) -> Estimator:
    """The estimator of that name, or a registered one of the user's own file or module."""
    if not is_spec(name):
        return advantages.get(name)
    found = load_attribute(name, where=f"estimator {name!r}", error=ConfigError)
    if isinstance(found, Estimator):
        return found
    for known in map(advantages.get, advantages.names()):
        if known.function is found:
            return known
    raise ConfigError(
        f"estimator {name!r}: it is of type {type(found).__name__} and not registered, expected a function registered "
        "as an estimator; put @grouprl.advantages.register('name') above it"
    )


def _advantages(
    estimator: Estimator, rewards: NDArray[Any], group: NDArray[np.int64], options: dict[str, Any]
) -> NDArray[Any]:
    """One finite number a row; a user's own estimator may raise, or give something else."""
    try:
        values = np.asarray(estimator(rewards, group, **options))
    except GrouprlError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"estimator {estimator.name!r}: raised {reason}; mend it") from error
    if values.shape != rewards.shape or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise ConfigError(
            f"estimator {estimator.name!r}: gave {values.dtype} of shape {values.shape}, expected one finite float "
            f"for each of {len(rewards)} rows; mend it"
        )
    return values


def _extras(
    given: AdvantagesArguments, estimator: Estimator, table: Table, columns: Sequence[str]
) -> dict[str, str | dict[str, str]]:
    """Keyword of the estimator → its column, or columns by name."""
    extras: dict[str, str | dict[str, str]] = {}
    if given.length_column is not None:
        extras["lengths"] = given.length_column
    elif "lengths" in estimator.needs and not _works_without(estimator):
        extras["lengths"] = _guess(table, columns, "length", LENGTHS)
    if given.greedy_column is not None:
        extras["greedy_rewards"] = given.greedy_column
    if given.component_columns:
        extras["components"] = {name: name for name in given.component_columns}
    named = {
        "lengths": "--length-column",
        "greedy_rewards": "--greedy-column",
        "components": "--component-columns",
    }
    for keyword, option in named.items():
        if keyword in extras and not estimator.accepts(keyword):
            raise ConfigError(f"advantages: {estimator.name} has no use for {option}; leave it out")
        if keyword in estimator.needs - {"lengths"} and keyword not in extras:
            raise ConfigError(
                f"advantages: {estimator.name} needs {keyword}; name with {option} what holds them, of "
                f"{', '.join(map(repr, columns))}"
            )
    return extras


def _works_without(estimator: Estimator) -> bool:
    """Whether rewards and groups are enough, though it looks at more where there is more."""
    try:
        estimator([1.0, 0.0], [0, 0])
    except Exception:  # one's own may raise anything
        return False
    return True


def _rehearse(
    given: AdvantagesArguments, estimator: Estimator, options: dict[str, Any], extras: dict[str, Any]
) -> None:
    """Try the options on two rewards, so that a wrong one is refused before a long file is read."""
    two = [1.0, 0.0]
    columns = {name: two if isinstance(of, str) else dict.fromkeys(of, two) for name, of in extras.items()}
    _advantages(estimator, np.array(two), np.zeros(2, np.int64), options | columns)
    informative(two, [0, 0], high=given.success_reward)


def _extra(columns: str | dict[str, str], read: Columns) -> Any:
    if isinstance(columns, str):
        return read.numbers[columns]
    return {name: read.numbers[column] for name, column in columns.items()}


@contextmanager
def _bar() -> Iterator[Any]:
    """A maker of progress callbacks, each with a bar of its own; bars are shown on a terminal alone."""
    console = Console(stderr=True, markup=False, highlight=False)
    shown = (TextColumn("{task.description}"), BarColumn(bar_width=40), TaskProgressColumn())
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:

        def start(what: str) -> Any:
            task = progress.add_task(what, total=None)
            return lambda done, total: progress.update(task, completed=done, total=total)

        yield start


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that nothing half written stays."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
