"""Which estimator a configuration names, and whether a run can use it: everything that can be refused before it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from grouprl import advantages
from grouprl.advantages import Estimator
from grouprl.advantages.conventions import convention_of
from grouprl.advantages.registry import NEEDS
from grouprl.errors import ConfigError, InputError
from grouprl.tasks.user_code import is_spec, load_attribute
from grouprl.training.config import Config

FROM_THE_RUN = (NEEDS - {"max_reward"}) | {"valid", "process_group"}
"""Keywords that hold a batch's data, and so are no options."""

NOT_HERE = {
    "values": "it needs a critic, and ppo comes with a value head: not in this release",
}
"""What an estimator may need and a run does not have → why."""


def load_estimator(config: Config) -> Estimator:
    """The estimator that a configuration names, its options checked against its signature.

    Raises:
        ConfigError: No such estimator, one that a run cannot use, an unknown or missing option, groups of one
            for an estimator that compares within the group.
    """
    estimator = _find(config.advantage.estimator)
    _check_usable(estimator)
    _check_options(estimator, config.advantage.options)
    if config.rollout.group_size == 1 and "single_is_zero" in estimator.laws:
        able = ", ".join(name for name in _usable() if "single_is_zero" not in advantages.get(name).laws)
        raise ConfigError(
            f"rollout.group_size is 1, expected at least 2 with estimator {estimator.name!r}; a group of one has "
            f"nothing to be compared with, so every advantage would be 0 (one completion is enough for {able})"
        )
    return estimator


def option_names(estimator: Estimator) -> list[str]:
    """The keywords that are its options, in the order of its signature."""
    return [p.name for p in _options(estimator)]


def full_options(estimator: Estimator, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options it works with: those given, and its defaults. Called with them it gives the same numbers."""
    defaults = {
        p.name: p.default for p in _options(estimator) if isinstance(p.default, bool | int | float | str)
    }
    if estimator is advantages.get("grpo"):  # its None is that of its convention, or of the core
        core = inspect.signature(advantages.group_advantages).parameters
        like = convention_of("grpo", options["convention"]) if "convention" in options else None
        defaults |= {name: getattr(like, name) if like else core[name].default for name in ("eps", "ddof")}
    return {**defaults, **options}


def _find(name: str) -> Estimator:
    if not is_spec(name):
        try:
            return advantages.get(name)
        except InputError as error:
            near = difflib.get_close_matches(name, _usable(), n=1)
            raise ConfigError(
                f"advantage.estimator is {name!r}, expected one of {', '.join(_usable())}, or your own as "
                f"'file.py:function' or 'module:function'{f'; did you mean {near[0]!r}?' if near else ''}"
            ) from error
    where = f"estimator {name!r}"
    found = load_attribute(name, where=where, error=ConfigError)
    if isinstance(found, Estimator):
        return found
    for known in map(advantages.get, advantages.names()):
        if known.function is found:
            return known
    raise ConfigError(
        f"{where}: it is of type {type(found).__name__} and not registered, expected a function registered as an "
        "estimator; put @grouprl.advantages.register('name') above it"
    )


def _usable() -> list[str]:
    """Names of the estimators that a run can use."""
    return [name for name in advantages.names() if _obstacle(advantages.get(name)) is None]


def _obstacle(estimator: Estimator) -> str | None:
    for need, why in NOT_HERE.items():
        if need in estimator.needs:
            return why
    if estimator.scope == "token":
        return "it looks at steps or tokens inside a completion, and a run has one reward for each completion"
    return None


def _check_usable(estimator: Estimator) -> None:
    why = _obstacle(estimator)
    if why:
        raise ConfigError(
            f"estimator {estimator.name!r}: {why}, expected one of {', '.join(_usable())}, or your own"
        )
    if estimator.scope == "stateful" and any(p.name == "rewards" for p in _parameters(estimator)):
        raise ConfigError(
            f"estimator {estimator.name!r}: it is stateful and takes rewards at once, expected a class, or a "
            "function of its options alone, that makes what is called with rewards"
        )


def _check_options(estimator: Estimator, options: Mapping[str, Any]) -> None:
    where, parameters = f"estimator {estimator.name!r}", _options(estimator)
    known = [p.name for p in parameters]
    listed = f"its options: {', '.join(known)}" if known else "it has no options"
    for name in options:
        if name in FROM_THE_RUN:
            raise ConfigError(f"{where}: option {name!r} comes from the run, expected an option; {listed}")
        if name not in known and not _takes_any(estimator):
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{where}: unknown option {name!r}{f', did you mean {near[0]!r}?' if near else ''}; {listed}"
            )
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in {*options, "max_reward"}:
            raise ConfigError(
                f"{where}: option {parameter.name!r} is missing, expected a value as it has no default; give it in "
                "[advantage.options]"
            )
    for parameter in _parameters(estimator):
        name = parameter.name
        if name in NEEDS and parameter.default is parameter.empty and name not in estimator.needs:
            raise ConfigError(
                f"{where}: takes {name!r} without declaring it, so a run does not give it; register it with "
                f"needs={{{name!r}}}"
            )


def _parameters(estimator: Estimator) -> list[inspect.Parameter]:
    """What it takes by keyword: what makes a stateful one, else all but rewards and group ids."""
    parameters = list(inspect.signature(estimator.function).parameters.values())
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if estimator.scope == "stateful":
        return named
    return [p for p in named[1:] if p.name != "group_ids"]


def _options(estimator: Estimator) -> list[inspect.Parameter]:
    return [p for p in _parameters(estimator) if p.name not in FROM_THE_RUN]


def _takes_any(estimator: Estimator) -> bool:
    parameters = inspect.signature(estimator.function).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)
