"""Named starting points: the settings of a paper, as TOML, under whatever a configuration says itself.

    defaults  <  recipe  <  configuration  <  command line

Each file here is one recipe: its first comment says what it is and where it comes from. What a recipe does not name
keeps its default, so it goes with any model, task and size.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from grouprl.errors import ConfigError

SUFFIX = ".toml"


@cache
def names() -> tuple[str, ...]:
    """All recipes, in alphabetical order."""
    found = (entry.name for entry in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX)))


def text(name: str) -> str:
    """A recipe as it stands, comments included.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        raise ConfigError(
            f"recipe is {name!r}, expected one of {', '.join(names())}"
            f"{f'; did you mean {near[0]!r}?' if near else '; grouprl recipes shows them'}"
        )
    return (files(__package__) / f"{name}{SUFFIX}").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """What a recipe is: its first comment, on one line."""
    lines = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def read(name: str) -> dict[str, Any]:
    """A recipe's settings, as nested dictionaries."""
    return tomllib.loads(text(name))


def over(recipe: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A table's settings over a recipe's, table by table.

    What belongs to a choice goes with it: the recipe's options of an estimator where the table names another, its
    weights where the table names rewards.

    >>> over({"steps": 1, "rollout": {"top_k": 3, "top_p": 0.5}}, {"rollout": {"top_k": 9}})
    {'steps': 1, 'rollout': {'top_k': 9, 'top_p': 0.5}}
    """
    merged = dict(recipe)
    for key, value in table.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    theirs, ours = recipe.get("advantage", {}), table.get("advantage", {})
    if isinstance(ours, Mapping) and ours.get("estimator", theirs.get("estimator")) != theirs.get(
        "estimator"
    ):
        merged["advantage"] = dict(ours)
    if table.get("reward") and "reward_weights" not in table:
        merged.pop("reward_weights", None)
    return merged
