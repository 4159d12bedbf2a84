"""Command-line options out of dataclasses, by tyro, with its complaints on one line."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TextIO, TypeVar, cast, get_type_hints

import tyro

from grouprl.errors import ConfigError

T = TypeVar("T")


def parse(kind: type[T], arguments: Sequence[str], *, prog: str, description: str, default: Any = None) -> T:
    """An instance of a dataclass from command-line arguments.

    Raises:
        ConfigError: An option that is not known, or a value that does not fit, on one line.
        SystemExit: After --help.
    """
    complaint, shown = io.StringIO(), _Shown(sys.stdout)
    keywords = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(shown):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=list(arguments),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
                registry=HELP_AS_WRITTEN,
                **keywords,
            )
    except SystemExit as stopped:
        if stopped.code in (0, None):
            text, width = shown.getvalue(), shutil.get_terminal_size().columns
            print(wrapped(text, width) if {"-h", "--help"} & set(arguments) else text, end="")
            raise
        raise ConfigError(
            f"{prog.split()[-1]}: {_one_line(complaint.getvalue())}; {prog} --help lists the options"
        ) from None


HELP_AS_WRITTEN = tyro.constructors.ConstructorRegistry()


@HELP_AS_WRITTEN.struct_rule
def _fields_with_help(
    info: tyro.constructors.StructTypeInfo,
) -> tyro.constructors.StructConstructorSpec | None:
    """A dataclass's fields, the string under each its help, as one paragraph.

    tyro's own rule keeps a line break of the source wherever the next line does not begin with a letter, as no indented
    one does.
    """
    kind = info.type
    if not dataclasses.is_dataclass(kind):
        return None
    hints, said = get_type_hints(kind, include_extras=True), _help(kind)
    return tyro.constructors.StructConstructorSpec(
        instantiate=kind,
        fields=tuple(
            tyro.constructors.StructFieldSpec(
                name=field.name,
                type=hints[field.name],
                default=getattr(info.default, field.name, _default(field)),
                helptext=said.get(field.name),
            )
            for field in dataclasses.fields(kind)
        ),
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING_NONPROP


@functools.cache
def _help(kind: type) -> dict[str, str]:
    """The string under each field of a dataclass, its lines joined."""
    try:
        definition = cast(ast.ClassDef, ast.parse(inspect.getsource(kind)).body[0])
    except OSError:  # without its source, in a frozen application
        return {}
    said = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                said[name] = " ".join(text.split())
    return said


class _Shown(io.StringIO):
    """What is to be printed, as for where it goes: in colours to a terminal, with frames where it can show them."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self._target = target

    def isatty(self) -> bool:
        return self._target.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return (self._target.encoding or "").lower()


def wrapped(text: str, width: int) -> str:
    """tyro's help, the paragraphs above its frames wrapped; it leaves each of them on a line of its own.

    >>> print(wrapped("Adds what is there.\\n\\n\\n  grouprl --help  of all", 12), end="")
    Adds what is
    there.
    <BLANKLINE>
      grouprl --help  of all
    """
    lines: list[str] = []
    for line in text.splitlines():
        if line[:1].isalpha():
            lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        elif line or lines[-1:] != [""]:  # of two empty lines one
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


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
