"""The checks that look for findings, by name; one's own join with the decorator.

@findings.register("short_prompts", finds=["short_prompts"])
def short_prompts(run):
    if ...:
        yield findings.Finding("short_prompts", findings.Severity.INFO, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grouprl.errors import InputError
from grouprl.report.findings.data import RunData
from grouprl.report.findings.finding import Finding

Check = Callable[[RunData], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A check and the names of what it can find."""

    function: Check
    finds: tuple[str, ...]


_CHECKS: dict[str, Registered] = {}


def register(name: str, *, finds: Iterable[str] = ()) -> Callable[[Check], Check]:
    """Make a function a check that every report runs.

    It is given a `RunData` and returns or yields findings. What is not in the records is null there, so a check
    that needs a column finds nothing where there is none. Work on `run.groups` (one row a group, in memory), or
    aggregate `run.rows` (a polars LazyFrame); a loop over rows does not scale.

    Args:
        name: Of the check; not taken by another function (the same one may be registered again).
        finds: The names its findings can have; its own where none is given.

    Raises:
        InputError: The name is taken.
    """

    def keep(function: Check) -> Check:
        known = _CHECKS.get(name)
        if known is not None and known.function is not function:
            raise InputError(f"findings.register: {name!r} is taken, expected a new name; choose another")
        _CHECKS[name] = Registered(function, tuple(finds) or (name,))
        return function

    return keep


def unregister(name: str) -> None:
    """Forget a check.

    Raises:
        InputError: There is none of that name.
    """
    if _CHECKS.pop(name, None) is None:
        raise InputError(f"findings.unregister: no check {name!r}, expected one of {', '.join(_CHECKS)}")


def checks() -> dict[str, Registered]:
    """All checks by name, in the order of their registration."""
    return dict(_CHECKS)


def run_checks(run: RunData, *, stop: Callable[[], bool] = lambda: False) -> list[Finding]:
    """What all checks find, the gravest first and otherwise in the order of registration.

    Args:
        run: The records.
        stop: Asked between checks; once it says so the rest are not made, and what was found is returned.
    """
    found: list[Finding] = []
    for check in list(_CHECKS.values()):
        if stop():
            break
        found += check.function(run)
    return sorted(found, key=lambda finding: -finding.severity)
