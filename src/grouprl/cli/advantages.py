"""`grouprl advantages`: rows with a reward and a group → the same rows with advantages, and a summary."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from grouprl.advantages.specs import estimator_from_spec
from grouprl.cli.advantages_columns import DataColumns, data_columns, guess_group, guess_reward
from grouprl.cli.advantages_summary import summarise, summary_text
from grouprl.cli.estimators import advantages_of, check_estimator, rehearse
from grouprl.cli.options import named_value, parse
from grouprl.errors import ConfigError
from grouprl.records import plain
from grouprl.records.tables import Columns, Plan, Table, check_output, open_table, write_table

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
    estimator, options = estimator_from_spec(given.estimator), _options(given)
    check_estimator(estimator, options)
    if not math.isfinite(given.success_reward):
        raise ConfigError(
            f"advantages: --success-reward is {given.success_reward}, expected a finite number; give one"
        )
    table = open_table(given.input)
    check_output(table, given.output)
    reward = given.reward_column or guess_reward(table)
    data = data_columns(table, estimator, given.length_column, given.greedy_column, given.component_columns)
    plan = _plan(given, reward, data, table)
    rehearse(estimator, options, data)
    with _stoppable(), _bar() as bar:
        read = table.read(plan, bar("reading"))
        rewards = read.numbers[reward]
        values = advantages_of(estimator, rewards, read.group, options | _read_data(data, read))
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


def _plan(given: AdvantagesArguments, reward: str, data: DataColumns, table: Table) -> Plan:
    """What to read, and what to add."""
    group = given.group_column or (guess_group(table),)
    flat = [name for one in data.values() for name in ([one] if isinstance(one, str) else one.values())]
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
    return plan


def _options(given: AdvantagesArguments) -> dict[str, Any]:
    """What is not in the file: numbers and names."""
    named = {
        name: value for name in ("eps", "ddof", "convention") if (value := getattr(given, name)) is not None
    }
    return named | dict(
        named_value("advantages: --estimator-option", text) for text in given.estimator_option
    )


def _read_data(columns: DataColumns, read: Columns) -> dict[str, Any]:
    """Each keyword's numbers: one array, or several by name."""
    return {
        keyword: read.numbers[of]
        if isinstance(of, str)
        else {name: read.numbers[c] for name, c in of.items()}
        for keyword, of in columns.items()
    }


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
