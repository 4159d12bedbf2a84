"""Formats of rollouts that `grouprl.records.read` knows: one module each, and this list of them.

A new one is a module with a `FORMAT`, its line here, a file of it for tests, and a line in docs/records.md.
"""

from __future__ import annotations

from grouprl.errors import InputError
from grouprl.records.formats import (
    areal,
    art,
    grouprl,
    ms_swift,
    nemo_rl,
    open_instruct,
    roll,
    table,
    tinker_cookbook,
    trl,
    verifiers,
    verl,
)
from grouprl.records.formats.format import FILE_STEP, Format, Head, Layout, Options

__all__ = ["FILE_STEP", "FORMATS", "Format", "Head", "Layout", "Options", "get", "names"]

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        grouprl,
        trl,
        verl,
        verifiers,
        open_instruct,
        tinker_cookbook,
        nemo_rl,
        roll,
        ms_swift,
        areal,
        art,
        table,  # the last to be asked: it takes any file with a reward
    )
}


def names() -> tuple[str, ...]:
    """What `read(format=…)` takes."""
    return tuple(FORMATS)


def get(name: str) -> Format:
    """The format of this name.

    Raises:
        InputError: There is none.
    """
    if name not in FORMATS:
        raise InputError(
            f"read: no format {name!r}, expected one of {', '.join(FORMATS)}; leave it out to be told"
        )
    return FORMATS[name]
