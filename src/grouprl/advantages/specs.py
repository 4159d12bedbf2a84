"""An estimator from text, as a configuration or a command line names it, and the options that it takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from grouprl.advantages.conventions import convention_of
from grouprl.advantages.core import group_advantages
from grouprl.advantages.registry import NEEDS, Estimator, get, names
from grouprl.errors import ConfigError
from grouprl.user_code import is_spec, load_attribute

DATA = (NEEDS - {"max_reward"}) | {"valid", "process_group"}
"""Keywords that hold a batch's data, or say whose it is, and so are no options."""


def estimator_from_spec(spec: str) -> Estimator:
    """The estimator of that name, or a registered one of the user's own file or module.

    Args:
        spec: A name as `get` takes it, "file.py:function" or "module:function".

    Raises:
        InputError: An unknown name.
        ConfigError: No such file, module or function, importing it raised, or it is not registered.
    """
    if not is_spec(spec):
        return get(spec)
    where = f"estimator {spec!r}"
    found = load_attribute(spec, where=where, error=ConfigError)
    if isinstance(found, Estimator):
        return found
    for known in map(get, names()):
        if known.function is found:
            return known
    raise ConfigError(
        f"{where}: it is of type {type(found).__name__} and not registered, expected a function registered as an "
        "estimator; put @grouprl.advantages.register('name') above it"
    )


def parameters(estimator: Estimator) -> list[inspect.Parameter]:
    """What it takes by keyword: what makes a stateful one, else all but rewards and group ids."""
    every = list(inspect.signature(estimator.function).parameters.values())
    named = [p for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if estimator.scope == "stateful":
        return named
    return [p for p in named[1:] if p.name != "group_ids"]


def option_parameters(estimator: Estimator) -> list[inspect.Parameter]:
    """Those of its parameters that are options."""
    return [p for p in parameters(estimator) if p.name not in DATA]


def option_names(estimator: Estimator) -> list[str]:
    """The keywords that are its options, in the order of its signature."""
    return [p.name for p in option_parameters(estimator)]


def check_options(estimator: Estimator, options: Iterable[str]) -> None:
    """Refuse a name that is none of its options.

    Raises:
        ConfigError: With its options, and the nearest one.
    """
    where, known = f"estimator {estimator.name!r}", option_names(estimator)
    listed = f"its options: {', '.join(known)}" if known else "it has no options"
    every = inspect.signature(estimator.function).parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in every)
    for name in options:
        if name in DATA:
            raise ConfigError(f"{where}: option {name!r} comes with the batch, expected an option; {listed}")
        if name not in known and not takes_any:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{where}: unknown option {name!r}{f', did you mean {near[0]!r}?' if near else ''}; {listed}"
            )


def full_options(estimator: Estimator, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options it works with: those given, and its defaults. Called with them it gives the same numbers.

    Example:
        >>> from grouprl import advantages
        >>> full_options(advantages.get("grpo"), {"convention": "trl"})
        {'spread_ulps': 4, 'eps': 0.0001, 'ddof': 1, 'convention': 'trl'}
    """
    defaults = {
        p.name: p.default
        for p in option_parameters(estimator)
        if isinstance(p.default, bool | int | float | str)
    }
    if estimator is get("grpo"):  # its None is that of its convention, or of the core
        core = inspect.signature(group_advantages).parameters
        like = convention_of("grpo", options["convention"]) if "convention" in options else None
        defaults |= {name: getattr(like, name) if like else core[name].default for name in ("eps", "ddof")}
    return {**defaults, **options}


def enough_alone(estimator: Estimator) -> bool:
    """Whether rewards and groups are enough for it, though it may look at more where there is more."""
    if not estimator.needs:
        return estimator.scope in ("group", "batch")
    try:
        estimator([1.0, 0.0], [0, 0])
    except Exception:  # one's own may raise anything
        return False
    return estimator.scope in ("group", "batch")
