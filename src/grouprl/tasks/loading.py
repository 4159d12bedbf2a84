"""A task by its name, or from a file of prompts."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grouprl.errors import TaskError
from grouprl.tasks.arithmetic_task import arithmetic
from grouprl.tasks.checking import check_rewards
from grouprl.tasks.files import SUFFIXES, Row, file_stem, read_prompts
from grouprl.tasks.hub import HubDataset, hub_dataset
from grouprl.tasks.math_rows import math_row
from grouprl.tasks.reasoning_gym_task import PREFIX, reasoning_gym
from grouprl.tasks.reward_specs import RewardLike, make_rewards
from grouprl.tasks.split import DEFAULT_FRACTION, content_key, split_heldout
from grouprl.tasks.task import Task
from grouprl.types import Prompt

_BUILDERS: dict[str, Callable[..., Task]] = {"arithmetic": arithmetic}
"""Built-in tasks by name; a builder's keyword arguments are the task's options."""

_MATH = "math:"
"""Before a file: its rows are read by `math_row`, and its reward is `math` unless told."""


def names() -> list[str]:
    """The names of the built-in tasks.

    Returns:
        Sorted.

    Example:
        >>> names()
        ['arithmetic']
    """
    return sorted(_BUILDERS)


def load(
    name_or_path: str | os.PathLike[str],
    *,
    rewards: RewardLike | Sequence[RewardLike] = (),
    reward_weights: Sequence[float] | None = None,
    success_reward: float | None = None,
    heldout_path: str | os.PathLike[str] | None = None,
    heldout_fraction: float | None = None,
    **options: Any,
) -> Task:
    """A built-in task, or the task of a file of prompts; its rewards are checked against its prompts.

    Args:
        name_or_path: A name of `names()`; "reasoning-gym:" and families (`grouprl.tasks.reasoning_gym_task`); a
            .jsonl, .jsonl.gz, .parquet or .csv file (`grouprl.tasks.files`); a data set of the hub
            (`grouprl.tasks.hub`); or "math:" and a file or data set of GSM8K's or MATH's columns
            (`grouprl.tasks.math_rows`).
        rewards: One or several: a function, a built-in name, "module:function", or a `Reward`. Required for
            a file, but for "math:", whose own is "math"; in place of a task's own where given, for which "task"
            among them stands.
        reward_weights: One for each reward, that of "task" by the weights of the task's own. None: each one's own.
        success_reward: A completion counts as right where its reward is at least this. None: the task's own,
            1 for a file.
        heldout_path: For a file: another file with the prompts to hold out. Their ids begin with "heldout/".
        heldout_fraction: For a file without `heldout_path`: the share held out, 0.1 unless told, at most 200
            prompts, chosen by a hash of their content.
        **options: For a built-in task: the keywords of its function, such as `low` of `tasks.arithmetic`.

    Returns:
        The task.

    Raises:
        TaskError: an unknown name, a file that cannot be read or holds an unusable prompt, held-out prompts
            that are also trained on, a reward that cannot be found or does not fit the prompts, an answer
            that a built-in reward cannot read, an option that the task does not have.
        MissingDependency: Parquet without polars.

    Example:
        >>> task = load("arithmetic", operation="subtract", high=9, heldout=20)
        >>> task.rewards[0].name, len(task.train) + len(task.heldout)
        ('last_integer', 81)
    """
    none_given = isinstance(rewards, Sequence) and len(rewards) == 0
    if isinstance(name_or_path, str) and (name_or_path in _BUILDERS or name_or_path.startswith(PREFIX)):
        for key, value in (("heldout_path", heldout_path), ("heldout_fraction", heldout_fraction)):
            if value is not None:
                raise TaskError(
                    f"task {name_or_path!r}: {key} is for files of prompts; this task has its own split"
                )
        task = _build(name_or_path, options)
        chosen = make_rewards(task.rewards if none_given else rewards, reward_weights, own=task.rewards)
        task = replace(task, rewards=chosen)
    else:
        is_math = isinstance(name_or_path, str) and name_or_path.startswith(_MATH)
        if name_or_path in (_MATH, _MATH.rstrip(":")):
            raise TaskError(
                "task 'math': no file after it, expected math:FILE, or math:owner/name of the hub"
            )
        path = _existing(name_or_path[len(_MATH) :] if is_math else name_or_path)  # type: ignore[index]
        if options:
            raise TaskError(f"{path}: a file of prompts has no option {next(iter(options))!r}; leave it out")
        if none_given and not is_math:
            raise TaskError(
                f"{path}: no reward for its prompts, expected at least one, such as 'last_number'"
            )
        own = make_rewards("math") if is_math else ()
        chosen = make_rewards(own if none_given else rewards, reward_weights, own=own)
        read_row = math_row if is_math else dict
        train, heldout, origins = _read(path, heldout_path, heldout_fraction, read_row)
        task = Task(file_stem(path), train, heldout, chosen, origins=origins)
    if success_reward is not None:
        task = replace(task, success_reward=success_reward)
    check_rewards(task)
    return task


def _build(name: str, options: dict[str, Any]) -> Task:
    if name.startswith(PREFIX):
        return reasoning_gym(name.removeprefix(PREFIX), **options)
    builder = _BUILDERS[name]
    known = list(inspect.signature(builder).parameters)
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            raise TaskError(
                f"task {name!r}: no option {option!r}, expected one of {', '.join(known)}"
                f"{f'; did you mean {near[0]!r}?' if near else ''}"
            )
    return builder(**options)


def _existing(name_or_path: str | os.PathLike[str]) -> Path | HubDataset:
    path = Path(name_or_path)
    if path.is_file():
        return path
    if not path.name.lower().endswith(SUFFIXES) and (found := hub_dataset(str(name_or_path))):
        return found
    if path.exists():
        return path
    if path.name.lower().endswith(SUFFIXES):
        raise TaskError(f"{path}: no such file in {Path.cwd()}, expected a file of prompts; check the path")
    near = difflib.get_close_matches(str(name_or_path), names(), n=1)
    raise TaskError(
        f"task {str(name_or_path)!r}: neither a built-in task nor a file, expected one of "
        f"{', '.join(names())}, {PREFIX}FAMILY, or a file in {', '.join(SUFFIXES)}, or owner/name of the hub; "
        "math:FILE for mathematics"
        f"{f'; did you mean {near[0]!r}?' if near else ''}"
    )


def _read(
    path: Path | HubDataset,
    heldout_path: str | os.PathLike[str] | None,
    fraction: float | None,
    read_row: Callable[[Row], Row],
) -> tuple[list[Prompt], list[Prompt], dict[str, str]]:
    if heldout_path is None:
        prompts, origins = read_prompts(path, read_row=read_row)
        return *split_heldout(prompts, DEFAULT_FRACTION if fraction is None else fraction), origins
    if fraction is not None:
        raise TaskError(f"{path}: both heldout_path and heldout_fraction given, expected one of them")
    train, origins = read_prompts(path, read_row=read_row)
    other = _existing(str(heldout_path).removeprefix(_MATH))
    heldout, heldout_origins = read_prompts(other, id_prefix="heldout/", read_row=read_row)
    trained = {content_key(prompt): prompt for prompt in train}
    shared = [prompt for prompt in heldout if content_key(prompt) in trained]
    if shared:
        twin = trained[content_key(shared[0])]
        raise TaskError(
            f"{heldout_origins[shared[0].prompt_id]}: the same prompt stands in {origins[twin.prompt_id]}, "
            f"expected none that training sees too ({len(shared)} of {len(heldout)} are); "
            "remove them from one of the files"
        )
    return train, heldout, origins | heldout_origins
