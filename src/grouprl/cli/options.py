"""Command-line options out of dataclasses, by tyro, with its complaints on one line."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
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
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
                **keywords,
            )
    except SystemExit as stopped:
        if stopped.code in (0, None):
            raise
        raise ConfigError(
            f"{prog.split()[-1]}: {_one_line(complaint.getvalue())}; {prog} --help lists the options"
        ) from None


def named_value(where: str, text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as TOML writes it; anything else is text.

    Raises:
        ConfigError: There is no such name, or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip().isidentifier()):
        raise ConfigError(f"{where} is {text!r}, expected NAME=VALUE, such as eps=1e-4")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def plural(count: int, what: str) -> str:
    """ "1 problem", "2 problems"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _one_line(box: str) -> str:
    """tyro's framed complaint without its frame, its title and the help of the options it suggests."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    stripped = [
        line.strip(" │|╭╮╰╯+").strip("─- ") if _is_rule(line) else line.strip(" │|")
        for line in text.splitlines()
    ]
    title, *framed = [line for line in stripped if line] or [""]
    complaint, _, suggestions = "\n".join(framed or [title]).partition("Perhaps you meant")
    complaint = re.split("Argument helptext|For full helptext", complaint)[0]
    suggested = re.search(r"--[\w-]+", suggestions)
    return " ".join(complaint.split()).rstrip(".") + (f"; did you mean {suggested[0]}?" if suggested else "")


def _is_rule(line: str) -> bool:
    """A line of the frame, which may hold the title."""
    return "──" in line or "--------" in line
