"""Rewards from what a user can write: a built-in name, "module:function", a function, or a Reward."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from grouprl.errors import TaskError
from grouprl.tasks.http_messages import is_url
from grouprl.tasks.http_reward import http_reward
from grouprl.tasks.named_rewards import is_named, make_named, signatures
from grouprl.tasks.task import Reward, RewardFunction
from grouprl.user_code import is_spec, load_attribute

MODEL_PREFIX = "model:"
"""Begins the name of a reward model, which the layers above load (`grouprl.policy.load_reward_model`)."""

OWN = "task"
"""Among rewards, stands for the task's own: `["task", "tags:think,answer"]` adds one to them."""

RewardLike = str | RewardFunction | Reward


def make_rewards(
    rewards: RewardLike | Sequence[RewardLike],
    weights: Sequence[float] | None = None,
    *,
    own: Sequence[Reward] = (),
) -> tuple[Reward, ...]:
    """Rewards from built-in names, "module:function" texts, functions and Rewards, in any mixture.

    Args:
        rewards: One, or several. "task" stands for all of `own`.
        weights: One for each. None keeps each Reward's own, and 1 for the others. That of "task" multiplies the
            weights of `own`.
        own: The task's own rewards.

    Returns:
        One Reward each, in order, but for "task": as many as there are. A function's reward has the function's name.

    Raises:
        TaskError: another number of weights than of rewards, a reward that cannot be found or called, "task" without
            `own`.

    Example:
        >>> def short(completions):
        ...     return [len(text) < 20 for text in completions]
        >>> [(r.name, r.weight) for r in make_rewards(["last_integer", short], [1.0, 0.2])]
        [('last_integer', 1.0), ('short', 0.2)]
        >>> [(r.name, r.weight) for r in make_rewards(["task", "tags"], [1.0, 0.5], own=make_rewards("math"))]
        [('math', 1.0), ('tags', 0.5)]
    """
    several = isinstance(rewards, Iterable) and not (isinstance(rewards, str) or callable(rewards))
    given: list[Any] = list(rewards) if several else [rewards]  # type: ignore[arg-type]
    made = [_own(own) if reward == OWN else (_make_reward(reward),) for reward in given]
    if weights is None:
        return tuple(reward for part in made for reward in part)
    weights = list(weights)
    if len(weights) != len(made):
        names = ", ".join(OWN if given[i] == OWN else part[0].name for i, part in enumerate(made))
        raise TaskError(
            f"reward weights: {len(weights)} for {len(made)} rewards ({names}), expected one weight each"
        )
    return tuple(
        replace(reward, weight=weight * reward.weight if reward_of == OWN else weight)
        for reward_of, part, weight in zip(given, made, weights, strict=True)
        for reward in part
    )


def reward_from_spec(spec: str, *, weight: float = 1.0) -> Reward:
    """The reward that a text names.

    Args:
        spec: A built-in name, some with options after a colon ("last_integer", "math", "tags:think,answer"; all in
            `grouprl.tasks.named_rewards`), or "module:function", "path/to/file.py:function", or the URL of a server
            (`http_reward`). Modules are looked for in the current folder first, as `python -m` does; that folder,
            or the file's own, then stays at the end of sys.path, so that imports inside the function work.
            `function` may also be a Reward, or an attribute of one ("module:scorers.strict").
        weight: The component's weight. A Reward found under the name keeps its own, unless this is not 1.

    Returns:
        The reward, named as the function is.

    Raises:
        TaskError: the module or the function is not there, importing it raised, or it cannot be called.

    Example:
        >>> reward_from_spec("last_integer").function(completions=["It is 22."], answer=[22])
        [1.0]
    """
    if is_named(spec):
        return Reward(spec.partition(":")[0], make_named(spec), weight)
    if is_url(spec):
        return http_reward(spec, weight=weight)
    where = f"reward {spec!r}"
    if spec == OWN:
        raise TaskError(f"{where}: stands for a task's own rewards, expected a task beside it (tasks.load)")
    if spec.startswith(MODEL_PREFIX):
        raise TaskError(
            f"{where}: a reward model needs torch, expected a reward without; grouprl.train and the command line take "
            "it, and grouprl.policy.load_reward_model makes a function of it"
        )
    if not is_spec(spec):
        names = [re.split(r"[:\[]", form)[0] for form in signatures()]
        near = difflib.get_close_matches(spec.partition(":")[0], [*names, OWN], n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise TaskError(
            f"{where}: not a built-in reward, expected {', '.join(signatures())}, 'module:function', "
            f"'file.py:function', 'http://…', '{MODEL_PREFIX}FOLDER', or '{OWN}' for the task's own{meant}"
        )
    attribute = spec.rpartition(":")[2]
    found = load_attribute(spec, where=where)
    if isinstance(found, Reward):
        return found if weight == 1.0 else replace(found, weight=weight)
    if not callable(found) or isinstance(found, type):
        raise TaskError(
            f"{where}: {attribute} is of type {type(found).__name__}, expected a function, an object with "
            "__call__, or a tasks.Reward"
        )
    return Reward(attribute.rpartition(".")[2], found, weight)


def _own(rewards: Sequence[Reward]) -> tuple[Reward, ...]:
    if not rewards:
        raise TaskError(
            f"reward {OWN!r}: stands for the task's own rewards, and a file of prompts has none; name a reward, "
            "such as 'last_number'"
        )
    return tuple(rewards)


def _make_reward(reward: RewardLike) -> Reward:
    if isinstance(reward, Reward):
        return reward
    if isinstance(reward, str):
        return reward_from_spec(reward)
    if not callable(reward):
        raise TaskError(
            f"reward: {reward!r} of type {type(reward).__name__}, expected a function, a name, "
            "'module:function' or a tasks.Reward"
        )
    return Reward(_name_of(reward), reward)


def _name_of(function: Callable[..., Any]) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    name = getattr(function, "__name__", None) or getattr(function, "name", None) or type(function).__name__
    return str(name).strip("<>")  # a lambda is named <lambda>
