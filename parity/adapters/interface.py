"""What an adapter offers."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

Groups = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Function:
    """One function of a framework.

    Args:
        path: Where it is in the framework's package.
        call: Groups of rewards → the advantage of every completion, in one call of the framework's function.
        noise: Whether it belongs into the table of noise: it should give 0 to a group without spread.
    """

    path: str
    call: Callable[[Groups], list[list[float]]]
    noise: bool = False


def split(flat: Sequence[float], groups: Groups) -> list[list[float]]:
    """A flat result, cut into the groups' lengths."""
    rest = iter(flat)
    return [[float(next(rest)) for _ in group] for group in groups]


def same_size(groups: Groups) -> int:
    """The size of groups that must be equally large, as a matrix asks for."""
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise RaggedGroupsError(f"takes groups of one size, not of {sorted(sizes)}")
    return sizes.pop()


class RaggedGroupsError(ValueError):
    """The framework's function has no way to be given groups of several sizes."""


def skip_package_init(*names: str) -> None:
    """Let modules of a package be imported without what its `__init__` imports besides.

    The modules themselves are the installed ones, untouched. An `__init__` often pulls in a whole engine (a
    server, a GPU library) that the one function needs nothing of.
    """
    for name in names:
        parent, _, last = name.rpartition(".")
        if parent:
            folders = [str(Path(folder) / last) for folder in sys.modules[parent].__path__]
        else:
            spec = find_spec(name)
            folders = list(spec.submodule_search_locations or []) if spec else []
        package = types.ModuleType(name)
        package.__path__ = folders
        sys.modules[name] = package
