"""The keyword `process_group`, for functions from rewards to advantages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from grouprl.distributed import across_ranks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PER_COMPLETION = frozenset({"group_ids", "valid", "lengths", "values", "greedy_rewards", "components"})
"""Arguments with an entry for each completion; components hold several such."""


def spanning_ranks(
    name: str, function: Callable[..., Any], per_completion: frozenset[str]
) -> Callable[..., Any]:
    """The function with the keyword `process_group`: its arguments per completion are gathered, then it is called.

    Args:
        name: Public name that an error message begins with.
        function: `(rewards, group_ids=None, **keywords) → advantages`. A class, and one that has that keyword, is
            given back as it is.
        per_completion: Keywords with an entry for each completion, beyond PER_COMPLETION. The first two positional
            arguments always have one. All others must be the same on every rank.
    """
    signature = inspect.signature(function)
    if inspect.isclass(function) or "process_group" in signature.parameters:
        return function
    parameters = list(signature.parameters.values())
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    further = parameters[len(named) :]  # **keywords come last
    positional = [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]
    gathered = PER_COMPLETION | per_completion | frozenset(positional[:2])

    @wraps(function)
    def estimate(*args: Any, process_group: ProcessGroup | None = None, **keywords: Any) -> Any:
        if process_group is None:
            return function(*args, **keywords)
        bound = signature.bind(*args, **keywords)
        bound.apply_defaults()
        given = {p.name: bound.arguments[p.name] for p in named}
        for p in further:
            given |= bound.arguments[p.name]
        inputs = {key: x for key, x in given.items() if key in gathered}
        options = {key: x for key, x in given.items() if key not in gathered}
        return across_ranks(name, function, process_group, inputs, options, several={"components"})

    keyword = inspect.Parameter("process_group", inspect.Parameter.KEYWORD_ONLY, default=None)
    estimate.__signature__ = signature.replace(parameters=[*named, keyword, *further])  # type: ignore[attr-defined]
    estimate.__doc__ = _with_argument(function.__doc__)
    return estimate


def _with_argument(doc: str | None) -> str | None:
    """The docstring with the keyword at the end of its "Args:"."""
    head, title, rest = (doc or "").partition("Args:\n")
    arguments, gap, tail = rest.partition("\n\n")
    if not title or not gap:
        return doc
    indent = arguments[: len(arguments) - len(arguments.lstrip())]
    line = f"\n{indent}process_group: As for `grouprl.group_advantages`."
    return head + title + arguments + line + gap + tail
