"""Command-line options out of dataclasses, by tyro, with its complaints on one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

from grouprl.errors import ConfigError

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, description: str, default: Any = None) -> T:
    """An instance of a dataclass from command-line arguments.

    Raises:
        ConfigError: An option that is not known, or a value that does not fit, on one line.
        SystemExit: After --help.
    """
    complaint = io.StringIO()
    keywords = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=list(arguments),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
                **keywords,
            )
    except SystemExit as stopped:
        if stopped.code in (0, None):
            raise
        raise ConfigError(
            f"{prog}: {_one_line(complaint.getvalue())}; {prog} --help lists the options"
        ) from None


def _one_line(box: str) -> str:
    """tyro's framed complaint without its frame, its title and the help of the options it suggests."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    framed = [line.strip("│| ") for line in text.splitlines() if line.startswith(("│", "|"))]
    complaint, _, suggestions = "\n".join(framed).partition("Perhaps you meant")
    complaint = complaint.partition("Argument helptext")[0]
    complaint = " ".join(word for word in complaint.split() if not set(word) <= {"─", "-"}).rstrip(".")
    suggested = re.search(r"--[\w-]+", suggestions)
    return f"{complaint}; did you mean {suggested[0]}?" if suggested else complaint
