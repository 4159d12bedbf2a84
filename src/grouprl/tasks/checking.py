"""What can go wrong with a task's rewards and be known before training starts, found before it starts."""

from __future__ import annotations

import inspect

from grouprl.errors import TaskError
from grouprl.tasks.columns import accepted_columns
from grouprl.tasks.task import BATCH_COLUMNS, Reward, Task
from grouprl.types import Prompt


def check_rewards(task: Task) -> None:
    """Check that each reward can be called with the task's columns and can read its prompts' fields.

    `load` and `arithmetic` do it; call it on a Task made by hand.

    Args:
        task: The task. No reward function is called, only its `check_prompts`, where it has one.

    Raises:
        TaskError: a parameter that no column supplies, an async or generator function, or prompts that a
            reward cannot use (an answer that is missing or cannot be parsed): the first with the place it
            was read, and how many there are.

    Example:
        >>> from grouprl.tasks.task import Reward
        >>> reward = Reward("right", lambda completions, answer: [0] * len(completions))
        >>> check_rewards(Task("sums", [Prompt("p1", "2 + 2?")], [], (reward,)))
        Traceback (most recent call last):
        ...
        grouprl.errors.TaskError: reward 'right': parameter 'answer' matches no column, ...
    """
    columns = [*BATCH_COLUMNS, *task.field_names]
    for reward in task.rewards:
        _check_kind(reward)
        accepted_columns(reward, columns)
        _check_fields(task, reward)


def _check_kind(reward: Reward) -> None:
    for candidate in (reward.function, getattr(reward.function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise TaskError(
                f"reward {reward.name!r}: an async function, expected a plain one; use asyncio.run in it"
            )
        if inspect.isgeneratorfunction(candidate):
            raise TaskError(
                f"reward {reward.name!r}: a generator (it yields), expected a function that returns a list"
            )


def _check_fields(task: Task, reward: Reward) -> None:
    check = getattr(reward.function, "check_prompts", None)
    if not callable(check):
        return
    prompts = [*task.train, *task.heldout]
    problems: list[tuple[Prompt, str]] = list(check(prompts))
    if not problems:
        return
    first, problem = problems[0]
    others = ", ".join(_place(task, prompt) for prompt, _ in problems[1:4])
    more = f" (then {others}{', …' if len(problems) > 4 else ''})" if others else ""
    raise TaskError(
        f"{_place(task, first)}: {problem}, which reward {reward.name!r} cannot use; "
        f"{len(problems)} of {len(prompts)} prompts affected{more}: mend or remove them"
    )


def _place(task: Task, prompt: Prompt) -> str:
    origin = task.origins.get(prompt.prompt_id)
    return f"{origin} (prompt {prompt.prompt_id!r})" if origin else f"prompt {prompt.prompt_id!r}"
