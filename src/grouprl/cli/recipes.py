"""`grouprl recipes`: the named settings that `grouprl train --recipe` starts from."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from grouprl.cli.options import parse
from grouprl.training import recipes

DESCRIPTION = """The recipes: the settings of a paper under a name, to start from with grouprl train --recipe NAME.

  grouprl recipes             all of them, with what each is
  grouprl recipes dapo        one of them as TOML, to read, or to save and change:
                              grouprl recipes dapo > mine.toml; grouprl train mine.toml"""


@dataclass(frozen=True)
class RecipeArguments:
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    """Print this one as TOML."""


def recipes_command(arguments: Sequence[str]) -> int:
    """Run it. Returns the exit code."""
    given = parse(RecipeArguments, arguments, prog="grouprl recipes", description=DESCRIPTION)
    if given.name is not None:
        print(recipes.text(given.name), end="")
        return 0
    for name in recipes.names():
        print(name)
        print(textwrap.fill(recipes.summary(name), 96, initial_indent="    ", subsequent_indent="    "))
    return 0
