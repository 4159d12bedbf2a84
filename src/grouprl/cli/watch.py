"""`grouprl watch`: a page on this machine that follows a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from grouprl.cli.options import parse
from grouprl.errors import ConfigError
from grouprl.report import safe_text
from grouprl.report.watch import WATCHED_COMPLETIONS, Watch

DESCRIPTION = """Show a run in the browser while it is written: the report, kept up to date.

The page is served to this machine alone (127.0.0.1). From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST, with the
same port at both ends. Ctrl-C ends it; the run does not notice either way."""


@dataclass(frozen=True)
class WatchArguments:
    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    port: int = 0
    """The port to listen on; 0 takes a free one."""
    completions: int = WATCHED_COMPLETIONS
    """Most completions in the page, taken evenly over the steps."""


def watch_command(arguments: Sequence[str]) -> int:
    """Serve the page until Ctrl-C."""
    given = parse(WatchArguments, arguments, prog="grouprl watch", description=DESCRIPTION)
    if given.completions < 1:
        raise ConfigError(
            f"grouprl watch: --completions is {given.completions}, expected at least 1; leave it out for "
            f"{WATCHED_COMPLETIONS}"
        )
    if not 0 <= given.port <= 65_535:
        raise ConfigError(f"grouprl watch: --port is {given.port}, expected 0 to 65535; 0 takes a free one")
    with Watch(given.run, port=given.port, most_completions=given.completions) as watch:
        try:
            print(f"{safe_text(str(given.run))} is at {watch.url} (Ctrl-C to end)", flush=True)
            watch.serve()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0
