"""A fault: what is done, what must be true afterwards, and the function that does it and looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faults.place import Place


class Untrue(AssertionError):  # noqa: N818  (reads better in the table)
    """Something that must be true after a fault is not."""


class NotTried(Exception):  # noqa: N818  (likewise)
    """The fault cannot be done on this machine; the message says why."""


@dataclass(frozen=True)
class Fault:
    """One line of the table.

    Args:
        name: What --only takes.
        done: What is done.
        must: What must be true afterwards.
        act: Does it, in a place of its own, and returns what was seen; raises where it is untrue, or `NotTried`.
    """

    name: str
    done: str
    must: str
    act: Callable[[Place], str]


FAULTS: dict[str, Fault] = {}
"""All of them, in the order of the table."""


def fault(*, done: str, must: str) -> Callable[[Callable[[Place], str]], Callable[[Place], str]]:
    """Register a function as a fault, under its own name."""

    def register(act: Callable[[Place], str]) -> Callable[[Place], str]:
        FAULTS[act.__name__] = Fault(act.__name__, done, must, act)
        return act

    return register


def check(true: object, said: str) -> None:
    """Raise `Untrue` unless it is true."""
    if not true:
        raise Untrue(said)
