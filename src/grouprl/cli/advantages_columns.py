"""Which columns of a file hold rewards and groups, and what else an estimator takes: named by options, or guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grouprl.advantages import Estimator
from grouprl.advantages.specs import enough_alone
from grouprl.errors import ConfigError
from grouprl.records.tables import Table

DataColumns = dict[str, str | Mapping[str, str]]
"""Keyword of an estimator → the column that holds its numbers, or columns by name."""

REWARDS = (("reward",), ("rewards", "score", "scores", "reward_score", "total_reward"))
GROUPS = (
    ("group_id", "group"),
    ("uid", "prompt_id", "problem_id", "question_id", "prompt_uid", "group_index"),
)
PROMPTS = ("prompt_id", "problem_id", "question_id", "prompt_uid")
"""Names of a prompt, which comes back in later steps as another group."""
LENGTHS = (("completion_tokens",), ("completion_length", "response_length", "num_tokens", "length"))
"""Names that are looked for; those further behind only where none before is there."""
OPTIONS = {
    "lengths": "--length-column",
    "greedy_rewards": "--greedy-column",
    "components": "--component-columns",
}
"""Keyword of an estimator → the option that names its columns."""


def guess_reward(table: Table) -> str:
    """The column whose name says that it holds rewards.

    Raises:
        ConfigError: There is none, or more than one.
    """
    return _guess(table, "reward", REWARDS)


def guess_group(table: Table) -> str:
    """The column whose name says that it holds groups.

    Raises:
        ConfigError: There is none, or more than one; or it names a prompt, which may come back in another step.
    """
    name = _guess(table, "group", GROUPS)
    if name in PROMPTS and "step" in table.columns():
        raise ConfigError(
            f"{table.path}: {name} may come back in each step; say --group-column step {name}, or {name} alone"
        )
    return name


def data_columns(
    table: Table, estimator: Estimator, lengths: str | None, greedy: str | None, components: Sequence[str]
) -> DataColumns:
    """The columns of what an estimator takes beside rewards and groups.

    Args:
        table: The file.
        estimator: The estimator.
        lengths: --length-column; guessed where it is not given and the estimator cannot do without.
        greedy: --greedy-column.
        components: --component-columns.

    Raises:
        ConfigError: A column that it has no use for, or one missing that it needs.
    """
    found: DataColumns = {}
    if lengths is not None:
        found["lengths"] = lengths
    elif "lengths" in estimator.needs and not enough_alone(estimator):
        found["lengths"] = _guess(table, "length", LENGTHS)
    if greedy is not None:
        found["greedy_rewards"] = greedy
    if components:
        found["components"] = {name: name for name in components}
    for keyword, option in OPTIONS.items():
        if keyword in found and not estimator.accepts(keyword):
            raise ConfigError(f"advantages: {estimator.name} has no use for {option}; leave it out")
        if keyword in estimator.needs - {"lengths"} and keyword not in found:
            raise ConfigError(
                f"advantages: {estimator.name} needs {keyword}; name with {option} what holds them, of "
                f"{', '.join(map(repr, table.columns()))}"
            )
    return found


def _guess(table: Table, what: str, names: Sequence[Sequence[str]]) -> str:
    columns = table.columns()
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
